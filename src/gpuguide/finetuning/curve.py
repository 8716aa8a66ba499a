"""The curve of a run as SVG, whose colours come from the page that it stands on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

LEFT, RIGHT, TOP, BOTTOM = 46, 12, 10, 40
"""Room around the axes"""
MOST_POINTS = 400
TICKS = 5


def svg(
    losses: Sequence[float],
    measured: Sequence[tuple[int, float]],
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
        Of each step, in nats.
    measured : sequence of (int, float)
        Steps and held-out losses.
    steps : int
        Where the axis ends.
    best : int, optional
        The step whose weights are kept.
    width, height : int
        Of the drawing, in pixels of a page that shows it at its own size.
    kind : str
        Its class.
    """
    rows = _thinned(losses)
    values = [value for _, value in (*rows, *measured)] or [0.0, 1.0]
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
    points = [(x(step), y(value)) for step, value in measured]
    parts.append(_line("held", points))
    radius = 3 if len(points) < width // 12 else 1.5
    parts += [f'<circle class="held" cx="{a:.1f}" cy="{b:.1f}" r="{radius}"/>' for a, b in points]
    for step, value in measured:
        if step == best:
            parts.append(f'<circle class="best" cx="{x(step):.1f}" cy="{y(value):.1f}" r="7"/>')
    label = escape(described(losses, measured))
    return f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def described(losses: Sequence[float], measured: Sequence[tuple[int, float]]) -> str:
    """Return in words what the curve shows."""
    if not measured:
        return "No loss was measured yet."
    (_, first), (step, last) = measured[0], measured[-1]
    lowest_step, lowest = min(measured, key=lambda row: row[1])
    text = f"The held-out loss is {first:.3f} before training, {last:.3f} after step {step}"
    text += f", and lowest after step {lowest_step}, with {lowest:.3f}."
    return f"{text} The loss of the steps ends at {losses[-1]:.3f}." if losses else text


def _line(kind: str, points: Sequence[tuple[float, float]]) -> str:
    return f'<polyline class="{kind}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}"/>'


def _thinned(losses: Sequence[float]) -> list[tuple[float, float]]:
    """Return steps and losses; means of neighbours where there are many."""
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
