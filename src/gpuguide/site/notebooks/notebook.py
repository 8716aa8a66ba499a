"""A built page as a notebook: its text as plain Markdown, its code, and the outputs that the execution cache keeps."""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeGuard

import nbformat
from docutils import nodes
from nbformat import v4
from sphinx.errors import SphinxError

from gpuguide.site.execution import outputs_cache
from gpuguide.site.execution.faults import error_location
from gpuguide.site.notebooks import code_cells
from gpuguide.site.pages.tabs import tab_group, tab_panel

if TYPE_CHECKING:
    from sphinx.environment import BuildEnvironment

    from gpuguide.site.notebooks.plain_markdown import PlainMarkdown

KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
LONGEST_ID = 64
"""Characters that nbformat allows"""

_EMBEDDED = re.compile(r"!\[((?:\\.|[^\]\\])*)\]\(data:[^)]*\)")
_TOOL_VERSION = re.compile(r"^#\s+jupytext_version: .*\n", re.MULTILINE)


def load_executed(env: BuildEnvironment, docname: str) -> Any:
    """Return the page as the execution cache keeps it, with ``source_map``: the line before each cell.

    A page that the site shows and does not run is returned without outputs.

    Raises
    ------
    SphinxError
        If the cache does not hold the page.
    """
    from jupyter_cache import get_cache

    notebook = outputs_cache.notebook(env, docname)
    if notebook.metadata.get("mystnb", {}).get("execution_mode") == "off":
        return notebook
    try:
        _, found = get_cache(outputs_cache.folder(env)).merge_match_into_notebook(notebook)
    except KeyError as error:
        raise SphinxError(
            f"{env.doc2path(docname)}: its outputs are not in the execution cache. Remove _build and build again."
        ) from error
    return found


class Pieces:
    """Cuts a page into the cells of a notebook, in the page's order.

    A Markdown cell begins at each heading, so that sections fold in Jupyter and Colab. Cells that the page does not
    show stand where they stand in the source.
    """

    def __init__(self, page: Any, doctree: nodes.document, path: str, markdown: PlainMarkdown) -> None:
        self.page = page
        self.path = path
        self.markdown = markdown
        self.cells: list[Any] = []
        self._text: list[str] = []
        self._place = "page"
        self._count: Counter[str] = Counter()
        shown = {node["cell_index"] for node in doctree.findall(nodes.container) if _is_cell(node)}
        code = [index for index, cell in enumerate(page.cells) if cell.cell_type == "code"]
        self._hidden = [index for index in code if index not in shown]
        self.title, self.purpose, rest = self._opening(doctree)
        self._walk(rest, level=1)
        self._write_hidden_cells(math.inf)
        self._close_text()

    def _opening(self, doctree: nodes.document) -> tuple[str, str, list[nodes.Node]]:
        """Return the title, the first paragraph, and what follows, less the cost card: they fill the first cell."""
        section = next(iter(doctree.findall(nodes.section)), None)
        shown = [node for node in section or () if not isinstance(node, nodes.Invisible)]
        if section is None or len(shown) < 2 or not isinstance(shown[1], nodes.paragraph):
            raise SphinxError(
                f"{self.path}:1: a tutorial begins with a title and one sentence that says what one does."
            )
        rest = [node for node in shown[2:] if "gg-cost" not in _classes(node)]
        self._place = section["ids"][0]
        with self._naming(section):
            return self.markdown.heading(shown[0], 1), self.markdown.block(shown[1]), rest

    def _walk(self, children: Iterable[nodes.Node], level: int) -> None:
        for node in children:
            if isinstance(node, nodes.section):
                self._section(node, level + 1)
            elif _is_cell(node):
                self._write_hidden_cells(self._line(node["cell_index"]))
                self._code(node["cell_index"])
            elif isinstance(node, tab_group):
                self._tabs(node)
            elif isinstance(node, nodes.Element):
                self._write_hidden_cells(node.line or 0)
                with self._naming(node):
                    self._text.append(self.markdown.blocks([node]))

    def _tabs(self, group: tab_group) -> None:
        """Write the cells of tabs one after the other, each below its label."""
        for panel in group.findall(tab_panel):
            (cell,) = panel.children
            assert isinstance(cell, nodes.Element)
            self._write_hidden_cells(self._line(cell["cell_index"]))
            self._text.append(self.markdown.paragraph([nodes.strong("", panel["label"]), nodes.Text(":")]))
            self._code(cell["cell_index"])

    def _section(self, section: nodes.section, level: int) -> None:
        self._write_hidden_cells(section.line or 0)
        self._close_text()
        self._place = section["ids"][0]
        with self._naming(section):
            self._text.append(self.markdown.heading(section[0], level))
        self._walk(section[1:], level)

    def _write_hidden_cells(self, line: float) -> None:
        """Write the cells that the page does not show and that stand above this line of its source."""
        while self._hidden and self._line(self._hidden[0]) < line:
            self._code(self._hidden.pop(0))

    def _line(self, index: int) -> int:
        """Return the line of the source on which a cell's code begins."""
        return int(self.page.metadata.source_map[index]) + 1

    def _code(self, index: int) -> None:
        self._close_text()
        cell = self.page.cells[index]
        with error_location(f"{self.path}:{self._line(index)}"):
            made = v4.new_code_cell(
                code_cells.source(cell), id=self._id(), metadata=code_cells.metadata(cell), outputs=[]
            )
            made.outputs = [nbformat.from_dict(output) for output in code_cells.outputs(cell)]
        made.execution_count = cell.execution_count
        self.cells.append(made)

    def _close_text(self) -> None:
        text = "\n\n".join(block for block in self._text if block)
        self._text = []
        if text:
            self.cells.append(v4.new_markdown_cell(text, id=self._id()))

    def _id(self) -> str:
        """Return an id that only changes in cells of the section that changed."""
        place = re.sub(r"[^a-zA-Z0-9_-]", "-", self._place)[: LONGEST_ID - 4]
        self._count[place] += 1
        return f"{place}-{self._count[place]}"

    def _naming(self, node: nodes.Element) -> error_location:
        return error_location(f"{self.path}:{node.line or 1}")


def assemble(first: list[Any], pieces: Pieces) -> Any:
    """Return a notebook with these opening cells, and the language that executed it."""
    language = copy.deepcopy(pieces.page.metadata.get("language_info", {"name": "python"}))
    made = v4.new_notebook(
        cells=[*first, *copy.deepcopy(pieces.cells)], metadata={"kernelspec": dict(KERNEL), "language_info": language}
    )
    nbformat.validate(made)
    return made


def remove_outputs(notebook: Any) -> Any:
    """Return a copy whose code has not been run."""
    bare = copy.deepcopy(notebook)
    for cell in bare.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return bare


def text(notebook: Any) -> str:
    """Return a notebook as its file's text, always the same for the same notebook."""
    return str(nbformat.writes(notebook)) + "\n"


def script(notebook: Any) -> str:
    """Return a notebook as Python, its Markdown in comments. Cells are marked ``# %%``, as VS Code knows them."""
    import jupytext

    plain = copy.deepcopy(notebook)
    for cell in plain.cells:
        cell.metadata.pop("jupyter", None)
        if cell.cell_type == "markdown":
            cell.source = _EMBEDDED.sub(r"[Image: \1]", cell.source)
    return _TOOL_VERSION.sub("", str(jupytext.writes(plain, fmt="py:percent")), count=1)


def _is_cell(node: nodes.Node) -> TypeGuard[nodes.Element]:
    return isinstance(node, nodes.Element) and node.get("nb_element") == "cell_code"


def _classes(node: nodes.Node) -> list[str]:
    return list(node["classes"]) if isinstance(node, nodes.Element) else []
