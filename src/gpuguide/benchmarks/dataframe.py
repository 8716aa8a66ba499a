"""Operations on frames: the host's libraries and the GPU's, with and without the copies between the two.

Contenders are engines of :mod:`gpuguide.dataframes.engines`: ``polars`` runs plans and collects them, ``cudf-pandas``
runs in a process of its own, and ``gpuguide`` is cuDF with our copy to the GPU and our group-by. Every time is taken by
the host's clock around a call that was waited for; what a call returns is dropped within it.

Not everything is measured. The engines of the host have no transfers. pandas works on 100 million rows in the
operations with which it is usually compared, because a sort alone takes it 20 seconds.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpuguide.dataframes import cost, data, engines, operations, transfer
from gpuguide.dataframes.engines import cudf_frames
from gpuguide.dataframes.engines.dense_keys import DenseKeys
from gpuguide.dataframes.engines.interface import TRANSFERS
from gpuguide.dataframes.engines.pandas_like import PandasLike
from gpuguide.dataframes.kernels import Totals
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.separate_process import ACCELERATED, SeparateProcess
from gpuguide.hardware.device import Device
from gpuguide.measure import timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate, Record

ROWS = (10**4, 10**5, 10**6, 10**7, 10**8)
MOST_ROWS = 2 * 10**8
"""For the GPU's engines, without transfers"""
MOST_ROWS_ON_CPU = 10**6
"""Of a machine without a GPU"""
BASIC = ("filter", "groupby", "join", "sort")
"""Operations that are measured at all sizes, by all engines"""
MOST_ROWS_OF_PANDAS = 10**7
"""In all others"""
OURS = ("groupby", "filter-groupby")
"""Operations that we have a kernel for"""
SLOW = 1.0
"""Seconds from which on a call is not repeated to warm up"""
ENGINES = {"pandas": "pandas", "polars": "polars-lazy", "duckdb": "duckdb", "cudf": "cudf"}
"""Contenders that are engines as they are"""
TRANSFERRED = ("key", "id", "value")
IN_MEMORY = 6
"""Times its own size that a frame takes on the GPU: of two engines the frame, a result and what it needs meanwhile"""


def rows_of(keys: Keys) -> int:
    """Return how many rows a case has."""
    return int(keys["rows"])


@functools.lru_cache(maxsize=1)
def tables(operation: str, rows: int) -> tuple[Any, Any]:
    """Return the frame and the lookup of a case. The last ones are kept for the next contender."""
    asked = operations.get(operation)
    return data.frame(rows, columns=asked.columns), data.lookup(rows) if asked.has_lookup else None


def rates(keys: Keys) -> dict[str, Rate]:
    """Return rows, and where nothing is transferred the bytes that must move."""
    name, rows = str(keys["op"]), rows_of(keys)
    moved = cost.traffic(name, rows)
    bandwidth = {"bandwidth": Rate("B/s", moved.read + moved.written)} if keys["transfer"] == "none" else {}
    return {"throughput": Rate("row/s", rows), **bandwidth}


# --- work ------------------------------------------------------------------------------------------------


def engine_work(make: Callable[[], engines.Engine], device: Device, keys: Keys) -> Work:
    """Do an operation with an engine of this process."""
    if device.backend == "fake":
        return Work([lambda: None], rates=rates(keys))
    name, rows = str(keys["op"]), rows_of(keys)
    engine = make()
    table, lookup = tables(name, rows)
    call = engines.call_with_transfer(engine, name, table, lookup, str(keys["transfer"]))
    found = warmed_up(call, engine.wait)

    def check() -> None:
        engines.check(engine, name)
        right = operations.result_rows(name, table, lookup)
        assert found == right, f"the result has {found:,} rows, and {right:,} are right"

    return Work([call], check, rates(keys), sample=timing.wall_clock(call, engine.wait))


def warmed_up(call: Callable[[], Any], wait: Callable[[], None]) -> int:
    """Call until nothing is cold, once if that takes long, and return how many rows the result has."""
    begun = time.perf_counter()
    result = call()
    wait()
    rows = int(result.count.count_nonzero()) if isinstance(result, Totals) else len(result)
    del result
    if time.perf_counter() - begun < SLOW:
        timing.warm_up(call, wait)
    return rows


def pooled_cudf() -> engines.Engine:
    """Return cuDF, with memory from the driver's pool."""
    cudf_frames.use_pool()
    return engines.engine("cudf")


def ours() -> engines.Engine:
    """Return cuDF with our copy and our group-by."""
    cudf_frames.use_pool()
    return DenseKeys(data.KEYS)


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


def on_host_only(name: str, device: Device, keys: Keys) -> str | None:
    """Say no to transfers, and to frames on which an engine of the host takes too long to wait for."""
    if keys["transfer"] != "none":
        return "the frame is where this engine works; its times stand at transfer=none"
    if rows_of(keys) > ROWS[-1]:
        return f"above {ROWS[-1]:,} rows only the GPU's engines are measured"
    if name == "pandas" and keys["op"] not in BASIC and rows_of(keys) > MOST_ROWS_OF_PANDAS:
        return f"above {MOST_ROWS_OF_PANDAS:,} rows pandas is measured in {', '.join(BASIC)} only"
    return not_installed(ENGINES[name], device)


def resident_only(device: Device, keys: Keys) -> str | None:
    """Say no to transfers: the accelerator's frames are cuDF's."""
    if keys["transfer"] != "none":
        return "the accelerator's frames are copied as cuDF's are; the times of that stand there"
    return None if device.backend == "fake" else cudf_frames.why_not_here()


def our_part_only(device: Device, keys: Keys) -> str | None:
    """Say no where neither the copy nor the operation is ours."""
    if keys["transfer"] == "none" and keys["op"] not in OURS:
        return "there is no kernel of ours for this; on a GPU that holds the frame already, it would be cuDF's time"
    return not_installed("cudf", device)


def host_engine(name: str) -> Contender:
    """Return the contender of an engine on the host."""
    return Contender(
        lambda device, keys: engine_work(lambda: engines.engine(ENGINES[name]), device, keys),
        leaves_out=lambda device, keys: on_host_only(name, device, keys),
    )


# --- cases -----------------------------------------------------------------------------------------------


def cases(device: Device) -> Sequence[Keys]:
    """Return all operations at all sizes, with and without transfers; on a CPU small frames, without."""
    if not device.is_gpu:
        small = [rows for rows in ROWS if rows <= MOST_ROWS_ON_CPU]
        return [case(name, rows, "none") for name in operations.OPERATIONS for rows in small]
    found = [case(name, rows, moved) for name in operations.OPERATIONS for rows in ROWS for moved in TRANSFERS]
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
        "cudf": Contender(
            lambda device, keys: engine_work(pooled_cudf, device, keys),
            ON_GPU,
            lambda device, keys: not_installed("cudf", device),
        ),
        "cudf-pandas": Contender(accelerated_work, ON_GPU, resident_only),
        "gpuguide": Contender(lambda device, keys: engine_work(ours, device, keys), ON_GPU, our_part_only),
    },
    cases=cases,
    memory=lambda keys: IN_MEMORY * cost.bytes_in(str(keys["op"]), rows_of(keys)),
    budget=0.2,
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
    return Contender(
        lambda device, keys: transfer_work(make, device, keys),
        ON_GPU,
        lambda device, keys: not_installed("cudf", device),
    )


FRAME_TRANSFER = Benchmark(
    name="frame-transfer",
    title="A frame from the host to the GPU",
    question="How fast does a frame in pageable memory get to the GPU?",
    contenders={
        "from-pandas": copier(from_pandas),
        "from-arrow": copier(from_arrow),
        "gpuguide-staged": copier(staged),
    },
    cases=lambda device: [{"rows": rows} for rows in (*ROWS, MOST_ROWS)] if device.is_gpu else [],
    memory=lambda keys: IN_MEMORY * rows_of(keys) * sum(cost.WIDTH[name] for name in TRANSFERRED),
    budget=0.5,
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
