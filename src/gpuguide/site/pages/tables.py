"""Tables as document nodes, from rows of text or nodes.

By hand, because the tables of docutils are made from text, and cells here hold links and numbers with their sources.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from docutils import nodes

Cell: TypeAlias = "str | nodes.Node | Sequence[nodes.Node]"


def table(header: Sequence[Cell], rows: Sequence[Sequence[Cell]], *, classes: Sequence[str] = ()) -> nodes.table:
    """Return a table whose first column names its rows."""
    group = nodes.tgroup(cols=len(header))
    group += [nodes.colspec(colwidth=1) for _ in header]
    group += nodes.thead("", _row(header))
    group += nodes.tbody("", *[_row(row) for row in rows])
    return nodes.table("", group, classes=[*classes])


def _row(cells: Sequence[Cell]) -> nodes.row:
    return nodes.row("", *[nodes.entry("", _paragraph(cell)) for cell in cells])


def _paragraph(cell: Cell) -> nodes.paragraph:
    if isinstance(cell, str):
        return nodes.paragraph("", cell)
    children = [cell] if isinstance(cell, nodes.Node) else list(cell)
    return nodes.paragraph("", "", *children)
