"""Results as a table: one call gives HTML on the site, Markdown in a notebook, and text in a script."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuguide.errors import GpuguideError
from gpuguide.units import significant

TABLE_MIME = "application/vnd.gpuguide.table+json"
"""The media type of the bundle that :class:`gpuguide.site.directives.figures.FigureRenderer` turns into HTML"""
_NUMBER = re.compile(r"[<>≈~]?\s?[-+−]?\d")


@dataclass(frozen=True)
class Table:
    """A finished table. Jupyter and the site ask it for the rendition that they show."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Of each column, whether all that stands in it are numbers, which are aligned to the right."""
        columns = list(zip(*self.rows, strict=True))
        return tuple(any(column) and all(_NUMBER.match(cell) for cell in column if cell) for column in columns)

    def __str__(self) -> str:
        """Return the table as text, its columns aligned."""
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        lines = [self.header, tuple("-" * width for width in widths), *self.rows]
        return "\n".join([*filter(None, [self.caption]), *(self._line(cells, widths) for cells in lines)])

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        sides = zip(cells, widths, self.numeric, strict=True)
        return "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in sides).rstrip()

    def markdown(self) -> str:
        """Return the table as Markdown."""
        marks = ["---:" if right else "---" for right in self.numeric]
        lines = [self.header, marks, *self.rows]
        written = ["| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |" for cells in lines]
        return "\n".join([*([f"**{self.caption}**\n"] if self.caption else []), *written])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/markdown": self.markdown(), "text/plain": str(self)}
        if os.environ.get("GPUGUIDE_SITE_BUILD"):
            names = ("header", "rows", "numeric", "caption")
            bundle[TABLE_MIME] = {name: getattr(self, name) for name in names}
        return bundle


def show_table(header: Sequence[str], rows: Sequence[Sequence[object]], *, caption: str = "") -> None:
    """Show results as a table, where they are more than two numbers; ``print`` stays for traces.

    Parameters
    ----------
    header : sequence of str
        What the columns are called. The first column names the rows.
    rows : sequence of sequence
        The cells: text is shown as it is, a float with three significant digits, ``None`` as an empty cell. Columns
        of numbers are aligned to the right.
    caption : str
        What stands above the table, if it needs a title.

    Raises
    ------
    GpuguideError
        If there is no row, a row has another number of cells than the header, or a column or a row has no name, which
        those who hear the table need.

    Examples
    --------
    >>> show_table(["format", "rate"], [["bf16", "700 TFLOP/s"], ["fp32", "50 TFLOP/s"]])
    format         rate
    ------  -----------
    bf16    700 TFLOP/s
    fp32     50 TFLOP/s
    """
    if not rows:
        raise GpuguideError(f"The table with the columns {', '.join(header)} has no row: pass one sequence a row.")
    for row in rows:
        if len(row) != len(header):
            raise GpuguideError(f"A row has {len(row)} cells and the header {len(header)}: {[*row]!r}.")
    if not all(header) or not all(_format_cell(row[0]) for row in rows):
        raise GpuguideError(f"The table {', '.join(header)} has a column or a row without a name: name all of them.")
    table = Table(tuple(header), tuple(tuple(map(_format_cell, row)) for row in rows), caption)
    if "IPython" in sys.modules:  # prints the text where no notebook is running
        from IPython.display import display

        display(table)
    else:
        print(table)


def _format_cell(cell: object) -> str:
    if cell is None:
        return ""
    return significant(cell) if isinstance(cell, float) else str(cell)
