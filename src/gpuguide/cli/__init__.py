"""The command line. Data go to standard output, everything else to standard error.

Exit status: 0 done, 1 something was found wrong or could not be done, 2 the command was written wrongly, which
includes names that do not exist. Each group of commands has a file of its name.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from gpuguide import __version__
from gpuguide.cli import (
    bench,
    claims,
    diagnose,
    doctor,
    finetune,
    fit,
    frame,
    generate,
    links,
    memory,
    models,
    new,
    records,
    sbatch,
    train,
    watch,
)
from gpuguide.cli.screen import err
from gpuguide.errors import GpuguideError, UnknownName

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command()(doctor.doctor)
app.command()(watch.watch)
app.command()(links.links)
app.command()(diagnose.diagnose)
app.command()(generate.generate)
app.command()(finetune.finetune)
app.command()(train.train)
app.command()(fit.fit)
app.command()(frame.frame)
app.add_typer(memory.app, name="memory")
app.add_typer(bench.app, name="bench")
app.add_typer(records.app, name="records")
app.add_typer(claims.app, name="claims")
app.add_typer(models.app, name="models")
app.add_typer(new.app, name="new")
app.add_typer(sbatch.app, name="sbatch")

TYPER_INTERRUPTED = 130
"""The status with which Typer ends on Ctrl-C, without a word"""


def main() -> None:
    """Run the command line; a user's error is one sentence on standard error, without a traceback."""
    open_closed_streams()
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


def open_closed_streams() -> None:
    """Let what is written to a closed standard output or error be lost, as by a job that nothing listens to."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process


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
    """Measure this machine, and look at what was measured.

    Example: gpuguide doctor
    """
