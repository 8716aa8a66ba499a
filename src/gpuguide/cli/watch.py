"""``gpuguide watch``: a GPU's readings as they change."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gpuguide.cli.screen import err
from gpuguide.errors import GpuguideError


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
    """Show what the GPUs do as it changes; stop with Ctrl-C.

    Utilisation, memory, power, clocks and temperature, once an interval.

    Example: gpuguide watch --interval 0.5 --seconds 60
    """
    from gpuguide.cli import live
    from gpuguide.hardware import monitor, trace
    from gpuguide.measure import traces

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
