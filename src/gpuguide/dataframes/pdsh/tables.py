"""The eight tables of TPC-H, made by tpchgen-cli and written as Parquet files with doubles for decimals.

Every double is the nearest to its decimal. A file has up to :data:`FILE_ROWS` rows in groups of about a million.

Source: the options of ``tpchgen-cli parquet --help``, version 4.0.0.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import subprocess
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query.sql import literal
from gpuguide.errors import GpuguideError

GENERATOR = "tpchgen-cli"
"""The program, and the package that brings it"""
ROWS = {
    "lineitem": 6_000_000,
    "orders": 1_500_000,
    "partsupp": 800_000,
    "part": 200_000,
    "customer": 150_000,
    "supplier": 10_000,
    "nation": 0,
    "region": 0,
}
"""Rows at scale factor 1, of lineitem about; the two of 0 have 25 and 5 rows at every scale"""
FILE_ROWS = 6_000_000
ROW_GROUP = 2**20
"""``pyarrow``'s default"""


@dataclass(frozen=True)
class Tables:
    """The tables as beginnings of plans of Polars."""

    scale: float
    customer: Any
    lineitem: Any
    nation: Any
    orders: Any
    part: Any
    partsupp: Any
    region: Any
    supplier: Any


def scan(folder: Path, scale: float) -> Tables:
    """Return the tables of a folder that :func:`write_tables` wrote."""
    polars = library("polars")
    frames = {name: polars.scan_parquet(list_files(folder, name), glob=False) for name in ROWS}
    return Tables(scale, **frames)


def list_files(folder: Path, table: str) -> list[Path]:
    """Return the files of a table in the order of its rows."""
    return sorted((folder / table).glob("*.parquet"))


def write_tables(folder: Path, scale: float) -> None:
    """Write all tables at a scale factor. Each core makes one file at a time, and the largest tables come first."""
    for table in ROWS:
        (folder / table).mkdir(parents=True)
    files = {table: max(1, math.ceil(rows * scale / FILE_ROWS)) for table, rows in ROWS.items()}
    parts = [(table, part, count) for table, count in files.items() for part in range(1, count + 1)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(write_part, itertools.repeat(folder), itertools.repeat(scale), *zip(*parts, strict=True)))


def write_part(folder: Path, scale: float, table: str, part: int, count: int) -> None:
    """Write one of the files of a table."""
    program = find_generator()
    if program is None:
        raise GpuguideError(f"{explain_missing_generator()}.")
    with tempfile.TemporaryDirectory(dir=folder) as raw:
        options = {
            "--scale-factor": scale,
            "--tables": table,
            "--parts": count,
            "--part": part,
            "--num-threads": 1,
            "--compression": "UNCOMPRESSED",
            "--row-group-bytes": "128MB",
            "--output-dir": raw,
        }
        words = [str(word) for option in options.items() for word in option]
        done = subprocess.run([program, "parquet", *words, "--quiet"], capture_output=True, text=True)
        if done.returncode:
            raise GpuguideError(f"{GENERATOR} cannot write {table}: {done.stderr.strip() or 'it gave no reason'}")
        copy_with_doubles(Path(raw) / table / f"{table}.{part}.parquet", folder / table / f"{part:04}.parquet")


def copy_with_doubles(old: Path, new: Path) -> None:
    """Write a Parquet file again with doubles for decimals, which DuckDB rounds right, as pyarrow writes by default.

    pyarrow's pages have 20,000 rows. DuckDB's are as large as a row group, and a GPU cannot decompress a page in parts.
    """
    with library("duckdb").connect(":memory:", config={"threads": 1}) as connection:
        read = f"read_parquet({literal(str(old))})"
        types = connection.execute(f"DESCRIBE SELECT * FROM {read}").fetchall()
        columns = [f"{name}::DOUBLE AS {name}" if kind.startswith("DECIMAL") else name for name, kind, *_ in types]
        batches = connection.sql(f"SELECT {', '.join(columns)} FROM {read}").to_arrow_reader(ROW_GROUP)
        with library("pyarrow.parquet").ParquetWriter(new, batches.schema) as writer:
            for rows in batches:
                writer.write_batch(rows, row_group_size=ROW_GROUP)


def find_generator() -> str | None:
    """Return the path of the program that makes the tables: Python's own, or else that of the shell."""
    return shutil.which(GENERATOR, path=sysconfig.get_path("scripts")) or shutil.which(GENERATOR)


def explain_missing_generator() -> str | None:
    """Return why the tables cannot be made here, or ``None`` if they can."""
    return None if find_generator() else f"{GENERATOR} is not installed; pip install {GENERATOR}"
