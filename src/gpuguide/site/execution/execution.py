"""Pages run again when something that they use has changed, and only then.

The execution cache of MyST-NB knows a page by its cells, their metadata and its kernel's description. A digest of
all else that the page uses goes into that description: the gpuguide modules it imports, directly or not, the data
files that stand beside them, and the records that its front matter declares. A page whose digest has changed is
read again, and the cache then finds no entry for it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx.errors import SphinxError

from gpuguide.errors import GpuguideError, unknown
from gpuguide.measure import digest, store
from gpuguide.site.pages import page_source

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    os.environ["GPUGUIDE_SITE_BUILD"] = "1"
    app.connect("env-get-outdated", changed_pages)
    app.connect("source-read", prepare)
    app.connect("doctree-read", release)


def changed_pages(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Compute the digest of every executed page, and return the pages whose digest is new."""
    before: dict[str, str] = vars(env).get("gpuguide_digests", {})
    digests = {}
    for docname in env.found_docs:
        path = Path(env.doc2path(docname))
        if path.suffix == ".md":
            with naming(path):
                source = path.read_text(encoding="utf-8")
                page = page_source.read(source)
            if page.executed:
                with naming(f"{path}:{page_source.front_line(source, 'benchmarks')}"):
                    check_published(page)
                    digests[docname] = page_digest(page)
    vars(env)["gpuguide_digests"] = digests
    return [docname for docname, now in digests.items() if before.get(docname) != now]


def check_published(page: page_source.Page) -> None:
    """Raise if a page declares a benchmark that does not exist, or of which no record is published."""
    known = digest.benchmark_modules()
    for name in page.benchmarks:
        if name not in known:
            raise unknown("benchmark", name, known)
        if not any(store.published_folder().glob(f"*/{name}.json")):
            raise GpuguideError(
                f"The page declares {name!r}, of which no record is published. Measure it with 'gpuguide bench run "
                f"{name} --out DIR' and 'gpuguide records import --publish DIR', or remove it from the front matter."
            )


def prepare(app: Sphinx, docname: str, source: list[str]) -> None:
    """Before a page is parsed, and so executed: mark its source, and say which records it may read."""
    now = vars(app.env)["gpuguide_digests"].get(docname)
    if now is None:
        return
    path = Path(app.env.doc2path(docname))
    with naming(path):
        page = page_source.read(source[0])
        for line, name in undeclared(source[0]):
            raise SphinxError(f"{path}:{line}: {store.undeclared(name)}")
        for line, name, device in asked_for(source[0]):
            with naming(f"{path}:{line}"):
                store.published(name, device)
        source[0] = page_source.marked(source[0], now)
    os.environ[store.DECLARED_VARIABLE] = ",".join(page.benchmarks)


def undeclared(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the benchmark wherever a cell names one in full that the page's front matter does not."""
    declared = page_source.read(source).benchmarks
    known = digest.benchmark_modules()
    for node in _code(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name, slash, rest = node.value.partition("/")
            if name in known and name not in declared and (not slash or ":" in rest):
                yield node.lineno, name


def asked_for(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, benchmark and device wherever a cell asks for a published record of a device that it names."""
    for node in _code(source):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "published":
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


def release(app: Sphinx, doctree: nodes.document) -> None:
    """After a page is parsed: what it declared does not hold for the next one."""
    os.environ.pop(store.DECLARED_VARIABLE, None)


def page_digest(page: page_source.Page) -> str:
    """Return a digest of all that a page uses, its own text aside."""
    total = hashlib.sha256()
    try:
        imported = digest.imports_of(page.code)
    except SyntaxError:
        imported = set()  # the cell that fails will say so
    modules = frozenset(digest.transitive(imported))
    total.update(digest.source_digest(modules).encode())
    for path in data_files(modules):
        total.update(path.name.encode() + path.read_bytes())
    for name in page.benchmarks:
        total.update(digest.benchmark_digest(name).encode())  # decides whether its records are stale
        for path in store.record_files(name):
            total.update(path.read_bytes())
    return total.hexdigest()[:16]


def data_files(modules: Iterable[str]) -> Iterator[Path]:
    """Yield the files beside a module, other than Python, that its source names: by name, folder or ``"*.ending"``."""
    for module in sorted(modules):
        yield from _data_files_of(module)


@functools.cache
def _data_files_of(module: str) -> tuple[Path, ...]:
    path = digest.module_path(module)
    text = path.read_text(encoding="utf-8")
    beside = (other for other in path.parent.iterdir() if other.suffix != ".py")
    named = sorted(
        other for other in beside if f'"{other.name}"' in text or (other.suffix and f'"*{other.suffix}"' in text)
    )
    return tuple(
        file for other in named for file in (sorted(other.iterdir()) if other.is_dir() else [other]) if file.is_file()
    )


class naming:
    """Turn an error about a page into one that stops the build and names the place: a file, or ``file:line``."""

    def __init__(self, place: Path | str) -> None:
        self.place = place

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, GpuguideError):
            raise SphinxError(f"{self.place}: {error}") from error
