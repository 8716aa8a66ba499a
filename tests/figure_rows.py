"""What a figure offers as its table, read as a reader's program would read it."""

from __future__ import annotations

import csv
import io

from gpuguide.plotting import Figure


def rows_of(shown: Figure) -> list[dict[str, str]]:
    """Return the rows of a figure's CSV, by the names in its first line."""
    return list(csv.DictReader(io.StringIO(shown.csv)))
