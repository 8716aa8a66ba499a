"""Keeping records over changes that change no measurement.

Digests change without the code when they come to be taken in another way. A record is rebased over a commit if it was
fresh there, by that commit's own digests, and nothing that a benchmark reaches has changed since, by today's. Where the
code has changed and a person has shown that it measures the same, :func:`equivalences` gives the rows that say so.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gpuguide.errors import GpuguideError
from gpuguide.measure import digest, folders, records
from gpuguide.measure.digest import equivalent
from gpuguide.measure.digest.equivalent import Equivalence
from gpuguide.measure.digest.source import Tree
from gpuguide.measure.records import Record

ASK = """
import json
from gpuguide.measure import digest
print(json.dumps({name: digest.benchmark_digest(name) for name in digest.benchmark_modules()}))
"""
"""A program that prints the digests of the version of gpuguide that it finds"""
Outcome = Literal["fresh", "rebased", "stale before", "changed since"]


@dataclass(frozen=True)
class Earlier:
    """The library as a commit holds it."""

    tree: Tree
    digests: dict[str, str]
    """The digests of its benchmarks, as it computes them itself"""


def rebase(found: Iterable[Record], commit: str) -> Iterator[tuple[Record, Outcome]]:
    """Yield each record with what became of it; those that are rebased are written anew.

    Parameters
    ----------
    found : iterable of Record
        Records that were read from files.
    commit : str
        Any name that git knows for a commit of this repository.

    Raises
    ------
    GpuguideError
        If this is no git checkout, or the commit is unknown or holds no library that can say its digests.
    """
    with tempfile.TemporaryDirectory() as folder:
        earlier = library_at(commit, Path(folder))
        for record in found:
            outcome = outcome_of(record, earlier)
            if outcome == "rebased" and record.path is not None:
                record = records.write(
                    replace(record, code_digest=digest.benchmark_digest(record.benchmark)), record.path
                )
            yield record, outcome


def outcome_of(record: Record, earlier: Earlier) -> Outcome:
    """Return what becomes of a record."""
    if not record.stale:
        return "fresh"
    if record.harness_version != records.HARNESS_VERSION or record.code_digest != earlier.digests.get(record.benchmark):
        return "stale before"
    if record.benchmark not in digest.benchmark_modules():
        return "changed since"
    then, now = digest.digest_in(earlier.tree, record.benchmark), digest.benchmark_digest(record.benchmark)
    return "rebased" if then == now else "changed since"


def equivalences(found: Iterable[Record], commit: str, reason: str, names: Collection[str] = ()) -> list[Equivalence]:
    """Return a row for each benchmark whose code has changed since a commit and whose records were fresh there.

    Parameters
    ----------
    found : iterable of Record
        The records that should stay fresh.
    commit : str
        The last commit with the old code, by any name that git knows.
    reason : str
        Why no measurement changes, in a sentence.
    names : collection of str
        Only these benchmarks; all by default.

    Raises
    ------
    GpuguideError
        If this is no git checkout, the commit is unknown, or a benchmark of ``names`` needs no row or can have none.
    """
    held: dict[str, set[str]] = {}
    for record in found:
        held.setdefault(record.benchmark, set()).add(record.code_digest)
    listed = equivalent.rows(folders.published_folder())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        earlier = unpack_library(commit, Path(folder))
        declared = digest.declarations(earlier)
        for name in sorted(held.keys() & declared.keys() & digest.benchmark_modules().keys()):
            old, new = digest.digest_in(earlier, name), digest.benchmark_digest(name)
            was_fresh = any(equivalent.is_equivalent(listed, name, other, old) for other in held[name])
            if old != new and was_fresh and (not names or name in names):
                rows.append(Equivalence(name, old, new, full_commit(commit), reason))
    if without := sorted(set(names) - {row.benchmark for row in rows}):
        raise GpuguideError(f"{', '.join(without)}: no record was fresh at {commit} and is stale by today's code.")
    return rows


def full_commit(commit: str) -> str:
    """Return the 40 digits of a commit."""
    root = digest.PACKAGE_FOLDER.parents[1]
    said = subprocess.run(
        ["git", "-C", str(root), "rev-parse", f"{commit}^{{commit}}"], capture_output=True, text=True, check=True
    )
    return said.stdout.strip()


def unpack_library(commit: str, folder: Path) -> Tree:
    """Unpack the library of a commit into a folder."""
    root = digest.PACKAGE_FOLDER.parents[1]
    packed = subprocess.run(
        ["git", "-C", str(root), "archive", "--format=tar", commit, "src/gpuguide"], capture_output=True, check=False
    )
    if packed.returncode:
        raise GpuguideError(f"Git cannot give the library of {commit}: {packed.stderr.decode().strip()}.")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return Tree(folder / "src" / "gpuguide")


def library_at(commit: str, folder: Path) -> Earlier:
    """Unpack the library of a commit into a folder, and ask it for its digests."""
    tree = unpack_library(commit, folder)
    said = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    if said.returncode:
        raise GpuguideError(f"The library of {commit} cannot say its digests: {said.stderr.strip().splitlines()[-1]}")
    return Earlier(tree, json.loads(said.stdout))
