"""Latency and bandwidth of a link, from the times of transfers of several sizes.

A transfer of ``n`` bytes takes ``α + β n`` seconds: a latency, and the time a byte. Sizes go over six powers of ten, so
the errors that count are relative ones; of a plain least-squares fit the largest size decides alone, and latency is
whatever is left over. And one slow sample must not turn the line, so the sum of the absolute errors is made small, and
not that of their squares.

References
----------
R. Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", Parallel Computing 20, 1994.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import TypeAlias

import numpy as np

from gpuguide.errors import GpuguideError

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


def errors_left_out(samples: Samples) -> list[HeldOutTime]:
    """Return, for each size, what a fit to all others predicts of it.

    For the smallest and the largest size this is a look beyond what the fit has seen.

    Parameters
    ----------
    samples : iterable of (float, float)
        As for :func:`fit_alpha_beta`, of at least three sizes.

    Raises
    ------
    GpuguideError
        If there are fewer than three sizes, or as :func:`fit_alpha_beta` does.
    """
    points = _medians(samples)
    if len(points) < 3:
        raise GpuguideError(f"Of fewer than three sizes, here {len(points)}, none can be left out; measure more.")
    found = []
    for place, (size, time) in enumerate(points):
        others = points[:place] + points[place + 1 :]
        found.append(HeldOutTime(size, time, _fit_points(others).time(size)))
    return found


def _fit_points(points: list[tuple[float, float]]) -> AlphaBeta:
    if len(points) < 2:
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
