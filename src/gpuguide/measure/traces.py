"""Traces of a GPU, kept as the metrics of a record's case, and told in words."""

from __future__ import annotations

import itertools
import math
import statistics

from gpuguide.errors import GpuguideError
from gpuguide.hardware.monitor import compute_clock_limit_shares
from gpuguide.hardware.quantities import BOARD, QUANTITIES
from gpuguide.hardware.totals import Row, Tally
from gpuguide.hardware.trace import Trace
from gpuguide.measure import records
from gpuguide.measure.records import Case, Metric, Record
from gpuguide.units import format_quantity, significant

MOMENTS = "seconds"
"""The metric that holds when each reading was made"""
MOST_GAPS = 0.1
"""Share of the moments at which a quantity may be missing"""


def as_metrics(trace: Trace) -> dict[str, Metric]:
    """Return a trace as metrics of equal length, with the moments of the readings as ``seconds``.

    What bounds the board's readings follows, each with a single sample. A record holds no gaps: a quantity that the
    driver refused at more than a tenth of the moments is left out, and so is a moment at which another was refused.
    """
    gaps = {name: sum(math.isnan(row.readings[name]) for row in trace.rows) for name in trace.units}
    names = [name for name, count in gaps.items() if count <= MOST_GAPS * len(trace.rows)]
    whole = [row for row in trace.rows if all(not math.isnan(row.readings[name]) for name in names)]
    found = {MOMENTS: records.metric("s", [row.seconds for row in whole])}
    for name in names:
        unit = trace.units[name]
        found[name] = records.metric(unit, [row.readings[name] for row in whole])
    return found | {name: records.metric(BOARD[name], [value]) for name, value in trace.board.items()}


def find_case_trace(record: Record, case: Case) -> Trace:
    """Return the trace that a case of a record holds.

    Raises
    ------
    GpuguideError
        If it holds none.
    """
    metrics = case.measured
    if MOMENTS not in metrics:
        raise GpuguideError(
            f"{record.benchmark}/{case.contender} ({records.describe_keys(case.keys)}) holds no trace: it has "
            f"{', '.join(metrics) or 'no metrics'}, and no {MOMENTS!r}."
        )
    moments = metrics[MOMENTS].samples
    names = [name for name in QUANTITIES if name in metrics and metrics[name].summary.n == len(moments)]
    rows = [Row(at, 0.0, {name: metrics[name].samples[index] for name in names}) for index, at in enumerate(moments)]
    return Trace(
        device=record.runs[case.run].device_name,
        index=0,
        interval=statistics.median(after - at for at, after in itertools.pairwise(moments)) if moments[1:] else 0.0,
        started_at=record.runs[case.run].started_at,
        units={name: metrics[name].unit for name in names},
        board={name: metrics[name].summary.median for name in BOARD if name in metrics},
        rows=rows,
    )


def describe_trace(trace: Trace, tally: Tally | None = None) -> list[str]:
    """Return what a trace adds up to, one line a quantity, and last what it did not read and what reading cost.

    Parameters
    ----------
    trace : Trace
        What was watched.
    tally : Tally, optional
        Its readings added up, where the trace no longer holds all of them.
    """
    tally = tally or trace.tally()
    totals = tally.totals(trace.units)
    span = f"{totals.samples} readings in {format_quantity(totals.duration, 's')}"
    lines = [f"GPU {trace.index}, {trace.device}: {span}"]
    for name, column in totals.columns.items():
        mean, most = (value_text(name, value, column.unit) for value in (column.mean, column.most))
        lines.append(f"{title_of(name)}: mean {mean}, highest {most}")
    energies = {"power × time": totals.energy_from_power, "the driver's counter": totals.energy_counted}
    known = [f"{format_quantity(value, 'J')} by {way}" for way, value in energies.items() if value is not None]
    if known:
        lines.append(f"energy: {', '.join(known)}")
    limits = compute_clock_limit_shares(tally.clock_limits.elements())
    if limits:
        shares = [f"{name} ({significant(100 * share, 2)}% of the readings)" for name, share in limits.items()]
        lines.append(f"clock limits: {', '.join(shares)}")
    if trace.absent:
        lines.append(f"not read: {'; '.join(f'{title_of(name)}, {why}' for name, why in trace.absent.items())}")
    lines.append(
        f"a reading took {format_quantity(totals.cost, 's')}, "
        f"{significant(100 * totals.share, 2)}% of the time of one thread"
    )
    return lines


def title_of(name: str) -> str:
    """Return how a quantity is called in text."""
    return QUANTITIES[name].title if name in QUANTITIES else name


def is_share(name: str) -> bool:
    """Return whether a quantity is a share, which is written in percent."""
    return name in QUANTITIES and QUANTITIES[name].unit == "1" and name != "clock_limits"


def value_text(name: str, value: float, unit: str) -> str:
    """Write one reading with its unit; a share in percent.

    >>> value_text("gpu_utilisation", 0.5, "1"), value_text("power", 698.3, "W"), value_text("power", float("nan"), "W")
    ('50%', '698 W', '–')
    >>> value_text("sm_activity", 1 / 132, "1"), value_text("sm_occupancy", 0.65123, "1")
    ('0.76%', '65%')
    """
    if math.isnan(value):
        return "–"
    if is_share(name):
        return f"{100 * value:.0f}%" if value >= 0.1 else f"{significant(100 * value, 2)}%"
    if unit in ("W", "°C"):
        return f"{value:.0f} {unit}"
    return format_quantity(value, unit)
