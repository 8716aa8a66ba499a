"""Reading snapshots: what is refused, and what a history adds up to."""

from __future__ import annotations

import bz2
import collections
import gzip
import json
import lzma
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from built_snapshots import MIB, event, freed, segment, snapshot
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.errors import GpuguideError
from gpuguide.training_memory import snapshot as reader
from gpuguide.training_memory.snapshot import read_snapshot, replay

SMALL = snapshot([segment(20, [(0, 5)])], [event("alloc", 0, 5, "train.py:1:main")])


class Harmful:
    """Something whose pickle calls a function."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("it ran",))


@pytest.mark.parametrize(
    "compress", [bytes, gzip.compress, lzma.compress, bz2.compress], ids=["plain", "gzip", "xz", "bzip2"]
)
def test_a_snapshot_is_read_as_it_was_written(
    tmp_path: Path, compress: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "REPORTED_EVERY", 64)
    path, reports = tmp_path / "snapshot.pickle", list[int]()
    path.write_bytes(compress(pickle.dumps(SMALL)))
    assert read_snapshot(path, reports.append) == SMALL
    assert reports == sorted(reports)
    assert reports


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (pickle.dumps(Harmful()), "builtins.print"),
        (pickle.dumps({"segments": collections.OrderedDict(a=1)}), "collections.OrderedDict"),
        (pickle.dumps(Harmful(), protocol=0), "no pickle"),
        (json.dumps(SMALL).encode(), "JSON"),
        (b"PK\x03\x04" + bytes(20), "zip"),
        (b"", "empty"),
        (pickle.dumps(SMALL)[:-30], "cut short"),
        (gzip.compress(pickle.dumps(SMALL))[:-30], "cut short"),
        (pickle.dumps([1, 2]), "no memory snapshot"),
        (b"\x80\x04}b.", "damaged"),
    ],
)
def test_what_is_no_snapshot_is_refused_and_nothing_in_it_runs(
    tmp_path: Path, content: bytes, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "given"
    path.write_bytes(content)
    with pytest.raises(GpuguideError, match=says):
        read_snapshot(path)
    assert capsys.readouterr().out == ""


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GpuguideError, match="none"):
        read_snapshot(tmp_path / "none")


def test_without_a_history_it_says_how_to_record_one() -> None:
    with pytest.raises(GpuguideError, match="_record_memory_history"):
        replay(snapshot([segment(20, [(0, 5)])], []))


def test_of_several_devices_one_is_chosen() -> None:
    two = snapshot([segment(20, [(0, 5)])], SMALL["device_traces"][0], [event("alloc", 0, 7), *freed(0, 7)])
    with pytest.raises(GpuguideError, match="0, 1"):
        replay(two)
    assert max(replay(two, 1).totals) == 7 * MIB
    with pytest.raises(GpuguideError, match="device 4"):
        replay(two, 4)


def test_a_damaged_entry_is_an_error_of_the_file() -> None:
    with pytest.raises(GpuguideError, match="damaged"):
        replay(snapshot([segment(20, [])], [{"action": "alloc"}]))


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 5)), min_size=1, max_size=40), st.integers(0, 30))
def test_totals_are_those_of_a_forward_count(steps: list[tuple[int, int]], dropped: int) -> None:
    """Allocations of some MiB; each step frees the oldest few. Dropping the first events must change no total."""
    events: list[dict[str, Any]] = []
    alive: list[tuple[int, int]] = []
    totals: list[int] = []
    at = now = 0
    for mib, frees in steps:
        events.append(event("alloc", at, mib))
        alive.append((at, mib))
        now += mib
        totals.append(now)
        at += mib
        for address, size in alive[:frees]:
            events += freed(address, size)
            now -= size
            totals += [totals[-1], now]
        alive = alive[frees:]
    dropped = min(dropped, len(events) - 1)
    history = replay(snapshot([segment(at, alive)], events[dropped:]))
    assert list(history.totals) == [MIB * total for total in totals[dropped:]]
    for moment, total in enumerate(history.totals):
        assert sum(each.size for each in history.alive(moment)) == total
    assert history.total_at(history.peak) == max(history.before, *history.totals)


def test_holes_are_what_lies_between_allocations() -> None:
    events = [
        event("segment_alloc", 0, 20),
        *[event("alloc", address, 5) for address in (0, 5, 10)],
        event("segment_alloc", 32, 8),
        *freed(5, 5),
        event("segment_free", 32, 8),
    ]
    history = replay(snapshot([segment(20, [(0, 5), (10, 5)])], events))
    assert history.holes(3) == [5 * MIB]
    assert history.holes(4) == [8 * MIB, 5 * MIB]
    assert history.holes(len(events) - 1) == [5 * MIB, 5 * MIB]
    assert [size // MIB for size in history.reserved] == [20, 20, 20, 20, 28, 28, 28, 20]
