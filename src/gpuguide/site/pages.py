"""What a page's source says about itself: its front matter, and the code that it runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from gpuguide.errors import GpuguideError

_FRONT_MATTER = re.compile(r"\A---\n(.*?\n)---\n", re.DOTALL)
_CODE_CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```[ \t]*$", re.DOTALL | re.MULTILINE)
_CELL_OPTIONS = re.compile(r"\A(?:---\n.*?^---\n|(?::[^\n]*\n)+)", re.DOTALL | re.MULTILINE)
_DISPLAY_NAME = re.compile(r"^(  display_name: .*)$", re.MULTILINE)
_KNOWN = {"benchmarks", "extras", "downloads"}


@dataclass(frozen=True)
class Page:
    """The parts of a page's source that decide how it is executed."""

    executed: bool
    """True for a notebook, which names a kernel in its front matter"""
    benchmarks: tuple[str, ...] = ()
    """The records that it may read"""
    extras: tuple[str, ...] = ()
    """The optional dependencies that it needs"""
    downloads: str = "nothing"
    """What running it fetches from elsewhere, in words"""
    code: str = ""
    """All code cells, joined"""
    front_matter: Mapping[str, Any] = field(default_factory=dict)


def read(source: str) -> Page:
    """Read a page's source.

    Raises
    ------
    GpuguideError
        If the front matter is not YAML, or its ``gpuguide`` entry holds what no one reads.
    """
    match = _FRONT_MATTER.match(source)
    try:
        front = yaml.safe_load(match[1]) if match else {}
    except yaml.YAMLError as error:
        raise GpuguideError(f"The front matter is not YAML: {error}.") from error
    if not isinstance(front, dict):
        raise GpuguideError(f"The front matter is {front!r}; write names and values.")
    own = front.get("gpuguide") or {}
    if not isinstance(own, dict) or set(own) - _KNOWN:
        raise GpuguideError(f"The entry gpuguide of the front matter is {own!r}; it holds {', '.join(sorted(_KNOWN))}.")
    return Page(
        executed="kernelspec" in front,
        benchmarks=_names(own, "benchmarks"),
        extras=_names(own, "extras"),
        downloads=str(own.get("downloads", "nothing")),
        code="\n".join(_code(cell) for cell in _CODE_CELL.findall(source)),
        front_matter=front,
    )


def marked(source: str, digest: str) -> str:
    """Return the source with ``digest`` in the kernel's display name, which the execution cache hashes.

    The line is extended and none is added, so that line numbers in messages stay those of the file.

    Raises
    ------
    GpuguideError
        If there is no ``display_name`` on a line of its own.
    """
    front = _FRONT_MATTER.match(source)
    head, count = _DISPLAY_NAME.subn(rf"\1 {digest}", front[0] if front else "", count=1)
    if count != 1:
        raise GpuguideError(
            "The front matter of an executed page needs display_name on a line of its own, by kernelspec."
        )
    return head + source[len(front[0]) if front else 0 :]


def _names(entry: Mapping[str, Any], field: str) -> tuple[str, ...]:
    value = entry.get(field) or []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise GpuguideError(f"The entry gpuguide.{field} of the front matter is {value!r}; write a list of names.")
    return tuple(value)


def _code(cell: str) -> str:
    """Return a cell's Python: without its options, and without lines that only IPython understands."""
    lines = _CELL_OPTIONS.sub("", cell, count=1).splitlines()
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines)
