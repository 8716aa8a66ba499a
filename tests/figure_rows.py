"""The drawings that there are, and what a figure offers as its table, read as a reader's program would."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

from gpuguide.plotting import Figure, pictures


def rows_of(shown: Figure) -> list[dict[str, str]]:
    """Return the rows of a figure's CSV, by the names in its first line."""
    return list(csv.DictReader(io.StringIO(shown.csv)))


def drawings() -> dict[str, Callable[[], Figure]]:
    """Return the functions of gpuguide.plotting.pictures that draw a figure."""
    return {
        name: function
        for module in (getattr(pictures, name) for name in pictures.__all__)
        for name, function in vars(module).items()
        if getattr(function, "__module__", "") == module.__name__ and not name.startswith("_")
        if getattr(function, "__annotations__", {}).get("return") == "Figure"
    }
