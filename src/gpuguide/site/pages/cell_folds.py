"""Folded cells: neighbours become one fold, whose title says what is inside, to a screen reader too.

MyST-NB folds each cell by itself, under "Show code cell source", and every summary is read out as "Toggle hidden
content". Three such bars above one figure hide from a reader that they belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

from gpuguide.site.pages.folds import fold

if TYPE_CHECKING:
    from sphinx.application import Sphinx

EXERCISES = "exercises"
"""How the section is called in which a folded cell is an answer"""
ANSWER = "Show the answer"
CLASSES = ("gg-fold", "gg-code-fold")
_HIDDEN = {
    "input": {"cell_code_source"},
    "output": {"cell_code_output"},
    "input+output": {"cell_code_source", "cell_code_output"},
    "all": {"cell_code_source", "cell_code_output"},
}
"""Which parts of a cell a reader has to unfold, by the names of MyST-NB"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_post_transform(CellFolds)


class CellFolds(SphinxPostTransform):
    """Puts what is folded of neighbouring cells into one fold; MyST-NB then finds nothing left to fold."""

    default_priority = 198
    formats = ("html",)

    def run(self, **kwargs: Any) -> None:
        """Fold every run of neighbours."""
        for cells in list(runs(self.document)):
            folded = fold("", summary=title_of(cells), classes=[*CLASSES])
            last = cells[-1]
            first_hidden = next(part for part in last.children if _is_hidden(part, last))
            place = len(last) if shows_picture(last) and not _fold_comes_next(last) else last.index(first_hidden)
            for cell in cells:
                hidden = [part for part in cell.children if _is_hidden(part, cell)]
                cell.children = [part for part in cell.children if part not in hidden]
                del cell["hide_mode"]
                folded += hidden
            last.insert(place, folded)
            for cell in cells[:-1]:
                cell.parent.remove(cell)


def runs(document: nodes.document) -> Iterator[list[nodes.Element]]:
    """Yield the folded cells that follow each other: a run ends where one shows something."""
    return group_neighbours(
        document,
        _is_folded,
        lambda before, cell: follows(before, cell) and not shows_something(before) and cell["hide_mode"] != "output",
    )


def group_neighbours(
    document: nodes.document,
    is_meant: Callable[[nodes.Node], bool],
    belong_together: Callable[[nodes.Element, nodes.Element], bool],
) -> Iterator[list[nodes.Element]]:
    """Yield the cells of a page that are meant, those together of which each belongs to the one before it."""
    run: list[nodes.Element] = []
    for cell in document.findall(is_meant):
        assert isinstance(cell, nodes.Element)
        if run and not belong_together(run[-1], cell):
            yield run
            run = []
        run.append(cell)
    if run:
        yield run


def shows_something(cell: nodes.Element) -> bool:
    """Return whether a part of a folded cell is seen."""
    return any(not _is_hidden(part, cell) for part in cell.children)


def title_of(cells: Sequence[nodes.Element]) -> str:
    """Return what stands on a fold: what its author wrote in the option ``fold`` of a cell, else what it holds."""
    for cell in cells:
        if written := (cell.get("cell_metadata") or {}).get("fold"):
            return str(written)
    last = cells[-1]
    if last["hide_mode"] == "output":
        return "What this cell prints"
    if _is_in_exercises(last):
        return ANSWER
    if picture := shows_picture(last):
        return f"Code for this {picture}"
    return "Code for this result" if shows_something(last) else "Code for what follows"


def shows_picture(cell: nodes.Element) -> str:
    """Return ``figure`` or ``table`` if the cell shows one: its code stands below, so that text leads to it."""
    shown = [part for part in cell.children if not _is_hidden(part, cell)]
    for kind, name in ((nodes.figure, "figure"), (nodes.table, "table")):
        if any(True for part in shown for _ in part.findall(kind)):
            return name
    return ""


def _is_folded(node: nodes.Node) -> bool:
    """Return whether a cell has parts to unfold; one that prints nothing has no output to hide."""
    if not isinstance(node, nodes.container) or node.get("nb_element") != "cell_code" or not node.get("hide_mode"):
        return False
    return any(_is_hidden(part, node) for part in node.children)


def _is_hidden(part: nodes.Node, cell: nodes.Element) -> bool:
    if not isinstance(part, nodes.Element):
        return False
    return cell["hide_mode"] == "all" or part.get("nb_element") in _HIDDEN[cell["hide_mode"]]


def _fold_comes_next(cell: nodes.Element) -> bool:
    """Return whether what follows a cell begins with a fold, below which another would hardly be told apart."""
    following = cell.parent.children[cell.parent.index(cell) + 1 :]
    first = next((node for node in following if not isinstance(node, nodes.Invisible)), None)
    return isinstance(first, fold) or (first is not None and _is_folded(first))


def follows(before: nodes.Element, cell: nodes.Element) -> bool:
    """Return whether nothing that is seen stands between two cells."""
    if before.parent is not cell.parent:
        return False
    between = cell.parent.children[cell.parent.index(before) + 1 : cell.parent.index(cell)]
    return all(isinstance(node, nodes.Invisible) for node in between)


def _is_in_exercises(node: nodes.Element) -> bool:
    place: nodes.Node | None = node
    while place is not None and not (isinstance(place, nodes.section) and EXERCISES in place["ids"]):
        place = place.parent
    return place is not None
