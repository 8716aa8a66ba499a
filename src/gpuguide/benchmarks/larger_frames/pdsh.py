"""The 22 queries of PDS-H, each from Parquet files to a table in the host's memory.

Polars runs the same plan on the host, in its streaming engine, and on a GPU, where one of its executors streams and the
other holds whole columns; DuckDB runs SQL. The files lie in ``/dev/shm`` where there is one, so that no disk is read.
Every result is compared with DuckDB's.

See :mod:`gpuguide.dataframes.pdsh` for the queries and the tables.

Source: TPC Benchmark H, Standard Specification, revision 3.0.1, section 2.4.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuguide.benchmarks.dataframes.frames import CUDF, ON_GPU
from gpuguide.benchmarks.larger_frames import queries
from gpuguide.dataframes.engines import cudf_frames
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.pdsh import plans, statements, tables
from gpuguide.dataframes.query import polars_plan
from gpuguide.dataframes.query.choice import why_not_here
from gpuguide.hardware.device import Device
from gpuguide.measure import timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work

SCALES = (30,)
SCALE_ON_CPU = 0.1
SAMPLES = 5
"""Of each query. The check is the first call, and no other warms up, because all the queries take minutes as it is"""
BYTES_A_SCALE = 1.5e9
"""On the GPU, for each unit of the scale factor: five times the columns that query 1 reads"""
TOLERANCE = 1e-9
"""Relative, for doubles: some are the sum of nearly 10⁸ others, which are added up in any order"""
IN_MEMORY = "polars-gpu-in-memory"
ON_A_GPU = ("polars-gpu", IN_MEMORY)
"""Polars' two executors on a GPU"""


def scale_of(keys: Keys) -> float:
    """Return the scale factor of a case."""
    return float(keys["scale"])


@functools.lru_cache(maxsize=1)
def write_files(scale: float) -> Path:
    """Write the tables, and return their folder."""
    folder = Path(queries.temporary_folder().name) / f"scale-{scale:g}"
    tables.write_tables(folder, scale)
    return folder


def end() -> None:
    """Delete the files."""
    write_files.cache_clear()
    right_result.cache_clear()
    queries.delete_temporary_folder()


@functools.lru_cache(maxsize=1)
def right_result(name: str, scale: float) -> Any:
    """Return DuckDB's result of a query. The last is kept for the next contender."""
    return run_query("duckdb", name, scale)


def run_query(engine: str, name: str, scale: float) -> Any:
    """Return an engine's result of a query as an Arrow table. What cannot run on a GPU is an error there."""
    folder = write_files(scale)
    if engine == "duckdb":
        return statements.run(name, folder, scale)
    options = {"executor": "in-memory"} if engine == IN_MEMORY else {}
    plan = plans.PLANS[name](tables.scan(folder, scale))
    return polars_plan.collect(plan, "polars-gpu" if options else engine, **options)


def widen_types(result: Any) -> Any:
    """Return a result with the widest type of each kind, because engines differ in them."""
    arrow = library("pyarrow")
    columns = {}
    for field in result.schema:
        if arrow.types.is_floating(field.type):
            type = arrow.float64()
        elif arrow.types.is_integer(field.type) or arrow.types.is_decimal(field.type):  # DuckDB's sums of integers
            type = arrow.int64()
        else:
            type = field.type if arrow.types.is_date(field.type) else arrow.large_string()
        columns[field.name] = result[field.name].cast(type)
    return arrow.table(columns)


def difference(found: Any, right: Any) -> str | None:
    """Return what differs between two results, order aside, or ``None``. Doubles may differ by :data:`TOLERANCE`."""
    return queries.difference(widen_types(found), widen_types(right), TOLERANCE)


def query_work(engine: str, device: Device, keys: Keys) -> Work:
    """Run a query, from the files to a table in the host's memory."""
    name, scale = str(keys["query"]), scale_of(keys)
    write_files(scale)
    if engine in ON_A_GPU:
        cudf_frames.use_pool()

    def call() -> Any:
        return run_query(engine, name, scale)

    def check() -> None:
        different = difference(call(), right_result(name, scale))
        assert different is None, f"{name} on {engine}: {different}"

    return Work([call], check, timing="wall", sample=timing.wall_clock(call))


def find_reason(engine: str) -> str | None:
    """Return why an engine cannot run the queries here, or ``None`` if it can."""
    return why_not_here("polars-gpu" if engine in ON_A_GPU else engine) or tables.explain_missing_generator()


def make_contender(engine: str, *libraries: str) -> Contender:
    """Return the contender of an engine."""
    return Contender(
        lambda device, keys: query_work(engine, device, keys),
        libraries=libraries,
        unavailable_reason=lambda: find_reason(engine),
    )


def cases(device: Device) -> list[Keys]:
    """Return all queries at all scale factors; on a CPU at a small one."""
    scales = SCALES if device.is_gpu else (SCALE_ON_CPU,)
    return [{"query": name, "scale": scale} for scale in scales for name in plans.PLANS]


PDS_H = Benchmark(
    name="pds-h",
    title="PDS-H on one machine",
    question="How long do the 22 queries of PDS-H take from Parquet files to their results, on the host and on a GPU?",
    contenders={
        "polars": make_contender("polars", "polars", "duckdb", "pyarrow"),
        "duckdb": make_contender("duckdb", "duckdb", "pyarrow"),
        **{name: replace(make_contender(name, "polars", "duckdb", *CUDF), needs=ON_GPU) for name in ON_A_GPU},
    },
    cases=cases,
    memory=lambda keys: BYTES_A_SCALE * scale_of(keys),
    samples=SAMPLES,
    budget=0.1,
    end=end,
)
