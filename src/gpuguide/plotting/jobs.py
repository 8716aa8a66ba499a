"""Which job has which nodes of a cluster over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.palette import current
from gpuguide.plotting.renditions import WIDE

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

Stay = tuple[str, Sequence[str], float, float]
"""A job, its nodes (none while it waits in the queue), and from when to when in seconds"""
SHORTEST_WAIT = 1.5
"""Seconds; every job waits for about one until the scheduler looks at it"""
COLOURS = ("blue", "orange", "green", "violet")


def jobs_over_time(stays: Sequence[Stay], name: str, alt: str, caption: str, nodes: int = 3) -> Figure:
    """Draw which job has which node over time, and below them the jobs that wait; times are to scale."""
    stays = [stay for stay in stays if stay[1] or stay[3] - stay[2] > SHORTEST_WAIT]
    jobs = list(dict.fromkeys(job for job, *_ in stays))
    waiting = list(dict.fromkeys(job for job, places, *_ in stays if not places))
    lines = nodes + len(waiting)
    return show(
        lambda figure, theme: _draw_jobs(figure, stays, nodes, jobs, waiting),
        alt=alt,
        caption=caption,
        size=(WIDE, 0.62 + 0.4 * lines),
        narrow=(4.6, 0.62 + 0.4 * lines),
        name=name,
        rows=[
            {"job": job, "nodes": " ".join(places), "start_s": start, "end_s": end} for job, places, start, end in stays
        ],
    )


def _draw_jobs(figure: Canvas, stays: Sequence[Stay], nodes: int, jobs: Sequence[str], waiting: Sequence[str]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, right, step, tall = 62.0, 12.0, 28.8, 22.0
    last = max(end for *_, end in stays)
    scale = (width - left - right) / last
    places = {f"n{number}": height - 8 - step * number for number in range(1, nodes + 1)}
    queue = {job: height - 14 - step * (nodes + 1 + index) for index, job in enumerate(waiting)}
    for name, y in (places | queue).items():
        drawings.label(ax, left - 8, y + tall / 2, name if name in places else "queue", across="right", size=10)
        ax.plot([left, width - right], [y - 3, y - 3], color=current().grid, linewidth=1)
    for job, used, start, end in stays:
        x, long = left + start * scale, max((end - start) * scale, 1.5)
        # A word fits if its letters, about 6 points each, do.
        text = job if long > 6 * len(job) + 6 else ""
        colour, strength = COLOURS[jobs.index(job) % len(COLOURS)], 0.35 if used else 0.06
        for y in [places[node] for node in used] or [queue[job]]:
            drawings.box(ax, x, y, long, tall, text, colour=colour, strength=strength, dashed=not used, size=10)
    for tick in range(0, int(last) + 1, _interval(last)):
        x = left + tick * scale
        drawings.label(ax, x, 9, f"{tick} s", size=10)
        ax.plot([x, x], [16, 20], color=current().faint, linewidth=1)


def _interval(last: float) -> int:
    """Return seconds between ticks, a round number that gives four to eight of them."""
    return next(step for step in (1, 2, 5, 10, 20, 30, 60, 120, 300, 600) if last / step <= 7)
