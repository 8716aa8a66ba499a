"""The queries of ``frame-queries`` on two GPUs and on one, by the same executor of Polars.

Each process reads a part of the file, and the last one that has its part of the result counts. The one GPU is used
from a process of its own too, with memory of the same kind, so that the number of GPUs is all that differs.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import Any

import torch.distributed as dist

from gpuguide.benchmarks.collectives import sizes
from gpuguide.benchmarks.dataframes.frames import CUDF, ON_GPU, rows_of
from gpuguide.benchmarks.interconnect.ranks import Task
from gpuguide.benchmarks.larger_frames import queries
from gpuguide.dataframes import Query
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query import finish, several_gpus
from gpuguide.errors import GpuguideError
from gpuguide.hardware.device import Device
from gpuguide.interconnect.processes import Member, Team
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate

ROWS = 10**8


# --- work of a rank --------------------------------------------------------------------------------------


def query_of_ranks(member: Member, name: str, folder: str) -> Task:
    """Run a query on this rank's part of the file; the check compares the parts of all ranks with DuckDB's result."""
    if "engine" not in member.kept:
        member.kept["engine"] = several_gpus.start_engine(member.rank, member.world_size)
    query = queries.QUERIES[name](Query(Path(folder) / "frame.parquet"), Path(folder))
    found: list[Any] = []

    def call() -> None:
        found[:] = [query.plan().collect(engine=member.kept["engine"]).to_arrow()]

    def check() -> None:
        parts = gather(member, finish(found[0], query.schema))
        different = difference(parts, library("pyarrow.parquet").read_table(right_file(folder, name)))
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
def teams() -> dict[int, Team]:
    """Return the running processes by the number of their GPUs."""
    return {}


def team_of(count: int) -> Team:
    """Return the processes for so many GPUs. They meet through Gloo, because each sees one GPU only."""
    found = teams().get(count)
    if found is None or not found.is_running:
        found = teams()[count] = Team(count, "cpu")
    return found


def right_file(folder: str, name: str) -> Path:
    """Return the path of DuckDB's result of a query."""
    return Path(folder) / f"right-{name}.parquet"


def work(count: int, contender: str, keys: Keys) -> Work:
    """Run a query on so many GPUs; the sampler has checked what it times."""
    name, rows = str(keys["query"]), rows_of(keys)
    folder = str(queries.write_files(rows))
    if not right_file(folder, name).exists():
        library("pyarrow.parquet").write_table(queries.right_result(name, rows), right_file(folder, name))
    sample = sizes.uncaptured_sampler(team_of(count), contender, query_of_ranks, (name, folder))
    return Work([], lambda: None, {"throughput": Rate("row/s", rows)}, sample=sample)


def contender(name: str, count: int) -> Contender:
    """Return the executor on so many GPUs as a contender."""
    return Contender(
        lambda device, keys: work(count, name, keys),
        ON_GPU,
        libraries=("polars", "duckdb", *CUDF),
        unavailable_reason=several_gpus.why_not_here,
    )


def end() -> None:
    """End the processes, and delete the files."""
    while teams():
        team = teams().popitem()[1]
        with contextlib.suppress(GpuguideError):  # of a team that has ended already, or ends now
            team.run(end_engine)
        team.close()
    queries.end()


def cases(device: Device) -> list[Keys]:
    """Return all queries; a processor has none."""
    return [{"query": name, "rows": ROWS} for name in queries.QUERIES] if device.is_gpu else []


TWO_GPU_QUERIES = Benchmark(
    name="two-gpu-queries",
    title="Queries on a Parquet file with two GPUs",
    question="How much faster is a query on two GPUs than on one?",
    contenders={"polars-gpu": contender("polars-gpu", 1), "polars-gpu-2": contender("polars-gpu-2", 2)},
    cases=cases,
    memory=lambda keys: 2 * queries.IN_MEMORY * queries.ROW_BYTES * rows_of(keys),
    samples=queries.SAMPLES,
    gpus=2,
    end=end,
)
