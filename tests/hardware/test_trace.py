"""Traces in files: what was saved comes back, and what is no trace is refused in words."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.errors import GpuguideError
from gpuguide.hardware.trace import Row, Trace, _from_csv, _from_json, _to_csv, _to_json

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
names = st.sampled_from(["power", "temperature", "memory_used", "steps, all", 'a "name"'])


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Any trace, with gaps, without rows, with names that a table has to quote."""
    columns = draw(st.lists(names, unique=True))
    readings = st.fixed_dictionaries({name: st.one_of(finite, st.just(math.nan)) for name in columns})
    rows = draw(st.lists(st.builds(Row, finite, finite, readings), max_size=4))
    absent = draw(st.dictionaries(names.filter(lambda name: name not in columns), st.text("abc äµ,\"'#\n", min_size=1)))
    return Trace(
        "a GPU, made up", 3, 0.1, "2026-01-02T03:04:05Z", dict.fromkeys(columns, "W"), absent, {"power_limit": 7}, rows
    )


def same(one: Trace, other: Trace) -> None:
    for name in ("device", "index", "interval", "started_at", "units", "absent", "board"):
        assert getattr(one, name) == getattr(other, name)
    assert np.array_equal(one.seconds, other.seconds)
    assert [row.cost for row in one.rows] == [row.cost for row in other.rows]
    for name in one.units:
        assert np.array_equal(one[name], other[name], equal_nan=True)


@given(traces())
def test_what_was_saved_comes_back(trace: Trace) -> None:
    same(_from_json(_to_json(trace)), trace)
    same(_from_csv(_to_csv(trace)), trace)


def test_the_ending_of_the_name_chooses_the_form(tmp_path: Path) -> None:
    trace = Trace("a GPU", 0, 0.1, "2026-01-02T03:04:05Z", {"power": "W"}, rows=[Row(0.0, 1e-3, {"power": 5.0})])
    for name in ("trace.json", "trace.csv"):
        trace.save(tmp_path / name)
        same(Trace.load(str(tmp_path / name)), trace)
    assert json.loads((tmp_path / "trace.json").read_text())["readings"] == {"power": [5.0]}
    comment, *table = (tmp_path / "trace.csv").read_text().splitlines()
    assert comment.startswith("# {")
    assert list(csv.DictReader(table)) == [{"seconds": "0.0", "cost": "0.001", "power": "5.0"}]


@pytest.mark.parametrize("name", ["trace", "trace.txt", "trace.json.gz"])
def test_another_ending_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(GpuguideError, match=r"kept as \.json or \.csv"):
        Trace.load(tmp_path / name)


def test_a_file_that_is_not_there_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(GpuguideError, match=r"Cannot read the trace .*No such file"):
        Trace.load(tmp_path / "none.json")
    with pytest.raises(GpuguideError, match=r"Cannot write the trace .*No such file"):
        Trace("a GPU", 0, 0.1, "", {}).save(tmp_path / "no folder" / "trace.csv")


WHOLE: dict[str, Any] = json.loads(
    _to_json(Trace("a GPU", 0, 0.1, "now", {"power": "W"}, rows=[Row(0.0, 0.1, {"power": 1.0})]))
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "Expecting property name"),
        ("[]", "list indices"),
        (json.dumps({name: value for name, value in WHOLE.items() if name != "units"}), "'units' is missing"),
        (json.dumps({name: value for name, value in WHOLE.items() if name != "seconds"}), "'seconds' is missing"),
        (json.dumps({**WHOLE, "seconds": [0.0, 1.0]}), "its columns have 1 to 2 rows"),
        (json.dumps({**WHOLE, "readings": {}}), "its columns are .*, and its units are of power"),
        (json.dumps({**WHOLE, "readings": {"power": ["much"]}}), "could not convert string to float: 'much'"),
    ],
)
def test_a_json_file_that_holds_no_trace(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(GpuguideError, match=f"trace.json holds no whole trace: .*{problem}"):
        Trace.load(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not enough values"),
        ("seconds,cost\n0,0\n", "its first line is not"),
        ("# {}\nseconds,cost\n0,0\n", "'device' is missing|'units' is missing"),
        ("# nothing\nseconds,cost\n", "Expecting value"),
        ("# {}\nseconds,power\n0,1\n", "'cost' is missing"),
    ],
)
def test_a_csv_file_that_holds_no_trace(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(GpuguideError, match=f"trace.csv holds no whole trace: .*({problem})"):
        Trace.load(path)


def test_a_line_that_was_cut_short_does_not_count(tmp_path: Path) -> None:
    """The machine may stop while a line is written."""
    whole = _to_csv(
        Trace("a GPU", 0, 1.0, "2026", {"power": "W"}, rows=[Row(at, 0.1, {"power": at}) for at in (0.0, 1.0)])
    )
    file = tmp_path / "cut.csv"
    file.write_text(whole[:-3])
    assert Trace.load(file)["power"].tolist() == [0.0]
