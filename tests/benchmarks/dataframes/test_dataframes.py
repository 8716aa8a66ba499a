from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas
import pyarrow as pa
import pytest
import torch

from gpuguide.benchmarks.dataframes import frames, groups, mistakes, speed
from gpuguide.benchmarks.dataframes import transfer as copies
from gpuguide.dataframes import cost, data, engines, operations, transfer
from gpuguide.dataframes.engines.dense_keys import DenseKeys
from gpuguide.dataframes.separate_process import SeparateProcess
from gpuguide.errors import GpuguideError
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import records, runner
from gpuguide.measure.benchmark import Keys, Work, too_large
from gpuguide.measure.records import Record

DATAFRAME, TRANSFER = declarations.get("dataframe"), declarations.get("frame-transfer")
MISTAKES, GROUPS = declarations.get("dataframe-mistakes"), declarations.get("dataframe-groups")
CPU, H100 = devices.cpu(), devices.fake("h100-sxm")


def keys(op: str, rows: int, transfer: str = "none") -> dict[str, int | str]:
    return {"op": op, "rows": rows, "transfer": transfer}


def left_out(contender: str, *case: object) -> str | None:
    return DATAFRAME.contenders[contender].skip_reason(H100, keys(*case))  # type: ignore[arg-type]


def test_group_bys_are_measured_from_one_group_to_a_million() -> None:
    assert GROUPS.cases(CPU) == []
    assert [case["groups"] for case in GROUPS.cases(H100)] == [1, 10, 100, 200, 1000, 10**4, 10**5, 10**6]


@pytest.mark.parametrize("count", [1, 300])
def test_a_group_by_of_any_number_of_groups_is_checked(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pandas.Series, "null_count", property(lambda self: self.isna().sum()), raising=False)
    monkeypatch.setattr(groups.cudf_frames, "use_pool", lambda: None)
    monkeypatch.setattr(transfer, "load", lambda table: engines.engine("pandas").load(table))
    dense = lambda keys: DenseKeys(keys, module=pandas, device="cpu")  # noqa: E731
    monkeypatch.setitem(groups.GROUP_MAKERS, "gpuguide", dense)
    work = groups.groups_work("gpuguide", CPU, {"groups": count}, rows=2000)
    assert work.check
    work.check()
    monkeypatch.setattr(operations, "result_rows", lambda name, table: count + 1)
    with pytest.raises(AssertionError, match="are right"):
        work.check()


def test_of_the_largest_frames_only_the_basic_operations_have_transfers() -> None:
    moved = {case["op"] for case in DATAFRAME.cases(H100) if case["rows"] == 10**8 and case["transfer"] != "none"}
    assert moved == set(speed.BASIC)


def test_a_processor_is_asked_for_small_frames_without_transfers() -> None:
    cases = DATAFRAME.cases(CPU)
    assert {case["transfer"] for case in cases} == {"none"}
    assert max(int(case["rows"]) for case in cases) == 10**6


@pytest.mark.parametrize("name", ["pandas", "polars", "duckdb"])
def test_the_host_is_measured_once_and_the_basic_operations_at_all_sizes(name: str) -> None:
    for op in operations.OPERATIONS:
        assert left_out(name, op, 10**6) is None
        assert "transfer=none" in (left_out(name, op, 10**4, "in") or "")
        assert "only cuDF and our group-by" in (left_out(name, op, 2 * 10**8) or "")
        assert (left_out(name, op, 10**7) is None) is (name == "polars" or op in speed.BASIC)
        assert (left_out(name, op, 10**8) is None) is (op in speed.BASIC)


def test_our_parts_and_the_accelerator_are_measured_where_they_say_something() -> None:
    for op in operations.OPERATIONS:
        assert (left_out("gpuguide", op, 10**6) is None) is (op in ("groupby", "filter-groupby"))
        assert (left_out("gpuguide", op, 10**6, "in-out") is None) is (op in ("groupby", "filter-groupby"))
        assert left_out("cudf-pandas", op, 10**7) is None
        assert (left_out("cudf-pandas", op, 10**8) is None) is (op in speed.BASIC)
        assert "stand there" in (left_out("cudf-pandas", op, 10**6, "in") or "")


def test_cudf_is_called_without_our_interface_at_three_sizes() -> None:
    measured = {
        (op, rows)
        for op in operations.OPERATIONS
        for rows in (10**4, 10**5, 10**6, 10**7, 10**8)
        if left_out("cudf-raw", op, rows) is None
    }
    assert measured == {(op, rows) for op in speed.BASIC for rows in (10**4, 10**6, 10**8)}
    assert "without transfers" in (left_out("cudf-raw", "sort", 10**4, "in") or "")


@pytest.mark.parametrize("op", speed.BASIC)
def test_the_call_without_our_interface_is_the_same_operation(op: str) -> None:
    """On pandas, whose calls cuDF has. The frame of the case is still there for the next contender."""
    kept = frames.tables(op, 300)
    speed.check_raw(engines.engine("pandas"), op)
    assert frames.tables(op, 300) is kept


def test_a_wrong_call_without_our_interface_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "raw_call", lambda operation, frame, lookup: lambda: frame.head(7))
    with pytest.raises(AssertionError, match="sort: there are 7 rows"):
        speed.check_raw(engines.engine("pandas"), "sort")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, ...]:
    """Records from a fake device, of the smallest and the largest frames."""

    def cases(device: Device) -> list[Keys]:
        return [case for case in DATAFRAME.cases(device) if case["rows"] in (10**4, 10**8) and case["op"] != "window"]

    few = replace(DATAFRAME, cases=cases)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner.case, "release_memory", lambda device: None)
        return runner.run(
            [few, TRANSFER, MISTAKES, GROUPS], H100, tmp_path_factory.mktemp("records"), commit="c0ffee"
        ).records


def test_everything_runs_on_a_fake_device(simulated: tuple[Record, ...]) -> None:
    for record in simulated:
        read = records.read(record.path or Path())
        assert set(read.libraries()) - {"cudf", "rmm"} <= set(read.runs[-1].versions)  # these two are not here
        assert {"cudf", "pyarrow"} <= set(read.libraries())
        assert {case.status for case in read.cases} <= {"ok", "skipped"}
        assert {case.contender for case in read.cases if case.status == "ok"} == set(record.contenders)


def test_a_small_gpu_leaves_out_what_does_not_fit() -> None:
    small = replace(H100, memory=8 * 10**9)
    skipped = [case for case in DATAFRAME.cases(small) if too_large(DATAFRAME, case, small)]
    assert {case["rows"] for case in skipped} == {10**8, 2 * 10**8}
    assert not any(too_large(DATAFRAME, case, H100) for case in DATAFRAME.cases(H100))
    for benchmark in (TRANSFER, MISTAKES, GROUPS):
        assert not any(too_large(benchmark, case, H100) for case in benchmark.cases(H100))


@pytest.mark.parametrize("op", operations.OPERATIONS)
def test_the_host_is_right_and_measured_on_this_machine(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(DATAFRAME, budget=0.0, samples=2)
    results = runner.measure_case(small, keys(op, 2000), CPU)
    good = {case.contender: case for case in results if case.status == "ok"}
    assert list(good) == ["pandas", "polars", "duckdb"]
    for case in good.values():
        assert case.correct == "yes"
        assert set(case.metrics) == {"time", "throughput", "bandwidth"}
    assert {case.reason for case in results if case.contender not in good} == {"needs a GPU"}


def test_a_wrong_number_of_rows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "right_rows", lambda *arguments: 7)
    work = DATAFRAME.contenders["pandas"].build(CPU, keys("sort", 2000))
    assert work.check is not None
    with pytest.raises(AssertionError, match="the result has 2,000 rows, and 7 are right"):
        work.check()


def test_a_long_call_is_not_repeated_to_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call whose result is checked is its first sample, and every later sample is a call."""
    monkeypatch.setattr(speed, "SLOW", 0.0)
    calls = []
    work = speed.make_timed_work(lambda: calls.append(1) or [1], lambda: None, keys("sort", 2000), lambda: None)
    assert len(calls) == 1
    assert work.sample is not None
    assert work.sample() > 0
    assert len(calls) == 1
    assert work.sample() > 0
    assert len(calls) == 2


def test_the_small_check_is_made_once_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(engines, "check", lambda engine, operation: made.append((engine.name, operation)))
    speed.check_engine.cache_clear()
    for rows in (100, 200):
        work = speed.engine_work("duckdb", CPU, keys("filter", rows))
        assert work.check is not None
        work.check()
    assert made == [("duckdb", "filter")]
    speed.check_engine.cache_clear()


def test_a_frame_is_made_of_the_same_columns_for_every_operation() -> None:
    for op in operations.OPERATIONS:
        table, lookup = frames.tables(op, 300)
        assert table.equals(data.frame(300, columns=operations.get(op).columns))
        assert (lookup is not None) is (op == "join")


def test_a_missing_engine_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "why_not_here", lambda name: f"{name} is not installed")
    results = runner.measure_case(replace(DATAFRAME, samples=1), keys("sort", 2000), CPU)
    assert {case.reason for case in results} == {
        "pandas is not installed",
        "polars-lazy is not installed",
        "duckdb is not installed",
        "needs a GPU",
    }


def test_the_accelerators_times_are_those_of_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "ACCELERATED", "pandas")
    speed.start_accelerator.cache_clear()
    work = speed.accelerator_work(CPU, keys("groupby", 2000))
    assert work.check is not None
    assert work.sample is not None
    work.check()
    assert 0 < work.sample() < 60
    other = speed.accelerator_process()
    assert isinstance(other, SeparateProcess)
    assert speed.accelerator_process() is other
    other.close()
    again = speed.accelerator_process()
    assert again is not other
    again.close()
    speed.start_accelerator.cache_clear()


def test_a_call_that_is_not_waited_for_seems_short() -> None:
    """The clock stops when the call returns, and what was asked for is still waited for after it."""
    events: list[str] = []

    def wait() -> None:
        events.append("wait")

    seconds = mistakes.stop_clock_early(Work([lambda: events.append("call")], lambda: None), wait).sample
    assert seconds is not None
    assert seconds() < 1
    assert events == ["wait", "call", "wait"]


@pytest.mark.parametrize("op", operations.OPERATIONS)
def test_a_plan_that_nobody_runs_is_no_result(op: str) -> None:
    work = mistakes.not_collected(CPU, {"op": op, "rows": 2000})
    assert work.check is not None
    work.check()


def test_a_result_where_a_plan_was_expected_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mistakes, "Plans", lambda: engines.engine("polars-lazy"))
    work = mistakes.not_collected(CPU, {"op": "sort", "rows": 2000})
    assert work.check is not None
    with pytest.raises(AssertionError, match="where a plan was expected"):
        work.check()


def test_a_cold_start_is_that_of_a_new_process() -> None:
    parts = mistakes.time_new_process("polars", "groupby", 2000)
    assert set(parts) == set(mistakes.COLD_PARTS)
    assert all(seconds > 0 for seconds in parts.values())
    with pytest.raises(RuntimeError, match="no operation named 'nothing'"):
        mistakes.time_new_process("polars", "nothing", 10)


def test_what_a_cold_start_takes_is_kept_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = {"import": 3.0, "load": 0.5, "first_call": 0.25, "second_call": 0.01}
    monkeypatch.setattr(mistakes, "time_new_process", lambda *arguments: steps)
    work = mistakes.cold_start(CPU, {"op": "groupby", "rows": 10})
    assert work.sample is not None
    assert [work.sample(), work.sample()] == [3.75, 3.75]
    kept = work.further()
    assert {name: metric.summary.median for name, metric in kept.items()} == steps
    assert {metric.summary.n for metric in kept.values()} == {2}


def test_mistakes_are_measured_where_they_can_be() -> None:
    skip_reason = MISTAKES.contenders["cold-start"].skip_reason
    assert [case["op"] for case in MISTAKES.cases(H100) if skip_reason(H100, case) is None] == ["groupby"]


def test_what_arrives_is_compared_with_what_was_sent() -> None:
    table = data.frame(100)

    class Arrived:
        def __init__(self, table: pa.Table) -> None:
            self.table = table

        def to_arrow(self, preserve_index: bool) -> pa.Table:
            return self.table

    copies.compare(Arrived(table), table)
    with pytest.raises(AssertionError, match="column 'value' differs"):
        copies.compare(Arrived(table.set_column(2, "value", [[1.0] * 100])), table)


def test_a_readers_own_record_feeds_the_cost_model(simulated: tuple[Record, ...]) -> None:
    times = speed.measurements(simulated[0])
    assert {each.engine for each in times} == set(DATAFRAME.contenders)
    assert {each.transfer for each in times} == {"none", "in", "in-out"}
    line = cost.fit_line(
        *zip(*((each.rows, each.seconds) for each in times if each.engine == "cudf"), strict=True)  # type: ignore[arg-type]
    )
    assert line.overhead > 0


@pytest.mark.gpu
@pytest.mark.needs("cudf")
@pytest.mark.parametrize("op", operations.OPERATIONS)
@pytest.mark.parametrize("transfer", ["none", "in", "in-out"])
def test_the_gpus_engines_are_right(op: str, transfer: str) -> None:
    device = devices.current()
    results = runner.measure_case(replace(DATAFRAME, budget=0.0, samples=2), keys(op, 10**5, transfer), device)
    bad = {case.contender: case.reason for case in results if case.status not in ("ok", "skipped")}
    assert bad == {}
    assert "cudf" in {case.contender for case in results if case.status == "ok"}


@pytest.mark.gpu
@pytest.mark.needs("cudf")
def test_nothing_is_copied_on_the_gpu() -> None:
    """From the staged bytes to cuDF's frame, and from there to the kernel."""
    columns = transfer.to_device(data.frame(10**6, columns=("key", "value")))
    frame = transfer.to_cudf(columns)
    found = DenseKeys(data.KEYS)._columns(frame["key"], frame["value"])
    assert [tensor.data_ptr() for tensor in found] == [column.data.data_ptr() for column in columns]
    assert [tensor.dtype for tensor in found] == [torch.int32, torch.float64]


@pytest.mark.gpu
@pytest.mark.needs("cudf")
def test_bools_and_dates_are_to_cudf_as_if_it_had_copied_them() -> None:
    numbers = pa.array([0, 1, None, 20_000], pa.int64())
    columns = {unit: numbers.cast(pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")}
    columns |= {"day": numbers.cast(pa.int32()).cast(pa.date32()), "flag": numbers.cast(pa.bool_())}
    table = pa.table(columns)
    theirs = engines.engine("cudf").load(table)
    assert transfer.load(table).to_arrow(preserve_index=False).equals(theirs.to_arrow(preserve_index=False))


@pytest.mark.gpu
@pytest.mark.needs("cudf")
def test_a_function_that_cudf_cannot_compile_is_named() -> None:
    def opens_a_file(value: float) -> float:
        with open(str(value)) as file:
            return float(file.read())

    cudf = engines.engine("cudf")
    frame = cudf.load(data.frame(10, columns=("value",)))
    with pytest.raises(GpuguideError, match="cudf cannot run the function 'opens_a_file'"):
        cudf.apply(frame, opens_a_file)
    doubled = cudf.unload(cudf.apply(frame, lambda value: 2 * value))
    assert doubled["result"].to_pylist() == [2 * value for value in data.frame(10)["value"].to_pylist()]


@pytest.mark.gpu
@pytest.mark.needs("cudf")
def test_polars_on_the_gpu_is_right() -> None:
    if reason := engines.engines()["polars-gpu"]:
        pytest.skip(reason)
    for op in operations.OPERATIONS:
        engines.check(engines.engine("polars-gpu"), op)


@pytest.mark.gpu
@pytest.mark.needs("cudf")
@pytest.mark.parametrize("op", operations.OPERATIONS)
def test_mistakes_are_measured_on_the_gpu(op: str) -> None:
    small = replace(MISTAKES, budget=0.0, samples=2)
    results = runner.measure_case(small, {"op": op, "rows": 10**5}, devices.current())
    assert {case.contender: case.reason for case in results if case.status not in ("ok", "skipped")} == {}


@pytest.mark.gpu
@pytest.mark.needs("cudf")
def test_frames_arrive_on_the_gpu() -> None:
    results = runner.measure_case(replace(TRANSFER, budget=0.0, samples=2), {"rows": 10**6}, devices.current())
    assert [(case.contender, case.status, case.reason) for case in results] == [
        (name, "ok", "") for name in TRANSFER.contenders
    ]
