"""Front matter of the repository's pages: topics, benchmarks, and the GPU that each speaks of.

The rows of a topic are checked on the GPU of the pages that declare the topic. A library that is installed without the
pages, from a wheel, checks every row on the default GPU.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuguide.errors import GpuguideError
from gpuguide.measure import digest, measured_ceilings, page_gpu, reference_gpu

FRONT_MATTER = re.compile(r"\A---\n(.*?\n)---\n", re.DOTALL)
FOLDERS = ("*.md", "docs/**/*.md", "tutorials/**/*.md")
TEMPLATE = "template.md"
"""Page to copy for a new tutorial; the site does not have it"""
_NAMES_A_GPU = re.compile(r"(?<![\w-])gpu[\"']?[ \t]*:")


@dataclass(frozen=True)
class PageDeclaration:
    """Facts about a page that the ledger needs."""

    place: str
    """The file, and the line that names the GPU or else the topics"""
    topics: tuple[str, ...]
    benchmarks: tuple[str, ...]
    gpu: str
    """The GPU that it names; empty for the default"""

    @property
    def speaks(self) -> bool:
        """False for a page without measurements, whose topics may be of any GPU."""
        return bool(self.gpu or self.benchmarks)

    @property
    def reads(self) -> tuple[str, ...]:
        """The benchmarks that it reads: those that it declares, and those that ceilings are taken from."""
        return (*self.benchmarks, *(measured_ceilings.SOURCES if measured_ceilings.CEILINGS in self.benchmarks else ()))

    @property
    def device(self) -> str:
        """The GPU that it speaks of."""
        return self.gpu or reference_gpu.default_slug()


# --- the front matter ------------------------------------------------------------------------------------


def front_matter(source: str) -> dict[str, Any]:
    """Return the names and values of a page's front matter.

    Raises
    ------
    GpuguideError
        If it is not YAML, or no names and values.
    """
    try:
        import yaml
    except ImportError as error:
        raise GpuguideError("PyYAML, which reads the pages, is missing: pip install 'gpuguide[site]'.") from error
    match = FRONT_MATTER.match(source)
    try:
        front = yaml.safe_load(match[1]) if match else {}
    except yaml.YAMLError as error:
        raise GpuguideError(f"The front matter is not YAML: {error}.") from error
    if not isinstance(front, dict):
        raise GpuguideError(f"The front matter is {front!r}; write names and values.")
    return front


def names(own: Mapping[str, Any], field: str) -> tuple[str, ...]:
    """Return a list of names from the entry ``gpuguide`` of a front matter."""
    value = own.get(field) or []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise GpuguideError(f"The entry gpuguide.{field} of the front matter is {value!r}; write a list of names.")
    return tuple(value)


def gpu_named(own: Mapping[str, Any]) -> str:
    """Return the GPU that the entry ``gpuguide`` of a front matter names, or an empty text.

    Raises
    ------
    GpuguideError
        If it names several, a number of GPUs, or a processor.
    """
    return page_gpu.check_gpu(own["gpu"], "The entry gpuguide.gpu of the front matter") if "gpu" in own else ""


def front_line(source: str, *keys: str) -> int:
    """Return the line of a page's front matter that has the first of these keys that stands there, or the first."""
    front = FRONT_MATTER.match(source)
    lines = front[0].splitlines() if front else []
    found = (
        number
        for key in keys
        for number, line in enumerate(lines, 1)
        if re.search(rf"(?:^|[{{,])\s*{re.escape(key)}\s*:", line)
    )
    return next(found, 1)


# --- all pages -------------------------------------------------------------------------------------------


def all_pages() -> list[PageDeclaration]:
    """Return the pages of the repository if any of them names a GPU; else, all speak of the default, and none."""
    sources = [_front_of(path, *_stamp(path)) for path in _files()]
    if not any(_NAMES_A_GPU.search(front) for front in sources):
        return []
    pages = (_page(path, *_stamp(path)) for path in _files())
    return [page for page in pages if page is not None]


def gpus_of_topics() -> dict[str, str]:
    """Return the GPU of each topic whose pages name one; other topics speak of the default.

    Raises
    ------
    GpuguideError
        If two pages of one topic speak of different GPUs, or one names a GPU without records.
    """
    found: dict[str, PageDeclaration] = {}
    for page in all_pages():
        with page_gpu.use_current_gpu(page.gpu, page.place):
            if page.gpu:
                reference_gpu.check_records()
        for topic in page.topics if page.speaks else ():
            other = found.setdefault(topic, page)
            if other.device != page.device:
                raise GpuguideError(
                    f"The topic {topic!r} has pages on different GPUs: {other.place} speaks of {other.device}, and "
                    f"{page.place} of {page.device}. Name one GPU on all pages of a topic, or give one of them another."
                )
    return {topic: page.device for topic, page in found.items()}


def repository() -> Path | None:
    """Return the folder with the pages; none where the library is installed without them."""
    source = digest.PACKAGE_FOLDER.parent
    return source.parent if source.name == "src" else None


def _files() -> Iterator[Path]:
    root = repository()
    if root is not None:
        for pattern in FOLDERS:
            yield from sorted(path for path in root.glob(pattern) if path.name != TEMPLATE)


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size


@functools.lru_cache(maxsize=512)
def _front_of(path: Path, modified: int, size: int) -> str:
    """Return a page's front matter as it is written, with its fences."""
    found = FRONT_MATTER.match(path.read_text(encoding="utf-8"))
    return found[0] if found else ""


@functools.lru_cache(maxsize=512)
def _page(path: Path, modified: int, size: int) -> PageDeclaration | None:
    source = _front_of(path, modified, size)
    own = front_matter(source).get("gpuguide") or {}
    if not isinstance(own, dict):
        return None  # the build says what is wrong with it
    place = f"{path}:{front_line(source, 'gpu', 'topics')}"
    try:
        return PageDeclaration(place, names(own, "topics"), names(own, "benchmarks"), gpu_named(own))
    except GpuguideError as error:
        raise GpuguideError(f"{place}: {error}") from error
