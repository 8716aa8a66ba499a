"""The same rows in Parquet files that are written in different ways, read and added up on the host and on a GPU.

A column of a row group is divided into *pages*, each of which is compressed by itself. A GPU decompresses and decodes
pages side by side, so that it needs many of them; pyarrow ends a page after 20,000 rows, and DuckDB after 100 MB. Files
are copied to the GPU by threads of KvikIO, of which libcudf starts 4 if nothing else is set.

The columns are of db-benchmark: an integer with few values, one with many, a double and a text with many values. All
four are read, and little is computed, so that reading decides.

Source: Apache Parquet, "File format: data pages"; ``pyarrow.parquet.write_table`` (``max_rows_per_page``);
``MAX_UNCOMPRESSED_PAGE_SIZE`` in DuckDB's ``primitive_column_writer.hpp``, named in duckdb#24507.
"""

from __future__ import annotations

import functools
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuguide.benchmarks.dataframes.frames import CUDF, ON_GPU
from gpuguide.benchmarks.larger_frames import queries
from gpuguide.dataframes.engines import cudf_frames
from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query import polars_plan
from gpuguide.dataframes.query.choice import why_not_here
from gpuguide.dataframes.query.gpu_defaults import read_threads
from gpuguide.dataframes.query.sql import literal
from gpuguide.hardware.device import Device
from gpuguide.measure import timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate

FILES, FILES_ON_CPU = 16, 2
FILE_ROWS = 6_000_000
FILE_ROWS_ON_CPU = 50_000
IDS = 1_000_000
"""Values that a column of many values has"""
COLUMNS = ("id3", "id6", "v1", "v3")
ROW_BYTES = 4 + 12 + 4 + 4 + 8
"""Of these columns in memory, text with its offsets"""
LIBCUDF_THREADS = 4
"""That copy files to the GPU where nothing else is set. Source: ``set_up_kvikio`` of libcudf"""
DEFAULT_PAGE = 20_000
DEFAULT_GROUP = 2**20
"""Rows of a page and of a row group, by pyarrow's defaults"""
LARGEST = 2**30
SAMPLES = 5
TOLERANCE = 1e-9
"""Relative, for sums of doubles, which are added up in any order"""


@dataclass(frozen=True)
class Layout:
    """How a file is written: rows of a page and of a row group, and the codec that compresses pages."""

    page_rows: int = DEFAULT_PAGE
    group_rows: int = DEFAULT_GROUP
    codec: str = "snappy"


LAYOUTS = (
    Layout(),
    Layout(page_rows=200_000),
    Layout(page_rows=DEFAULT_GROUP),
    Layout(group_rows=100_000),
    Layout(group_rows=FILE_ROWS),
    Layout(codec="none"),
    Layout(codec="none", page_rows=DEFAULT_GROUP),
    Layout(codec="zstd"),
)
"""pyarrow's defaults, and others that differ from them in one way, or in two where pages do without compression"""


def layout_of(keys: Keys) -> Layout:
    """Return how the files of a case are written."""
    return Layout(int(keys["page_rows"]), int(keys["group_rows"]), str(keys["codec"]))


# --- files -----------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def write_files(layout: Layout, files: int, file_rows: int) -> Path:
    """Write the files in a layout, and return their folder. Those of another layout are deleted."""
    folder = Path(queries.temporary_folder().name) / "layout"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    few_texts, many_texts = make_texts()
    with ThreadPoolExecutor(queries.THREADS) as threads:
        write = functools.partial(write_file, folder, layout, file_rows, few_texts, many_texts)
        list(threads.map(write, range(files)))
    return folder


@functools.cache
def make_texts() -> tuple[Any, Any]:
    """Return the texts that rows are made of: few, and many."""
    arrow = library("pyarrow")
    few = arrow.array([f"id{number:03d}" for number in range(queries.GROUPS + 1)])
    return few, arrow.array([f"id{number:010d}" for number in range(IDS + 1)])


def write_file(folder: Path, layout: Layout, rows: int, few_texts: Any, many_texts: Any, number: int) -> None:
    """Write one of the files."""
    arrow, starts = library("pyarrow"), range(number * rows, (number + 1) * rows, queries.ROW_GROUP)
    parts = (queries.make_row_group(start, (number + 1) * rows, few_texts, many_texts) for start in starts)
    library("pyarrow.parquet").write_table(
        arrow.concat_tables(part.select(COLUMNS) for part in parts),
        folder / f"{number:04d}.parquet",
        row_group_size=layout.group_rows,
        max_rows_per_page=layout.page_rows,
        data_page_size=2**20 if layout.page_rows == DEFAULT_PAGE else LARGEST,
        compression=layout.codec,
    )


def list_files(folder: Path) -> list[Path]:
    """Return the files of a folder in the order of their rows."""
    return sorted(folder.glob("*.parquet"))


# --- queries ---------------------------------------------------------------------------------------------


def run_query(engine: str, folder: Path) -> Any:
    """Return an engine's result: of each value of ``v1``, what is read of the other columns."""
    if engine == "duckdb":
        files = ", ".join(literal(str(path)) for path in list_files(folder))
        with library("duckdb").connect(":memory:") as connection:
            return connection.sql(
                "SELECT v1, sum(v3) AS v3, max(id6) AS id6, sum(strlen(id3))::BIGINT AS id3 "
                f"FROM read_parquet([{files}]) GROUP BY v1"
            ).to_arrow_table()
    polars = library("polars")
    col = polars.col
    totals = {
        "v3": col("v3").sum(),
        "id6": col("id6").max(),
        "id3": col("id3").str.len_bytes().cast(polars.Int64).sum(),
    }
    plan = polars.scan_parquet(list_files(folder), glob=False).group_by("v1").agg(**totals)
    return polars_plan.collect(plan, engine)


@functools.lru_cache(maxsize=1)
def right_result(layout: Layout, files: int, file_rows: int) -> Any:
    """Return DuckDB's result of a layout. The last is kept for the next contender."""
    return run_query("duckdb", write_files(layout, files, file_rows))


def use_read_threads(count: int) -> None:
    """Let libcudf copy files with so many threads from now on."""
    defaults = library("kvikio.defaults")
    if defaults.get("num_threads") != count:
        defaults.set("num_threads", count)


def query_work(engine: str, device: Device, keys: Keys, threads: int | None = None) -> Work:
    """Read the files and add up, with so many threads that copy files to the GPU."""
    sizes = (FILES, FILE_ROWS) if device.is_gpu else (FILES_ON_CPU, FILE_ROWS_ON_CPU)
    layout = layout_of(keys)
    folder = write_files(layout, *sizes)
    if engine == "polars-gpu":
        cudf_frames.use_pool()

    def call() -> Any:
        if threads is not None:
            use_read_threads(threads)
        return run_query(engine, folder)

    def check() -> None:
        call()  # libcudf sets its own number of threads when it first reads
        different = queries.difference(call(), right_result(layout, *sizes), TOLERANCE)
        assert different is None, f"{layout} on {engine}: {different}"

    rates = {"throughput": Rate("row/s", sizes[0] * sizes[1])}
    return Work([call], check, rates, sample=timing.wall_clock(call))


def host_contender(engine: str, *libraries: str) -> Contender:
    """Return the contender of an engine on the host."""
    return Contender(
        lambda device, keys: query_work(engine, device, keys),
        libraries=libraries,
        unavailable_reason=lambda: why_not_here(engine),
    )


def gpu_contender(count_threads: Any) -> Contender:
    """Return Polars' engine on a GPU, with as many threads that copy files as ``count_threads`` returns."""
    return Contender(
        lambda device, keys: query_work("polars-gpu", device, keys, count_threads()),
        needs=ON_GPU,
        libraries=("polars", "duckdb", *CUDF),
        unavailable_reason=lambda: why_not_here("polars-gpu"),
    )


def cases(device: Device) -> list[Keys]:
    """Return all layouts."""
    return [{"page_rows": each.page_rows, "group_rows": each.group_rows, "codec": each.codec} for each in LAYOUTS]


def end() -> None:
    """Delete the files."""
    write_files.cache_clear()
    right_result.cache_clear()
    queries.end()


PARQUET_LAYOUT = Benchmark(
    name="parquet-layout",
    title="Parquet files written in different ways",
    question="How long do files take to read on the host and on a GPU, and how should they be written?",
    contenders={
        "polars": host_contender("polars", "polars", "duckdb", "pyarrow"),
        "duckdb": host_contender("duckdb", "duckdb", "pyarrow"),
        "polars-gpu": gpu_contender(read_threads),
        "polars-gpu-4-threads": gpu_contender(lambda: LIBCUDF_THREADS),
    },
    cases=cases,
    memory=lambda keys: queries.IN_MEMORY * ROW_BYTES * FILES * FILE_ROWS,
    samples=SAMPLES,
    budget=0.1,
    end=end,
)
