"""What a page was made from, beyond its own text: files, records, folders in which files may appear, the day.

A page is read again when one of them changes. What it shows of other pages is known when all have been read, so it is
written again when any was.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from gpuguide.claims import pages
from gpuguide.measure import digest, folders, reference_gpu
from gpuguide.measure.records import Record
from gpuguide.site.pages import ages

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

DAY = "today"
"""What a page watches, beside the paths of folders, if it shows ages"""
GPUS = "gpus"
"""What a page watches if it shows something of pages that may speak of another GPU"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("env-get-outdated", find_changed_pages)
    app.connect("env-before-read-docs", note_reading)
    app.connect("env-get-updated", pages_that_show_others)
    app.connect("env-purge-doc", forget)
    app.connect("build-finished", note_build, priority=999)


def note_record(env: BuildEnvironment, record: Record) -> None:
    """Read the page again when the record changes, or the code that decides whether it is stale."""
    note_reference(env)
    if record.path is not None:
        env.note_dependency(str(record.path))
    if record.benchmark in digest.benchmark_modules():
        for path in digest.benchmark_files(record.benchmark):
            env.note_dependency(str(path))


def note_reference(env: BuildEnvironment) -> None:
    """Read the page again when another GPU becomes the one that prose speaks of, or what it is called changes."""
    env.note_dependency(str(reference_gpu.settings_file()))
    env.note_dependency(str(digest.module_path("gpuguide.hardware.datasheet").with_suffix(".toml")))


def note_folder(env: BuildEnvironment, folder: Path) -> None:
    """Read the page again when a file in ``folder`` appears, changes or goes."""
    _get_watched(env).setdefault(env.docname, {})[str(folder)] = content(folder)


def note_day(env: BuildEnvironment) -> None:
    """Read the page again on another day than that from which its ages count."""
    _get_watched(env).setdefault(env.docname, {})[DAY] = ages.today().isoformat()


def note_gpus(env: BuildEnvironment) -> None:
    """Read the page again when another page, or a topic of the ledger, comes to speak of another GPU."""
    _get_watched(env).setdefault(env.docname, {})[GPUS] = state_of(env, GPUS)


def note_other_pages(env: BuildEnvironment) -> None:
    """Write the page again when any page was read, and so perhaps run."""
    _get_pages_that_show_others(env).add(env.docname)


def state_of(env: BuildEnvironment, name: str) -> str:
    """Return what a page that watches something compares: the day, the GPUs of pages, or what is in a folder."""
    if name == DAY:
        return ages.today().isoformat()
    if name == GPUS:
        return json.dumps([vars(env).get("gpuguide_gpus", {}), pages.gpus_of_topics()], sort_keys=True)
    return content(Path(name))


def content(folder: Path) -> str:
    """Return a digest of the names, sizes and times of the records, or of the ledger's files, in a folder."""
    total = hashlib.sha256()
    for path in sorted([*folder.glob("**/*.json"), *folder.glob("*.toml")]):
        status = path.stat()
        total.update(f"{path} {status.st_size} {status.st_mtime_ns}\n".encode())
    return total.hexdigest()


def find_changed_pages(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Return the pages that watch a folder whose content is not what it was, other GPUs, or ages of another day."""
    watched = {name for noted in _get_watched(env).values() for name in noted}
    now = {name: state_of(env, name) for name in watched}
    return [
        docname
        for docname, noted in _get_watched(env).items()
        if any(now[name] != then for name, then in noted.items())
    ]


def note_reading(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Remember whether any page is read in this build."""
    vars(app)["gpuguide_pages_read"] = bool(docnames)
    if docnames:
        note_of_build(app).unlink(missing_ok=True)


def note_of_build(app: Sphinx) -> Path:
    """Return where the pages and records of the last build are noted."""
    return Path(app.doctreedir, "last-build.txt")


def pages_and_records(app: Sphinx) -> str:
    """Return a digest of which pages there are, and of the published records."""
    pages = "\n".join(sorted(app.env.found_docs))
    return hashlib.sha256(f"{pages}\n{content(folders.published_folder())}".encode()).hexdigest()


def is_nothing_new(app: Sphinx) -> bool:
    """Return whether no page was read, and pages and records are those of the last build, which got to its end."""
    note = note_of_build(app)
    return (
        not vars(app).get("gpuguide_pages_read", True)
        and note.exists()
        and note.read_text(encoding="utf-8") == pages_and_records(app)
    )


def note_build(app: Sphinx, exception: Exception | None) -> None:
    """Note the pages and records of a build that got to its end."""
    if exception is None:
        note_of_build(app).write_text(pages_and_records(app), encoding="utf-8")


def pages_that_show_others(app: Sphinx, env: BuildEnvironment) -> list[str]:
    """Return the pages that show something of other pages, if any page was read."""
    return sorted(_get_pages_that_show_others(env) & env.found_docs) if vars(app).get("gpuguide_pages_read") else []


def forget(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    """Drop what a page watched and showed, before it is read again."""
    _get_watched(env).pop(docname, None)
    _get_pages_that_show_others(env).discard(docname)


def _get_watched(env: BuildEnvironment) -> dict[str, dict[str, str]]:
    noted: dict[str, dict[str, str]] = vars(env).setdefault("gpuguide_watched", {})
    return noted


def _get_pages_that_show_others(env: BuildEnvironment) -> set[str]:
    noted: set[str] = vars(env).setdefault("gpuguide_pages_that_show_others", set())
    return noted
