"""The command line. Data go to standard output, everything else to standard error.

Exit status: 0 done, 1 something was found wrong or could not be done, 2 the command was written wrongly, which
includes names that do not exist.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from gpuguide import __version__
from gpuguide.errors import GpuguideError, UnknownName, unknown
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import records as record_files
from gpuguide.measure import side_by_side, store
from gpuguide.measure.records import Case, Record, describe_keys
from gpuguide.measure.units import format_quantity

if TYPE_CHECKING:
    import torch

    from gpuguide.models.evaluation import Evaluation

app = typer.Typer(
    help="Measure this machine, and look at what was measured.", no_args_is_help=True, rich_markup_mode=None
)
bench = typer.Typer(help="Benchmarks: list, run, compare.", no_args_is_help=True)
records = typer.Typer(help="Records: list, show, verify, import.", no_args_is_help=True)
claims = typer.Typer(help="The ledger of claims.", no_args_is_help=True)
app.add_typer(bench, name="bench")
app.add_typer(records, name="records")
models = typer.Typer(help="The small models of this site: train, evaluate.", no_args_is_help=True)
app.add_typer(claims, name="claims")
app.add_typer(models, name="models")

WIDE = 240
"""Columns of a table that goes to a file or another program"""
out = Console(width=None if sys.stdout.isatty() else WIDE, soft_wrap=True, highlight=False, markup=False, emoji=False)
err = Console(stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False)
TYPER_INTERRUPTED = 130
"""The status with which Typer ends on Ctrl-C, without a word"""


class ClaimsFormat(StrEnum):
    """How to print what does not hold."""

    text = "text"
    json = "json"


class Format(StrEnum):
    """How to print a list."""

    table = "table"
    csv = "csv"


def main() -> None:
    """Run the command line; a user's error is one sentence on standard error, without a traceback."""
    try:
        app()
    except GpuguideError as error:
        err.print(f"gpuguide: {error}", markup=False)
        sys.exit(2 if isinstance(error, UnknownName) else 1)
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and stop.code != TYPER_INTERRUPTED:
            raise
        err.print("\nInterrupted. What was finished is kept; run the same command again to go on.")
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


def version(show: bool) -> None:
    """Print the version and stop."""
    if show:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Measure this machine, and look at what was measured. Example: gpuguide doctor"""


@app.command()
def doctor() -> None:
    """Say what is here and what each part needs. Example: gpuguide doctor"""
    from gpuguide.hardware import doctor as examination

    findings = [*examination.examine(), examination.records_folder(store.overlay_folder())]
    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        mark = {True: "yes", False: "no"}[finding.present]
        table.add_row(mark, finding.name, finding.detail)
    out.print(table)
    if not all(finding.present for finding in findings if finding.required):
        raise typer.Exit(1)


@app.command()
def watch(
    device: Annotated[
        list[str] | None,
        typer.Option(metavar="GPU", help="A number as CUDA counts, or a UUID; may be repeated. All if not given."),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.02, help="Seconds from one reading to the next.")] = 1.0,
    seconds: Annotated[float, typer.Option(min=0, help="How long to watch; by default until Ctrl-C.")] = math.inf,
    out_file: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Keep the readings of one GPU as .json or .csv.")
    ] = None,
) -> None:
    """Show utilisation, memory, power, clocks and temperature of the GPUs as they change; stop with Ctrl-C.

    Example: gpuguide watch --interval 0.5 --seconds 60
    """
    from gpuguide.hardware import monitor, trace
    from gpuguide.measure import live, traces

    if out_file is not None:
        trace.check_form(out_file)
    screen = Console(highlight=False, markup=False, emoji=False)
    with monitor.samplers(device or None, interval=interval) as found:
        if out_file is not None and len(found) > 1:
            raise GpuguideError(f"--out keeps one GPU, and {len(found)} would be watched. Choose one with --device.")
        try:
            live.follow(found, screen, interval=interval, seconds=seconds)
        except KeyboardInterrupt:
            err.print("")
        watched = [sampler.trace for sampler in found if sampler.trace.rows]
    for each in watched:
        err.print("\n    ".join(traces.described(each)), markup=False)
        if out_file is not None:
            each.save(out_file)


@bench.command("list")
def bench_list() -> None:
    """List the benchmarks, and on which devices each has a record. Example: gpuguide bench list"""
    held: dict[str, list[str]] = {}
    for record in [*store.published_records(), *store.overlay_records()]:
        held.setdefault(record.benchmark, []).append(record.device + (" (stale)" if record.stale else ""))
    table = Table(box=None, pad_edge=False)
    for column in ("benchmark", "question", "measured on"):
        table.add_column(column, overflow="fold")
    for name in declarations.names():
        table.add_row(
            name, declarations.get(name).question, ", ".join(dict.fromkeys(held.get(name, []))) or "nothing yet"
        )
    out.print(table)


@bench.command("run")
def bench_run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Benchmarks; all if none is named.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smallest case, few samples, nothing stored.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Measure also what is already measured.")] = False,
    commit: Annotated[str | None, typer.Option(help="The code's commit, where git cannot tell.")] = None,
    time_limit: Annotated[float, typer.Option(min=0, help="Seconds after which no further case is begun.")] = math.inf,
    out_folder: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where to store the records.")] = None,
    device: Annotated[str, typer.Option(help="gpu or cpu.")] = "gpu",
) -> None:
    """Measure this machine and store each case as it is finished.

    Finished cases are not measured again, so an interrupted run goes on where it stopped.
    Example: gpuguide bench run ceilings copy-size
    """
    from gpuguide.hardware import device as devices
    from gpuguide.measure import runner

    known = declarations.names()
    for name in names or ():
        if name not in known:
            raise unknown("benchmark", name, known)
    chosen = [declarations.get(name) for name in names or known]
    folder = out_folder or store.overlay_folder()
    if folder is None and not quick:
        raise GpuguideError(
            "GPUGUIDE_RECORDS is set and empty, so there is nowhere to store records. "
            "Name a folder with --out, or try --quick, which stores nothing."
        )
    target = devices.choose(device)
    err.print(f"Measuring {target.name}" + ("" if quick else f"; records go to {folder}"), markup=False)

    def show(progress: runner.Progress) -> None:
        place = f"{progress.done}/{progress.total}, about {duration(progress.seconds_left)} left"
        err.print(f"[{place}] {progress.benchmark}: {progress.case}", markup=False)
        for case in progress.results:
            err.print("    " + one_line(case), markup=False)

    outcome = runner.run(
        chosen, target, folder, quick=quick, again=again, commit=commit, time_limit=time_limit, report=show
    )
    parts = [f"{outcome.measured} cases measured"]
    if outcome.already_fresh:
        parts.append(f"{outcome.already_fresh} were measured before (--again measures them anew)")
    if outcome.not_reached:
        parts.append(f"{outcome.not_reached} not reached within the time limit (run again to go on)")
    err.print("; ".join(parts) + ".", markup=False)


def one_line(case: Case) -> str:
    """Return what happened to a contender in one line."""
    if case.status != "ok":
        return f"{case.contender}: {case.status} ({case.reason})"
    return f"{case.contender}: " + ", ".join(
        format_quantity(metric.summary.median, metric.unit) for metric in case.metrics.values()
    )


def duration(seconds: float) -> str:
    """Return a time span as a person says it: ``40 s``, ``12 min``."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


@bench.command("compare")
def bench_compare(
    devices: Annotated[
        list[str] | None, typer.Argument(metavar="[DEVICE]...", help="Device slugs; all if none.")
    ] = None,
) -> None:
    """Show the same cases on several devices side by side. Example: gpuguide bench compare nvidia-h100-80gb-hbm3 cpu"""
    published = {(r.device, r.benchmark): r for r in store.published_records()}
    shown = {device for device, _ in published}
    own = {(f"{r.device} (yours)" if r.device in shown else r.device, r.benchmark): r for r in store.overlay_records()}
    everything = published | own
    known = sorted({device for device, _ in everything})
    for device in devices or ():
        if device not in known:
            raise unknown("device with records", device, known)
    columns = known
    if devices:
        columns = [name for device in devices for name in known if name in (device, f"{device} (yours)")]
    table = Table(box=None, pad_edge=False)
    for column in ("benchmark", "contender", "case", *columns):
        table.add_column(column, overflow="fold")
    for name in declarations.names():
        chosen = [everything.get((device, name)) for device in columns]
        for contender, keys in side_by_side.cases_of(chosen):
            found = [next((c for c in r.cases_of(contender) if c.keys == keys), None) if r else None for r in chosen]
            table.add_row(name, contender, describe_keys(keys) if keys else "", *map(side_by_side.headline, found))
    out.print(table)


@records.command("list")
def records_list(
    mine: Annotated[bool, typer.Option("--mine", help="Your own records instead of the published ones.")] = False,
    format: Annotated[Format, typer.Option(help="A table to read, or CSV with every number.")] = Format.table,
) -> None:
    """List the records. Example: gpuguide records list --format csv"""
    chosen = store.overlay_records() if mine else store.published_records()
    if format is Format.csv:
        sys.stdout.write(store.csv_text(chosen))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("device", "benchmark", "cases", "measured", "commit", "state"):
        table.add_column(column)
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
    out.print(table)


@records.command("show")
def records_show(
    benchmark: Annotated[str, typer.Argument(help="The benchmark's name.")],
    device: Annotated[str | None, typer.Option(help="The device's slug; by default every device.")] = None,
) -> None:
    """Show a benchmark's records: the circumstances and every case. Example: gpuguide records show ceilings"""
    known = declarations.names()
    if benchmark not in known:
        raise unknown("benchmark", benchmark, known)
    found = [record_files.read(path) for path in store.record_files(benchmark)]
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
    """Print one record: its stamp, and a line for every case."""
    stale = " (stale: the code has changed since)" if record.stale else ""
    out.print(f"{record.benchmark} on {record.runs[-1].stamp()}{stale}", markup=False)
    table = Table(box=None, pad_edge=False)
    for column in ("contender", "case", "metric", "median", "p25", "p75", "n"):
        table.add_column(column, overflow="fold")
    for case in record.cases:
        keys = describe_keys(case.keys) if case.keys else ""
        if case.status != "ok":
            table.add_row(case.contender, keys, case.status, case.reason)
        for name, metric in case.metrics.items():
            s = metric.summary
            spread = [
                "" if value is None else format_quantity(value, metric.unit) for value in (s.median, s.p25, s.p75)
            ]
            table.add_row(case.contender, keys, name, *spread, str(s.n))
    out.print(table)


@records.command("verify")
def records_verify(
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="[PATH]...", help="Files or folders; all if none.")
    ] = None,
) -> None:
    """Check that records are whole and fresh. Example: gpuguide records verify my-records/"""
    wrong = 0
    places = paths or store.folders()
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
        notes = ["stale: the code has changed since"] * record.stale + [
            f"{case.contender} ({describe_keys(case.keys)}): {case.status}, {case.reason}" for case in failed
        ]
        wrong += bool(record.stale)
        out.print(f"{record.device}/{record.benchmark}: {'; '.join(notes) or 'good'}", markup=False)
    err.print(f"{len(files)} records, {wrong} damaged or stale.")
    if wrong:
        raise typer.Exit(1)


@records.command("import")
def records_import(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Record files, or folders of them.")],
    publish: Annotated[bool, typer.Option("--publish", help="Into the published records instead of your own.")] = False,
) -> None:
    """Check records and take them in. Example: gpuguide records import --publish from-the-gpu-machine/"""
    folder = store.published_folder() if publish else store.overlay_folder()
    if folder is None:
        raise GpuguideError("GPUGUIDE_RECORDS is set and empty, so there is nowhere to import to. Name a folder in it.")
    for record in store.import_records(paths, folder, publish=publish):
        out.print(f"{record.device}/{record.benchmark}", markup=False)


@claims.command("check")
def claims_check(
    format: Annotated[ClaimsFormat, typer.Option(help="To read, or for a program.")] = ClaimsFormat.text,
) -> None:
    """Check every claim of the ledger. Example: gpuguide claims check"""
    from gpuguide import claims as ledger

    outcomes = ledger.check(ledger.load())
    wrong = [outcome for outcome in outcomes if not outcome.ok]
    if format is ClaimsFormat.json:
        typer.echo(json.dumps([{"id": o.claim.id, "ok": o.ok, "detail": o.detail} for o in outcomes], indent=1))
    else:
        for outcome in wrong:
            out.print(f"{outcome.claim.place}: {outcome.claim.id}: {outcome.detail}", markup=False)
    err.print(f"{len(outcomes)} claims checked, {len(wrong)} do not hold.")
    if wrong:
        err.print("Correct the row: its verdict, its text, or what it names. Or measure again what it reads.")
        raise typer.Exit(1)


@models.command("train")
def models_train(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="main, draft; both if none is named.")
    ] = None,
    out_folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the checkpoints go.")] = Path(
        "my-models"
    ),
    device: Annotated[str | None, typer.Option(help="gpu or cpu; by default a GPU where there is one.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Fewer or more steps than the recipe's.")] = None,
    commit: Annotated[str | None, typer.Option(help="The code's commit, for the record.")] = None,
) -> None:
    """Train the small models on this interpreter's standard library; stopped, the same command goes on.

    Example: gpuguide models train draft --out my-models
    """
    from gpuguide.models import corpus, training

    recipes = {name: training.recipe(name) for name in names or training.RECIPES}
    target = torch_device(device)
    err.print("Reading the standard library and learning the tokenizer")
    data = training.prepare(corpus.standard_library())
    for name, recipe in recipes.items():
        recipe = dataclasses.replace(recipe, steps=steps or recipe.steps)

        def show(now: training.Progress, name: str = name) -> None:
            speed = f"{now.tokens_per_second:.3g} token/s, about {duration(now.seconds_left)} left"
            err.print(f"[{name}] step {now.step}/{now.steps}: loss {now.loss:.3f} nats; {speed}")

        result = training.train(name, recipe, data, out_folder / name, target, show, commit=commit)
        show_evaluation(f"{out_folder / name} on the held-out text", result)


@models.command("evaluate")
def models_evaluate(
    model: Annotated[str, typer.Option(help="main, draft, gpt2 (downloads it), or a checkpoint's folder.")] = "main",
    text: Annotated[Path | None, typer.Option(help="A file; by default the held-out text.")] = None,
    device: Annotated[str | None, typer.Option(help="gpu or cpu; by default a GPU where there is one.")] = None,
) -> None:
    """Say how well a model predicts a text. Example: gpuguide models evaluate --model draft"""
    from gpuguide import models as checkpoints
    from gpuguide.models import corpus, evaluation

    if text is not None and not text.is_file():
        raise GpuguideError(f"There is no file {text}.")
    content = corpus.held_out().encode() if text is None else text.read_bytes()
    loaded = checkpoints.load(model)
    result = evaluation.evaluate(loaded.model.to(torch_device(device)), loaded.tokenizer, content)
    show_evaluation(f"{model} on {text or 'the held-out text'}", result)


def torch_device(name: str | None) -> torch.device:
    """Return the device that is asked for by name, by default a GPU where there is one."""
    import torch

    import gpuguide
    from gpuguide.hardware import device as devices

    return gpuguide.device() if name is None else torch.device(devices.choose(name).torch_device)


def show_evaluation(what: str, result: Evaluation) -> None:
    """Print how well a model predicts."""
    err.print(what, markup=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("loss", f"{result.loss:.4f} nats a token")
    table.add_row("perplexity", f"{result.perplexity:.2f}")
    table.add_row("bits per byte", f"{result.bits_per_byte:.4f}")
    table.add_row("text", f"{result.tokens} tokens, {result.bytes} bytes")
    out.print(table)
