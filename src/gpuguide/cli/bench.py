"""``gpuguide bench``: list, run and compare the benchmarks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from gpuguide.cli import compare
from gpuguide.cli.old_names import merge_old_name
from gpuguide.cli.screen import break_name, duration, err, listing, show
from gpuguide.errors import GpuguideError, unknown
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import folders, store
from gpuguide.measure.records import Case
from gpuguide.units import format_quantity

app = typer.Typer(help="Benchmarks: list, run, compare.\n\nExample: gpuguide bench run", no_args_is_help=True)


@app.command("list")
def bench_list() -> None:
    """List the benchmarks, and on which devices each has a record.

    Example: gpuguide bench list
    """
    held: dict[str, list[str]] = {}
    for record in [*store.load_all_published(), *store.load_all_mine()]:
        held.setdefault(record.benchmark, []).append(record.device + (" (stale)" if record.stale else ""))
    table = listing("benchmark", "question", "measured on", whole=("benchmark", "measured on"))
    for name in declarations.names():
        devices = "\n".join(break_name(each, 30) for each in dict.fromkeys(held.get(name, []))) or "nothing yet"
        table.add_row(name, declarations.get(name).question, devices)
    show(table)


@app.command("run")
def bench_run(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Benchmarks; all if none is named.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smallest case, few samples, nothing stored.")] = False,
    overwrite: Annotated[bool | None, typer.Option("--overwrite", help="Measure finished cases again.")] = None,
    again: Annotated[bool | None, typer.Option("--again", help="Old name of --overwrite, for this release.")] = None,
    commit: Annotated[str | None, typer.Option(help="The code's commit, where git cannot tell.")] = None,
    time_limit: Annotated[float, typer.Option(min=0, help="Seconds after which no further case starts.")] = math.inf,
    out_folder: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where to store the records.")] = None,
    device: Annotated[str, typer.Option(help="gpu or cpu.")] = "gpu",
) -> None:
    """Measure this machine and store each case as it is finished.

    Finished cases are not measured again, so an interrupted run resumes where it stopped. What was measured with
    another version of a library is measured again; a record of other code is kept next to the new one.

    Example: gpuguide bench run ceilings copy-size
    """
    from gpuguide.hardware import device as devices
    from gpuguide.measure import runner
    from gpuguide.measure.runner.environment import commit_of_checkout

    known = declarations.names()
    for name in names or ():
        if name not in known:
            raise unknown("benchmark", name, known)
    chosen = [declarations.get(name) for name in names or known]
    folder = out_folder or folders.overlay_to_write()
    if folder is None and not quick:
        raise GpuguideError(
            "GPUGUIDE_RECORDS is set and empty, so there is nowhere to store records. "
            "Name a folder with --out, or try --quick, which stores nothing."
        )
    target = devices.choose(device)
    err.print(f"Measuring {target.name}" + ("" if quick else f"; records go to {folder}"), markup=False)
    if not (quick or commit or commit_of_checkout()):
        err.print("The records will name no commit, so nobody can publish them; --commit says it.", markup=False)

    def show(progress: runner.RunProgress) -> None:
        place = f"{progress.done}/{progress.total}, about {duration(progress.seconds_left)} left"
        err.print(f"[{place}] {progress.benchmark}: {progress.case}", markup=False)
        for case in progress.results:
            err.print("    " + one_line(case), markup=False)

    outcome = runner.run(
        chosen,
        target,
        folder,
        quick=quick,
        again=bool(merge_old_name("--overwrite", overwrite, "--again", again)),
        commit=commit,
        time_limit=time_limit,
        report=show,
        say=lambda text: err.print(text, markup=False),
    )
    parts = [f"{outcome.measured} case{'s' * (outcome.measured != 1)} measured"]
    if outcome.already_fresh:
        parts.append(f"{outcome.already_fresh} were measured before (--overwrite measures them again)")
    if outcome.not_reached:
        parts.append(f"{outcome.not_reached} not reached within the time limit (run again to go on)")
    err.print("; ".join(parts) + ".", markup=False)


def one_line(case: Case) -> str:
    """Describe the result of a contender in one line."""
    if case.status != "ok":
        return f"{case.contender}: {case.status} ({case.reason})"
    return f"{case.contender}: " + ", ".join(
        format_quantity(metric.summary.median, metric.unit) for metric in case.metrics.values()
    )


app.command("compare")(compare.compare)
