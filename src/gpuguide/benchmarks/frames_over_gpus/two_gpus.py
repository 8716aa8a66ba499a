"""The queries of ``frame-queries`` on two GPUs and on one, by the same executor of Polars.

Each process reads a part of the file, and the last one that has its part of the result counts. The one GPU is used
from a process of its own too, with memory of the same kind, so that the number of GPUs and of their processes, each
with its threads that read files, is all that differs. Dask-cuDF runs the same queries on two GPUs, with its default
partitions, from the file to a table in the process that asks.

The executor divides columns into pieces, and gives each GPU its share of them. A piece has 1.5 GB by default on a
large GPU, so that a query that reads less is one GPU's. The contenders with small pieces show what that decides. A
larger frame is several names of one file, which take no more room: it has as many groups as the file.
"""

from __future__ import annotations

import contextlib
import functools
import os
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gpuguide.benchmarks.collectives import sizes
from gpuguide.benchmarks.dataframes.frames import CUDF, ON_GPU, rows_of
from gpuguide.benchmarks.interconnect.ranks import Task
from gpuguide.benchmarks.larger_frames import queries
from gpuguide.dataframes import Query
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query import dask_calls, finish, several_gpus
from gpuguide.errors import GpuguideError
from gpuguide.hardware.device import Device
from gpuguide.interconnect.processes import Member, Team
from gpuguide.measure import timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate

FILE_ROWS = 10**8
GROUP_BYS = {4 * FILE_ROWS: ("q1", "q2", "q3", "q4", "q5"), 16 * FILE_ROWS: ("q1", "q2", "q4", "q5")}
"""Queries on larger frames, by their rows; the longest is left out where it would take longer than all others"""
SMALL_PIECE = 100_000_000
"""Bytes of a piece, where pieces are small: the queries read 4 to 32 times as many"""
DASK_POOL = 0.3
"""Of each GPU's memory, because processes of teams have a part of it"""


# --- work of a rank --------------------------------------------------------------------------------------


def query_of_ranks(member: Member, name: str, folder: str, rows: int, piece: int | None = None) -> Task:
    """Run a query on this rank's part of the file; the check compares the parts of all ranks with DuckDB's result."""
    if "engine" not in member.kept:
        pieces = {} if piece is None else {"target_partition_size": piece}
        member.kept["engine"] = several_gpus.start_engine(member.rank, member.world_size, **pieces)
    query = make_query(name, Path(folder), rows)
    found: list[Any] = []

    def call() -> None:
        found[:] = [query.plan().collect(engine=member.kept["engine"]).to_arrow()]

    def check() -> None:
        parts = gather(member, finish(found[0], query.schema))
        different = difference(parts, library("pyarrow.parquet").read_table(right_file(folder, name, rows)))
        assert different is None, f"{name}: {different}"

    return Task(call, lambda: None, check, 1)


def gather(member: Member, table: Any) -> list[Any]:
    """Return the tables of all ranks."""
    parts: list[Any] = [table] * member.world_size
    if member.world_size > 1:
        dist.all_gather_object(parts, table)
    return parts


def difference(parts: list[Any], right: Any) -> str | None:
    """Return what differs from the right result, or ``None``: each part may be the whole, or they are it together."""
    if all(queries.difference(part, right) is None for part in parts):
        return None
    return queries.difference(library("pyarrow").concat_tables(parts), right)


def end_engine(member: Member) -> None:
    """End a rank's engine, on the thread that started it."""
    if "engine" in member.kept:
        member.kept.pop("engine").shutdown()


# --- in the process that asks ----------------------------------------------------------------------------


@functools.cache
def teams() -> dict[tuple[int, int | None], Team]:
    """Return the running processes by the number of their GPUs and the size of their pieces."""
    return {}


def team_of(count: int, piece: int | None = None) -> Team:
    """Return the processes for so many GPUs. They meet through Gloo, because each sees one GPU only."""
    found = teams().get((count, piece))
    if found is None or not found.is_running:
        found = teams()[count, piece] = Team(count, "cpu")
    return found


def make_query(name: str, folder: Path, rows: int) -> Query:
    """Return a query on so many rows, with a name of the file for each time that it is read."""
    names = [folder / "frame.parquet"]
    for number in range(1, rows // FILE_ROWS):
        names.append(folder / f"frame-{number}.parquet")
        if not names[-1].exists():
            os.link(names[0], names[-1])
    return queries.QUERIES[name](Query(names), folder)


def right_file(folder: str, name: str, rows: int) -> Path:
    """Return the path of DuckDB's result of a query."""
    return Path(folder) / f"right-{name}-{rows}.parquet"


def write_right_result(name: str, rows: int) -> Path:
    """Write the files, and DuckDB's result of a query beside them, and return the path of the result."""
    folder = queries.write_files(min(rows, FILE_ROWS))
    path = right_file(str(folder), name, rows)
    if not path.exists():
        library("pyarrow.parquet").write_table(make_query(name, folder, rows).on("duckdb"), path)
    return path


def work(count: int, contender: str, keys: Keys, piece: int | None = None) -> Work:
    """Run a query on so many GPUs; the sampler has checked what it times."""
    name, rows = str(keys["query"]), rows_of(keys)
    folder = str(write_right_result(name, rows).parent)
    given = (name, folder, rows, piece)
    sample = sizes.uncaptured_sampler(team_of(count, piece), contender, query_of_ranks, given)
    return Work([], lambda: None, {"throughput": Rate("row/s", rows)}, sample=sample)


def only_once(device: Device, keys: Keys) -> str | None:
    """Return why a contender is left out with the larger frame, or ``None`` where it is measured."""
    return "it is compared with the file read once" if rows_of(keys) > FILE_ROWS else None


def contender(name: str, count: int, piece: int | None = None) -> Contender:
    """Return the executor on so many GPUs as a contender."""
    return Contender(
        lambda device, keys: work(count, name, keys, piece),
        ON_GPU,
        only_once if piece else lambda device, keys: None,
        libraries=("polars", "duckdb", *CUDF),
        unavailable_reason=several_gpus.why_not_here,
    )


@functools.cache
def dask_client() -> Any:
    """Return the client of Dask's processes, one for each of two GPUs, which they share with the processes of teams."""
    return dask_calls.start_cluster(2, DASK_POOL)


def work_of_dask(keys: Keys) -> Work:
    """Run a query by Dask-cuDF on two GPUs. The call whose result is checked warms up."""
    dask_client()
    name, rows = str(keys["query"]), rows_of(keys)
    right = write_right_result(name, rows)
    query = make_query(name, right.parent, rows)

    def call() -> Any:
        return dask_calls.DaskCalls().run(query)

    def check() -> None:
        found = finish(call(), query.schema)
        different = queries.difference(found, library("pyarrow.parquet").read_table(right))
        assert different is None, f"{name} on Dask-cuDF: {different}"

    return Work([call], check, {"throughput": Rate("row/s", rows)}, sample=timing.wall_clock(call))


def end() -> None:
    """End the processes, and delete the files."""
    if dask_client.cache_info().currsize:
        dask_calls.end_cluster(dask_client())
        dask_client.cache_clear()
    while teams():
        team = teams().popitem()[1]
        with contextlib.suppress(GpuguideError):  # of a team that has ended already, or ends now
            team.run(end_engine)
        team.close()
    queries.end()


def cases(device: Device) -> list[Keys]:
    """Return all queries on a file, and group-bys on more rows; a processor has none."""
    if not device.is_gpu:
        return []
    by_rows = {FILE_ROWS: tuple(queries.QUERIES), **GROUP_BYS}
    return [{"query": name, "rows": rows} for rows, names in by_rows.items() for name in names]


DASK = Contender(
    lambda device, keys: work_of_dask(keys),
    ON_GPU,
    only_once,
    libraries=("dask-cudf", "duckdb", *CUDF),
    unavailable_reason=dask_calls.why_not_here,
)
TWO_GPU_QUERIES = Benchmark(
    name="two-gpu-queries",
    title="Queries on a Parquet file with two GPUs",
    question="How much faster is a query on two GPUs than on one?",
    contenders={
        "polars-gpu": contender("polars-gpu", 1),
        "polars-gpu-2": contender("polars-gpu-2", 2),
        "small-pieces": contender("small-pieces", 1, SMALL_PIECE),
        "small-pieces-2": contender("small-pieces-2", 2, SMALL_PIECE),
        "dask-cudf-2": DASK,
    },
    cases=cases,
    memory=lambda keys: 2 * queries.IN_MEMORY * queries.ROW_BYTES * FILE_ROWS,  # the rest of a larger frame waits
    samples=queries.SAMPLES,
    gpus=2,
    end=end,
)
