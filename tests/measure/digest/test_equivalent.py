"""The list of changes that change no measurement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuguide.errors import GpuguideError
from gpuguide.measure import digest, folders, store
from gpuguide.measure.digest import equivalent
from gpuguide.measure.digest.equivalent import Equivalence

A, B, C = (f"sha256:{letter * 64}" for letter in "abc")
ROW = Equivalence("copy-size", A, B, "1" * 40, 'A parameter is called "rows" now.')


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert equivalent.rows(tmp_path) == ()
    both = (ROW, replace(ROW, old=B, new=C))
    equivalent.write(tmp_path, both)
    assert equivalent.rows(tmp_path) == both


def test_rows_lead_on_and_never_back() -> None:
    rows = [ROW, replace(ROW, old=B, new=C), replace(ROW, old=C, new=A, benchmark="ceilings")]
    assert equivalent.is_equivalent(rows, "copy-size", A, C)
    assert equivalent.is_equivalent(rows, "copy-size", A, A)
    assert not equivalent.is_equivalent(rows, "copy-size", C, A)
    assert not equivalent.is_equivalent(rows, "ceilings", A, B)


def test_rows_that_go_round_in_a_circle_end() -> None:
    rows = [ROW, replace(ROW, old=B, new=A)]
    assert not equivalent.is_equivalent(rows, "copy-size", A, C)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (ROW, None),
        (replace(ROW, old=C), C),
        (replace(ROW, new=C), C),
        (replace(ROW, benchmark="copysize"), "copysize"),
    ],
)
def test_digests_that_belong_to_nothing_are_named(row: Equivalence, named: str | None) -> None:
    found = list(equivalent.faults([row], {"copy-size": {A}}, {"copy-size": B}))
    assert len(found) == (named is not None)
    assert named is None or named in found[0]


def test_rows_that_follow_each_other_are_no_fault() -> None:
    rows = [ROW, replace(ROW, old=B, new=C)]
    assert not list(equivalent.faults(rows, {"copy-size": {A}}, {"copy-size": C}))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("equivalent = 3\n", "[[equivalent]]"),
        ("[[equivalent]]\nbenchmark = 'x'\n", "commit"),
        ("[[other]]\n", "[[equivalent]]"),
        ("[[equivalent\n", "TOML"),
        ("old", "old"),
        ("commit", "commit"),
        ("reason", "reason"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_the_field(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / equivalent.FILE
    equivalent.write(tmp_path, [ROW])
    if text in ("old", "commit", "reason"):
        lines = [f'{text} = " "' if line.startswith(text) else line for line in path.read_text().splitlines()]
        text = "\n".join(lines)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(GpuguideError) as raised:
        equivalent.rows(tmp_path)
    assert str(path) in str(raised.value)
    assert named in str(raised.value)


def test_the_published_rows_belong_to_published_records() -> None:
    held: dict[str, set[str]] = {}
    for record in store.load_all_published():
        held.setdefault(record.benchmark, set()).add(record.code_digest)
    today = {name: digest.benchmark_digest(name) for name in digest.benchmark_modules()}
    assert list(equivalent.faults(equivalent.rows(folders.published_folder()), held, today)) == []
