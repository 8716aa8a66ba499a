"""``gpuguide records``: what was measured, listed, shown, verified and taken in."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gpuguide.claims import quoted
from gpuguide.cli import compare
from gpuguide.cli.screen import err, listing, say, show, width
from gpuguide.errors import GpuguideError, unknown
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import comparison, digest, export, folders, importing, reference_gpu, store
from gpuguide.measure import records as record_files
from gpuguide.measure.digest import equivalent
from gpuguide.measure.records import Record, describe_keys
from gpuguide.units import format_quantity

NUMBERS = ("median", "p25", "p75", "n", "within\nturns", "between\nturns")
app = typer.Typer(
    help="Records: list, show, verify, import, rebase, equivalent, choices.\n\nExample: gpuguide records list",
    no_args_is_help=True,
)


class Format(StrEnum):
    """Output format of a list."""

    table = "table"
    csv = "csv"


@app.command("list")
def records_list(
    mine: Annotated[bool, typer.Option("--mine", help="Your own records instead of the published ones.")] = False,
    format: Annotated[Format, typer.Option(help="A table to read, or CSV with every number.")] = Format.table,
) -> None:
    """List the records.

    Example: gpuguide records list --format csv
    """
    chosen = store.load_all_mine() if mine else store.load_all_published()
    if format is Format.csv:
        sys.stdout.write(export.csv_text(chosen))
        return
    table = listing(
        "device", "benchmark", "cases", "measured", "commit", "state", whole=("cases", "measured", "commit")
    )
    for record in chosen:
        good = sum(case.status == "ok" for case in record.cases)
        run = record.runs[-1]
        state = "stale" if record.stale else "fresh"
        table.add_row(
            record.device,
            record.benchmark,
            f"{good} of {len(record.cases)}",
            run.finished_at[:10],
            (run.commit or "unknown")[:12],
            state + (", simulated" if record.simulated else ""),
        )
    show(table)


@app.command("show")
def records_show(
    benchmark: Annotated[str, typer.Argument(help="The benchmark's name.")],
    device: Annotated[str | None, typer.Option(help="The device's slug; by default every device.")] = None,
) -> None:
    """Show a benchmark's records: the circumstances and every case.

    "within turns" is how far the samples of a turn spread, from p25 to p75, and "between turns" how far the medians of
    turns lie apart, both as shares of the median.

    Example: gpuguide records show ceilings
    """
    known = declarations.names()
    if benchmark not in known:
        raise unknown("benchmark", benchmark, known)
    found = [record_files.read(path) for path in folders.record_files(benchmark)]
    if not found:
        raise GpuguideError(
            f"There is no record of {benchmark!r} yet. Measure one with 'gpuguide bench run {benchmark}'."
        )
    devices = {record.device for record in found}
    if device is not None and device not in devices:
        raise unknown(f"device with a record of {benchmark!r}", device, devices)
    for record in found:
        if device is None or record.device == device:
            show_record(record)


def show_record(record: Record) -> None:
    """Print one record: the stamp of each run, a line for every measured case, and why others hold no measurement."""
    stale = " (stale: the code has changed since)" if record.stale else ""
    for run in record.runs:
        say(f"{record.benchmark} on {run.stamp(record.libraries())}{stale}")
    same, differ = comparison.split_keys(record.cases)
    if same:
        say(f"all cases: {describe_keys(same)}")
    show_measurements(record, differ)
    for case in record.cases:
        if case.status != "ok":
            keys_of_case = f" ({describe_keys(case.keys)})" if case.keys else ""
            say(f"{case.contender}{keys_of_case}: {case.status}, {case.reason}")


def show_measurements(record: Record, differ: Sequence[str]) -> None:
    """Print the measurements of each case below its keys, the contenders under each other."""
    cases: dict[str, list[list[str]]] = {}
    for case in record.cases:
        for name, metric in case.metrics.items():
            s = metric.summary
            spread = ["" if q is None else format_quantity(q, metric.unit) for q in (s.median, s.p25, s.p75)]
            turns = [
                "" if share is None else percent(share)
                for share in (metric.spread_within_turns, metric.spread_between_turns)
            ]
            rows = cases.setdefault(" ".join(compare.keys_text(case, differ)), [])
            said = any(row[0] == case.contender for row in rows)
            rows.append(["" if said else case.contender, name, *spread, str(s.n), *turns])
    heads = ["contender", "metric", *NUMBERS]
    widths = [max(map(len, cells)) for cells in zip(*chain(*cases.values()), map(longest_word, heads), strict=True)]
    widths[0] = max(8, min(widths[0], width() - sum(widths[1:]) - 2 * len(widths[1:])))

    def table(head: bool) -> Table:
        """Return an empty table whose columns stand where those of the others stand."""
        found = listing(*heads, whole=heads[1:], head=head)
        for column, columns in zip(found.columns, widths, strict=True):
            column.width = columns
        return found

    show(table(head=True))
    for keys, rows in cases.items():
        if differ:
            say(keys)
        measured = table(head=False)
        for row in rows:
            measured.add_row(*row)
        show(measured)


def longest_word(head: str) -> str:
    """Return the longest line of a column's head."""
    return max(head.splitlines(), key=len)


def percent(share: float) -> str:
    """Write a share in percent, with two significant digits and no more than two decimals.

    >>> percent(0.1234), percent(0.0456), percent(0.00001)
    ('12%', '4.6%', '0.00%')
    """
    return f"{100 * share:.{0 if share >= 0.1 else 1 if share >= 0.01 else 2}f}%"


@app.command("verify")
def records_verify(
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH", help="Files or folders; all if none.")] = None,
) -> None:
    """Check that records are whole and fresh.

    Example: gpuguide records verify my-records/
    """
    wrong = 0
    places = paths or folders.record_folders()
    for path in paths or ():
        if not path.exists():
            raise GpuguideError(f"There is no file or folder {path}.")
        if path.is_dir() and not any(path.glob("**/*.json")):
            raise GpuguideError(f"There are no records in {path}.")
    files = [file for path in places for file in ([path] if path.is_file() else sorted(path.glob("**/*.json")))]
    for file in files:
        try:
            record = record_files.read(file)
        except GpuguideError as error:
            err.print(str(error), markup=False)
            wrong += 1
            continue
        failed = [case for case in record.cases if case.status in ("failed", "out-of-memory")]
        # A published record of a GPU that no page speaks of is drawn as old as it is, and nothing else rests on it.
        allowed = record.stale and not paths and not store.is_mine(record) and not quoted.select_quoted([record])
        notes = [
            reference_gpu.age(record, spoken_of=False) if allowed else "stale: the code has changed since"
        ] * record.stale + [
            f"{case.contender} ({describe_keys(case.keys)}): {case.status}, {case.reason}" for case in failed
        ]
        wrong += record.stale and not allowed
        say(f"{record.device}/{record.benchmark}: {'; '.join(notes) or 'good'}")
    err.print(f"{len(files)} record{'s' * (len(files) != 1)}, {wrong} damaged or stale.")
    faults = [] if paths else faults_of_equivalences()
    for fault in faults:
        err.print(f"{equivalent.FILE}: {fault}.", markup=False)
    if wrong or faults:
        raise typer.Exit(1)


def faults_of_equivalences() -> list[str]:
    """Return what is wrong with the rows that call changes of code equivalent."""
    held: dict[str, set[str]] = {}
    for record in store.load_all_published():
        held.setdefault(record.benchmark, set()).add(record.code_digest)
    rows = equivalent.rows(folders.published_folder())
    today = {row.benchmark: digest.benchmark_digest(row.benchmark) for row in rows if row.benchmark in held}
    return list(equivalent.faults(rows, held, today))


@app.command("import")
def records_import(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Record files, or folders of them.")],
    publish: Annotated[bool, typer.Option("--publish", help="Into the published records instead of your own.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Also where measured cases would be lost.")] = False,
) -> None:
    """Check records and take them in.

    Example: gpuguide records import --publish from-the-gpu-machine/
    """
    folder = folders.published_folder() if publish else folders.overlay_to_write()
    if folder is None:
        raise GpuguideError("GPUGUIDE_RECORDS is set and empty, so there is nowhere to import to. Name a folder in it.")
    told = functools.partial(err.print, markup=False)
    for record in importing.import_records(paths, folder, publish=publish, replacing=replace, say=told):
        say(f"{record.device}/{record.benchmark}")


@app.command("rebase")
def records_rebase(
    commit: Annotated[str, typer.Argument(help="A commit at which the records were fresh.")],
    mine: Annotated[bool, typer.Option("--mine", help="Your own records instead of the published ones.")] = False,
) -> None:
    """Take records over whose code is the same since a commit.

    Example: gpuguide records rebase HEAD~1
    """
    from gpuguide.measure.rebase import rebase

    chosen = store.load_all_mine() if mine else store.load_all_published()
    changed = 0
    for record, outcome in rebase(chosen, commit):
        say(f"{record.device}/{record.benchmark}: {outcome}")
        changed += outcome in ("stale before", "changed since")
    if changed:
        raise typer.Exit(1)


@app.command("equivalent")
def records_equivalent(
    commit: Annotated[str, typer.Argument(help="The last commit with the code that the records were measured with.")],
    reason: Annotated[str, typer.Option(help="Why no measurement changes, in a sentence; the page Status shows it.")],
    benchmark: Annotated[list[str] | None, typer.Option(help="Only this benchmark; may be given again.")] = None,
) -> None:
    """Say that a change of measured code changes no measurement, so that records stay fresh.

    Example: gpuguide records equivalent HEAD --reason "The parameter size is now called rows."
    """
    from gpuguide.measure import rebase

    for name in benchmark or ():
        if name not in declarations.names():
            raise unknown("benchmark", name, declarations.names())
    if not reason.strip():
        raise typer.BadParameter("It is empty. Say in a sentence why no measurement changes.", param_hint="--reason")
    folder = folders.published_folder()
    rows = rebase.equivalences(store.load_all_published(), commit, reason.strip(), benchmark or ())
    if rows:
        equivalent.write(folder, [*equivalent.rows(folder), *rows])
    for row in rows:
        say(f"{row.benchmark}: {row.old[:15]} counts as {row.new[:15]}")
    err.print(f"{len(rows)} row{'s' * (len(rows) != 1)} written to {folder / equivalent.FILE}.", markup=False)


@app.command("choices")
def records_choices(
    write: Annotated[bool, typer.Option("--write", help="Write the tables anew where they differ.")] = False,
) -> None:
    """Compare the tables of who is fastest with the records.

    Functions that choose by speed, such as the one for attention, read them.

    Example: gpuguide records choices --write
    """
    from gpuguide.measure import choices

    old = 0
    for table in choices.tables():
        wanted = choices.from_records(table)
        is_old = table.read_text(encoding="utf-8") != wanted
        old += is_old
        if is_old and write:
            table.write_text(wanted, encoding="utf-8")
        state = "as the records say" if not is_old else "written" if write else "not as the records say"
        say(f"{table.parent.name}: {state}")
    if old and not write:
        raise typer.Exit(1)
