"""Whole queries on a Parquet file, from the file to a table in the host's memory.

The frame is that of db-benchmark (K = 100, unsorted, nothing missing): ``id1`` and ``id2`` are text with 100 values,
``id3`` has a value for a hundred rows; ``id4``, ``id5`` and ``id6`` are the same as integers. ``q1`` to ``q7`` are its
group-bys with functions that a query has. Its joins write all columns; ours add up a column, so that what is compared
is the join and not the writing.

The files lie in ``/dev/shm`` where it has room, so that no disk is read. Every result is compared with DuckDB's.

Source: duckdblabs/db-benchmark, ``_data/groupby-datagen.R`` and the questions of ``polars/groupby-polars.py``.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from gpuguide.benchmarks.dataframes.frames import CUDF, ON_GPU, rows_of
from gpuguide.dataframes import Query, cost
from gpuguide.dataframes.engines import cudf_frames
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.operations import TOLERANCE
from gpuguide.dataframes.query import finish
from gpuguide.dataframes.query.choice import estimate, file_amounts, why_not_here, work_in_memory
from gpuguide.dataframes.query.source import Source, Statistics
from gpuguide.hardware.device import Device
from gpuguide.measure import timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate, Record

ROWS = (10**7, 10**8)
ROWS_ON_CPU = 10**6
GROUPS = 100
"""db-benchmark's K"""
ROW_GROUP = 10**6
DICTIONARY = 2**20
"""Bytes above which a dictionary is given up, by default in ``pyarrow.parquet.write_table``"""
COMPRESSED = 0.5
"""Of the bytes of a dictionary of texts, about what compression leaves, from which a footer's reader counts values"""
THREADS = min(16, os.cpu_count() or 1)
"""That make rows at a time, each those of a row group"""
SAMPLES = 5
"""Few, because the host takes seconds for some queries of the larger file"""
ROW_BYTES = 70.0
"""Bytes a row in memory, text with its offsets"""
ROOM = 10 * 2**30
"""Bytes that must be free in ``/dev/shm``, which a container may limit, for the files and sorted copies of them"""
IN_MEMORY = 3
"""Times its size that a frame takes on the GPU: what is read, and what the widest operation writes"""

QUERIES: dict[str, Callable[[Query, Path], Query]] = {
    "q1": lambda frame, folder: frame.group_by("id1", sum="v1"),
    "q2": lambda frame, folder: frame.group_by("id1", "id2", sum="v1"),
    "q3": lambda frame, folder: frame.group_by("id3", sum="v1", mean="v3"),
    "q4": lambda frame, folder: frame.group_by("id4", mean=["v1", "v2", "v3"]),
    "q5": lambda frame, folder: frame.group_by("id6", sum=["v1", "v2", "v3"]),
    "q7": lambda frame, folder: frame.group_by("id3", max="v1", min="v2"),
    "filter": lambda frame, folder: frame.filter("v3", ">", 90).group_by("id4", sum="v3"),
    "join-small": lambda frame, folder: frame.join(folder / "small.parquet", on="id4").group_by("id5", sum="w"),
    "join-medium": lambda frame, folder: frame.join(folder / "medium.parquet", on="id6").group_by("id5", sum="w"),
    "join-sort": lambda frame, folder: (
        frame.join(folder / "medium.parquet", on="id6").group_by("id6", sum="w").sort("w_sum", "id6", descending=True)
    ),
}


@functools.cache
def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of the files, which are deleted with it."""
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and shutil.disk_usage(memory).free >= ROOM
    return tempfile.TemporaryDirectory(dir=memory if has_room else None)


def end() -> None:
    """Delete the files."""
    write_files.cache_clear()
    right_result.cache_clear()
    delete_temporary_folder()


def delete_temporary_folder() -> None:
    """Delete the folder of the files; the next call of :func:`temporary_folder` makes another one."""
    temporary_folder().cleanup()
    temporary_folder.cache_clear()


@functools.lru_cache(maxsize=1)
def write_files(rows: int) -> Path:
    """Write the frame and the tables that it is joined with, and return their folder.

    Threads make the rows of row groups, and the calling thread writes them in order.
    """
    arrow, parquet = library("pyarrow"), library("pyarrow.parquet")
    folder = Path(temporary_folder().name)
    many = max(1, rows // GROUPS)
    few_texts = arrow.array([f"id{number:03d}" for number in range(GROUPS + 1)])
    many_texts = arrow.array([f"id{number:010d}" for number in range(many + 1)])
    starts, writer = range(0, rows, ROW_GROUP), None
    with ThreadPoolExecutor(THREADS) as threads:
        for first in range(0, len(starts), THREADS):
            make = functools.partial(make_row_group, rows=rows, few_texts=few_texts, many_texts=many_texts)
            for table in threads.map(make, starts[first : first + THREADS]):
                writer = writer or parquet.ParquetWriter(folder / "frame.parquet", table.schema)
                writer.write_table(table)
    if writer is not None:
        writer.close()
    write_joined(folder / "small.parquet", "id4", GROUPS)
    write_joined(folder / "medium.parquet", "id6", many)
    return folder


def write_joined(path: Path, key: str, ids: int) -> None:
    """Write a table that the frame is joined with: nine tenths of the values of a key, in any order."""
    random = np.random.default_rng([1, ids])
    chosen = random.permutation(np.arange(1, ids + 1, dtype=np.int32))[: max(1, 9 * ids // 10)]
    table = library("pyarrow").table({key: chosen, "w": np.round(random.uniform(0, 100, len(chosen)), 6)})
    library("pyarrow.parquet").write_table(table, path)


def make_row_group(start: int, rows: int, few_texts: Any, many_texts: Any) -> Any:
    """Return the rows from ``start`` onwards that are one row group; a text is taken by its number."""
    random, count = np.random.default_rng([0, start]), min(ROW_GROUP, rows - start)
    few = random.integers(1, len(few_texts), (4, count), dtype=np.int32)
    more = random.integers(1, len(many_texts), (2, count), dtype=np.int32)
    return library("pyarrow").table(
        {
            "id1": few_texts.take(few[0]),
            "id2": few_texts.take(few[1]),
            "id3": many_texts.take(more[0]),
            "id4": few[2],
            "id5": few[3],
            "id6": more[1],
            "v1": random.integers(1, 6, count, dtype=np.int32),
            "v2": random.integers(1, 16, count, dtype=np.int32),
            "v3": np.round(random.uniform(0, 100, count), 6),
        }
    )


def make_query(keys: Keys) -> Query:
    """Return the query of a case."""
    folder = write_files(rows_of(keys))
    return QUERIES[str(keys["query"])](Query(folder / "frame.parquet"), folder)


@functools.lru_cache(maxsize=1)
def right_result(name: str, rows: int) -> Any:
    """Return DuckDB's result of a case. The last is kept for the next contender."""
    return make_query({"query": name, "rows": rows}).on("duckdb")


def difference(found: Any, right: Any, tolerance: float = TOLERANCE) -> str | None:
    """Return what differs between two results, order aside, or ``None``. Doubles may differ by a relative tolerance.

    The columns that are no doubles tell the rows of a result apart.
    """
    if found.column_names != right.column_names or found.num_rows != right.num_rows:
        return (
            f"{found.num_rows:,} rows of {found.column_names}, and {right.num_rows:,} of {right.column_names} are right"
        )
    exact = [field.name for field in right.schema if not library("pyarrow").types.is_floating(field.type)]
    order = [(name, "ascending") for name in exact]
    one, other = (table.sort_by(order) if order else table for table in (found, right))
    for name in right.column_names:
        if name in exact:
            same = one[name].equals(other[name])
        else:
            same = np.allclose(one[name].to_numpy(), other[name].to_numpy(), rtol=tolerance, atol=0, equal_nan=True)
        if not same:
            return f"column {name!r} differs"
    return None


def query_work(engine: str, device: Device, keys: Keys) -> Work:
    """Run a query, from the file to a table in the host's memory. The call whose result is checked warms up."""
    query = make_query(keys)
    if engine in ("cudf", "polars-gpu"):
        cudf_frames.use_pool()

    def check() -> None:
        found = finish(query.compute(engine), query.schema)
        different = difference(found, right_result(str(keys["query"]), rows_of(keys)))
        assert different is None, f"{keys['query']} on {engine}: {different}"

    rates = {"throughput": Rate("row/s", rows_of(keys))}
    call = functools.partial(query.compute, engine)
    return Work([call], check, rates, sample=timing.wall_clock(call))


def host_contender(name: str) -> Contender:
    """Return the contender of an engine on the host."""
    return Contender(
        lambda device, keys: query_work(name, device, keys),
        libraries=(name, "duckdb", "pyarrow") if name != "duckdb" else ("duckdb", "pyarrow"),
        unavailable_reason=lambda: why_not_here(name),
    )


def gpu_contender(name: str, *libraries: str) -> Contender:
    """Return the contender of an engine on a GPU."""
    declared = Contender(lambda device, keys: query_work(name, device, keys), needs=ON_GPU)
    return replace(declared, libraries=(*libraries, "duckdb", *CUDF), unavailable_reason=lambda: why_not_here(name))


def cases(device: Device) -> list[Keys]:
    """Return all queries at all sizes; on a CPU at a small one."""
    sizes = ROWS if device.is_gpu else (ROWS_ON_CPU,)
    return [{"query": name, "rows": rows} for rows in sizes for name in QUERIES]


FRAME_QUERIES = Benchmark(
    name="frame-queries",
    title="Queries on a Parquet file",
    question="How long does a query take from the file to its result, on the host and on a GPU?",
    contenders={
        "polars": host_contender("polars"),
        "duckdb": host_contender("duckdb"),
        "cudf": gpu_contender("cudf"),
        "polars-gpu": gpu_contender("polars-gpu", "polars"),
    },
    cases=cases,
    memory=lambda keys: IN_MEMORY * ROW_BYTES * rows_of(keys),
    samples=SAMPLES,
    end=end,
)


# --- what the prices of queries on files are fitted to ---------------------------------------------------


@dataclass(frozen=True)
class DescribedFiles:
    """What footers say of the files of :func:`write_files`, without the files: ``files / name`` is that of one."""

    rows: int

    def __truediv__(self, name: str) -> Source:
        """Return what is known of a file."""
        many = max(1, self.rows // GROUPS)
        if name == "small.parquet":
            return describe_joined("id4", GROUPS)
        return describe_joined("id6", many) if name == "medium.parquet" else describe_frame(self.rows, many)


def describe_frame(rows: int, many: int) -> Source:
    """Return what a footer says of the frame, of which two columns have many different values."""
    arrow = library("pyarrow")
    greatest = {"id4": GROUPS, "id5": GROUPS, "id6": many, "v1": 5, "v2": 15}
    few_texts, many_texts = len("id000"), len("id0000000000")
    in_dictionary = many * (4 + many_texts) <= DICTIONARY
    stored = {"id1": 1.0, "id2": 1.0, "id3": 2.0 if in_dictionary else 4.0 + many_texts}
    counts = {"id1": GROUPS, "id2": GROUPS, **({"id3": many} if in_dictionary else {})}
    widths = {"id1": 4.0 + few_texts, "id2": 4.0 + few_texts, "id3": 4.0 + max(stored["id3"], many_texts)}
    return Source(
        {
            **dict.fromkeys(("id1", "id2", "id3"), arrow.string()),
            **dict.fromkeys(greatest, arrow.int32()),
            "v3": arrow.float64(),
        },
        rows,
        ("frame.parquet",),
        row_groups=(min(ROW_GROUP, rows),) * max(1, rows // ROW_GROUP),
        statistics={
            **{name: Statistics(1, value, 0) for name, value in greatest.items()},
            "v3": Statistics(0.0, 100.0, 0),
        },
        distinct={name: count * COMPRESSED for name, count in counts.items()},
        widths={**widths, **dict.fromkeys(greatest, 4.0), "v3": 8.0},
        stored=stored,
    )


def describe_joined(key: str, ids: int) -> Source:
    """Return what a footer says of a table that the frame is joined with."""
    arrow = library("pyarrow")
    return Source(
        {key: arrow.int32(), "w": arrow.float64()},
        max(1, 9 * ids // 10),
        (f"{key}.parquet",),
        statistics={key: Statistics(1, ids, 0), "w": Statistics(0.0, 100.0, 0)},
        widths={key: 4.0, "w": 8.0},
    )


def describe_query(name: str, rows: int) -> Query:
    """Return the query of a case on files that are nowhere, of which is known what their footers would say."""
    files = DescribedFiles(rows)
    return QUERIES[name](Query(files / "frame.parquet"), cast("Path", files))


def query_times(record: Record, machine: cost.MachineParameters) -> list[cost.QueryTime]:
    """Return the times of a record of ``frame-queries`` with their amounts, for which ``machine`` has times in memory.

    An engine whose operations were not measured in memory, nor those of an engine like it, is left out.
    """
    found = []
    for case in record.cases:
        name, rows = str(case.keys["query"]), rows_of(case.keys)
        query = describe_query(name, rows)
        work = work_in_memory(case.contender, estimate(query)[0], machine)
        if case.status == "ok" and work is not None:
            seconds = case.measured["time"].summary.median
            found.append(cost.QueryTime(case.contender, name, rows, file_amounts(query, work), seconds))
    return found
