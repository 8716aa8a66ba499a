from __future__ import annotations

import errno
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuguide.errors import GpuguideError
from gpuguide.measure import records
from gpuguide.measure.records import Case, Rate, Readings, Record, Run

Fields = dict[str, Any]


words = st.text(min_size=1, max_size=20)
names = st.from_regex(r"[a-z][a-z0-9_-]{0,9}", fullmatch=True)
quantities = st.floats(-1e30, 1e30)
times = st.floats(1e-12, 1e6)
optional_words = st.none() | words
readings = st.builds(Readings, *[st.none() | quantities] * len(Readings.__dataclass_fields__))
moments = st.datetimes().map(lambda moment: moment.isoformat(timespec="milliseconds") + "+00:00")
runs = st.builds(
    Run,
    device_name=words,
    driver=optional_words,
    cuda=optional_words,
    python=words,
    versions=st.dictionaries(words, words, max_size=3).map(lambda found: {**found, "torch": "2.11.0"}),
    host_cpu=words,
    host_cores=st.integers(1, 1000),
    before=readings,
    after=readings,
    started_at=moments,
    finished_at=moments,
    elapsed=st.floats(0, 1e6),
    commit=optional_words,
    seed=st.integers(-(2**63) + 1, 2**63 - 1),
    command=words,
    simulated=st.booleans(),
    host_cores_available=st.none() | st.integers(1, 1000) | st.floats(0.01, 1000),
)
further = st.builds(records.metric, words, st.lists(quantities, min_size=1, max_size=5))
rates = st.dictionaries(
    names.filter(lambda name: name != "time").map(lambda name: f"{name}_rate"),
    st.builds(Rate, words, st.floats(0, 1e18)),
    max_size=2,
)


@st.composite
def whole_records(draw: st.DrawFn) -> Record:
    """Return a record of any shape that the harness could write."""
    found = draw(st.lists(runs, min_size=1, max_size=3))
    key_kinds = draw(st.dictionaries(words, st.sampled_from([st.integers(), st.booleans(), words]), max_size=3))
    key_sets = draw(st.lists(st.fixed_dictionaries(key_kinds), min_size=1, max_size=3, unique_by=repr))
    cases: list[Case] = []
    for keys in key_sets:
        for contender in draw(st.lists(words, min_size=1, max_size=3, unique=True)):
            run = len(cases) % len(found)
            status = draw(st.sampled_from(records.STATUSES))
            if status != "ok":
                called = tuple(draw(st.lists(words, max_size=2)))
                cases.append(Case(keys, contender, run, status, draw(words), libraries=called))
                continue
            measured = draw(st.dictionaries(names, further, max_size=2))
            turns = draw(st.lists(st.lists(times, min_size=1, max_size=9), min_size=1, max_size=4))
            counts = map(len, turns) if draw(st.booleans()) else ()
            measured["time"] = records.metric("s", [each for turn in turns for each in turn], counts)
            correct = draw(st.sampled_from(records.CORRECT))
            called = tuple(found[run].versions)
            cases.append(Case(keys, contender, run, "ok", "", correct, measured, draw(rates), called))
    kept = found[: len(cases)]
    return Record(draw(names), draw(names), draw(st.integers(1, 9)), "sha256:" + "a" * 64, tuple(kept), tuple(cases))


@given(whole_records())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_what_is_written_is_read_again(record: Record) -> None:
    assert records.from_json(records.to_json(record)) == record


@given(written=whole_records())
@settings(suppress_health_check=list(HealthCheck))
def test_a_file_that_is_read_and_written_again_is_the_same(written: Record, tmp_path: Path) -> None:
    path = tmp_path / written.device / f"{written.benchmark}.json"
    records.write(written, path)
    before = path.read_bytes()
    assert records.write(records.read(path), path) == replace(written, path=path)
    assert path.read_bytes() == before


def test_a_file_has_one_line_for_each_run_and_case(record_file: Any) -> None:
    record = records.read(record_file.write(record_file.content()))
    lines = records.to_json(record).splitlines()
    assert sum(line.startswith('  {"device_name"') for line in lines) == len(record.runs)
    assert sum(line.startswith('  {"keys"') for line in lines) == len(record.cases)


def test_text_that_is_not_unicode_survives(record_file: Any) -> None:
    """A command line may hold bytes that are not UTF-8; Python keeps them as lone surrogates."""
    record = records.read(record_file.write(record_file.content()))
    strange = replace(record, runs=tuple(replace(run, command="bench \udcff") for run in record.runs))
    assert records.read(records.write(strange, record_file.path).path or Path()) == strange


def test_a_record_is_read_by_whatever_path_leads_to_it(record_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = record_file.write(record_file.content())
    monkeypatch.chdir(path.parent)
    (path.parent / "inner").mkdir()
    for way in (Path(path.name), Path("inner") / ".." / path.name):
        assert records.read(way).benchmark == "made-up"


def full_disk(*arguments: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_what_was_there(record_file: Any, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    record = records.read(record_file.write(record_file.content()))
    before = record_file.path.read_bytes()
    monkeypatch.setattr(os, step, full_disk)
    with pytest.raises(GpuguideError, match=r"made-up\.json: No space left on device\. Free some space"):
        records.write(replace(record, harness_version=2), record_file.path)
    assert record_file.path.read_bytes() == before
    assert [path.name for path in record_file.path.parent.iterdir()] == ["made-up.json"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_interrupted_write_leaves_what_was_there(
    record_file: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    record = records.read(record_file.write(record_file.content()))
    before = record_file.path.read_bytes()
    monkeypatch.setattr(os, step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        records.write(replace(record, harness_version=2), record_file.path)
    assert record_file.path.read_bytes() == before
    assert [path.name for path in record_file.path.parent.iterdir()] == ["made-up.json"]


def test_a_folder_that_is_a_file_is_named(record: Record, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GpuguideError, match="Cannot write the record"):
        records.write(record, tmp_path / "file" / "made-up.json")


def test_others_may_read_what_was_written(record: Record, tmp_path: Path) -> None:
    written = records.write(record, tmp_path / "nvidia-test-gpu" / "made-up.json").path
    assert written is not None
    assert stat.S_IMODE(written.stat().st_mode) == 0o644
