"""Where a query runs faster: measured times of its operations, for a frame known by its schema and statistics.

A query is a chain of operations. Each has a measured time for a number of rows of the measured frame; a row of another
frame takes as much longer as it is wider. How many rows a filter leaves and how many groups there are is estimated from
the least and greatest values, as databases do. The copy to a GPU has a measured time for each byte.

For Parquet files, the time of a query is that from the files to the result, if queries on files were measured
(:mod:`gpuguide.dataframes.cost.files`). Without such a record, reading is in none of the times.

Source: Selinger et al., "Access Path Selection in a Relational Database Management System", 1979, section 4, for the
estimates of a filter.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from packaging.requirements import Requirement

from gpuguide.dataframes import cost
from gpuguide.dataframes import engines as available
from gpuguide.dataframes.cost import FileAmounts, MachineParameters
from gpuguide.dataframes.cost.sizes import ROOM
from gpuguide.dataframes.data import KEYS, ROWS_AN_ID
from gpuguide.dataframes.operations import THRESHOLD
from gpuguide.dataframes.query.source import Source, Statistics
from gpuguide.dataframes.query.steps import Chain, Filter, GroupBy, Join, Search, Sort, Window
from gpuguide.dataframes.query.types import Schema, column_kind, kind
from gpuguide.errors import GpuguideError

ENGINES = ("polars", "duckdb", "cudf", "polars-gpu")
ON_GPU = ("cudf", "polars-gpu")
LIKE = {"polars-gpu": "cudf"}
"""The engine whose times in memory stand in for those of one that was measured on files only"""
UNKNOWN_SHARE = THRESHOLD
"""Of the rows that a filter keeps where no statistics tell: as much as the measured filter"""
WIDTH = 8.0
"""Bytes of a computed column in a row"""


@dataclass(frozen=True)
class StepEstimate:
    """What a step is expected to do."""

    operation: str
    """The measured operation that it is like, of :data:`gpuguide.dataframes.operations.OPERATIONS`"""
    rows: float
    """That it reads"""
    row_bytes: float
    """Of the columns that it touches"""


@dataclass(frozen=True)
class QueryChoice:
    """Where to run a query."""

    engine: str
    reason: str
    """Sentences"""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Predicted for each engine that was measured, the copies to and from a GPU included"""
    copy_seconds: float = 0.0
    """The part of it that the copies take, on the GPU; 0 where they were not measured apart from reading"""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Engines that cannot take it, each with the reason"""
    steps: Sequence[StepEstimate] = ()
    result_rows: float = 0.0
    gpu_bytes: float = 0.0
    """That the query is expected to need on a GPU, without pieces"""
    from_files: bool = False
    """Whether reading the files is in the times"""


def where_to_run(
    query: Chain,
    table_or_path: Any = None,
    *,
    machine: MachineParameters,
    gpu_memory: float | None = None,
    among: Sequence[str] = ENGINES,
) -> QueryChoice:
    """Return the engine that is expected to be done first, with the predicted times and the reason.

    Nothing is read but schema and statistics. The frame is in the host's memory, or in a file, and the result is wanted
    in the host's memory. The times of a query on Parquet files include reading them, if ``machine.files`` has prices;
    then only engines with prices are compared.

    The choice counts as right where the engine named is the fastest, or takes at most 10 % longer than the fastest, by
    the medians of the measured times; :func:`gpuguide.dataframes.cost.unseen_queries` counts this way.

    Parameters
    ----------
    query : Query
        What is to be done.
    table_or_path : object, optional
        Another source for it; by default its own.
    machine : MachineParameters
        What was measured, from :func:`gpuguide.dataframes.cost.fit_parameters`.
    gpu_memory : float, optional
        Bytes that are free on the GPU; without a number, everything fits.
    among : sequence of str
        The engines to choose from. Where ``polars-gpu`` has no measured times, it is taken for a file that does not fit
        the GPU otherwise, if ``cudf`` would be the fastest.

    Raises
    ------
    GpuguideError
        If the source lacks a column, none of the engines was measured with all operations of the query, or each that
        was refuses it.
    """
    query = query if table_or_path is None else query.over(table_or_path)
    steps, result_rows = estimate(query)
    read = bytes_read(query)
    written = result_rows * _row_bytes(query.schema, query.source)
    seconds, copies = predict_from_files(query, steps, machine, among), dict[str, float]()
    if not (from_files := bool(seconds)):
        seconds, copies = predict_in_memory(steps, read, written, machine, among)
    gpu_bytes = read + max((step.rows * _room(step) for step in steps), default=0.0)
    refused = {engine: why for engine in among if (why := why_refused(engine, query))}
    if gpu_memory is not None and gpu_bytes > gpu_memory:
        needed, free = (f"{size / 2**30:.1f} GiB" for size in (gpu_bytes, gpu_memory))
        refused.setdefault("cudf", f"The query needs about {needed} on the GPU, and {free} are free.")
    possible = {engine: time for engine, time in seconds.items() if engine not in refused}
    if not possible and seconds:
        raise GpuguideError(" ".join(refused[engine] for engine in seconds))
    if not possible:
        raise GpuguideError(
            f"None of the engines {', '.join(among)} was measured with all of "
            f"{', '.join(step.operation for step in steps)}; run the benchmark 'dataframe', or name an engine."
        )
    engine = min(possible, key=lambda name: possible[name])
    reason = explain(engine, seconds, copies, refused, from_files=from_files)
    streams = query.source.paths and "cudf" in refused and seconds.get("cudf", math.inf) < possible[engine]
    if streams and "polars-gpu" in among and "polars-gpu" not in seconds:
        engine, reason = "polars-gpu", f"{refused['cudf']} Polars' GPU engine reads the file in pieces."
    if (large := query.source.describe_large_row_group()) is not None:
        reason = f"{reason} {large}"
    copied = min((copies[name] for name in ON_GPU if name in copies), default=0.0)
    return QueryChoice(engine, reason, seconds, copied, refused, steps, result_rows, gpu_bytes, from_files)


def predict_in_memory(
    steps: Sequence[StepEstimate], read: float, written: float, machine: MachineParameters, among: Sequence[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the seconds that engines take for the steps on a frame in memory, and the part that copies take of it.

    ``read`` and ``written`` are bytes: those that a GPU needs, and those of the result.
    """
    seconds, copies = {}, {}
    for engine in dict.fromkeys(engine for engine, _ in (*machine.host, *machine.gpu)):
        work = work_in_memory(engine, steps, machine)
        if engine not in among or work is None:
            continue
        copies[engine] = 0.0
        if engine in ON_GPU:
            if engine not in machine.to_gpu or engine not in machine.from_gpu:
                continue
            copies[engine] = machine.to_gpu[engine].predict(read) + machine.from_gpu[engine].predict(written)
        seconds[engine] = copies[engine] + work
    return seconds, copies


def predict_from_files(
    query: Chain, steps: Sequence[StepEstimate], machine: MachineParameters, among: Sequence[str]
) -> dict[str, float]:
    """Return the seconds that engines take from files to the result; none for a table, or without prices."""
    seconds = {}
    for engine, prices in machine.files.items() if query.source.paths else ():
        work = work_in_memory(engine, steps, machine)
        if engine in among and work is not None:
            seconds[engine] = prices.predict(file_amounts(query, work))
    return seconds


def work_in_memory(engine: str, steps: Sequence[StepEstimate], machine: MachineParameters) -> float | None:
    """Return the seconds that steps take an engine in memory, or ``None`` if one of them was not measured."""
    lines = {**machine.host, **machine.gpu}
    if not any(name == engine for name, _ in lines):
        engine = LIKE.get(engine, engine)
    if not all((engine, step.operation) in lines for step in steps):
        return None
    return sum(_seconds(lines[engine, step.operation], step) for step in steps)


def file_amounts(query: Chain, work: float) -> FileAmounts:
    """Return what there is to do for a query on files, the steps of which take so many seconds in memory."""
    decoded = {"numbers": 0.0, "codes": 0.0, "text": 0.0}
    for chain in (query, *_joined(query)):
        for name in chain.columns_read if chain.source.paths else ():
            is_text = kind(chain.source.schema[name]) == "text"
            part = "numbers" if not is_text else "text" if chain.source.is_written_out(name) else "codes"
            decoded[part] += chain.source.bytes([name])
    return FileAmounts(**decoded, work=work)


def bytes_read(query: Chain) -> float:
    """Return the bytes in memory of the columns that a query reads, of what it joins too."""
    return sum(chain.source.bytes(chain.columns_read) for chain in (query, *_joined(query)))


def choose(query: Chain, *, machine: MachineParameters | None) -> QueryChoice:
    """Return the choice among the engines that can run here."""
    here = [engine for engine in ENGINES if why_not_here(engine) is None and why_refused(engine, query) is None]
    if not here:
        raise GpuguideError(f"No engine can run here: {why_not_here('polars')}.")
    free = free_memory("cudf") if {*ON_GPU}.intersection(here) else None
    if machine is not None:
        return where_to_run(query, machine=machine, gpu_memory=free, among=here)
    if free is not None and query.source.rows >= cost.RULE_ROWS:
        fits = "cudf" in here and 2 * query.source.bytes(query.columns_read) <= free
        if fits or "polars-gpu" in here:
            engine = "cudf" if fits else "polars-gpu"
            return QueryChoice(engine, f"There are at least {cost.RULE_ROWS:,} rows, and a GPU.")
    return QueryChoice(here[0], f"There are fewer than {cost.RULE_ROWS:,} rows, or no GPU that has room for them.")


def free_memory(engine: str) -> float:
    """Return the bytes that are free where an engine works; infinite where the system does not tell.

    Source: proc(5), ``/proc/meminfo``, ``MemAvailable``.
    """
    if engine in ON_GPU:
        return float(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.inf
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), math.inf)


def explain(
    engine: str,
    seconds: Mapping[str, float],
    copies: Mapping[str, float],
    refused: Mapping[str, str],
    *,
    from_files: bool = False,
) -> str:
    """Return why an engine is the one to take."""
    if "cudf" in refused:
        return refused["cudf"]
    if from_files:
        return f"{engine} is expected to take the least time from the file to the result."
    on_gpu = [name for name in seconds if name in ON_GPU]
    if not on_gpu:
        return f"{engine} is the fastest of the engines that can run here."
    host = min((time for name, time in seconds.items() if name not in ON_GPU), default=math.inf)
    gpu = min(on_gpu, key=lambda name: seconds[name])
    if engine in ON_GPU:
        return "The GPU saves more time than the copies take."
    if seconds[gpu] - copies[gpu] < host:
        return "The GPU would be faster, but not by as much as the copies take."
    return "There are too few rows: the GPU's overhead is longer than the host's whole work."


# --- estimates -------------------------------------------------------------------------------------------


def estimate(query: Chain) -> tuple[list[StepEstimate], float]:
    """Return what each step of a query is expected to do, and how many rows the result has.

    A filter right before a group-by is one operation with it. Columns of the source that the query does not read are
    in none of the steps.
    """
    source, rows = query.source, float(query.source.rows)
    unread = set(source.schema).difference(query.columns_read)
    steps: list[StepEstimate] = []
    for columns, step in query.steps:
        read, schema = rows, {name: type for name, type in columns.items() if name not in unread}
        if isinstance(step, (Filter, Search, Sort)):
            touched, operation = (
                _row_bytes(schema, source),
                {Filter: "filter", Search: "string", Sort: "sort"}[type(step)],
            )
            if isinstance(step, Filter):
                rows *= share_kept(step, source)
            elif isinstance(step, Search):
                touched, rows = source.widths.get(step.column, WIDTH), rows * UNKNOWN_SHARE
        elif isinstance(step, Join):
            touched, operation = _row_bytes(schema, source), "join"
            others, found = estimate(step.other)
            steps += others
            read = max(rows, found)
        else:
            used = {*step.keys, *(each.column for each in step.aggregates if each.column)}
            touched, groups = sum(source.widths.get(name, WIDTH) for name in used), group_count(step.keys, source, rows)
            operation = "window" if isinstance(step, Window) else "groupby"
            if operation == "groupby":
                if groups > math.sqrt(KEYS * max(KEYS, rows / ROWS_AN_ID)):
                    operation = "groupby-many"
                elif steps and steps[-1].operation == "filter":
                    operation, read = "filter-groupby", steps.pop().rows
                rows = groups
        steps.append(StepEstimate(operation, read, touched))
    return steps, rows


def share_kept(step: Filter, source: Source) -> float:
    """Return the share of rows that a filter is expected to keep, as if values lay evenly between the extremes."""
    known, value = source.statistics.get(step.column), _number(step.value)
    least, greatest = (None, None) if known is None else (_number(known.least), _number(known.greatest))
    if known is None or least is None or greatest is None or value is None:
        distinct = source.distinct.get(step.column)
        return 1 / distinct if distinct and step.comparison == "==" else UNKNOWN_SHARE
    present = 1 - known.nulls / max(1, source.rows)
    if step.comparison in ("==", "!="):
        equal = 1 / _spread(known) if least <= value <= greatest else 0.0
        return present * (equal if step.comparison == "==" else 1 - equal)
    above = 0.5 if greatest == least else (greatest - value) / (greatest - least)
    above = min(1.0, max(0.0, above))
    return present * (above if step.comparison.startswith(">") else 1 - above)


def group_count(keys: Sequence[str], source: Source, rows: float) -> float:
    """Return how many groups there are about: at most the product of the keys' different values.

    Text that a file holds value by value has as many different ones as the measured frame has ids.
    """
    found = 1.0
    for key in keys:
        known, type = source.statistics.get(key), source.schema.get(key)
        if type is not None and kind(type) == "bool":
            found *= 2
        elif known is not None and kind(type) in ("integer", "date"):
            found *= _spread(known)
        elif source.is_written_out(key):
            found *= max(1.0, source.rows / ROWS_AN_ID)
        else:
            found *= source.distinct.get(key, KEYS)
    return max(1.0, min(found, rows))


def _spread(known: Statistics) -> float:
    """Return how many whole numbers or days there are between the extremes."""
    least, greatest = _number(known.least), _number(known.greatest)
    return greatest - least + 1 if least is not None and greatest is not None else float(KEYS)


def _number(value: Any) -> float | None:
    """Return a value as a number: days of a date, seconds of a timestamp; ``None`` for text."""
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=value.tzinfo or datetime.UTC).timestamp()
    if isinstance(value, datetime.date):
        return float(value.toordinal())
    return None if value is None or isinstance(value, str) else float(value)


def _row_bytes(schema: Schema, source: Source) -> float:
    return sum(source.widths.get(name, WIDTH) for name in schema)


def _joined(query: Chain) -> list[Chain]:
    """Return the queries that a query joins, and those that they join."""
    others = [step.other for _, step in query.steps if isinstance(step, Join)]
    return others + [inner for other in others for inner in _joined(other)]


def _measured_bytes(operation: str) -> float:
    """Return the bytes a row of the frame on which an operation was measured."""
    many = 10**6
    return cost.bytes_in(operation, many) / many


def _seconds(line: cost.Line, step: StepEstimate) -> float:
    """Return the time of a step: that of as many bytes of the measured frame."""
    return line.predict(step.rows * step.row_bytes / _measured_bytes(step.operation))


def _room(step: StepEstimate) -> float:
    """Return the bytes a row that a step needs beside its frame, more for wider rows than the measured ones."""
    return ROOM[step.operation] * max(1.0, step.row_bytes / _measured_bytes(step.operation))


# --- what can run here -----------------------------------------------------------------------------------


def why_not_here(engine: str) -> str | None:
    """Return why an engine of a query cannot run here, or ``None`` if it can."""
    return available.why_not_here(engine) or (explain_polars_version() if engine == "polars-gpu" else None)


def why_refused(engine: str, query: Chain) -> str | None:
    """Return why an engine cannot run a query wherever it is installed, or ``None`` if it can.

    cuDF's groups are named by an index, which cannot hold decimals.
    """
    if engine != "cudf":
        return None
    steps = [(schema, step) for chain in (query, *_joined(query)) for schema, step in chain.steps]
    for schema, step in steps:
        for key in step.keys if isinstance(step, GroupBy) else ():
            if column_kind(schema, key) == "decimal":
                return f"cuDF cannot group by the decimals of {key!r}. Cast them to integers, or use another engine."
    return None


def explain_polars_version() -> str | None:
    """Return why the installed cudf-polars does not work with the Polars here, or ``None`` if it does.

    The sentence has both versions and the command that installs the right one.
    """
    here = metadata.version("polars")
    for package in ("cudf-polars-cu13", "cudf-polars-cu12", "cudf-polars"):
        try:
            requirements = [Requirement(each) for each in metadata.requires(package) or []]
        except metadata.PackageNotFoundError:
            continue
        for needed in requirements:
            if needed.name == "polars" and not needed.specifier.contains(here, prereleases=True):
                return (
                    f"{package} {metadata.version(package)} works with polars{needed.specifier}, and Polars {here} is "
                    f"here; install the right one: pip install 'polars{needed.specifier}'"
                )
    return None
