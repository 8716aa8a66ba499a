"""Changes of code that change no measurement, such as a renamed parameter: ``records/equivalent.toml`` lists them.

Whoever makes such a change shows that it is equivalent, and writes a row for each benchmark that reaches the code with
``gpuguide records equivalent``. A record that was measured before the change then counts as fresh after it. Rows follow
each other: what is equivalent to a digest that is equivalent to today's is fresh too.
"""

from __future__ import annotations

import functools
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from gpuguide.errors import GpuguideError

FILE = "equivalent.toml"
TABLE = "equivalent"
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_COMMIT = re.compile("[0-9a-f]{40}")
HEAD = """\
# Changes of measured code that change no measurement. A record with the old digest counts as one with the new digest.
# `gpuguide records equivalent` writes the rows, `gpuguide records verify` checks them, and the page Status shows them.
"""


@dataclass(frozen=True)
class Equivalence:
    """A reviewed change of the code that a benchmark measures with."""

    benchmark: str
    old: str
    """The digest before the change"""
    new: str
    """The digest after it"""
    commit: str
    """The last commit with the old code, 40 digits"""
    reason: str
    """Reason why no measurement changes, in a sentence"""


def rows(folder: Path) -> tuple[Equivalence, ...]:
    """Return the rows of the file in a folder of records; none if there is no file.

    Raises
    ------
    GpuguideError
        If the file is no TOML, or a row lacks a field or holds something else than it should.
    """
    path = folder / FILE
    try:
        status = path.stat()
    except FileNotFoundError:
        return ()
    return _rows(path, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _rows(path: Path, modified: int, size: int) -> tuple[Equivalence, ...]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise GpuguideError(f"{path} is not TOML ({error}).") from error
    listed = content.get(TABLE, [])
    if content.keys() - {TABLE} or not isinstance(listed, list):
        raise GpuguideError(f"{path} holds something else than a list of [[{TABLE}]] tables.")
    return tuple(_row(path, number, row) for number, row in enumerate(listed, 1))


def _row(path: Path, number: int, row: Mapping[str, object]) -> Equivalence:
    names = [field.name for field in fields(Equivalence)]
    wrong = sorted(row.keys() ^ set(names))
    if wrong:
        raise GpuguideError(f"{path}, row {number}: a row has the fields {', '.join(names)}; look at {wrong[0]}.")
    for name in names:
        value = row[name]
        pattern = _DIGEST if name in ("old", "new") else _COMMIT if name == "commit" else re.compile(r"(?s).*\S.*")
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise GpuguideError(f"{path}, row {number}: {name} is {value!r}, which is no {_KINDS.get(name, 'text')}.")
    return Equivalence(**{name: str(row[name]) for name in names})


_KINDS = {"old": "digest (sha256: and 64 digits)", "new": "digest (sha256: and 64 digits)", "commit": "whole commit"}


def is_equivalent(listed: Iterable[Equivalence], benchmark: str, digest: str, today: str) -> bool:
    """Return whether rows lead from a digest of a benchmark to today's."""
    after: dict[str, set[str]] = {}
    for row in listed:
        if row.benchmark == benchmark:
            after.setdefault(row.old, set()).add(row.new)
    seen, waiting = {digest}, [digest]
    while waiting:
        further = after.get(waiting.pop(), set()) - seen
        seen |= further
        waiting += further
    return today in seen


def faults(listed: Iterable[Equivalence], held: Mapping[str, set[str]], today: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with rows: digests that belong to nothing.

    Parameters
    ----------
    listed : iterable of Equivalence
        All rows.
    held : mapping
        The digests that published records of each benchmark hold.
    today : mapping
        The digest of each benchmark as the code stands.
    """
    every = list(listed)
    for row in every:
        before = {other.new for other in every if other.benchmark == row.benchmark}
        after = {other.old for other in every if other.benchmark == row.benchmark}
        if row.benchmark not in today:
            yield f"{row.benchmark}: there is no such benchmark; remove the row"
        elif row.old not in held.get(row.benchmark, set()) | before:
            yield f"{row.benchmark}: no published record has the old digest {row.old}; remove the row"
        elif row.new not in {today[row.benchmark]} | after:
            yield f"{row.benchmark}: the new digest {row.new} is neither today's nor another row's old one"


def write(folder: Path, listed: Iterable[Equivalence]) -> None:
    """Write rows to the file in a folder of records."""
    tables = [
        "\n".join([f"\n[[{TABLE}]]", *(f"{name} = {json.dumps(text)}" for name, text in asdict(row).items())])
        for row in listed
    ]
    (folder / FILE).write_text(HEAD + "\n".join(tables) + "\n", encoding="utf-8")
