"""``gpuguide frame``: run a query on Parquet files, and say which engine runs it and what the others would take."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuguide.cli.screen import err, listing, show
from gpuguide.errors import GpuguideError
from gpuguide.units import format_bytes, format_quantity

if TYPE_CHECKING:
    from gpuguide.dataframes import Query, QueryChoice
    from gpuguide.dataframes.cost import MachineParameters
    from gpuguide.measure.records import Record

COLUMN = "COLUMN"
MULTIPLE = "Repeat it for several."


def frame(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A Parquet file, a folder of them, or a pattern.")],
    filters: Annotated[
        list[str] | None, typer.Option("--filter", metavar="TEST", help=f"Rows to keep, as in 'fare > 10'. {MULTIPLE}")
    ] = None,
    search: Annotated[
        str | None, typer.Option(metavar="COLUMN=TEXT", help="Keep the rows whose column contains the text.")
    ] = None,
    join: Annotated[str | None, typer.Option(metavar="FILE", help="Another Parquet file to join, with --on.")] = None,
    on: Annotated[list[str] | None, typer.Option(metavar=COLUMN, help=f"The key of the join. {MULTIPLE}")] = None,
    group_by: Annotated[list[str] | None, typer.Option(metavar=COLUMN, help=f"The key of groups. {MULTIPLE}")] = None,
    window: Annotated[
        list[str] | None, typer.Option(metavar=COLUMN, help="As --group-by, but keep all rows, with the numbers added.")
    ] = None,
    sum: Annotated[list[str] | None, typer.Option(metavar=COLUMN, help="Add up this column in each group.")] = None,
    mean: Annotated[list[str] | None, typer.Option(metavar=COLUMN, help="Its mean.")] = None,
    min: Annotated[list[str] | None, typer.Option(metavar=COLUMN, help="Its least value.")] = None,
    max: Annotated[list[str] | None, typer.Option(metavar=COLUMN, help="Its greatest value.")] = None,
    count: Annotated[list[str] | None, typer.Option(metavar=COLUMN, help="How many values it has.")] = None,
    sort: Annotated[list[str] | None, typer.Option(metavar=COLUMN, help=f"Order the rows by it. {MULTIPLE}")] = None,
    descending: Annotated[bool, typer.Option(help="Sort the greatest first.")] = False,
    engine: Annotated[str, typer.Option(help="polars, duckdb, cudf, polars-gpu or auto.")] = "auto",
    rows: Annotated[int, typer.Option(help="How many rows of the result to print.", min=0)] = 20,
    out: Annotated[Path | None, typer.Option(help="A .parquet or .csv file to write the whole result to.")] = None,
    explain: Annotated[bool, typer.Option(help="Print Polars' plan in place of running the query.")] = False,
) -> None:
    """Run a query on Parquet files. Say which engine runs it, why, and what it would take elsewhere.

    The steps are done in the order of the options in this help. Without any, the columns of the file are listed.

    Example: gpuguide frame trips.parquet --group-by city --mean fare --engine auto
    """
    asked = {"sum": sum, "mean": mean, "min": min, "max": max, "count": count}
    aggregates = {how: columns for how, columns in asked.items() if columns}
    check_options(aggregates, group_by, window, join, on, out)
    from gpuguide.dataframes import Query

    query = Query(file)
    for test in filters or []:
        query = query.filter(*parse_filter(test))
    if search is not None:
        query = query.search(*parse_search(search))
    if join is not None:
        query = query.join(join, on=on or [])
    if group_by:
        query = query.group_by(*group_by, **aggregates)
    if window:
        query = query.window(*window, **aggregates)
    if sort:
        query = query.sort(*sort, descending=descending)
    if not query.steps:
        show_columns(query)
        return
    chosen = report_engines(query, engine)
    if explain:
        print(query.plan().explain())
        return
    show_result(query.on(chosen), rows, out)


def check_options(
    aggregates: dict[str, list[str]],
    group_by: list[str] | None,
    window: list[str] | None,
    join: str | None,
    on: list[str] | None,
    out: Path | None,
) -> None:
    """Refuse options that need others.

    Raises
    ------
    typer.BadParameter
        The message names the option that is missing.
    """
    if group_by and window:
        raise typer.BadParameter("--group-by and --window are two steps; give one.")
    if aggregates and not (group_by or window):
        raise typer.BadParameter(f"--{next(iter(aggregates))} needs --group-by or --window.")
    if window and not aggregates:
        raise typer.BadParameter("--window needs a number to add, such as --mean COLUMN.")
    if (join is None) != (not on):
        raise typer.BadParameter("--join FILE and --on COLUMN belong together.")
    if out is not None and out.suffix not in (".parquet", ".csv"):
        raise typer.BadParameter(f"--out {out} is neither .parquet nor .csv.")


def parse_filter(test: str) -> tuple[str, str, str]:
    """Return the column, the comparison and the value of a test.

    >>> parse_filter("fare >= 10.5")
    ('fare', '>=', '10.5')
    """
    from gpuguide.dataframes.query.steps import COMPARISONS

    found = re.fullmatch(rf"\s*(.+?)\s*({'|'.join(COMPARISONS)})\s*(.*?)\s*", test)
    if found is None:
        raise typer.BadParameter(f"--filter {test!r} has no comparison; write it as in 'fare > 10'.")
    column, comparison, value = found.groups()
    return column, comparison, value


def parse_search(given: str) -> tuple[str, str]:
    """Return the column and the text of ``COLUMN=TEXT``."""
    column, sign, text = given.partition("=")
    if not sign:
        raise typer.BadParameter(f"--search {given!r} has no COLUMN=TEXT; write it as in name=Zürich.")
    return column, text


def load_machine() -> tuple[MachineParameters, str]:
    """Return the prices of this machine, if they were measured, or else the published ones, and whose they are."""
    from gpuguide.dataframes import cost
    from gpuguide.measure import store

    host, gpu = ("polars", "duckdb"), ("cudf",)
    for record in store.load_mine("dataframe"):
        try:
            machine = cost.fit_parameters(cost.read_measurements(record.cases), host, gpu)
        except GpuguideError:  # a record without a GPU
            continue
        mine = [each for each in store.load_mine("frame-queries") if each.device == record.device]
        return add_files(machine, mine), "this machine"
    record = store.load_published("dataframe")
    machine = cost.fit_parameters(cost.read_measurements(record.cases), host, gpu)
    on_gpu = [each for each in store.load_all_published("frame-queries") if ran_on(each, gpu)]
    on_gpu.sort(key=lambda each: each.device != record.device)  # of another machine only if this one has none
    return add_files(machine, on_gpu[:1]), describe_machine(on_gpu[0] if on_gpu else record)


def ran_on(record: Record, engines: Sequence[str]) -> bool:
    """Return whether one of the engines was measured."""
    return any(case.contender in engines and case.status == "ok" for case in record.cases)


def describe_machine(record: Record) -> str:
    """Return words for the machine of a record's last run."""
    run = record.runs[-1]
    return f"a machine with an {run.device_name} and {run.host_cores_available or run.host_cores} CPU cores"


def add_files(machine: MachineParameters, records: Sequence[Record]) -> MachineParameters:
    """Return a machine with what queries on files take, by records of ``frame-queries``, if there are any.

    The predictions are for the machine of those records: where the times in memory are those of another machine, the
    price of work makes up for it.
    """
    from gpuguide.benchmarks.larger_frames import queries
    from gpuguide.dataframes import cost

    times = [time for record in records for time in queries.query_times(record, machine)]
    return replace(machine, files=cost.fit_files(times))


def report_engines(query: Query, asked: str) -> str:
    """Print which engine runs the query and what the others would take, and return its name."""
    from gpuguide.dataframes import where_to_run
    from gpuguide.dataframes.query.choice import ENGINES, choose, why_not_here

    machine, name = load_machine()
    everywhere = where_to_run(query, machine=machine)
    chosen = choose(query, machine=machine) if asked == "auto" else None
    table = listing("engine", f"predicted for {name}", "here")
    for engine in ENGINES:
        seconds = everywhere.seconds.get(engine)
        here = why_not_here(engine) or (chosen.refused.get(engine) if chosen else None) or "yes"
        table.add_row(engine, "not measured" if seconds is None else format_quantity(seconds, "s"), here)
    show(table, stderr=True)
    err.print(describe(everywhere, query))
    if chosen is None:
        return asked
    err.print(f"Engine: {chosen.engine}. {chosen.reason}")
    return chosen.engine


def describe(choice: QueryChoice, query: Query) -> str:
    """Return sentences about the amounts behind the predictions."""
    read, columns = query.source.bytes(query.columns_read), len(query.columns_read)
    copies = f"its copies take {format_quantity(choice.copy_seconds, 's')} of the time. Reading the file is in none of"
    times = "reading the file is in all of" if choice.from_files else copies
    return (
        f"{query.source.rows:,} rows and {columns} of {len(query.source.schema)} columns are read, "
        f"{format_bytes(int(read))} in memory. A GPU needs about {format_bytes(int(choice.gpu_bytes))}, and {times} "
        "the times."
    )


def show_columns(query: Query) -> None:
    """Print the columns of the files, with what their statistics tell."""
    source = query.source
    table = listing("column", "type", "least", "greatest", "missing")
    for name, type in source.schema.items():
        known = source.statistics.get(name)
        ends = ["", "", ""] if known is None else [*map(in_words, (known.least, known.greatest)), f"{known.nulls:,}"]
        table.add_row(name, str(type), *ends)
    show(table)
    err.print(f"{source.rows:,} rows in {len(source.row_groups):,} row groups.")
    if (large := source.describe_large_row_group()) is not None:
        err.print(large)


def in_words(value: Any) -> str:
    """Return a value as a cell of a table; a missing one is empty."""
    return "" if value is None else str(value)


def show_result(result: Any, rows: int, out: Path | None) -> None:
    """Print the first rows of a result, and write all of them to a file."""
    if out is not None:
        write(result, out)
        err.print(f"{result.num_rows:,} rows are in {out}.")
    table = listing(*result.column_names)
    for row in result.slice(0, rows).to_pylist():
        table.add_row(*map(in_words, row.values()))
    show(table)
    if (more := result.num_rows - rows) > 0 and out is None:
        err.print(f"{more:,} more rows; --rows prints more of them, and --out writes all to a file.")


def write(result: Any, out: Path) -> None:
    """Write a result as Parquet or CSV, by the file's ending."""
    import pyarrow.csv
    import pyarrow.parquet

    try:
        if out.suffix == ".csv":
            pyarrow.csv.write_csv(result, out)
        else:
            pyarrow.parquet.write_table(result, out)
    except OSError as error:
        raise GpuguideError(f"{out} cannot be written ({error}); name another file.") from error
