"""Pages run again when something that they use has changed, and only then.

The execution cache of MyST-NB knows a page by its cells, their metadata and its kernel's description. A digest of
all else that the page uses goes into that description: the gpuguide modules it imports, directly or not, the data
files that stand beside them, the versions of the other packages that these and the page import, the records that its
front matter declares, those that ceilings are taken from if it declares the benchmark ``ceilings``, and the GPU that it
speaks of. A page whose digest has changed is read again, and the cache then finds no entry for it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpuguide.measure import digest, folders, measured_ceilings, records, reference_gpu
from gpuguide.measure.digest import equivalent, remembered
from gpuguide.site.execution import declared_records, installed, page_gpus
from gpuguide.site.execution.faults import error_location
from gpuguide.site.pages import page_source

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("env-get-outdated", find_changed_pages)
    app.connect("source-read", mark)


def find_changed_pages(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Compute the digest of every executed page, and return the pages whose digest is new."""
    before: dict[str, str] = vars(env).get("gpuguide_digests", {})
    digests, gpus = {}, {}
    for docname in env.found_docs:
        path = Path(env.doc2path(docname))
        if path.suffix == ".md":
            with error_location(path):
                source = path.read_text(encoding="utf-8")
                page = page_source.read(source)
            page_gpus.check_named(path, source, page)
            if page.gpu:
                gpus[docname] = page.gpu
            if page.executed:
                with (
                    error_location(f"{path}:{page_source.front_line(source, 'benchmarks')}"),
                    page_gpus.use_gpu_of(page),
                ):
                    declared_records.check_published(page)
                    digests[docname] = entry_digest(docname, page_digest(page))
    page_gpus.note(env, gpus)
    vars(env)["gpuguide_digests"] = digests
    return [docname for docname, now in digests.items() if before.get(docname) != now]


def get_digest(env: BuildEnvironment, docname: str) -> str | None:
    """Return the digest of a page, or ``None`` if it is not executed."""
    digests: dict[str, str] = vars(env)["gpuguide_digests"]
    return digests.get(docname)


def mark(app: Sphinx, docname: str, source: list[str]) -> None:
    """Before a page is parsed: put its digest where the execution cache sees it."""
    now = get_digest(app.env, docname)
    if now is not None:
        with error_location(Path(app.env.doc2path(docname))):
            source[0] = page_source.mark_digest(source[0], now)


def entry_digest(docname: str, digest: str) -> str:
    """Return what names a page's entry in the execution cache: no other page has it, even one with the same code.

    Pages that shared an entry would write it one after the other, and the second might while the first is being read.
    """
    return hashlib.sha256(f"{docname} {digest}".encode()).hexdigest()[:16]


def page_digest(page: page_source.PageSource) -> str:
    """Return a digest of all that a page uses, its own text aside; it speaks of the reference GPU."""
    total = hashlib.sha256()
    modules = frozenset(digest.transitive(_find_modules_imported(page.code)))
    total.update(f"{digest.source_digest(modules)} {page.gpu} {installed.versions(page.code, modules)!r}".encode())
    if "gpuguide.measure.reference_gpu" in modules:
        total.update(reference_gpu.slug().encode())
    for path in data_files(modules):
        total.update(path.name.encode() + path.read_bytes())
    for name in list_benchmarks_read(page):
        for path in folders.record_files(name):
            mine = not path.is_relative_to(folders.published_folder())
            total.update(f"{path.parent.name} {'own' * mine} {is_stale(path)}".encode() + path.read_bytes())
    return total.hexdigest()[:16]


def is_stale(path: Path) -> bool:
    """Return whether a record is stale; remembered between builds, because to read all records takes seconds."""
    judged_by = (path, digest.PACKAGE_FOLDER / "records" / equivalent.FILE)
    states = [(file.stat().st_size, file.stat().st_mtime_ns) for file in judged_by if file.exists()]
    return bool(remembered.answer(f"stale {path} {states}", lambda: records.load(path).stale))


def list_benchmarks_read(page: page_source.PageSource) -> list[str]:
    """Return the benchmarks whose records a page may read: those that it declares, and what ceilings are taken from."""
    ceilings = measured_ceilings.SOURCES if measured_ceilings.CEILINGS in page.benchmarks else ()
    return list(dict.fromkeys((*page.benchmarks, *ceilings)))


def _find_modules_imported(code: str) -> list[str]:
    """Return the modules of gpuguide that the code of a page imports: none if it is no Python."""

    def find() -> list[str]:
        try:
            return sorted(digest.imports_of(code))
        except SyntaxError:
            return []

    return list(remembered.answer(f"modules of code {hashlib.sha256(code.encode()).hexdigest()}", find))


def data_files(modules: Iterable[str]) -> Iterator[Path]:
    """Yield the files beside a module, other than Python, that its source names: by name, folder or ``"*.ending"``."""
    for module in sorted(modules):
        yield from _data_files_of(module)


@functools.cache
def _data_files_of(module: str) -> tuple[Path, ...]:
    path = digest.module_path(module)
    text = path.read_text(encoding="utf-8")
    beside = (other for other in path.parent.iterdir() if other.suffix != ".py" and other.name != "__pycache__")
    named = sorted(
        other for other in beside if f'"{other.name}"' in text or (other.suffix and f'"*{other.suffix}"' in text)
    )
    return tuple(
        file for other in named for file in (sorted(other.iterdir()) if other.is_dir() else [other]) if file.is_file()
    )
