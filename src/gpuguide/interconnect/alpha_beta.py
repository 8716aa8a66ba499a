"""Latency and bandwidth of a link, from the times of transfers of several sizes.

A transfer of ``n`` bytes takes ``α + β n`` seconds: a latency, and the time a byte. Sizes go over six powers of ten, so
the errors that count are relative ones; of a plain least-squares fit the largest size decides alone, and latency is
whatever is left over. And one slow sample must not turn the line, so the sum of the absolute errors is made small, and
not that of their squares.

A library with several protocols takes the one that it expects to be the fastest for the size. NCCL has three: LL sends
a flag with every 4 bytes, which takes half of the bandwidth but needs no fence; LL128 sends one with every 120 bytes;
and Simple sends none, and needs a fence after each chunk. Each has a line of its own, and the time is that of the
lowest::

    time │              . ·      line 1, with the least latency, is the lowest for small messages,
         │          . ·          line 2 from where the two cross,
         │   _ . ·               and so on: the more bandwidth, the later
         │_ ─
         └──────────────── size

Where the lines cross, their *breakpoints*, follows from the times. That a line is one protocol does not: with the size,
a library may change its algorithm and its number of channels too.

References
----------
R. Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", Parallel Computing 20, 1994.
Z. Hu et al., "Demystifying NCCL", 2025, arXiv:2507.04786, section III: the protocols.
NVIDIA NCCL, ``src/graph/tuning.cc``: latency and bandwidth of each algorithm and protocol, and the choice among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations, pairwise
from statistics import median
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from gpuguide.errors import GpuguideError

PROTOCOLS = 3
"""Of NCCL: LL, LL128 and Simple"""
FEWEST_SIZES = 2
"""From which a line can be fitted"""

Samples: TypeAlias = Iterable[tuple[float, float]]
"""Pairs of a size in bytes and the time in seconds that its transfer took; a size may come several times"""


@dataclass(frozen=True)
class AlphaBeta:
    """A link as latency and bandwidth."""

    alpha: float
    """Seconds that a transfer costs beside its bytes"""
    beta: float
    """Seconds a byte"""

    @property
    def bandwidth(self) -> float:
        """B/s that a transfer without end would reach."""
        return 1 / self.beta

    @property
    def half_size(self) -> float:
        """Bytes of a transfer that reaches half of the bandwidth (Hockney's n½)."""
        return self.alpha / self.beta

    def time(self, size: float) -> float:
        """Return the seconds that a transfer of ``size`` bytes takes."""
        return self.alpha + self.beta * size


@dataclass(frozen=True)
class ProtocolLines:
    """Protocols of a library that takes, for every size, the one that is the fastest."""

    lines: tuple[AlphaBeta, ...]
    """Latency and bandwidth of each, from the protocol for the smallest sizes to that for the largest"""

    @property
    def breakpoints(self) -> tuple[float, ...]:
        """Sizes in bytes where each line crosses the next one."""
        return tuple(
            (slower.alpha - quicker.alpha) / (quicker.beta - slower.beta) for quicker, slower in pairwise(self.lines)
        )

    def time(self, size: float) -> float:
        """Return the seconds that a transfer of ``size`` bytes takes by its fastest protocol."""
        return min(line.time(size) for line in self.lines)


@dataclass(frozen=True)
class HeldOutTime:
    """The time of a size that the fit had not seen."""

    size: float
    measured: float
    """Seconds, the median of the size"""
    predicted: float
    """Seconds"""

    @property
    def error(self) -> float:
        """Share by which the prediction is above what was measured."""
        return self.predicted / self.measured - 1


def fit_alpha_beta(samples: Samples) -> AlphaBeta:
    """Return the latency and the time a byte that fit times best.

    Of each size the median counts. The sum of the absolute relative errors over the sizes is smallest among all lines
    with ``α ≥ 0`` and ``β ≥ 0``. Such a line goes through two of the points, or through one and the origin, or it is
    level (a linear program has its best value at a corner), so all of these are tried: for n sizes n (n + 3) / 2 lines.

    Parameters
    ----------
    samples : iterable of (float, float)
        Sizes in bytes and times in seconds, of at least two sizes.

    Raises
    ------
    GpuguideError
        If there are fewer than two sizes, a size is negative, a time is not above zero, or either is not finite; or if
        the times do not grow with the sizes, so that they say nothing of the bandwidth.

    Examples
    --------
    >>> found = fit_alpha_beta([(10**3, 1.1e-5), (10**6, 3e-5), (10**9, 2.001e-2)])
    >>> round(found.bandwidth / 1e9, 2), round(found.alpha * 1e6, 1)
    (50.0, 11.0)
    """
    return _fit_points(_medians(samples))


def fit_protocols(samples: Samples, protocols: int = PROTOCOLS) -> ProtocolLines:
    """Return a line for each protocol, the lowest of which fits times best.

    The sizes, in order, are cut into as many runs as there are protocols, in every possible way. Each run has the line
    of :func:`fit_alpha_beta`, and the cut counts whose lowest lines have the smallest sum of absolute relative errors.

    Parameters
    ----------
    samples : iterable of (float, float)
        As for :func:`fit_alpha_beta`, of at least two sizes for each protocol. Sizes that double say best where the
        lines cross.
    protocols : int
        Number of lines, one or more. A line that is the lowest for none of the sizes is left out.

    Raises
    ------
    GpuguideError
        If there are too few sizes for so many lines, or as :func:`fit_alpha_beta` does.

    Examples
    --------
    >>> by_size = [(2**n, min(5e-6 + 2**n / 100e9, 20e-6 + 2**n / 300e9)) for n in range(10, 31)]
    >>> found = fit_protocols(by_size, protocols=2)
    >>> [round(line.alpha * 1e6, 2) for line in found.lines], round(found.breakpoints[0] / 1e6, 2)
    ([5.0, 20.0], 2.25)
    """
    return _fit_lowest(_medians(samples), protocols)


def errors_left_out(samples: Samples, protocols: int = 1) -> list[HeldOutTime]:
    """Return, for each size, what a fit to all others predicts of it.

    For the smallest and the largest size this is a look beyond what the fit has seen.

    Parameters
    ----------
    samples : iterable of (float, float)
        As for :func:`fit_alpha_beta`, of at least three sizes, or as for :func:`fit_protocols` and one more.
    protocols : int
        Number of lines, as for :func:`fit_protocols`.

    Raises
    ------
    GpuguideError
        If there are too few sizes, or as :func:`fit_protocols` does.
    """
    points = _medians(samples)
    if len(points) <= FEWEST_SIZES * protocols:
        raise GpuguideError(
            f"To leave one out, {protocols} lines need more than {FEWEST_SIZES * protocols} sizes, not {len(points)}; "
            "measure more."
        )
    found = []
    for place, (size, time) in enumerate(points):
        others = points[:place] + points[place + 1 :]
        found.append(HeldOutTime(size, time, _fit_lowest(others, protocols).time(size)))
    return found


def _fit_lowest(points: list[tuple[float, float]], protocols: int) -> ProtocolLines:
    """Return the lines of the best cut of the points, which are sorted by size."""
    if protocols < 1:
        raise GpuguideError(f"The number of protocols is {protocols}; it must be 1 or more.")
    if protocols == 1:
        return ProtocolLines((_fit_points(points),))
    count = len(points)
    if count < FEWEST_SIZES * protocols:
        raise GpuguideError(
            f"{protocols} lines need {FEWEST_SIZES * protocols} sizes, not {count}; measure more, or fit fewer lines."
        )
    sizes, measured = np.array(points).T
    line_of = _lines_of_runs(points)
    best: tuple[float, list[AlphaBeta]] | None = None
    for cuts in combinations(range(FEWEST_SIZES, count - 1), protocols - 1):
        runs = list(pairwise((0, *cuts, count)))
        if all(run in line_of for run in runs):
            lines = [line_of[run] for run in runs]
            error = float(np.abs(_times(lines, sizes).min(axis=0) / measured - 1).sum())
            if best is None or error < best[0]:
                best = error, lines
    if best is None:
        raise GpuguideError(
            f"The times do not grow with the sizes in {protocols} runs; fit fewer lines, or measure larger sizes."
        )
    lowest = {int(place) for place in _times(best[1], sizes).argmin(axis=0)}
    return ProtocolLines(tuple(sorted((best[1][place] for place in lowest), key=lambda line: line.alpha)))


def _lines_of_runs(points: list[tuple[float, float]]) -> dict[tuple[int, int], AlphaBeta]:
    """Return the line of each run of points whose times grow, by where the run begins and ends."""
    found = {}
    for begin, end in combinations(range(len(points) + 1), 2):
        if end - begin >= FEWEST_SIZES:
            try:
                found[begin, end] = _fit_points(points[begin:end])
            except GpuguideError:
                continue
    return found


def _times(lines: list[AlphaBeta], sizes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the times of all sizes by each line, (lines, sizes)."""
    return np.array([line.alpha + line.beta * sizes for line in lines])


def _fit_points(points: list[tuple[float, float]]) -> AlphaBeta:
    if len(points) < FEWEST_SIZES:
        raise GpuguideError(f"Fewer than two sizes, here {len(points)}, do not say what latency is; measure more.")
    lines = [(0.0, time / size) for size, time in points if size]
    lines += [(time, 0.0) for _, time in points]
    for (size, time), (other, longer) in combinations(points, 2):
        slope = (longer - time) / (other - size)
        intercept = time - slope * size
        if slope > 0 and intercept >= 0:
            lines.append((intercept, slope))
    sizes, times = np.array(points).T
    alphas, betas = np.array(lines).T
    errors = np.abs((alphas[:, None] + betas[:, None] * sizes) / times - 1).sum(axis=1)
    alpha, beta = lines[int(errors.argmin())]
    if not beta:
        raise GpuguideError(
            "The times do not grow with the sizes, and say nothing of the bandwidth; measure larger ones."
        )
    return AlphaBeta(alpha, beta)


def _medians(samples: Samples) -> list[tuple[float, float]]:
    times: dict[float, list[float]] = {}
    for size, time in samples:
        if not (0 <= size < float("inf") and 0 < time < float("inf")):
            raise GpuguideError(f"{size!r} bytes in {time!r} s cannot be; a size is 0 or more, a time above 0.")
        times.setdefault(float(size), []).append(float(time))
    return sorted((size, median(found)) for size, found in times.items())
