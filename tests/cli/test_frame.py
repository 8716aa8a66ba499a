"""``gpuguide frame`` on a stranger's Parquet file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest
import taxi_like

from gpuguide.benchmarks.larger_frames import queries
from gpuguide.cli import frame
from gpuguide.dataframes import Query, where_to_run
from gpuguide.dataframes.query.choice import file_amounts
from gpuguide.measure import store

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return taxi_like.write(tmp_path_factory.mktemp("taxi"))


@pytest.mark.parametrize("engine", ["auto", "polars", "duckdb"])
def test_a_group_by_with_its_engine_and_why(gpuguide: Run, files: tuple[str, str], engine: str) -> None:
    words = ("--group-by", "payment", "--mean", "fare", "--count", "fare", "--sort", "payment")
    status, out, err = gpuguide("frame", files[0], *words, "--engine", engine)
    assert status == 0
    right = Query(files[0]).group_by("payment", mean="fare", count="fare").sort("payment").on("duckdb")
    lines = out.splitlines()
    assert lines[0].split() == right.column_names
    assert [line.split()[-1] for line in lines[1:]] == [str(count) for count in right["fare_count"].to_pylist()]
    assert all(name in err for name in ("polars", "duckdb", "cudf", "polars-gpu"))
    gpu = frame.load_machine()[1].split("NVIDIA ")[1].split()[0]
    assert gpu in err
    assert ("Engine: " in err) is (engine == "auto")


def made_up_record(device: str, name: str, engines: dict[str, float]) -> Any:
    """Return a record of ``frame-queries`` in which each engine takes so many seconds a byte."""
    cases = []
    for engine, rate in engines.items():
        for keys in ({"query": name, "rows": rows} for name in queries.QUERIES for rows in queries.ROWS):
            amounts = file_amounts(queries.describe_query(keys["query"], keys["rows"]), 0.0)
            seconds = rate * (amounts.numbers + amounts.codes + amounts.text)
            measured = {"time": SimpleNamespace(summary=SimpleNamespace(median=seconds))}
            cases.append(SimpleNamespace(keys=keys, contender=engine, status="ok", measured=measured))
    run = SimpleNamespace(device_name=name, host_cores_available=3, host_cores=4)
    return SimpleNamespace(device=device, cases=cases, runs=[run])


@pytest.mark.parametrize("device", ["the same", "another", "none"])
def test_reading_is_in_the_times_if_it_was_measured(
    gpuguide: Run, files: tuple[str, str], monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    slug = store.load_published("dataframe").device
    found = [
        made_up_record("cpu", "CPU", {"polars": 5e-9}),
        made_up_record("z-gpu", "Z-GPU", {"polars": 1e-9, "duckdb": 2e-9, "cudf": 1e-9}),
        made_up_record(slug, "S-GPU", {"polars": 3e-9, "duckdb": 6e-9, "cudf": 1e-9}),
    ][: {"the same": 3, "another": 2, "none": 1}[device]]
    load = store.load_all_published
    monkeypatch.setattr(store, "load_all_published", lambda name: found if name == "frame-queries" else load(name))
    machine, name = frame.load_machine()
    assert {"the same": "S-GPU", "another": "Z-GPU", "none": "H200"}[device] in name
    status, _, err = gpuguide("frame", files[0], "--group-by", "zone", "--sum", "fare")
    told = " ".join(err.split())
    assert status == 0
    assert ("reading the file is in all of the times." in told) is (device != "none")
    assert ("Reading the file is in none of the times." in told) is (device == "none")
    if device == "none":
        assert machine.files == {}
        return
    asked = Query(files[0]).group_by("zone", sum="fare")
    seconds = where_to_run(asked, machine=machine).seconds
    assert seconds["duckdb"] == pytest.approx(2 * seconds["polars"], rel=1e-3)
    rate = {"the same": 3e-9, "another": 1e-9}[device]
    assert seconds["polars"] == pytest.approx(rate * asked.source.bytes(["zone", "fare"]), rel=1e-3)


def test_reading_counts_on_a_machine_that_measured_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = store.load_published("dataframe")
    measured = [made_up_record(device, device, {"polars": 1e-9}) for device in ("another", mine.device)]
    for records, known in (([*measured], {"polars"}), (measured[:1], set())):
        monkeypatch.setattr(store, "load_mine", lambda name, found=records: [mine] if name == "dataframe" else found)
        machine, name = frame.load_machine()
        assert (set(machine.files), name) == (known, "this machine")


def test_all_steps_together_and_the_result_in_a_file(gpuguide: Run, files: tuple[str, str], tmp_path: Path) -> None:
    words = ["--filter", "fare > 100", "--filter", 'is "shared" == false', "--search", "payment=ä", "--join", files[1]]
    words += ["--on", "zone", "--group-by", "borough", "--group-by", "vendor", "--sum", "toll", "--sort", "toll_sum"]
    right = (
        Query(files[0])
        .filter("fare", ">", 100)
        .filter('is "shared"', "==", False)
        .search("payment", "ä")
        .join(files[1], on="zone")
        .group_by("borough", "vendor", sum="toll")
        .sort("toll_sum", descending=True)
        .on("duckdb")
    )
    for name in ("out.parquet", "out.csv"):
        out = tmp_path / name
        status, text, err = gpuguide("frame", files[0], *words, "--descending", "--rows", 1, "--out", out)
        assert status == 0
        assert len(text.splitlines()) == 2
        assert str(out) in err
        read = pyarrow.parquet.read_table if out.suffix == ".parquet" else pyarrow.csv.read_csv
        found = read(out)
        assert found.num_rows == right.num_rows > 1
        assert [float(each) for each in found["toll_sum"].to_pylist()] == [
            float(each) for each in right["toll_sum"].to_pylist()
        ]


def test_a_window_keeps_all_rows(gpuguide: Run, files: tuple[str, str]) -> None:
    status, out, err = gpuguide("frame", files[1], "--window", "borough", "--mean", "fare", "--rows", 3)
    assert status == 0
    assert "borough_fare" not in out
    assert "fare_mean" in out
    assert f"{taxi_like.zones().num_rows - 3} more rows" in err


def test_the_columns_of_a_file_and_the_plan_of_a_query(gpuguide: Run, files: tuple[str, str]) -> None:
    status, out, err = gpuguide("frame", files[0])
    assert status == 0
    assert all(name in out for name in taxi_like.trips().column_names)
    assert "30,000 rows in 8 row groups" in err
    status, out, _ = gpuguide("frame", files[0], "--group-by", "zone", "--explain")
    assert status == 0
    assert "PROJECT 1/14 COLUMNS" in out


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["--group-by", "zon"], 2, "zone"),
        (["--group-by", "zone", "--engine", "polar"], 2, "polars"),
        (["--group-by", "zone", "--sum", "day"], 1, "cast it to int32"),
        (["--filter", "fare much"], 2, "fare > 10"),
        (["--filter", "day > tomorrow"], 1, "2024-01-31"),
        (["--search", "payment"], 2, "COLUMN=TEXT"),
        (["--mean", "fare"], 2, "--group-by"),
        (["--window", "zone"], 2, "--mean"),
        (["--window", "zone", "--group-by", "zone"], 2, "two steps"),
        (["--join", "zones.parquet"], 2, "--on"),
        (["--on", "zone"], 2, "--join"),
        (["--group-by", "zone", "--out", "result.xlsx"], 2, ".csv"),
        (["--group-by", "vendor", "--out", "/no/such/folder/result.csv"], 1, "cannot be written"),
    ],
)
def test_what_cannot_be_done_is_told(
    gpuguide: Run, files: tuple[str, str], words: list[str], status: int, told: str
) -> None:
    found, _, err = gpuguide("frame", files[0], *words)
    assert found == status
    assert told in err


def test_a_csv_file_is_told_how_to_become_parquet(gpuguide: Run, tmp_path: Path) -> None:
    (tmp_path / "trips.csv").write_text("zone,fare\n1,2\n")
    status, _, err = gpuguide("frame", tmp_path / "trips.csv", "--group-by", "zone")
    assert status == 1
    assert "sink_parquet" in err


def test_tests_of_columns_whose_names_have_spaces_and_signs() -> None:
    assert frame.parse_filter("drop off>=3") == ("drop off", ">=", "3")
    assert frame.parse_filter("name == a > b") == ("name", "==", "a > b")
