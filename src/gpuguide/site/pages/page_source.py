"""What a page's source says about itself: its front matter, and the code that it runs."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpuguide.claims import pages
from gpuguide.claims.pages import FRONT_MATTER
from gpuguide.errors import GpuguideError

_CODE_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_CELL_OPTIONS = re.compile(r"\A(?:---\n.*?^---\n|(?::[^\n]*\n)+)", re.DOTALL | re.MULTILINE)
_DISPLAY_NAME = re.compile(r"^(  display_name: .*)$", re.MULTILINE)
_KNOWN = {"topics", "benchmarks", "gpu", "extras", "gpu-extras", "downloads", "not-run", "queries"}


@dataclass(frozen=True)
class PageSource:
    """The parts of a page's source that decide how it is executed."""

    executed: bool
    """True for a notebook, which names a kernel in its front matter"""
    topics: tuple[str, ...] = ()
    """What it is about, by the names that modules, benchmarks and claims have too"""
    benchmarks: tuple[str, ...] = ()
    """The records that it may read"""
    gpu: str = ""
    """The GPU whose records it speaks of, by the name of their folder; empty for the default"""
    extras: tuple[str, ...] = ()
    """The optional dependencies that it needs"""
    gpu_extras: tuple[str, ...] = ()
    """Those of which a machine with a GPU needs one besides, to run the cells that measure it"""
    queries: tuple[str, ...] = ()
    """What people type into a search box whom it wants to answer"""
    downloads: str = "nothing"
    """What running it fetches from elsewhere, in words"""
    not_run: str = ""
    """Why the page is not executed although it has code, with the day; empty if it is executed"""
    code: str = ""
    """All code cells, joined"""
    front_matter: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CodeCell:
    """One code cell of a page's source."""

    line: int
    """The line of its fence, counted from one"""
    options: Mapping[str, Any]
    """Its metadata, with the tags"""
    code: str
    """Its Python, below as many empty lines as it has lines above it, so that line numbers are those of the page"""

    @property
    def tags(self) -> list[str]:
        """Its tags."""
        tags = self.options.get("tags") or []
        return [tags] if isinstance(tags, str) else [str(tag) for tag in tags]


@functools.lru_cache(maxsize=256)
def cells(source: str) -> tuple[CodeCell, ...]:
    """Return the code cells of a page's source in order.

    Raises
    ------
    GpuguideError
        If a cell's options are not YAML.
    """
    found = []
    for block in _CODE_CELL.finditer(source):
        line = source.count("\n", 0, block.start()) + 1
        head = _CELL_OPTIONS.match(block[1])
        text = head[0] if head else ""
        written = text.strip().strip("-") if text.startswith("---") else re.sub(r"^:", "", text, flags=re.MULTILINE)
        try:
            options = yaml.safe_load(written) or {}
        except yaml.YAMLError as error:
            raise GpuguideError(f"The options of the cell on line {line} are not YAML: {error}.") from error
        above = "\n" * (line + text.count("\n"))
        found.append(CodeCell(line, options if isinstance(options, dict) else {}, above + _code(block[1])))
    return tuple(found)


@functools.lru_cache(maxsize=256)
def read(source: str) -> PageSource:
    """Read a page's source.

    Raises
    ------
    GpuguideError
        If the front matter is not YAML, or its ``gpuguide`` entry holds what no one reads.
    """
    front = pages.front_matter(source)
    own = front.get("gpuguide") or {}
    if not isinstance(own, dict) or set(own) - _KNOWN:
        raise GpuguideError(f"The entry gpuguide of the front matter is {own!r}; it holds {', '.join(sorted(_KNOWN))}.")
    return PageSource(
        executed="kernelspec" in front,
        topics=pages.names(own, "topics"),
        benchmarks=pages.names(own, "benchmarks"),
        gpu=pages.gpu_named(own),
        extras=pages.names(own, "extras"),
        gpu_extras=pages.names(own, "gpu-extras"),
        queries=pages.names(own, "queries"),
        downloads=str(own.get("downloads", "nothing")),
        not_run=str(own.get("not-run", "")),
        code="\n".join(_code(cell) for cell in _CODE_CELL.findall(source)),
        front_matter=front,
    )


def mark_digest(source: str, digest: str) -> str:
    """Return the source with ``digest`` in the kernel's display name, which the execution cache hashes.

    The line is extended and none is added, so that line numbers in messages stay those of the file.

    Raises
    ------
    GpuguideError
        If there is no ``display_name`` on a line of its own.
    """
    front = FRONT_MATTER.match(source)
    head, count = _DISPLAY_NAME.subn(rf"\1 {digest}", front[0] if front else "", count=1)
    if count != 1:
        raise GpuguideError(
            "The front matter of an executed page needs display_name on a line of its own, by kernelspec."
        )
    return head + source[len(front[0]) if front else 0 :]


def front_line(source: str, key: str) -> int:
    """Return the line of a page's front matter that has this key, counted from one, or the first line."""
    return pages.front_line(source, key)


def _code(cell: str) -> str:
    """Return a cell's Python: without its options, and without lines that only IPython understands."""
    lines = _CELL_OPTIONS.sub("", cell, count=1).splitlines()
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines)
