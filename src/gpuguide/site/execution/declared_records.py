"""Records that a page's front matter declares: each must be published, and the cells may read no other.

What can be seen in the source is said before any cell runs, with its line. A name that a cell puts together is found
when the cell runs, because its kernel knows what the page declares.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from sphinx.errors import SphinxError

from gpuguide.errors import GpuguideError, unknown
from gpuguide.measure import digest, folders, page_declaration, page_gpu, reference_gpu, store
from gpuguide.site.execution.faults import error_location
from gpuguide.site.pages import page_source

SEVERAL = re.compile(r"\d+x")
"""So many of the page's GPU"""


def check(path: Path, source: str) -> None:
    """Raise, with file and line, if the cells name a record that the page must not read.

    It does not declare it, it does not exist, or it is of another GPU than the page's.
    """
    for line, name in find_undeclared(source):
        raise SphinxError(f"{path}:{line}: {page_declaration.describe_undeclared_record(name)}")
    for line, name, device in find_requests(source):
        with error_location(f"{path}:{line}"):
            if page_gpu.kind(device) not in (reference_gpu.slug(), page_gpu.CPU) and not SEVERAL.fullmatch(device):
                raise GpuguideError(page_declaration.describe_other_gpu(device))
            store.load_published(name, device)


def check_published(page: page_source.PageSource) -> None:
    """Raise if a page declares a benchmark that does not exist, or of which no record is there to speak of."""
    known = digest.benchmark_modules()
    for name in page.benchmarks:
        if name not in known:
            raise unknown("benchmark", name, known)
        held = [path.parent.name for path in folders.published_folder().glob(f"*/{name}.json")]
        if not {page_gpu.kind(device) for device in held} & {reference_gpu.slug(), page_gpu.CPU}:
            raise GpuguideError(
                f"The page declares {name!r}, of which no record is published on "
                f"{store.describe_measured_devices(name, reference_gpu.slug())}. Measure it with 'gpuguide bench run "
                f"{name} --out DIR' and 'gpuguide records import --publish DIR', or remove it from the front matter."
            )


def find_undeclared(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the benchmark wherever a cell names one in full that the page's front matter does not."""
    declared = page_source.read(source).benchmarks
    known = digest.benchmark_modules()
    for node in _code(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name, slash, rest = node.value.partition("/")
            if name in known and name not in declared and (not slash or ":" in rest):
                yield node.lineno, name


def find_requests(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, benchmark and device wherever a cell asks for a published record of a device that it names."""
    for node in _code(source):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load_published":
            values = [*node.args, *(keyword.value for keyword in node.keywords if keyword.arg == "device")]
            names = [
                value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)
            ]
            if len(names) == len(values) == 2:
                yield node.lineno, names[0], names[1]


def _code(source: str) -> Iterator[ast.AST]:
    """Yield everything that the code of a page is made of. A cell that is no Python will say so when it runs."""
    for cell in page_source.cells(source):
        try:
            yield from ast.walk(ast.parse(cell.code))
        except SyntaxError:
            continue
