"""The live view of ``gpuguide watch``: a panel for every GPU in a terminal, plain lines everywhere else."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from gpuguide.hardware.monitor import Sampler, name_clock_limits
from gpuguide.hardware.totals import Tally
from gpuguide.hardware.trace import GrowingFile, Trace
from gpuguide.measure.traces import title_of, value_text

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table

SHOWN = (
    "gpu_utilisation",
    "memory_utilisation",
    "sm_activity",
    "sm_occupancy",
    "tensor_activity",
    "bandwidth_share",
    "memory_used",
    "instant_power",
    "power",
    "sm_clock",
    "memory_clock",
    "temperature",
    "memory_temperature",
    "temperature_margin",
)
BOUNDS = {
    "memory_used": "memory_total",
    "instant_power": "power_limit",
    "power": "power_limit",
    "sm_clock": "sm_clock_limit",
    "temperature": "slowdown_temperature",
}
"""Quantity to what it is shown against: a name of :data:`gpuguide.hardware.quantities.BOARD`"""
BLOCKS = " ▁▂▃▄▅▆▇█"
KEPT = 1000
"""Readings that the history of the widest screen shows"""
NARROW = 64
"""Columns below which the history of each reading is left out"""
BRIEF = ("gpu_utilisation", "memory_used", "power", "sm_clock", "temperature")
"""The quantities of a line"""


@dataclass(frozen=True)
class Watched:
    """A GPU that is watched for as long as one likes: its trace holds what the screen shows and no more."""

    sampler: Sampler
    tally: Tally
    """Tally of all readings"""
    file: GrowingFile | None = None
    """File of all readings"""

    def look(self) -> None:
        """Read the GPU once."""
        self.sampler.sample()
        trace = self.sampler.trace
        self.tally.add(trace.rows[-1])
        if self.file is not None:
            self.file.append(trace)
        del trace.rows[:-KEPT]


def follow(watched: Sequence[Watched], console: Console, interval: float, seconds: float = math.inf) -> None:
    """Look at all GPUs and show each reading, until ``seconds`` have passed or the user interrupts.

    Parameters
    ----------
    watched : sequence of Watched
        One for each GPU.
    console : rich.console.Console
        Where to show them. In a terminal the view is renewed in place; elsewhere every reading is a line.
    interval : float
        Seconds from one reading to the next.
    seconds : float
        How long to watch.
    """
    traces = [each.sampler.trace for each in watched]
    if not console.is_terminal or console.is_dumb_terminal:
        for _ in ticks(interval, seconds):
            for each in watched:
                each.look()
                console.print(line(each.sampler.trace), soft_wrap=True)
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        for _ in ticks(interval, seconds):
            for each in watched:
                each.look()
            live.update(view(traces, console), refresh=True)


def ticks(interval: float, seconds: float) -> Iterator[int]:
    """Count from zero, once an interval, up to and with the tick at ``seconds``; late ticks do not add up."""
    begun = time.monotonic()
    last = math.inf if math.isinf(seconds) else math.floor(seconds / interval + 1e-9)
    count = 0
    while count <= last:
        yield count
        count += 1
        if count <= last:
            time.sleep(max(0.0, begun + count * interval - time.monotonic()))


def line(trace: Trace) -> str:
    """Return the last reading in one line, for a file or another program."""
    parts = [f"{datetime.now().astimezone():%H:%M:%S}", f"GPU {trace.index}"]
    parts += [f"{title_of(name)} {latest(trace, name)}" for name in BRIEF if name in trace.units]
    return "  ".join([*parts, *describe_clock_limits(trace)])


def view(traces: Sequence[Trace], console: Console) -> RenderableType:
    """Return what the terminal shows: a panel for every GPU, or a line for every GPU if panels would not fit."""
    from rich.console import Group

    rows_each = len(SHOWN) + 4
    if len(traces) > 1 and len(traces) * rows_each > console.height:
        return overview(traces)
    return Group(*(panel(trace, console) for trace in traces))


def panel(trace: Trace, console: Console) -> Group:
    """Return all readings of one GPU, with their history where there is room for it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    with_history = console.width >= NARROW and not console.options.ascii_only
    table = Table(box=None, show_header=False, pad_edge=False, expand=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    if with_history:
        table.add_column(no_wrap=True, style="cyan")
    for name in [name for name in SHOWN if name in trace.units]:
        bound = trace.board.get(BOUNDS.get(name, ""), math.nan)
        against = "" if math.isnan(bound) else f" of {value_text(name, bound, trace.units[name])}"
        cells = [title_of(name), latest(trace, name) + against]
        if with_history:
            cells.append(history(trace, name, console.width - 50))
        table.add_row(*cells)
    parts: list[RenderableType] = [Text(f"GPU {trace.index}  {trace.device}", style="bold"), table]
    parts += [Text(each, style="yellow") for each in describe_clock_limits(trace)]
    if trace.absent:
        parts.append(Text(f"not given by this GPU: {', '.join(map(title_of, trace.absent))}", style="dim"))
    return Group(*parts, "")


def overview(traces: Sequence[Trace]) -> Table:
    """Return one row for every GPU."""
    from rich.table import Table

    names = [name for name in BRIEF if any(name in trace.units for trace in traces)]
    table = Table(box=None, pad_edge=False)
    table.add_column("GPU")
    for name in names:
        table.add_column(title_of(name), justify="right")
    for trace in traces:
        table.add_row(str(trace.index), *(latest(trace, name) if name in trace.units else "–" for name in names))
    return table


def latest(trace: Trace, name: str) -> str:
    """Return the last reading of a quantity in words."""
    return value_text(name, trace.rows[-1].readings[name], trace.units[name])


def describe_clock_limits(trace: Trace) -> list[str]:
    """Return in words what keeps the clock from being higher, if anything does."""
    bits = trace.rows[-1].readings.get("clock_limits", math.nan)
    names = [] if math.isnan(bits) else name_clock_limits(int(bits))
    return [f"clock limits: {', '.join(names)}"] if names else []


def history(trace: Trace, name: str, width: int) -> str:
    """Return the last readings as blocks, against what bounds them or else against the highest reading."""
    values = [row.readings.get(name, math.nan) for row in trace.rows[-max(1, width) :]]
    highest = max((value for value in values if not math.isnan(value)), default=0.0)
    bound = 1.0 if trace.units[name] == "1" else trace.board.get(BOUNDS.get(name, ""), highest)
    top = len(BLOCKS) - 1
    shares = (0.0 if math.isnan(value) or bound <= 0 else min(1.0, max(0.0, value / bound)) for value in values)
    return "".join(BLOCKS[math.ceil(share * top)] for share in shares)
