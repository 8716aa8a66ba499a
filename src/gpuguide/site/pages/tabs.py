"""Tabs: code cells with the option ``tab`` that follow each other, of which a reader sees one and chooses another.

Radio buttons and style sheets do it, without a script; a notebook and a script have the cells one after the other. By
hand, because sphinx-design makes its tabs of directives, in which MyST-NB executes no cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

from gpuguide.site.pages.cell_folds import follows, group_neighbours

if TYPE_CHECKING:
    from sphinx.application import Sphinx

    from gpuguide.site.pages.page_source import CodeCell

OPTION = "tab"
"""The option of a cell that names its tab"""
OWN = "gpuguide"
"""The label of the tab that may import the library"""
LEGEND = "Code with"
"""What a screen reader says before the labels"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_post_transform(TabbedCells)
    app.add_node(tab_group, html=(open_group, close_group))
    app.add_node(tab_panel, html=(open_panel, close_panel))


class tab_group(nodes.General, nodes.Element):
    """Tabs of which one is seen."""


class tab_panel(nodes.General, nodes.Element):
    """One cell under its ``label``."""


def label_of(options: Mapping[str, Any]) -> str:
    """Return the label of a cell's tab, empty if it is in none."""
    written = options.get(OPTION)
    return "" if written is None else str(written).strip()


def group_cells(lines: Sequence[str], cells: Sequence[CodeCell]) -> list[list[CodeCell]]:
    """Return the cells of a page's source that have a tab, those together that nothing separates."""
    groups: list[list[CodeCell]] = []
    before = None
    for cell in cells:
        if OPTION in cell.options:
            if before is not None and not any(map(_is_seen, lines[before : cell.line - 1])):
                groups[-1].append(cell)
            else:
                groups.append([cell])
            before = _end(lines, cell)
        else:
            before = None
    return groups


def _end(lines: Sequence[str], cell: CodeCell) -> int:
    """Return the number of the line that closes a cell's fence."""
    return next(
        (number for number, line in enumerate(lines[cell.line :], cell.line + 1) if line.rstrip() == "```"), len(lines)
    )


def _is_seen(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("%")


class TabbedCells(SphinxPostTransform):
    """Puts neighbouring cells with a tab into one group; a cell whose tab would be the only one stays as it is."""

    default_priority = 199  # when neighbouring folds have been put together
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Group every run of neighbours."""
        groups = [cells for cells in group_neighbours(self.document, _has_tab, follows) if len(cells) > 1]
        for number, cells in enumerate(groups, start=1):
            parent = cells[0].parent
            place = parent.index(cells[0])
            panels = [tab_panel("", cell, label=_label_of_node(cell)) for cell in cells]
            for cell in cells:
                parent.remove(cell)
            parent.insert(place, tab_group("", *panels, name=f"tabs-{number}"))


def _has_tab(node: nodes.Node) -> bool:
    is_cell = isinstance(node, nodes.container) and node.get("nb_element") == "cell_code"
    return is_cell and bool(_label_of_node(node))


def _label_of_node(cell: nodes.Node) -> str:
    return label_of(cell.get("cell_metadata") or {}) if isinstance(cell, nodes.Element) else ""


def open_group(translator: Any, node: tab_group) -> None:
    """Write the beginning of a group of tabs."""
    translator.body.append(
        f'<fieldset class="gg-tabs"><legend class="gg-tabs-legend visually-hidden">{LEGEND}</legend>'
    )


def close_group(translator: Any, node: tab_group) -> None:
    """Write the end of a group of tabs."""
    translator.body.append("</fieldset>")


def open_panel(translator: Any, node: tab_panel) -> None:
    """Write the button and the label that show a panel, and the beginning of the panel."""
    group = node.parent
    number = group.index(node)
    name = group["name"]
    choice = f'<input type="radio" name="{name}" id="{name}-{number + 1}"{" checked" * (number == 0)}>'
    label = f'<label class="gg-tab-label" for="{name}-{number + 1}">{escape(node["label"])}</label>'
    translator.body.append(f'{choice}{label}<div class="gg-tab-panel">')


def close_panel(translator: Any, node: tab_panel) -> None:
    """Write the end of a panel."""
    translator.body.append("</div>")
