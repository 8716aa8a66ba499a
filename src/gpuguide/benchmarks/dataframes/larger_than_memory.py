"""Queries whose columns are larger than the memory that they may use on the GPU.

The memory is limited to a part of the data: the columns that a query reads, as they lie in memory. Polars has two
executors on a GPU. One holds whole columns, and the other reads the file in pieces and moves pieces to the host. The
``-limited`` contenders have the case's memory, and the others have the whole GPU's.

``few-groups`` and ``join`` keep little of each piece. ``many-groups`` has more than half as many groups as the file
has rows, and ``sort`` keeps everything, so that their pieces are exchanged. The sorted rows are written to files,
because a result in memory would have to fit. Results are compared with DuckDB's.
"""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpuguide.benchmarks.dataframes import queries
from gpuguide.benchmarks.dataframes.frames import CUDF, ON_GPU
from gpuguide.dataframes import Query
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query import finish, limited_polars
from gpuguide.dataframes.query.choice import bytes_read, why_not_here
from gpuguide.dataframes.query.limited_polars import InMemoryPolars, LimitedEngine, StreamingPolars
from gpuguide.hardware.device import Device
from gpuguide.measure import records, timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate

ROWS = 10**8
OVER_MEMORY = (0.5, 1.0, 2.0, 3.0, 4.0)
"""Times the memory that the data is"""
COMPARED = 3.0
"""Where contenders that know no limit are measured"""
SAMPLES = 3
"""Few, because a sort takes the host several seconds"""
ACCEPTED = 1e-9
"""Relative error of a sum of all rows, which are added in another order"""

OUT_OF_MEMORY = ("MemoryError", "bad_alloc", "out_of_memory", "Exceeded memory limit")
"""Words of RMM's and Python's errors, which Polars passes on as text"""

QUERIES: dict[str, Callable[[Query, Path], Query]] = {
    "few-groups": queries.QUERIES["q1"],
    "many-groups": lambda frame, folder: frame.group_by("id6", "id4", sum="v1").group_by("id4", max="v1_sum"),
    "join": queries.QUERIES["join-medium"],
    "sort": lambda frame, folder: frame.sort("v3", "id6"),
}
SORTED = ["id6", "v3"]
"""The columns of the sorted rows"""


def make_query(name: str) -> Query:
    """Return the query of that name."""
    folder = queries.write_files(ROWS)
    return QUERIES[name](Query(folder / "frame.parquet"), folder)


def data_bytes(name: str) -> float:
    """Return the bytes of the columns that a query reads, in memory."""
    query = make_query(name)
    return query.source.bytes(SORTED) if name == "sort" else bytes_read(query)


def limit_of(keys: Keys) -> int:
    """Return the bytes of memory that a case's limited contenders may use."""
    return limited_polars.limit_for(data_bytes(str(keys["query"])), float(keys["over_memory"]))


# --- results ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def right_result(name: str) -> Any:
    """Return DuckDB's result of a query. It is kept for the next contender and the next limit."""
    return make_query(name).on("duckdb")


@functools.lru_cache(maxsize=1)
def right_sums(rows: int) -> tuple[float, ...]:
    """Return DuckDB's sums over the columns of the sorted rows: one of their pairs too."""
    frame = queries.write_files(rows) / "frame.parquet"
    select = f"SELECT sum(id6), sum(v3), sum(id6 * v3) FROM read_parquet('{frame}')"
    return tuple(map(float, library("duckdb").sql(select).fetchall()[0]))


def check_sorted(folder: Path, rows: int) -> None:
    """Compare files of sorted rows with the frame: as many rows, in order, and the same ones."""
    arrow, parquet = library("pyarrow"), library("pyarrow.parquet")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    table = arrow.concat_tables(parquet.read_table(path, columns=SORTED) for path in files)
    keys, values = (table[name].to_numpy() for name in SORTED)
    assert len(keys) == rows, f"{len(keys):,} rows were written, and {rows:,} are right"
    steps = np.diff(values)
    assert (steps >= 0).all(), "rows are not in order"
    assert (np.diff(keys)[steps == 0] >= 0).all(), "rows of equal values are not in order"
    sums = keys.sum(dtype=np.int64), values.sum(), values @ keys
    assert np.allclose(sums, right_sums(rows), rtol=ACCEPTED, atol=0), "the sorted rows are others than the frame's"


# --- work ------------------------------------------------------------------------------------------------


def query_work(name: str, engine: Any, folder: Path, limit: int | None = None) -> Work:
    """Run a query with an engine of Polars, to a table in the host's memory, or for the sort to files in a folder.

    The call whose result is checked warms up.
    """
    query = make_query(name)
    rates = {"throughput": Rate("row/s", ROWS)}
    if name == "sort":
        sort = lambda: write_sorted(query, engine, folder)  # noqa: E731
        seconds = timing.wall_clock(lambda: tell_out_of_memory(sort, limit))

        def sample() -> float:
            empty(folder)
            return seconds()

        def check_files() -> None:
            sample()
            check_sorted(folder, ROWS)

        return Work([], check_files, rates, sample=sample)

    def call() -> Any:
        return tell_out_of_memory(lambda: query.plan().collect(engine=engine).to_arrow(), limit)

    def check() -> None:
        different = queries.difference(finish(call(), query.schema), right_result(name))
        assert different is None, f"{name}: {different}"

    return Work([call], check, rates, sample=timing.wall_clock(call))


def tell_out_of_memory(call: Callable[[], Any], limit: int | None) -> Any:
    """Call, and raise a ``MemoryError`` of one line if memory ran out, with whatever error an engine passes that on."""
    try:
        return call()
    except Exception as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in OUT_OF_MEMORY):
            raise
    available = "the GPU's memory" if limit is None else f"the {limit / 2**20:,.0f} MiB that it may use"
    raise MemoryError(f"the query needs more than {available}")


def write_sorted(query: Query, engine: Any, folder: Path) -> None:
    """Write the rows of a sort; the streaming executor on a GPU makes a folder of files of this name."""
    query.plan().select(SORTED).sink_parquet(folder / "rows.parquet", compression="uncompressed", engine=engine)


def empty(folder: Path) -> None:
    """Leave a folder that has nothing in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


open_engines = contextlib.ExitStack()
"""Ends the engines of a case, the last one first, because each restores the memory resource that it found"""


@functools.lru_cache(maxsize=1)
def begin_case(query: str, over_memory: float) -> None:
    """End the engines of the case before, once for all contenders of a case."""
    open_engines.close()


def gpu_work(contender: str, start: Callable[[int | None], LimitedEngine], limited: bool, keys: Keys) -> Work:
    """Run a query on the GPU, within the case's memory or the GPU's, and report the most that it allocated."""
    name = str(keys["query"])
    begin_case(name, float(keys["over_memory"]))
    limit = limit_of(keys) if limited else None
    running = start(limit)
    open_engines.callback(running.close)
    work = query_work(name, running.engine, queries.write_files(ROWS) / contender, limit)

    def further() -> Mapping[str, Metric]:
        return {"peak_memory": records.metric("B", [running.peak()])}

    return Work(work.calls, work.check, work.rates, sample=work.sample, further=further)


# --- declaration -----------------------------------------------------------------------------------------


def once(device: Device, keys: Keys) -> str | None:
    """Return why a contender that knows no limit is left out, or ``None`` where it is measured."""
    if keys["over_memory"] == COMPARED:
        return None
    return f"no limit applies to it; its time is that of over_memory={COMPARED:g}"


def gpu_contender(
    name: str,
    start: Callable[[int | None], LimitedEngine],
    limited: bool,
    skip_reason: Callable[[Device, Keys], str | None] = lambda device, keys: None,
) -> Contender:
    """Return the contender of an executor on a GPU."""
    return Contender(
        lambda device, keys: gpu_work(name, start, limited, keys),
        ON_GPU,
        skip_reason,
        ("polars", "duckdb", *CUDF),
        limited_polars.why_no_streaming,
    )


def end() -> None:
    """End the engines, and delete the files."""
    open_engines.close()
    begin_case.cache_clear()
    right_result.cache_clear()
    right_sums.cache_clear()
    queries.end()


LARGER_THAN_MEMORY = Benchmark(
    name="larger-than-memory",
    title="Queries on more data than the memory holds",
    question="How long does a query take if its columns are larger than the GPU's memory?",
    contenders={
        "polars": Contender(
            lambda device, keys: query_work(
                str(keys["query"]), "streaming", queries.write_files(ROWS) / "polars-sorted"
            ),
            skip_reason=once,
            libraries=("polars", "duckdb", "pyarrow"),
            unavailable_reason=lambda: why_not_here("polars"),
        ),
        "in-memory": gpu_contender("in-memory", InMemoryPolars, False),
        "in-memory-limited": gpu_contender("in-memory-limited", InMemoryPolars, True),
        "streaming": gpu_contender("streaming", StreamingPolars, False, once),
        "streaming-limited": gpu_contender("streaming-limited", StreamingPolars, True),
    },
    cases=lambda device: (
        [{"query": name, "over_memory": over} for name in QUERIES for over in OVER_MEMORY] if device.is_gpu else []
    ),
    memory=lambda keys: queries.IN_MEMORY * queries.ROW_BYTES * ROWS,
    samples=SAMPLES,
    end=end,
)
