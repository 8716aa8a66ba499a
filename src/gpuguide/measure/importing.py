"""Take records from elsewhere into a folder: checked first, and nothing measured is lost."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from gpuguide.errors import GpuguideError
from gpuguide.measure import records
from gpuguide.measure.records import Record

FULL_COMMIT = re.compile("[0-9a-f]{40}")
BEGINNING = re.compile("[0-9a-f]{7,39}")


def import_records(
    paths: Sequence[Path],
    folder: Path,
    *,
    publish: bool,
    replacing: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> list[Record]:
    """Check records and copy them into ``folder``; nothing is copied unless all are good.

    One's own record of which measurements would be gone is kept beside the new one under another name. Published
    records are in a repository, which keeps them.

    Parameters
    ----------
    paths : sequence of Path
        Record files, or folders of them.
    folder : Path
        The published or the overlay folder.
    publish : bool
        Refuse what must not be published: simulated and stale records, and such without a commit. A commit that is
        named by its first digits is named in full, if git knows it here.
    replacing : bool
        Take a record in also where it would write over measured cases that it lacks, or over another processor's.
    say : callable
        Called with a sentence for each record that is kept under another name.

    Raises
    ------
    GpuguideError
        If a record is damaged or must not be published, two would be one file, measurements would be lost, or there
        is none.
    """
    files = [file for path in paths for file in (sorted(path.glob("**/*.json")) if path.is_dir() else [path])]
    if not files:
        raise GpuguideError(f"There are no records in {', '.join(map(str, paths))}.")
    checked = [with_full_commits(records.read(file)) for file in files]
    places: dict[tuple[str, str], Path] = {}
    for file, record in zip(files, checked, strict=True):
        if (other := places.setdefault((record.device, record.benchmark), file)) != file:
            raise GpuguideError(f"{other} and {file} are of one benchmark on one device. Name the one to import.")
    for record in checked if publish else []:
        refusal = unpublishable(record)
        if refusal:
            raise GpuguideError(f"{record.path} cannot be published: {refusal}.")
    targets = [folder / record.device / f"{record.benchmark}.json" for record in checked]
    for record, target in zip(checked, targets, strict=True):
        if not replacing and (loss := records.find_lost_measurements(record, target)):
            raise GpuguideError(f"{record.path} was not taken in: {loss}. Add --replace to take it all the same.")
    taken = []
    for record, target in zip(checked, targets, strict=True):
        if not publish and (kept := records.set_aside(record, target)):
            say(f"{record.device}/{record.benchmark}: the record that was there is kept as {kept}.")
        taken.append(records.write(replace(record, path=None), target))
    return taken


def with_full_commits(record: Record) -> Record:
    """Return a record whose runs name their commits in full, where they name the beginning of one that git knows."""
    runs = (replace(run, commit=full_commit(run.commit)) if run.commit else run for run in record.runs)
    return replace(record, runs=tuple(runs))


def full_commit(commit: str) -> str:
    """Return the commit that begins with these digits, or the digits themselves if git knows none or several here."""
    if not BEGINNING.fullmatch(commit):
        return commit
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
    try:
        found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        return commit
    return found or commit


def unpublishable(record: Record) -> str | None:
    """Return why a record must not be published, or ``None`` if it may."""
    if record.simulated:
        return "its times come from a fake device"
    if record.stale:
        return "the code has changed since it was measured"
    if any(not FULL_COMMIT.fullmatch(run.commit or "") for run in record.runs):
        return "it does not name in full (40 digits) the commit that measured it, or that commit was modified"
    return None
