"""``gpuguide sbatch``: batch scripts for Slurm."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from gpuguide.cli.screen import err
from gpuguide.errors import GpuguideError

app = typer.Typer(
    help="Batch scripts for Slurm: write, check, and play on a Slurm of this machine.\n\n"
    "Example: gpuguide sbatch write train.py --nodes 2 > job.sh",
    no_args_is_help=True,
)


@app.command("write")
def write(
    command: Annotated[str, typer.Argument(help="The training program and its arguments, without a launcher.")],
    nodes: Annotated[int, typer.Option(help="Nodes of the job.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of each node, with one process each.")] = 8,
    cpus_per_gpu: Annotated[int, typer.Option(help="Cores for each process and the workers of its data loader.")] = 8,
    hours: Annotated[float, typer.Option(help="Time limit in hours.")] = 24,
    lead: Annotated[int, typer.Option(help="Seconds before the limit at which the program is asked to stop.")] = 300,
    name: Annotated[str, typer.Option(help="Name of the job and of its log.")] = "train",
    partition: Annotated[str | None, typer.Option(help="Partition of the cluster; by default its own default.")] = None,
) -> None:
    """Print a batch script that runs a program with torchrun on every GPU of all nodes, in several jobs if need be.

    Before the time limit, the script creates the file that the variable STOP_FILE names. The program must look for it,
    save its state and end without an error; the job is then queued again. When it starts, the program must load its
    state, and end at once if it is done.

    Example: gpuguide sbatch write "train.py --config base.toml" --nodes 2 > job.sh
    """
    from gpuguide.clusters import script

    limit, before = timedelta(hours=hours), timedelta(seconds=lead)
    job = script.Job(command, nodes, gpus_per_node, cpus_per_gpu, limit, before, name, partition)
    typer.echo(script.write(job), nl=False)


@app.command("record")
def record(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Sessions; by default all.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write the recordings into this folder.")] = None,
) -> None:
    """Play sessions on a real Slurm that is started for them on this machine, and print what happened.

    It takes Linux, root, Slurm and munge, and up to five minutes for a session; nothing of it stays.

    Example: gpuguide sbatch record hello backfill
    """
    from gpuguide.clusters import sessions

    for name in names or sessions.SESSIONS:
        sessions.find(name)
    if out is not None and not out.is_dir():
        raise GpuguideError(f"There is no folder {out}. Make it first.")
    for name in names or sessions.SESSIONS:
        err.print(f"playing: {name}", markup=False)
        recording = sessions.play(name)
        typer.echo(f"{recording}\n")
        if out is not None:
            sessions.store(recording, out)


def parse_version(text: str) -> tuple[int, int]:
    """Return a version of Slurm as two numbers."""
    match = re.fullmatch(r"(\d\d)\.(\d\d)(\.\d+)?", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is no version of Slurm; write it as sbatch --version does, such as 22.05.")
    return int(match[1]), int(match[2])


@app.command("check")
def check(
    files: Annotated[list[str], typer.Argument(metavar="FILE", help="Batch scripts; - is standard input.")],
    slurm: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="The cluster's Slurm, such as 22.05; by default that of sbatch here."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of faults as JSON.")] = False,
) -> None:
    """Find what in a batch script will fail, do nothing, or do something else than meant.

    It runs and submits nothing. Call it in the folder in which you call sbatch: a folder for logs that is missing there
    is a fault. The exit status is 1 if there is a fault.

    Example: gpuguide sbatch check train.sh
    """
    from gpuguide.clusters.checking import check

    version = installed_version() if slurm is None else parse_version(slurm)
    scripts = [(name, read_script(name)) for name in files]
    faults = [(name, fault) for name, text in scripts for fault in check(text, folder=Path.cwd(), slurm=version)]
    if as_json:
        typer.echo(
            json.dumps([{"file": name, **asdict(fault)} for name, fault in faults], indent=1, ensure_ascii=False)
        )
    else:
        for name, fault in faults:
            typer.echo(f"{name}:{fault.line}: {fault.what} → {fault.remedy}")
    if faults:
        raise typer.Exit(1)
    err.print(f"no fault found in {len(scripts)} script{'s' if len(scripts) > 1 else ''}", markup=False)


def read_script(name: str) -> str:
    """Return the text of a script with its line ends as they are."""
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        if b"\0" in content:
            raise GpuguideError(f"{name} is not a text file. Name a batch script.")
        return content.decode("utf-8")
    except FileNotFoundError as error:
        raise GpuguideError(f"There is no file {name}. Name a batch script, or - for standard input.") from error
    except OSError as error:
        raise GpuguideError(f"Cannot read {name}: {error.strerror or error}. Name a batch script.") from error
    except UnicodeDecodeError as error:
        raise GpuguideError(f"{name} is not a text in UTF-8. Name a batch script.") from error


def installed_version() -> tuple[int, int] | None:
    """Return the version of the Slurm on this machine, if there is one."""
    program = shutil.which("sbatch")
    if program is None:
        return None
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"(\d\d)\.(\d\d)", said)
    return (int(match[1]), int(match[2])) if match else None
