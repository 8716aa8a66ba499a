"""Queries whose columns are larger than the memory that they may use on the GPU.

The memory is as large as the columns that a query reads from its files, as they lie in memory: 1.1 to 4.8 GiB. Data
that is so many times the memory is so many copies of the files. Polars has two executors on a GPU. One holds whole
columns, and the other reads the files in pieces and moves pieces to the host. The ``-limited`` contenders have that
memory. The others have the whole GPU's or the host's, and are measured at few sizes: rows a second compare them.

``few-groups`` and ``join`` keep little of each piece. ``many-groups`` has more than half as many groups as the files
have rows, and ``sort`` keeps everything, so that their pieces are exchanged. Copies bring rows to the groups that are
there, but the pieces are exchanged before rows of different pieces meet, so that what is exchanged grows with the rows.
The sorted rows are written to files, because a result in memory would have to fit.

A file has fewer bytes than a piece of the streaming executor, which then reads whole files. A piece is 2 to 2.6 % of
the memory, and with ``streaming-large-limited`` four times as much. Expected from the executor's source, at any number
of copies, with the smaller pieces: ``few-groups`` needs a fifth of the memory, ``join`` about a third, and
``many-groups`` and ``sort`` nine tenths, because they fill four fifths before they move pieces to the host.

Every contender runs in a process of its own and must be done by a deadline: a query on a GPU may never come back once
memory has run out. Results are compared with DuckDB's on the files, times the copies.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from gpuguide.benchmarks.dataframes.frames import CUDF, ON_GPU
from gpuguide.benchmarks.larger_frames import queries
from gpuguide.benchmarks.larger_frames.pdsh import difference
from gpuguide.dataframes import Query
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query import finish, limited_polars
from gpuguide.dataframes.query.choice import why_not_here
from gpuguide.dataframes.query.gpu_defaults import set_gpu_defaults
from gpuguide.dataframes.query.limited_polars import HostPolars, InMemoryPolars, LimitedEngine, StreamingPolars
from gpuguide.dataframes.query.timed_process import TimedProcess, serve
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate

FILE_ROWS = 2_500_000
FILES = {"few-groups": 160, "many-groups": 80, "join": 160, "sort": 40}
"""Of each query; a multiple of five, and fewer where a query takes longer a row"""
ROW_BYTES = {"few-groups": 13, "many-groups": 12, "join": 8, "sort": 12}
"""Of the columns that a query reads, in memory"""
FITTING = 0.2
"""Times the memory that the data is, so that whole columns fit: a query needs up to 4.2 times their bytes"""
COMPARED = (1.0, 3.0)
"""Where whole columns in the whole GPU's memory are measured, and at the first the others without a limit"""
OVER_MEMORY = (FITTING, 1.0, 2.0, 3.0, 4.0)
"""Times the memory that the data is"""
FEW_OVER_MEMORY = (FITTING, *COMPARED)
"""For the sort, whose files are as large as the data"""
LARGER = 4
"""Times the size of a piece, where pieces are large"""
SAMPLES = 2
"""Few, because the host takes seconds for some queries; the call that is checked warms up"""
DEADLINE = 60.0
"""Seconds for a call; the longest is expected to take a fifth of it"""
START_DEADLINE = 120.0
"""Seconds for a process to import its libraries and make its engine ready"""
WHOLE = {"few-groups": 3.2, "many-groups": 4.2, "join": 4.2, "sort": 3.3}
"""Times the bytes of its columns that a query on whole columns needs"""
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
GROUPS = ("id1", "id4", "id5")
"""The columns of results that copies of the files do not change; all others are sums"""
SORTED = ["id6", "v3"]
"""The columns of the sorted rows"""
ENGINES: dict[str, Callable[[int | None], LimitedEngine]] = {
    "polars": HostPolars,
    "in-memory": InMemoryPolars,
    "streaming": StreamingPolars,
    "streaming-large": lambda limit: StreamingPolars(limit, target_partition_size=large_piece(limit)),
}
LIMITED = "-limited"
"""The end of the names of contenders that have the limit"""


def large_piece(limit: int | None) -> int:
    """Return the bytes of a piece that is four times as large as the executor would choose for a limit."""
    assert limit is not None, "pieces are compared within a limit"
    return int(LARGER * limited_polars.PARTITION_SHARE * limit)


# --- files -----------------------------------------------------------------------------------------------


@functools.cache
def write_files() -> Path:
    """Write the files of a frame and the table that it is joined with, and return their folder."""
    folder = Path(queries.temporary_folder().name)
    with ThreadPoolExecutor(queries.THREADS) as threads:
        list(threads.map(functools.partial(write_file, folder), range(max(FILES.values()))))
    queries.write_joined(folder / "medium.parquet", "id6", count_ids())
    return folder


def count_ids() -> int:
    """Return how many different values ``id6`` has: one for a hundred rows, as in db-benchmark."""
    return max(1, max(FILES.values()) * FILE_ROWS // queries.GROUPS)


def write_file(folder: Path, number: int) -> None:
    """Write one of the files: db-benchmark's columns that the queries read, in one row group."""
    arrow, random = library("pyarrow"), np.random.default_rng([0, number])
    texts = arrow.array([f"id{group:03d}" for group in range(queries.GROUPS + 1)])
    draw = lambda last: arrow.array(random.integers(1, last + 1, FILE_ROWS, dtype=np.int32))  # noqa: E731
    columns = {
        "id1": arrow.DictionaryArray.from_arrays(draw(queries.GROUPS), texts),
        "id4": draw(queries.GROUPS),
        "id5": draw(queries.GROUPS),
        "id6": draw(count_ids()),
        "v1": draw(5),
        "v3": np.round(random.uniform(0, 100, FILE_ROWS), 6),
    }
    library("pyarrow.parquet").write_table(
        arrow.table(columns),
        path_of(folder, 0, number),
        row_group_size=FILE_ROWS,
        use_dictionary=["id1", "id4", "id5", "v1"],
        store_schema=False,  # a text column then, whatever it was made of
    )


def path_of(folder: Path, copy: int, number: int) -> Path:
    """Return the path of a copy of a file; 0 is the file itself."""
    return folder / f"frame-{copy:02d}-{number:04d}.parquet"


def count_files(keys: Keys) -> int:
    """Return how many files the data of a case is."""
    return round(FILES[str(keys["query"])] * float(keys["over_memory"]))


def list_files(keys: Keys) -> list[Path]:
    """Return the files of a case. Copies are further names of the same file, which take no room."""
    folder, each, found = write_files(), FILES[str(keys["query"])], []
    for index in range(count_files(keys)):
        copy, number = divmod(index, each)
        path = path_of(folder, copy, number)
        if not path.exists():
            os.link(path_of(folder, 0, number), path)
        found.append(path)
    return found


def make_query(name: str, paths: list[Path]) -> Query:
    """Return the query of that name on files, beside which the joined table lies."""
    return QUERIES[name](Query(paths), paths[0].parent)


@functools.cache
def limit_of(name: str) -> int:
    """Return the bytes of memory that limited contenders of a query may use: what it reads of its files."""
    query = make_query(name, list_files({"query": name, "over_memory": 1.0}))
    return limited_polars.limit_for(query.source.bytes(SORTED if name == "sort" else query.columns_read))


# --- results ---------------------------------------------------------------------------------------------


def right_result(keys: Keys) -> Any:
    """Return DuckDB's result of a case: that of the files without copies, with its sums multiplied."""
    copies = max(1, round(float(keys["over_memory"])))
    return multiply(result_without_copies(str(keys["query"]), count_files(keys) // copies), copies)


@functools.lru_cache(maxsize=2)
def result_without_copies(name: str, files: int) -> Any:
    """Return DuckDB's result of a query on some of the files. It is kept for further contenders and cases."""
    return make_query(name, [path_of(write_files(), 0, number) for number in range(files)]).on("duckdb")


def multiply(result: Any, copies: int) -> Any:
    """Return a result with its sums multiplied."""
    multiplied = library("pyarrow.compute").multiply
    columns = {
        name: result[name] if name in GROUPS else multiplied(result[name], copies) for name in result.schema.names
    }
    return library("pyarrow").table(columns)


@functools.lru_cache(maxsize=2)
def right_sums(files: int) -> tuple[float, ...]:
    """Return DuckDB's sums over the columns of the sorted rows: one of their pairs too."""
    paths = [str(path_of(write_files(), 0, number)) for number in range(files)]
    select = f"SELECT sum(id6), sum(v3), sum(id6 * v3) FROM read_parquet({paths})"
    return tuple(map(float, library("duckdb").sql(select).fetchall()[0]))


def check_sorted(folder: Path, keys: Keys) -> None:
    """Compare files of sorted rows with the frame: as many rows, in order, and the same ones."""
    parquet = library("pyarrow.parquet")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    tables = [parquet.read_table(path, columns=SORTED) for path in files]
    ids, values = (np.concatenate([table[name].to_numpy() for table in tables]) for name in SORTED)
    rows, copies = count_files(keys) * FILE_ROWS, max(1, round(float(keys["over_memory"])))
    assert len(ids) == rows, f"{len(ids):,} rows were written, and {rows:,} are right"
    steps = np.diff(values)
    assert (steps >= 0).all(), "rows are not in order"
    assert (np.diff(ids)[steps == 0] >= 0).all(), "rows of equal values are not in order"
    sums = ids.sum(dtype=np.int64), values.sum(), values @ ids
    right = copies * np.array(right_sums(count_files(keys) // copies))
    assert np.allclose(sums, right, rtol=ACCEPTED, atol=0), "the sorted rows are others than the frame's"


# --- the process of a contender --------------------------------------------------------------------------


class OneQuery:
    """An engine with a query, which is run as often as is asked for.

    Parameters
    ----------
    start : callable
        Makes an engine with a limit of memory.
    """

    def __init__(self, start: Callable[[int | None], LimitedEngine]) -> None:
        self.start = start
        self.running: LimitedEngine | None = None

    def answer(self, question: Mapping[str, Any]) -> dict[str, object]:
        """Do what a question says: ``begin``, ``run``, ``write`` the result to a file, or ``end``."""
        if question["do"] == "begin":
            self.end()
            self.name, self.limit = question["query"], question["limit"]
            self.folder = Path(question["folder"])
            self.query = make_query(self.name, list(map(Path, question["paths"])))
            self.running = self.start(self.limit)
        elif question["do"] == "run":
            return self.run()
        elif question["do"] == "write":
            library("pyarrow.parquet").write_table(finish(self.result, self.query.schema), self.folder / "result")
        else:
            self.end()
        return {}

    def run(self) -> dict[str, object]:
        """Run the query once, and return its seconds and the most bytes that were allocated up to now."""
        assert self.running is not None
        call = self.write_sorted if self.name == "sort" else self.collect
        empty(self.folder)
        begun = time.perf_counter_ns()
        self.result = tell_out_of_memory(call, self.limit)
        return {"seconds": (time.perf_counter_ns() - begun) * 1e-9, "peak": self.running.peak()}

    def collect(self) -> Any:
        """Return the query's result, in the host's memory."""
        return self.query.plan().collect(engine=self._engine()).to_arrow()

    def write_sorted(self) -> None:
        """Write the rows of a sort; the streaming executor on a GPU makes a folder of files of this name."""
        rows = self.query.plan().select(SORTED)
        rows.sink_parquet(self.folder / "rows.parquet", compression="uncompressed", engine=self._engine())

    def end(self) -> None:
        """End the engine, if there is one."""
        if self.running is not None:
            self.running.close()
        self.running = self.result = None

    def _engine(self) -> Any:
        assert self.running is not None
        return self.running.engine


def serve_queries() -> None:
    """Answer questions about the engine that is named on the command line."""
    set_gpu_defaults()
    serve(OneQuery(ENGINES[sys.argv[1]]).answer)


def tell_out_of_memory(call: Callable[[], Any], limit: int | None) -> Any:
    """Call, and raise a ``MemoryError`` of one line if memory ran out, with whatever error an engine passes that on."""
    try:
        return call()
    except Exception as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in OUT_OF_MEMORY):
            raise
    available = "the GPU's memory" if limit is None else f"the {limit / 2**20:,.0f} MiB that it may use"
    raise MemoryError(f"the query needs more than {available}")


def empty(folder: Path) -> None:
    """Leave a folder that has nothing in it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


# --- work ------------------------------------------------------------------------------------------------

processes: dict[str, TimedProcess] = {}
"""Of each contender. They outlive a case, because they take seconds to start"""


def process_of(contender: str) -> TimedProcess:
    """Return the process of a contender, a new one if it has none or its last one ended."""
    if contender not in processes or not processes[contender].is_running():
        served = f"import {__name__} as served; served.{serve_queries.__name__}()"
        engine = contender.removesuffix(LIMITED)
        processes[contender] = TimedProcess([sys.executable, "-c", served, engine])
    return processes[contender]


def ask(contender: str, question: Mapping[str, object], seconds: float = DEADLINE) -> dict[str, Any]:
    """Return the answer of a contender's process. If memory ran out in the streaming executor, the process is ended.

    Its threads may be waiting for each other then.
    """
    process = process_of(contender)
    try:
        return process.ask(question, seconds)
    except MemoryError:
        if contender.startswith("streaming"):
            process.kill()
        raise


@functools.lru_cache(maxsize=1)
def begin_case(query: str, over_memory: float) -> None:
    """End the engines of the case before, once for all contenders of a case, so that all memory is free."""
    for contender in [name for name, process in processes.items() if process.is_running()]:
        with contextlib.suppress(Exception):  # it was ended then, and the next question starts another
            ask(contender, {"do": "end"})


def query_work(contender: str, keys: Keys) -> Work:
    """Run a query in a contender's process, to a table in the host's memory, or for the sort to files in a folder."""
    name, folder = str(keys["query"]), write_files() / contender
    begin_case(name, float(keys["over_memory"]))
    limit = limit_of(name) if contender.endswith(LIMITED) else None
    peaks: list[float] = []
    paths = list(map(str, list_files(keys)))
    question = {"do": "begin", "query": name, "paths": paths, "folder": str(folder), "limit": limit}
    ask(contender, question, START_DEADLINE)

    def sample() -> float:
        answer = ask(contender, {"do": "run"})
        peaks.append(float(answer["peak"]))
        return float(answer["seconds"])

    def check() -> None:
        sample()
        if name == "sort":
            check_sorted(folder, keys)
            return
        ask(contender, {"do": "write"})
        different = difference(library("pyarrow.parquet").read_table(folder / "result"), right_result(keys))
        assert different is None, f"{name}: {different}"

    def further() -> Mapping[str, Metric]:
        return {} if contender == "polars" else {"peak_memory": records.metric("B", [max(peaks)])}

    rates = {"throughput": Rate("row/s", count_files(keys) * FILE_ROWS)}
    return Work([], check, rates, sample=sample, further=further)


# --- declaration -----------------------------------------------------------------------------------------


def only_at(*sizes: float) -> Callable[[Device, Keys], str | None]:
    """Return the reason to leave out a contender that knows no limit: at any size of data but some."""
    few = " and ".join(f"over_memory={size:g}" for size in sizes)

    def skip_reason(device: Device, keys: Keys) -> str | None:
        return None if keys["over_memory"] in sizes else f"no limit applies to it; its rows a second are those at {few}"

    return skip_reason


def few_sizes(device: Device, keys: Keys) -> str | None:
    """Return why larger pieces are left out, or ``None`` where they are tried."""
    return None if keys["over_memory"] in COMPARED else "pieces are compared where whole columns are"


def whole_columns(device: Device, keys: Keys) -> str | None:
    """Return why whole columns within the limit are left out, or ``None`` where they are tried."""
    if float(keys["over_memory"]) <= 1:
        return None
    return "whole columns of this data are larger than the memory that it may use"


def memory(keys: Keys) -> float:
    """Return the bytes of a GPU's memory that a case needs with all its contenders set up."""
    name, over = str(keys["query"]), float(keys["over_memory"])
    limits, whole = 2 if over <= 1 else 1, (over in COMPARED) + (over == COMPARED[0])
    return ROW_BYTES[name] * FILES[name] * FILE_ROWS * (limits + whole * over * WHOLE[name])


def make_contender(
    name: str, skip_reason: Callable[[Device, Keys], str | None] = lambda device, keys: None
) -> Contender:
    """Return the contender of an executor on a GPU."""
    return Contender(
        lambda device, keys: query_work(name, keys),
        ON_GPU,
        skip_reason,
        ("polars", "duckdb", *CUDF),
        limited_polars.why_no_streaming,
    )


def cases(device: Device) -> list[Keys]:
    """Return all queries at all sizes of data, on a GPU."""
    if not device.is_gpu:
        return []
    sizes = {name: FEW_OVER_MEMORY if name == "sort" else OVER_MEMORY for name in QUERIES}
    return [{"query": name, "over_memory": over} for name in QUERIES for over in sizes[name]]


def end() -> None:
    """End the processes, and delete the files."""
    for process in processes.values():
        process.close()
    processes.clear()
    for kept in (begin_case, limit_of, result_without_copies, right_sums, write_files):
        kept.cache_clear()
    queries.end()


LARGER_THAN_MEMORY = Benchmark(
    name="larger-than-memory",
    title="Queries on more data than the memory holds",
    question="How long does a query take if its columns are larger than the GPU's memory?",
    contenders={
        "polars": Contender(
            lambda device, keys: query_work("polars", keys),
            skip_reason=only_at(COMPARED[0]),
            libraries=("polars", "duckdb", "pyarrow"),
            unavailable_reason=lambda: why_not_here("polars"),
        ),
        "in-memory": make_contender("in-memory", only_at(*COMPARED)),
        "in-memory-limited": make_contender("in-memory-limited", whole_columns),
        "streaming": make_contender("streaming", only_at(COMPARED[0])),
        "streaming-limited": make_contender("streaming-limited"),
        "streaming-large-limited": make_contender("streaming-large-limited", few_sizes),
    },
    cases=cases,
    memory=memory,
    samples=SAMPLES,
    end=end,
)
