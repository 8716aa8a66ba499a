"""The benchmark of queries on two GPUs, on the host."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa
import pytest
import torch

from gpuguide.benchmarks.frames_over_gpus import two_gpus
from gpuguide.benchmarks.larger_frames import queries
from gpuguide.dataframes.query import dask_calls, several_gpus
from gpuguide.hardware import device as devices
from gpuguide.interconnect.processes import Member, Team
from gpuguide.measure import benchmark as declarations

DECLARED = declarations.get("two-gpu-queries")
ROWS = 20_000


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    yield
    two_gpus.end()


@pytest.fixture(autouse=True)
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_gpus, "FILE_ROWS", ROWS)


def task_of(name: str, rows: int) -> two_gpus.Task:
    """The task of one rank, with an engine on the host."""
    folder = str(two_gpus.write_right_result(name, rows).parent)
    return two_gpus.query_of_ranks(Member(0, 1, torch.device("cpu"), {"engine": "streaming"}), name, folder, rows)


@pytest.mark.parametrize("rows", [ROWS // 2, ROWS, 4 * ROWS])
@pytest.mark.parametrize("name", queries.QUERIES)
def test_a_rank_compares_its_result_with_duckdbs(name: str, rows: int) -> None:
    task = task_of(name, rows)
    task.call()
    task.check()


def test_a_larger_frame_is_the_file_read_more_often() -> None:
    folder = two_gpus.write_right_result("q2", 4 * ROWS).parent
    once, often = (two_gpus.make_query("q2", folder, rows).on("duckdb") for rows in (ROWS, 4 * ROWS))
    sums = [sum(each["v1_sum"].to_pylist()) for each in (once, often)]
    assert sums[1] == 4 * sums[0] > 0
    assert once.num_rows == often.num_rows


def test_a_wrong_result_of_a_rank_is_told() -> None:
    task = task_of("q1", ROWS)
    pa.parquet.write_table(
        queries.right_result("q4", ROWS), two_gpus.right_file(str(queries.write_files(ROWS)), "q1", ROWS)
    )
    task.call()
    with pytest.raises(AssertionError, match="q1: "):
        task.check()


def test_parts_are_the_whole_together_or_each_of_them() -> None:
    right = pa.table({"key": [1, 2, 3], "v_sum": [0.5, 1.0, 2.0]})
    assert two_gpus.difference([right, right], right) is None
    assert two_gpus.difference([right.slice(2), right.slice(0, 2)], right) is None
    assert two_gpus.difference([right, right.slice(0, 0)], right) is None
    assert "are right" in str(two_gpus.difference([right, right.slice(2)], right))
    assert "differs" in str(two_gpus.difference([right.slice(1), right.slice(2)], right))


def test_ranks_gather_their_tables() -> None:
    table = pa.table({"key": [1, 2]})
    with Team(2, "cpu", start="fork") as team:
        assert team.run(two_gpus.gather, table) == [[table, table], [table, table]]


@pytest.mark.parametrize(("given", "seen"), [(None, ["0", "1"]), ("3,5", ["3", "5"])])
def test_each_rank_sees_one_gpu(given: str | None, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(2):
        if given is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        several_gpus.take_gpu(rank)
        assert several_gpus.os.environ["CUDA_VISIBLE_DEVICES"] == seen[rank]


def test_cases_and_what_is_missing_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DECLARED.cases(devices.cpu()) == []
    cases = DECLARED.cases(devices.fake("h100-sxm"))
    assert {case["query"] for case in cases} == set(queries.QUERIES)
    assert len(cases) == len(queries.QUERIES) + sum(map(len, two_gpus.GROUP_BYS.values()))
    given = [{"query": "q1", "rows": rows} for rows in (ROWS, 4 * ROWS)]
    assert [bool(two_gpus.only_once(devices.fake("h100-sxm"), each)) for each in given] == [False, True]
    assert DECLARED.contenders["polars-gpu-2"].unavailable_reason()  # no GPU here, or no cudf-polars
    monkeypatch.setattr(several_gpus, "why_no_streaming", lambda: None)
    assert several_gpus.why_not_here() == "ucxx is not installed; pip install ucxx-cu13"
    monkeypatch.setattr(dask_calls, "why_no_cudf", lambda engine: None)
    monkeypatch.setitem(sys.modules, "dask_cudf", ModuleType("dask_cudf"))
    sys.modules["dask_cudf"].__spec__ = ModuleSpec("dask_cudf", None)
    assert str(dask_calls.why_not_here()).endswith("pip install dask-cuda distributed-ucxx-cu13")


@pytest.mark.gpu
@pytest.mark.needs("cudf")
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("count", [1, 2])
def test_queries_on_gpus_give_duckdbs_answer(count: int) -> None:
    if why := several_gpus.why_not_here():
        pytest.skip(why)
    for name in ("q1", "q3", "join-sort"):
        work = two_gpus.work(count, "tried", {"query": name, "rows": ROWS})
        assert work.sample
        assert work.sample() > 0


@pytest.mark.gpu
@pytest.mark.needs("cudf")
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("name", ["q1", "q3", "join-sort"])
def test_dask_gives_duckdbs_answer(name: str) -> None:
    if why := dask_calls.why_not_here():
        pytest.skip(why)
    work = two_gpus.work_of_dask({"query": name, "rows": ROWS})
    assert work.check
    work.check()
