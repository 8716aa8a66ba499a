"""``gpuguide watch``: a GPU's readings as they change."""

from __future__ import annotations

import math
from contextlib import ExitStack, closing
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
        Path | None, typer.Option("--out", metavar="FILE", help="Write the readings of one GPU as they come, as .csv.")
    ] = None,
) -> None:
    """Show what the GPUs do as it changes; stop with Ctrl-C.

    Utilisation, memory, power, clocks and temperature, once an interval.

    Example: gpuguide watch --interval 0.5 --seconds 60
    """
    from gpuguide.cli import live
    from gpuguide.hardware import monitor
    from gpuguide.hardware.totals import Tally
    from gpuguide.hardware.trace import GrowingFile
    from gpuguide.measure import traces

    with ExitStack() as opened:
        file = opened.enter_context(closing(GrowingFile(out_file))) if out_file is not None else None
        found = opened.enter_context(monitor.samplers(device or None, interval=interval))
        if file is not None and len(found) > 1:
            raise GpuguideError(f"--out keeps one GPU, and {len(found)} would be watched. Choose one with --device.")
        watched = [live.Watched(sampler, Tally(), file) for sampler in found]
        try:
            live.follow(watched, Console(highlight=False, markup=False, emoji=False), interval, seconds)
        except KeyboardInterrupt:
            err.print("")
    for each in watched:
        if each.tally.samples:
            err.print("\n    ".join(traces.describe_trace(each.sampler.trace, each.tally)), markup=False)
