"""What a page was made from, beyond its own text: files, records, and folders in which files may appear."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpuguide.measure import digest, store
from gpuguide.measure.records import Record

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("env-get-outdated", changed_pages)
    app.connect("env-purge-doc", forget)


@contextmanager
def site_reads() -> Iterator[None]:
    """Let a role or directive read any record: what a page declares binds only the code that it runs."""
    declared = os.environ.pop(store.DECLARED_VARIABLE, None)
    try:
        yield
    finally:
        if declared is not None:
            os.environ[store.DECLARED_VARIABLE] = declared


def note_record(env: BuildEnvironment, record: Record) -> None:
    """Read the page again when the record changes, or the code that decides whether it is stale."""
    if record.path is not None:
        env.note_dependency(str(record.path))
    declared = digest.benchmark_modules()
    if record.benchmark in declared:
        for module in digest.transitive([declared[record.benchmark]]):
            if not digest.is_harness(module):
                env.note_dependency(str(digest.module_path(module)))


def note_folder(env: BuildEnvironment, folder: Path) -> None:
    """Read the page again when a file in ``folder`` appears, changes or goes."""
    _watched(env).setdefault(env.docname, {})[str(folder)] = content(folder)


def content(folder: Path) -> str:
    """Return a digest of the names, sizes and times of the records, or of the ledger's files, in a folder."""
    total = hashlib.sha256()
    for path in sorted([*folder.glob("**/*.json"), *folder.glob("*.toml")]):
        status = path.stat()
        total.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return total.hexdigest()


def changed_pages(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Return the pages that watch a folder whose content is not what it was."""
    now = {folder: content(Path(folder)) for folders in _watched(env).values() for folder in folders}
    return [
        docname
        for docname, folders in _watched(env).items()
        if any(now[folder] != then for folder, then in folders.items())
    ]


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop what a page watched, before it is read again."""
    _watched(env).pop(docname, None)


def _watched(env: BuildEnvironment) -> dict[str, dict[str, str]]:
    folders: dict[str, dict[str, str]] = vars(env).setdefault("gpuguide_folders", {})
    return folders
