"""What a query reads: an Arrow table or Parquet files, and what can be known of them without reading a row."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuguide.dataframes.libraries import library
from gpuguide.dataframes.query.types import Schema, kind
from gpuguide.errors import GpuguideError

MAGIC = b"PAR1"
"""The first and the last four bytes of a Parquet file, as Parquet's "File Format" says."""
WRITTEN_OUT = 4.0
"""Bytes a row that text takes at least in a file that holds each value: Parquet's encoding ``PLAIN`` puts a length of
four bytes before a value, while the code of a value in a dictionary takes less"""
LARGE_PIECE = 128 * 2**20
"""Bytes of a row group in memory, above which it is worth rewriting the file, because an engine that streams holds
several row groups at a time"""


@dataclass(frozen=True)
class Statistics:
    """What is known of a column's values; without any, the extremes are ``None``."""

    least: Any
    greatest: Any
    nulls: int


@dataclass(frozen=True)
class Source:
    """A table or files, with what is known of them from a schema and from Parquet's statistics."""

    schema: Schema
    rows: int
    paths: tuple[str, ...] = ()
    """Of Parquet files; empty for a table"""
    table: Any = None
    row_groups: tuple[int, ...] = ()
    """The rows of each row group of the files"""
    statistics: Mapping[str, Statistics] = field(default_factory=dict)
    """Of the columns for which every row group has them"""
    distinct: Mapping[str, float] = field(default_factory=dict)
    """About how many different values columns of a file have, from the size of Parquet's dictionaries"""
    widths: Mapping[str, float] = field(default_factory=dict)
    """Bytes a row of each column in memory"""
    stored: Mapping[str, float] = field(default_factory=dict)
    """Bytes a row of each column in the files, decompressed; empty for a table"""

    def bytes(self, columns: Sequence[str] | None = None) -> float:
        """Return the bytes that columns take in memory, by default all of them."""
        return self.rows * sum(self.widths[name] for name in (self.schema if columns is None else columns))

    def is_written_out(self, name: str) -> bool:
        """Return whether a column is text of which a file holds each value, because it has too many for a dictionary.

        A writer that begins a dictionary gives it up when it gets too large.
        """
        return self.stored.get(name, 0.0) >= WRITTEN_OUT and kind(self.schema[name]) == "text"

    def describe_large_row_group(self) -> str | None:
        """Return a sentence about a row group that is too large to be streamed well, or ``None``."""
        rows = max(self.row_groups, default=0)
        size = rows * sum(self.widths.values())
        if size <= LARGE_PIECE:
            return None
        fitting = int(LARGE_PIECE / sum(self.widths.values()))
        return (
            f"The largest row group has {rows:,} rows, about {size / 2**20:,.0f} MiB in memory. Engines on the CPU "
            "share a file among cores by its row groups, so few cores work on large ones. Rewrite the file: "
            f"polars.scan_parquet({self.paths[0]!r}).sink_parquet('smaller.parquet', row_group_size={fitting})."
        )


def open_source(table_or_path: Any) -> Source:
    """Return a source.

    Parameters
    ----------
    table_or_path : pyarrow.Table, a frame of Polars or pandas, str, Path or a list of these paths
        A path may be a Parquet file, a folder of them, or a pattern such as ``trips/*.parquet``.

    Raises
    ------
    GpuguideError
        If there is no such file, it is no Parquet file, or files have different columns.
    """
    if isinstance(table_or_path, Source):
        return table_or_path
    if isinstance(table_or_path, (str, Path, list, tuple)):
        given = table_or_path if isinstance(table_or_path, (list, tuple)) else [table_or_path]
        return _open_files([path for one in given for path in _find_files(str(one))])
    if not hasattr(table_or_path, "__arrow_c_stream__"):
        raise GpuguideError(
            f"A query reads an Arrow table, a frame of Polars or pandas, or a path of Parquet files, and not a "
            f"{type(table_or_path).__name__}."
        )
    return _open_table(library("pyarrow").table(table_or_path))


def _find_files(path: str) -> list[str]:
    if Path(path).is_file():
        return [path]
    pattern = f"{glob.escape(path)}/*.parquet" if Path(path).is_dir() else path
    found = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
    if not found:
        raise GpuguideError(f"There is no Parquet file in {path}; name a folder that has one, or a file.")
    return found


def _check_parquet(path: str) -> None:
    """Refuse a file that is not Parquet, and say how to make one of it."""
    if not Path(path).is_file():
        raise GpuguideError(f"There is no file {path}.")
    with open(path, "rb") as file:
        first = file.read(len(MAGIC))
        file.seek(max(0, Path(path).stat().st_size - len(MAGIC)))
        last = file.read()
    if first == MAGIC == last:
        return
    if first == MAGIC:
        raise GpuguideError(f"{path} ends before its Parquet footer: it was cut short. Copy or download it again.")
    reader = {".csv": "csv", ".tsv": "csv", ".txt": "csv", ".json": "ndjson", ".jsonl": "ndjson"}
    format = reader.get(Path(path.removesuffix(".gz")).suffix.lower())
    if format is None:
        raise GpuguideError(f"{path} is no Parquet file; write the frame with .to_parquet or .write_parquet.")
    options = ", separator='\\t'" if path.removesuffix(".gz").endswith(".tsv") else ""
    wanted = str(Path(path.removesuffix(".gz")).with_suffix(".parquet"))
    raise GpuguideError(
        f"{path} is {'CSV' if format == 'csv' else 'JSON'}, which has neither types nor statistics and cannot be read "
        "in pieces by row group. Convert it once to Parquet, and name that file: "
        f'python -c "import polars; polars.scan_{format}({path!r}{options}).sink_parquet({wanted!r})"'
    )


def _open_files(paths: Sequence[str]) -> Source:
    parquet = library("pyarrow.parquet")
    files = []
    for path in paths:
        _check_parquet(path)
        try:
            files.append(parquet.ParquetFile(path))
        except Exception as error:
            raise GpuguideError(f"{path} cannot be read as Parquet ({error}); write it again.") from error
    schema = dict(zip(files[0].schema_arrow.names, files[0].schema_arrow.types, strict=True))
    for path, file in zip(paths, files, strict=True):
        other = dict(zip(file.schema_arrow.names, file.schema_arrow.types, strict=True))
        if different := [name for name in {**schema, **other} if schema.get(name) != other.get(name)]:
            name = different[0]
            raise GpuguideError(
                f"Column {name!r} is {schema.get(name, 'absent')} in {paths[0]} and {other.get(name, 'absent')} in "
                f"{path}; the files of one query need the same columns, so cast or leave out that one."
            )
    groups = [file.metadata.row_group(index) for file in files for index in range(file.metadata.num_row_groups)]
    rows = sum(file.metadata.num_rows for file in files)
    chunks: dict[str, list[Any]] = {name: [] for name in schema}
    for group in groups:
        for index in range(group.num_columns):
            chunk = group.column(index)
            if chunk.path_in_schema in chunks:
                chunks[chunk.path_in_schema].append(chunk)
    statistics = {name: found for name, of in chunks.items() if (found := _combine(of)) is not None}
    stored = {name: sum(chunk.total_uncompressed_size for chunk in of) / max(1, rows) for name, of in chunks.items()}
    widths = {name: _width(type, statistics.get(name), stored[name]) for name, type in schema.items()}
    distinct = {name: _dictionary_bytes(of) / max(1.0, widths[name]) for name, of in chunks.items()}
    return Source(
        schema,
        rows,
        tuple(paths),
        row_groups=tuple(group.num_rows for group in groups),
        statistics=statistics,
        distinct={name: count for name, count in distinct.items() if count},
        widths=widths,
        stored=stored,
    )


def _combine(chunks: Sequence[Any]) -> Statistics | None:
    """Return the statistics of a column over all its row groups, or ``None`` if one has none."""
    known = [chunk.statistics for chunk in chunks if chunk.num_values]
    if any(each is None or not each.has_null_count for each in known):
        return None
    nulls = sum(each.null_count for each in known)
    ends = [each for each in known if each.num_values]  # a row group of nothing but nulls has no extremes
    if not ends:
        return Statistics(None, None, nulls)
    if not all(each.has_min_max for each in ends):
        return None
    try:
        return Statistics(min(each.min for each in ends), max(each.max for each in ends), nulls)
    except (TypeError, NotImplementedError):
        return None


def _dictionary_bytes(chunks: Sequence[Any]) -> float:
    """Return the bytes of a column's largest dictionary; 0 where a row group has none."""
    if not all(chunk.has_dictionary_page and chunk.dictionary_page_offset for chunk in chunks):
        return 0.0
    return max((chunk.data_page_offset - chunk.dictionary_page_offset for chunk in chunks), default=0.0)


def _width(type: Any, known: Statistics | None, stored: float) -> float:
    """Return about how many bytes a row of a column takes in memory, of which a file holds so many."""
    if kind(type) == "text":
        ends = (len(str(known.least)) + len(str(known.greatest))) / 2 if known else 0.0
        return 4 + max(stored, ends)
    try:
        return max(1.0, type.bit_width / 8)
    except ValueError:  # nested types have no width
        return stored


def _open_table(table: Any) -> Source:
    """Return the source of an Arrow table, with its dictionaries decoded."""
    arrow, compute = library("pyarrow"), library("pyarrow.compute")
    for index, field_ in enumerate(table.schema):
        if arrow.types.is_dictionary(field_.type):
            table = table.set_column(index, field_.name, _decode(table.column(index)))
    if len(set(table.column_names)) < table.num_columns:
        raise GpuguideError("The table has two columns of one name; rename one with table.rename_columns.")
    schema = dict(zip(table.column_names, table.schema.types, strict=True))
    statistics = {}
    for name, type in schema.items():
        if kind(type) not in (None, "text") and table.num_rows:
            ends = compute.min_max(table[name]).as_py()
            statistics[name] = Statistics(ends["min"], ends["max"], table[name].null_count)
    widths = {name: table[name].nbytes / max(1, table.num_rows) for name in schema}
    return Source(schema, table.num_rows, table=table, statistics=statistics, widths=widths)


def _decode(column: Any) -> Any:
    """Return a column of dictionaries as its values; text becomes ``large_string``."""
    arrow, values = library("pyarrow"), column.type.value_type
    type = arrow.large_string() if kind(values) == "text" else values
    chunks = [chunk.dictionary.cast(type).take(chunk.indices) for chunk in column.chunks]
    return arrow.chunked_array(chunks, type)
