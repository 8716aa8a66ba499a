"""Tables as document nodes, from rows of text or nodes.

By hand, because the tables of docutils are made from text, and cells here hold links and numbers with their sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from docutils import nodes

Cell: TypeAlias = "str | nodes.Node | Sequence[nodes.Node]"


def table(header: Sequence[Cell], rows: Sequence[Sequence[Cell]], *, classes: Sequence[str] = ()) -> nodes.table:
    """Return a table whose first column names its rows."""
    group = nodes.tgroup(cols=len(header))
    group += [nodes.colspec(colwidth=1) for _ in header]
    group += nodes.thead("", _row(header))
    group += nodes.tbody("", *[_row(row) for row in rows])
    return nodes.table("", group, classes=[*classes])


def results(content: Mapping[str, Any]) -> nodes.table:
    """Return the table of :func:`gpuguide.plotting.show_table`: its first column names the rows."""
    made = table(content["header"], content["rows"], classes=["gg-results"])
    for row in made.findall(nodes.row):
        for entry, right in zip(row.children, content["numeric"], strict=True):
            assert isinstance(entry, nodes.entry)
            entry["classes"] += ["gg-right"] * right
    next(iter(made.findall(nodes.colspec)))["stub"] = 1
    if content["caption"]:
        made.insert(0, nodes.title("", content["caption"]))
    return made


def _row(cells: Sequence[Cell]) -> nodes.row:
    return nodes.row("", *[nodes.entry("", _paragraph(cell)) for cell in cells])


def _paragraph(cell: Cell) -> nodes.paragraph:
    if isinstance(cell, str):
        return nodes.paragraph("", cell)
    children = [cell] if isinstance(cell, nodes.Node) else list(cell)
    return nodes.paragraph("", "", *children)
