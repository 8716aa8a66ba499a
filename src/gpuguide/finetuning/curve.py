"""Curves of a run as SVG, whose colours come from the style sheet of the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 40
"""Margins around the axes, in pixels"""
MOST_POINTS = 400
"""Largest number of points in a curve; longer ones show means of neighbours"""
TICKS = 5
"""Largest number of ticks on an axis"""


def svg(
    losses: Sequence[float],
    eval_losses: Sequence[tuple[int, float]],
    steps: int,
    best: int | None,
    width: int = 900,
    height: int = 320,
    kind: str = "wide",
) -> str:
    """Return the losses of the steps as a line, the held-out losses as a line with points, and the best one marked.

    Parameters
    ----------
    losses : sequence of float
        Losses of the steps, in nats.
    eval_losses : sequence of (int, float)
        Steps and held-out losses.
    steps : int
        Last step of the axis.
    best : int, optional
        Step whose weights are kept.
    width, height : int
        Size of the drawing in pixels.
    kind : str
        CSS class of the element.
    """
    rows = _average(losses)
    values = [value for _, value in (*rows, *eval_losses)] or [0.0, 1.0]
    ticks = _ticks(min(values), max(values))
    low, high = min(ticks[0], *values), max(ticks[-1], *values)

    def x(step: float) -> float:
        return LEFT + (width - LEFT - RIGHT) * step / max(steps, 1)

    def y(value: float) -> float:
        return TOP + (height - TOP - BOTTOM) * (high - value) / ((high - low) or 1.0)

    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        for tick in ticks
    ]
    parts += [
        f'<text x="{x(tick):.1f}" y="{height - BOTTOM + 17}" text-anchor="middle">{tick:g}</text>'
        for tick in _ticks(0, steps, width // 110)
        if tick <= steps and tick == int(tick)
    ]
    parts.append(f'<text x="{(LEFT + width) / 2}" y="{height - 6}" text-anchor="middle">step</text>')
    parts.append(_line("train", [(x(step), y(value)) for step, value in rows]))
    points = [(x(step), y(value)) for step, value in eval_losses]
    parts.append(_line("held", points))
    radius = 3 if len(points) < width // 12 else 1.5
    parts += [f'<circle class="held" cx="{a:.1f}" cy="{b:.1f}" r="{radius}"/>' for a, b in points]
    for step, value in eval_losses:
        if step == best:
            parts.append(f'<circle class="best" cx="{x(step):.1f}" cy="{y(value):.1f}" r="7"/>')
    label = escape(describe_losses(losses, eval_losses))
    return f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def chart_svg(title: str, points: Sequence[tuple[int, float]], width: int = 440, height: int = 180) -> str:
    """Return the curve of one metric over the steps, on an axis that starts at zero.

    Parameters
    ----------
    title : str
        Name of the metric, for screen readers.
    points : sequence of (int, float)
        Steps and values, none of them negative.
    width, height : int
        Size of the drawing in pixels.
    """
    size = math.ceil(len(points) / MOST_POINTS) or 1
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    means = [tuple(sum(column) / len(column) for column in zip(*group, strict=True)) for group in groups]
    ticks = _ticks(0.0, max(value for _, value in points), 3)
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)

    def x(step: float) -> float:
        return LEFT + (width - LEFT - RIGHT) * (step - first) / (last - first)

    def y(value: float) -> float:
        return TOP + (height - TOP - BOTTOM) * (1 - value / ticks[-1])

    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{_short(tick)}</text>'
        for tick in ticks
    ]
    parts += [
        f'<text x="{x(step):.1f}" y="{height - BOTTOM + 17}" text-anchor="{anchor}">{step}</text>'
        for step, anchor in ((first, "start"), (last, "end"))
    ]
    parts.append(_line("train", [(x(step), y(value)) for step, value in means]))
    label = escape(f"{title} from {points[0][1]:.3g} in step {first} to {points[-1][1]:.3g} in step {points[-1][0]}")
    return f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


def describe_losses(losses: Sequence[float], eval_losses: Sequence[tuple[int, float]]) -> str:
    """Return a sentence with the first, the last and the lowest loss, for screen readers."""
    if not eval_losses:
        return "No loss was evaluated yet."
    (_, first), (step, last) = eval_losses[0], eval_losses[-1]
    lowest_step, lowest = min(eval_losses, key=lambda row: row[1])
    text = f"The held-out loss is {first:.3f} before training, {last:.3f} after step {step}"
    text += f", and lowest after step {lowest_step}, with {lowest:.3f}."
    return f"{text} The loss of the steps ends at {losses[-1]:.3f}." if losses else text


def _line(kind: str, points: Sequence[tuple[float, float]]) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}"/>'


def _average(losses: Sequence[float]) -> list[tuple[float, float]]:
    """Return steps and losses; means of neighbours where there are more than :data:`MOST_POINTS`."""
    size = math.ceil(len(losses) / MOST_POINTS) or 1
    groups = [losses[start : start + size] for start in range(0, len(losses), size)]
    return [(place * size + (len(group) + 1) / 2, sum(group) / len(group)) for place, group in enumerate(groups)]


def _ticks(low: float, high: float, most: int = TICKS) -> list[float]:
    """Return round numbers that cover a range."""
    span = max(high - low, 1e-6)
    rough = span / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [round(place * size, 10) for place in range(first, last + 1)]
