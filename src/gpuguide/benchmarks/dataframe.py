"""Operations on frames: the host's libraries and the GPU's, with and without the copies between the two.

Contenders are engines of :mod:`gpuguide.dataframes.engines`: ``polars`` runs plans and collects them, ``cudf-raw`` is
cuDF called as one calls it without us, ``cudf-pandas`` runs in a process of its own, and ``gpuguide`` is cuDF with our
copy to the GPU and our group-by. Every time is taken by the host's clock around a call that was waited for; what a call
returns is dropped within it. A call of a second or longer is not repeated to warm up: the call whose result is checked
is then the first sample.

Not everything is measured, because a sort of 100 million rows alone takes pandas 20 seconds. The engines of the host
have no transfers. Frames that large go through the four basic operations in every way, and through the others on the
GPU only.
"""

from __future__ import annotations

import functools
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuguide.dataframes import cost, data, engines, operations, transfer
from gpuguide.dataframes.engines import cudf_frames
from gpuguide.dataframes.engines.dense_keys import DenseKeys
from gpuguide.dataframes.engines.interface import TRANSFERS
from gpuguide.dataframes.engines.pandas_like import PandasLike
from gpuguide.dataframes.engines.polars_like import LazyPolars
from gpuguide.dataframes.kernels import Totals
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.separate_process import ACCELERATED, SeparateProcess
from gpuguide.hardware.device import Device
from gpuguide.measure import records, timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate, Record

ROWS = (10**4, 10**5, 10**6, 10**7, 10**8)
MOST_ROWS = 2 * 10**8
"""For cuDF and our group-by, without transfers"""
MOST_ROWS_ON_CPU = 10**6
"""Of a machine without a GPU"""
BASIC = ("filter", "groupby", "join", "sort")
"""Operations that are measured at all sizes, by all engines"""
MOST_ROWS_OF = {"pandas": 10**6, "duckdb": 10**6, "polars": 10**7, "cudf-pandas": 10**7}
"""In all others"""
OURS = ("groupby", "filter-groupby")
"""Operations that we have a kernel for"""
RAW_ROWS = (10**4, 10**6, 10**8)
"""At which cuDF is called without our interface too"""
SLOW = 1.0
"""Seconds from which on a call is not repeated to warm up"""
TRANSFERRED = ("key", "id", "value")
IN_MEMORY = 8
"""Times its own size that a frame takes on the GPU: of up to four contenders the frame, a result and what it needs"""


def rows_of(keys: Keys) -> int:
    """Return how many rows a case has."""
    return int(keys["rows"])


@functools.lru_cache(maxsize=len(data.COLUMNS))
def column(name: str, rows: int) -> Any:
    """Return a column. Those of the last size are kept for the next operation."""
    return data.frame(rows, columns=(name,))[name]


@functools.lru_cache(maxsize=1)
def tables(operation: str, rows: int) -> tuple[Any, Any]:
    """Return the frame and the lookup of a case. The last ones are kept for the next contender."""
    asked = operations.get(operation)
    table = library("pyarrow").table({name: column(name, rows) for name in asked.columns})
    return table, data.lookup(rows) if asked.has_lookup else None


@functools.lru_cache(maxsize=1)
def right_rows(operation: str, rows: int) -> int:
    """Return how many rows the result of a case has."""
    return operations.result_rows(operation, *tables(operation, rows))


def rates(keys: Keys) -> dict[str, Rate]:
    """Return rows, and where nothing is transferred the bytes that must move."""
    name, rows = str(keys["op"]), rows_of(keys)
    moved = cost.traffic(name, rows)
    bandwidth = {"bandwidth": Rate("B/s", moved.read + moved.written)} if keys["transfer"] == "none" else {}
    return {"throughput": Rate("row/s", rows), **bandwidth}


# --- work ------------------------------------------------------------------------------------------------


def pooled_cudf() -> engines.Engine:
    """Return cuDF, with memory from the driver's pool."""
    cudf_frames.use_pool()
    return engines.engine("cudf")


def ours() -> engines.Engine:
    """Return cuDF with our copy and our group-by."""
    cudf_frames.use_pool()
    return DenseKeys(data.KEYS)


MAKE: dict[str, Callable[[], engines.Engine]] = {
    "pandas": lambda: engines.engine("pandas"),
    "polars": lambda: engines.engine("polars-lazy"),
    "duckdb": lambda: engines.engine("duckdb"),
    "cudf": pooled_cudf,
    "gpuguide": ours,
}
"""The engines of contenders that run in this process"""


def engine_work(name: str, device: Device, keys: Keys) -> Work:
    """Do an operation with an engine of this process."""
    if device.backend == "fake":
        return Work([lambda: None], rates=rates(keys))
    engine, operation, rows = MAKE[name](), str(keys["op"]), rows_of(keys)
    call = engines.call_with_transfer(engine, operation, *tables(operation, rows), str(keys["transfer"]))
    return timed(call, engine.wait, keys, lambda: check_engine(name, operation))


@functools.cache
def check_engine(name: str, operation: str) -> None:
    """Compare a contender with the reference, on a small frame with missing values; once for all sizes."""
    engines.check(MAKE[name](), operation)


def raw_call(operation: str, frame: Any, lookup: Any = None) -> Callable[[], Any]:
    """Return one of the basic operations as one writes it in pandas or cuDF."""
    calls: dict[str, Callable[[], Any]] = {
        "filter": lambda: frame[frame["value"] > 0.5],
        "groupby": lambda: (
            frame.groupby("key", sort=False).agg(count=("value", "count"), sum=("value", "sum")).reset_index()
        ),
        "join": lambda: frame.merge(lookup, on="id", how="inner"),
        "sort": lambda: frame.sort_values("value", ignore_index=True),
    }
    return calls[operation]


def raw_work(device: Device, keys: Keys) -> Work:
    """Do an operation of cuDF without our interface."""
    if device.backend == "fake":
        return Work([lambda: None], rates=rates(keys))
    engine, operation = MAKE["cudf"](), str(keys["op"])
    frames = [None if table is None else engine.load(table) for table in tables(operation, rows_of(keys))]
    return timed(raw_call(operation, *frames), engine.wait, keys, lambda: check_raw(engine, operation))


def check_raw(engine: engines.Engine, operation: str) -> None:
    """Compare a call without our interface with the reference, on a small frame."""
    asked = operations.get(operation)
    table = data.frame(ROWS[0], columns=asked.columns)
    lookup = data.lookup(ROWS[0]) if asked.has_lookup else None
    frames = [None if each is None else engine.load(each) for each in (table, lookup)]
    found = engine.unload(raw_call(operation, *frames)())
    different = operations.difference(operation, found, operations.reference(operation, table, lookup))
    assert different is None, f"{operation}: {different}"


def timed(call: Callable[[], Any], wait: Callable[[], None], keys: Keys, small_check: Callable[[], None]) -> Work:
    """Return a call as work that is checked at its own size too, and timed by the host's clock."""
    begun = time.perf_counter()
    result = call()
    wait()
    found = count_rows(result)
    del result
    first = time.perf_counter() - begun
    sample = timing.wall_clock(call, wait)
    if first < SLOW:
        timing.warm_up(call, wait)
    else:
        sample = itertools.chain([first], iter(sample, None)).__next__

    def check() -> None:
        small_check()
        right = right_rows(str(keys["op"]), rows_of(keys))
        assert found == right, f"the result has {found:,} rows, and {right:,} are right"

    return Work([call], check, rates(keys), sample=sample)


def count_rows(result: Any) -> int:
    """Return how many rows a result has; of our group-by, groups that have any."""
    return int(result.count.count_nonzero()) if isinstance(result, Totals) else len(result)


def accelerated_work(device: Device, keys: Keys) -> Work:
    """Do an operation in pandas under cuDF's accelerator. The other process checks, warms up and times."""
    if device.backend == "fake":
        return Work([lambda: None], rates=rates(keys))
    other = accelerated()

    def check() -> None:
        other.set_up(str(keys["op"]), rows_of(keys), str(keys["transfer"]))

    return Work([other.seconds], check, rates(keys), sample=other.seconds)


def accelerated() -> SeparateProcess:
    """Return the process in which the accelerator is switched on, a new one if the last has ended."""
    if started().process.poll() is not None:
        started.cache_clear()
    return started()


@functools.cache
def started() -> SeparateProcess:
    """Start the process in which the accelerator is switched on."""
    return SeparateProcess(ACCELERATED)


# --- what is left out ------------------------------------------------------------------------------------


def not_installed(name: str, device: Device) -> str | None:
    """Say no to an engine that is not here."""
    return None if device.backend == "fake" else engines.why_not_here(name)


def too_long(name: str, keys: Keys) -> str | None:
    """Say no to frames on which a contender takes too long to wait for."""
    if rows_of(keys) > ROWS[-1]:
        return f"above {ROWS[-1]:,} rows only cuDF and our group-by are measured"
    most = MOST_ROWS_OF[name]
    if keys["op"] not in BASIC and rows_of(keys) > most:
        return f"above {most:,} rows {name} is measured in {', '.join(BASIC)} only"
    return None


def on_host_only(name: str, device: Device, keys: Keys) -> str | None:
    """Say no to transfers, to large frames, and where the engine is not installed."""
    if keys["transfer"] != "none":
        return "the frame is where this engine works; its times stand at transfer=none"
    return too_long(name, keys) or not_installed({"polars": "polars-lazy"}.get(name, name), device)


def accelerated_only_there(device: Device, keys: Keys) -> str | None:
    """Say no to transfers, since the accelerator's frames are cuDF's, and to large frames."""
    if keys["transfer"] != "none":
        return "the accelerator's frames are copied as cuDF's are; the times of that stand there"
    return too_long("cudf-pandas", keys) or (None if device.backend == "fake" else cudf_frames.why_not_here())


def our_part_only(device: Device, keys: Keys) -> str | None:
    """Say no where there is no kernel of ours."""
    if keys["op"] not in OURS:
        return "there is no kernel of ours for this; our copy to the GPU is measured in frame-transfer"
    return not_installed("cudf", device)


def raw_only_there(device: Device, keys: Keys) -> str | None:
    """Say no where the call without our interface would say nothing new."""
    if keys["op"] not in BASIC or keys["transfer"] != "none" or rows_of(keys) not in RAW_ROWS:
        sizes = ", ".join(f"{rows:,}" for rows in RAW_ROWS)
        return f"cuDF is called without our interface in {', '.join(BASIC)} only, on {sizes} rows without transfers"
    return not_installed("cudf", device)


def with_cudf(build: Callable[[Device, Keys], Work]) -> Contender:
    """Return a contender that needs cuDF and is measured in all cases."""
    return Contender(build, ON_GPU, lambda device, keys: not_installed("cudf", device))


def host_engine(name: str) -> Contender:
    """Return the contender of an engine on the host."""
    return Contender(
        lambda device, keys: engine_work(name, device, keys),
        leaves_out=lambda device, keys: on_host_only(name, device, keys),
    )


# --- cases -----------------------------------------------------------------------------------------------


def cases(device: Device) -> Sequence[Keys]:
    """Return all operations at all sizes, with and without transfers; on a CPU small frames, without.

    Small frames come first. Of the largest, only the basic operations have transfers.
    """
    if not device.is_gpu:
        return [case(name, rows, "none") for rows in ROWS if rows <= MOST_ROWS_ON_CPU for name in operations.OPERATIONS]
    found = [
        case(name, rows, moved)
        for rows in ROWS
        for name in operations.OPERATIONS
        for moved in TRANSFERS
        if moved == "none" or name in BASIC or rows < ROWS[-1]
    ]
    return [*found, *(case(name, MOST_ROWS, "none") for name in BASIC)]


def case(operation: str, rows: int, transfer: str) -> Keys:
    """Return the keys of a case."""
    return {"op": operation, "rows": rows, "transfer": transfer}


ON_GPU = frozenset({"gpu"})
LIBRARIES = ("pandas", "polars", "duckdb", "pyarrow", "cudf-cu12", "cudf-cu13")

DATAFRAME = Benchmark(
    name="dataframe",
    title="Operations on dataframes",
    question="From how many rows on is a GPU faster than the host, with its transfers and without?",
    contenders={
        "pandas": host_engine("pandas"),
        "polars": host_engine("polars"),
        "duckdb": host_engine("duckdb"),
        "cudf": with_cudf(lambda device, keys: engine_work("cudf", device, keys)),
        "cudf-raw": Contender(raw_work, ON_GPU, raw_only_there),
        "cudf-pandas": Contender(accelerated_work, ON_GPU, accelerated_only_there),
        "gpuguide": Contender(lambda device, keys: engine_work("gpuguide", device, keys), ON_GPU, our_part_only),
    },
    cases=cases,
    memory=lambda keys: IN_MEMORY * cost.bytes_in(str(keys["op"]), rows_of(keys)),
    budget=0.1,
    libraries=LIBRARIES,
)


# --- the copy alone --------------------------------------------------------------------------------------


def from_pandas(table: Any) -> Callable[[], Any]:
    """Return cuDF's copy of pandas' frame, which is made beforehand."""
    frame = PandasLike().load(table)
    return lambda: library("cudf").from_pandas(frame)


def from_arrow(table: Any) -> Callable[[], Any]:
    """Return cuDF's copy of an Arrow table."""
    return lambda: library("cudf").DataFrame.from_arrow(table)


def staged(table: Any) -> Callable[[], Any]:
    """Return our copy of an Arrow table."""
    return lambda: transfer.load(table)


def transfer_work(make: Callable[[Any], Callable[[], Any]], device: Device, keys: Keys) -> Work:
    """Copy a frame to the GPU."""
    size = rows_of(keys) * sum(cost.WIDTH[name] for name in TRANSFERRED)
    moved = {"bandwidth": Rate("B/s", size)}
    if device.backend == "fake":
        return Work([lambda: None], rates=moved)
    cudf_frames.use_pool()
    table = data.frame(rows_of(keys), columns=TRANSFERRED)

    def check() -> None:
        compare(make(table)(), table)
        small = data.checked(data.frame(10**4, nulls=0.1))  # with text and missing values
        compare(make(small)(), small)

    return Work([make(table)], check, moved, timing="wall")


def compare(frame: Any, table: Any) -> None:
    """Check that cuDF's frame holds what a table does."""
    found = frame.to_arrow(preserve_index=False)
    for name in table.column_names:
        right = table[name].combine_chunks()
        assert found[name].cast(right.type).combine_chunks().equals(right), f"column {name!r} differs"


def copier(make: Callable[[Any], Callable[[], Any]]) -> Contender:
    """Return the contender of one way to copy."""
    return with_cudf(lambda device, keys: transfer_work(make, device, keys))


FRAME_TRANSFER = Benchmark(
    name="frame-transfer",
    title="A frame from the host to the GPU",
    question="How fast does a frame in pageable memory get to the GPU?",
    contenders={
        "from-pandas": copier(from_pandas),
        "from-arrow": copier(from_arrow),
        "gpuguide-staged": copier(staged),
    },
    cases=lambda device: [{"rows": rows} for rows in ROWS] if device.is_gpu else [],
    memory=lambda keys: IN_MEMORY * rows_of(keys) * sum(cost.WIDTH[name] for name in TRANSFERRED),
    budget=0.2,
    libraries=LIBRARIES,
)


# --- how many groups -------------------------------------------------------------------------------------

GROUPS = (1, 10, 100, 200, 1000, 10**4, 10**5, 10**6)
"""cuDF adds in shared memory where a block meets fewer than 128; our copies of a sum run out above 19 000"""
GROUPED_ROWS = 10**8
GROUP_MAKERS: dict[str, Callable[[int], engines.Engine]] = {
    "cudf": lambda groups: engines.engine("cudf"),
    "gpuguide": DenseKeys,
}


@functools.lru_cache(maxsize=1)
def grouped(groups: int, rows: int) -> Any:
    """Return keys that count from 0, and values. The last ones are kept for the next contender."""
    return data.frame(rows, columns=("key", "value"), keys=groups)


def groups_work(name: str, device: Device, keys: Keys, rows: int = GROUPED_ROWS) -> Work:
    """Group by as many keys as the case has."""
    groups = int(keys["groups"])
    moved = {
        "throughput": Rate("row/s", rows),
        "bandwidth": Rate("B/s", rows * (cost.WIDTH["key"] + cost.WIDTH["value"])),
    }
    if device.backend == "fake":
        return Work([lambda: None], rates=moved)
    cudf_frames.use_pool()
    engine, table = GROUP_MAKERS[name](groups), grouped(groups, rows)
    frame = engine.load(table)

    def check() -> None:
        small = data.checked(data.frame(10**4, columns=("key", "value"), keys=groups, nulls=0.05))
        found = engine.unload(engine.group_by(engine.load(small), "key"))
        different = operations.difference("groupby", found, operations.reference("groupby", small))
        assert different is None, f"{groups} groups on {name}: {different}"
        count, right = count_rows(engine.group_by(frame, "key")), operations.result_rows("groupby", table)
        assert count == right, f"{count} groups, {right} are right"

    return Work([lambda: engine.group_by(frame, "key")], check, moved, timing="wall")


def grouper(name: str) -> Contender:
    """Return the contender of one group-by."""
    return with_cudf(lambda device, keys: groups_work(name, device, keys))


DATAFRAME_GROUPS = Benchmark(
    name="dataframe-groups",
    title="Group-bys with few groups and many",
    question="How does the time of a group-by depend on the number of groups?",
    contenders={name: grouper(name) for name in GROUP_MAKERS},
    cases=lambda device: [{"groups": groups} for groups in GROUPS] if device.is_gpu else [],
    memory=lambda keys: IN_MEMORY * GROUPED_ROWS * (cost.WIDTH["key"] + cost.WIDTH["value"]),
    budget=0.1,
    libraries=LIBRARIES,
)


# --- how not to time it ----------------------------------------------------------------------------------

MISTAKEN_ROWS = 10**7
COLD = "groupby"
"""The operation that is measured from a cold start"""
COLD_PARTS = ("import", "load", "first_call", "second_call")
"""What a new process takes for each step, in this order"""


class Plans(LazyPolars):
    """Polars' plans, of which none is ever run."""

    def collected(self, result: Any) -> Any:
        """Return the plan as it is."""
        return result


def right(device: Device, keys: Keys) -> Work:
    """Warm up, and wait for the GPU before the clock is stopped."""
    return engine_work("cudf", device, {**keys, "transfer": "none"})


def no_synchronize(device: Device, keys: Keys) -> Work:
    """All as it should be, but the clock is stopped when the call returns."""
    work = right(device, keys)
    return work if device.backend == "fake" else unwaited(work, MAKE["cudf"]().wait)


def unwaited(work: Work, wait: Callable[[], None]) -> Work:
    """Return work whose clock is stopped before it is waited for."""
    (call,) = work.calls

    def sample() -> float:
        wait()
        begun = time.perf_counter_ns()
        call()
        seconds = (time.perf_counter_ns() - begun) * 1e-9
        wait()
        return seconds

    return Work(work.calls, work.check, sample=sample)


def not_collected(device: Device, keys: Keys) -> Work:
    """Time a plan of Polars, which nobody runs."""
    if device.backend == "fake":
        return Work([lambda: None])
    operation, engine = str(keys["op"]), Plans()
    call = engines.call_with_transfer(engine, operation, *tables(operation, rows_of(keys)), "none")

    def check() -> None:
        assert hasattr(call(), "collect"), "something was computed where a plan was expected"

    return Work([call], check, timing="wall")


def cold_start(device: Device, keys: Keys) -> Work:
    """Time the first result of a new process: the library is imported, the frame copied, the operation done."""
    if device.backend == "fake":
        return Work([lambda: None])
    taken: dict[str, list[float]] = {name: [] for name in COLD_PARTS}

    def sample() -> float:
        parts = in_new_process("cudf", str(keys["op"]), rows_of(keys))
        for name in COLD_PARTS:
            taken[name].append(parts[name])
        return parts["import"] + parts["load"] + parts["first_call"]

    def further() -> Mapping[str, Metric]:
        return {name: records.metric("s", seconds) for name, seconds in taken.items()}

    return Work([sample], sample=sample, further=further)


def in_new_process(engine: str, operation: str, rows: int) -> dict[str, float]:
    """Return what a new process takes for each step to its first results."""
    program = f"from {__name__} import report_steps; report_steps({engine!r}, {operation!r}, {rows})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or "the new process ended without a message").splitlines()[-1])
    parts: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return parts


def report_steps(engine: str, operation: str, rows: int) -> None:
    """Print the seconds of each step to the first results of this process. Making the table is none of them."""
    table, lookup = tables(operation, rows)
    marks = [time.perf_counter()]
    library(engine)
    chosen = engines.engine(engine)
    marks.append(time.perf_counter())
    frames = [None if each is None else chosen.load(each) for each in (table, lookup)]
    chosen.wait()
    marks.append(time.perf_counter())
    for _ in range(2):
        engines.call(chosen, operation, *frames)()
        chosen.wait()
        marks.append(time.perf_counter())
    print(json.dumps(dict(zip(COLD_PARTS, (end - begin for begin, end in itertools.pairwise(marks)), strict=True))))


def only_once(device: Device, keys: Keys) -> str | None:
    """Say no to all operations but one, because starting a process takes seconds."""
    if keys["op"] != COLD:
        return f"a cold start is measured with {COLD} only"
    return not_installed("cudf", device)


def plan_here(device: Device, keys: Keys) -> str | None:
    """Say no where Polars is not installed."""
    return not_installed("polars-lazy", device)


DATAFRAME_MISTAKES = Benchmark(
    name="dataframe-mistakes",
    title="Operations on dataframes, timed wrongly",
    question="What does an operation on a frame seem to take when it is timed wrongly?",
    contenders={
        "right": with_cudf(right),
        "no-synchronize": with_cudf(no_synchronize),
        "not-collected": Contender(not_collected, ON_GPU, plan_here),
        "cold-start": Contender(cold_start, ON_GPU, only_once),
    },
    cases=lambda device: (
        [{"op": name, "rows": MISTAKEN_ROWS} for name in operations.OPERATIONS] if device.is_gpu else []
    ),
    memory=lambda keys: IN_MEMORY * cost.bytes_in(str(keys["op"]), rows_of(keys)),
    budget=0.1,
    libraries=LIBRARIES,
)


# --- what the cost model is fitted to --------------------------------------------------------------------


def measurements(record: Record) -> list[cost.Measurement]:
    """Return the times of a record of ``dataframe`` for :func:`gpuguide.dataframes.cost.fitted`."""
    return [
        cost.Measurement(
            case.contender,
            str(case.keys["op"]),
            int(case.keys["rows"]),
            str(case.keys["transfer"]),
            case.measured["time"].summary.median,
        )
        for case in record.cases
        if case.status == "ok"
    ]
