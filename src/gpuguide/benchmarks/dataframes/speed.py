"""Operations on frames: the host's libraries and the GPU's, with and without the copies between the two.

Contenders are engines of :mod:`gpuguide.dataframes.engines`: ``polars`` runs plans and collects them, ``cudf-raw`` is
cuDF called as one calls it without us, ``cudf-pandas`` runs in a process of its own, and ``gpuguide`` is cuDF with our
copy to the GPU and our group-by. Every time is taken by the host's clock around a call that was waited for; what a call
returns is dropped within it. A call of a second or longer is not repeated to warm up: the call whose result is checked
is then the first sample.

Not everything is measured, because a sort of 100 million rows alone takes pandas 20 seconds. The engines of the host
have no transfers. Frames that large go through the four basic operations with every engine, and through the others
on the GPU only.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpuguide.benchmarks.dataframes.frames import (
    IN_MEMORY,
    ROWS,
    count_rows,
    rates,
    right_rows,
    rows_of,
    tables,
    with_cudf,
)
from gpuguide.dataframes import cost, data, engines, operations
from gpuguide.dataframes.engines import cudf_frames
from gpuguide.dataframes.engines.dense_keys import DenseKeys
from gpuguide.dataframes.engines.interface import TRANSFERS
from gpuguide.dataframes.separate_process import ACCELERATED, SeparateProcess
from gpuguide.hardware.device import Device
from gpuguide.measure import timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Record

MOST_ROWS = 2 * 10**8
"""Rows for cuDF and our group-by, without transfers"""
MOST_ROWS_ON_CPU = 10**6
"""Rows on a machine without a GPU"""
BASIC = ("filter", "groupby", "join", "sort")
"""Operations that are measured at all sizes, by all engines"""
MOST_ROWS_OF = {"pandas": 10**6, "duckdb": 10**6, "polars": 10**7, "cudf-pandas": 10**7}
"""Rows of all other operations, by engine"""
OURS = ("groupby", "filter-groupby")
"""Operations that we have a kernel for"""
RAW_ROWS = (10**4, 10**6, 10**8)
"""Rows at which cuDF is called without our interface too"""
SLOW = 1.0
"""Seconds from which on a call is not repeated to warm up"""


# --- work ------------------------------------------------------------------------------------------------


def cudf_with_pool() -> engines.DataframeEngine:
    """Return cuDF, with memory from the driver's pool."""
    cudf_frames.use_pool()
    return engines.engine("cudf")


def ours() -> engines.DataframeEngine:
    """Return cuDF with our copy and our group-by."""
    cudf_frames.use_pool()
    return DenseKeys(data.KEYS)


MAKE: dict[str, Callable[[], engines.DataframeEngine]] = {
    "pandas": lambda: engines.engine("pandas"),
    "polars": lambda: engines.engine("polars-lazy"),
    "duckdb": lambda: engines.engine("duckdb"),
    "cudf": cudf_with_pool,
    "gpuguide": ours,
}
"""The engines of contenders that run in this process"""


def engine_work(name: str, device: Device, keys: Keys) -> Work:
    """Do an operation with an engine of this process."""
    engine, operation, rows = MAKE[name](), str(keys["op"]), rows_of(keys)
    call = engines.call_with_transfer(engine, operation, *tables(operation, rows), str(keys["transfer"]))
    return make_timed_work(call, engine.wait, keys, lambda: check_engine(name, operation))


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
    engine, operation = MAKE["cudf"](), str(keys["op"])
    frames = [None if table is None else engine.load(table) for table in tables(operation, rows_of(keys))]
    return make_timed_work(raw_call(operation, *frames), engine.wait, keys, lambda: check_raw(engine, operation))


def check_raw(engine: engines.DataframeEngine, operation: str) -> None:
    """Compare a call without our interface with the reference, on a small frame."""
    asked = operations.get(operation)
    table = data.frame(ROWS[0], columns=asked.columns)
    lookup = data.lookup(ROWS[0]) if asked.has_lookup else None
    frames = [None if each is None else engine.load(each) for each in (table, lookup)]
    found = engine.unload(raw_call(operation, *frames)())
    different = operations.difference(operation, found, operations.reference(operation, table, lookup))
    assert different is None, f"{operation}: {different}"


def make_timed_work(
    call: Callable[[], Any], wait: Callable[[], None], keys: Keys, small_check: Callable[[], None]
) -> Work:
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


def accelerator_work(device: Device, keys: Keys) -> Work:
    """Do an operation in pandas under cuDF's accelerator. The other process checks, warms up and times."""
    other = accelerator_process()

    def check() -> None:
        other.set_up(str(keys["op"]), rows_of(keys), str(keys["transfer"]))

    return Work([other.seconds], check, rates(keys), sample=other.seconds)


def accelerator_process() -> SeparateProcess:
    """Return the process in which the accelerator is switched on, a new one if the last has ended."""
    if start_accelerator().process.poll() is not None:
        start_accelerator.cache_clear()
    return start_accelerator()


@functools.cache
def start_accelerator() -> SeparateProcess:
    """Start the process in which the accelerator is switched on."""
    return SeparateProcess(ACCELERATED)


def too_long(name: str, keys: Keys) -> str | None:
    """Return the reason to skip frames on which a contender takes too long to wait for, or None."""
    if rows_of(keys) > ROWS[-1]:
        return f"above {ROWS[-1]:,} rows only cuDF and our group-by are measured"
    most = MOST_ROWS_OF[name]
    if keys["op"] not in BASIC and rows_of(keys) > most:
        return f"above {most:,} rows {name} is measured in {', '.join(BASIC)} only"
    return None


def restrict_to_host(name: str, keys: Keys) -> str | None:
    """Return the reason to skip transfers and large frames with an engine on the host, or None."""
    if keys["transfer"] != "none":
        return "the frame is where this engine works; its times stand at transfer=none"
    return too_long(name, keys)


def restrict_to_accelerator(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip transfers, since the accelerator's frames are cuDF's, and large frames, or None."""
    if keys["transfer"] != "none":
        return "the accelerator's frames are copied as cuDF's are; the times of that stand there"
    return too_long("cudf-pandas", keys)


def our_part_only(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip operations without a kernel of ours, or None."""
    if keys["op"] in OURS:
        return None
    return "there is no kernel of ours for this; our copy to the GPU is measured in frame-transfer"


def raw_only_there(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip cases in which the call without our interface would say nothing new, or None."""
    if keys["op"] not in BASIC or keys["transfer"] != "none" or rows_of(keys) not in RAW_ROWS:
        sizes = ", ".join(f"{rows:,}" for rows in RAW_ROWS)
        return f"cuDF is called without our interface in {', '.join(BASIC)} only, on {sizes} rows without transfers"
    return None


def host_engine(name: str) -> Contender:
    """Return the contender of an engine on the host."""
    return Contender(
        lambda device, keys: engine_work(name, device, keys),
        skip_reason=lambda device, keys: restrict_to_host(name, keys),
        libraries=(name, "pyarrow"),
        unavailable_reason=lambda: engines.why_not_here({"polars": "polars-lazy"}.get(name, name)),
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


DATAFRAME = Benchmark(
    name="dataframe",
    title="Operations on dataframes",
    question="From how many rows on is a GPU faster than the host, with its transfers and without?",
    contenders={
        "pandas": host_engine("pandas"),
        "polars": host_engine("polars"),
        "duckdb": host_engine("duckdb"),
        "cudf": with_cudf(lambda device, keys: engine_work("cudf", device, keys)),
        "cudf-raw": with_cudf(raw_work, raw_only_there),
        "cudf-pandas": with_cudf(accelerator_work, restrict_to_accelerator, "pandas"),
        "gpuguide": with_cudf(lambda device, keys: engine_work("gpuguide", device, keys), our_part_only),
    },
    cases=cases,
    memory=lambda keys: IN_MEMORY * cost.bytes_in(str(keys["op"]), rows_of(keys)),
    budget=0.1,
)


# --- what the cost model is fitted to --------------------------------------------------------------------


def measurements(record: Record) -> list[cost.Measurement]:
    """Return the times of a record of ``dataframe`` for :func:`gpuguide.dataframes.cost.fit_parameters`."""
    return cost.read_measurements(record.cases)
