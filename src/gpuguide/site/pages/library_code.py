"""The directive ``library-code``: a whole function or class of the library on the page that teaches it.

A page that only imports what it is about hides it. The text is the library's own, so it cannot differ from what runs;
in a notebook it is Markdown, because the library is installed there.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gpuguide.errors import GpuguideError
from gpuguide.measure import digest
from gpuguide.site.execution import faults
from gpuguide.site.search_and_links.code_names import definition

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("library-code", LibraryCode)


class LibraryCode(SphinxDirective):
    """``{library-code} gpuguide.sampling.keep_top_p``: the source of what this name stands for."""

    required_arguments = 1

    def run(self) -> list[Node]:
        """Return the code; the page is read again when the file changes that it is from."""
        path, code = None, ""
        with faults.report_errors(self.get_location()):
            path, code = source_of(self.arguments[0])
        if path is None:
            return []
        self.env.note_dependency(str(path))
        block = nodes.literal_block(code, code, language="python", classes=["gg-library-code"])
        self.set_source_info(block)
        return [block]


def source_of(name: str) -> tuple[Path, str]:
    """Return the file that defines a function or class of the library, and its source with decorators.

    Parameters
    ----------
    name : str
        In full, also by a package's face: ``gpuguide.sampling.keep_top_p``.

    Raises
    ------
    GpuguideError
        If the library has no such function or class.
    """
    found = definition(name)
    if found is None or not isinstance(found.node, ast.FunctionDef | ast.ClassDef):
        raise GpuguideError(
            f"The library has no function or class {name!r}. Write its full name: gpuguide.MODULE.NAME."
        )
    path = digest.module_path(found.module)
    lines = path.read_text(encoding="utf-8").splitlines()
    first = min([found.node.lineno, *(each.lineno for each in found.node.decorator_list)])
    return path, "\n".join(lines[first - 1 : found.node.end_lineno])
