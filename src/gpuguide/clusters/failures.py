"""How often a job fails, how often it should therefore save, and how much of its time it loses nevertheless.

Failures of independent parts form a Poisson process: a job on twice as many GPUs fails twice as often. Saving takes
time, and so does repeating what was not saved. Young's interval balances the two; Daly's holds for long saves too.

The names are Daly's: ``tau`` is the work between two saves, ``delta`` how long a save stalls the job, ``R`` how long
a restart takes, and ``M`` the mean time between failures; all in seconds.

>>> M = mean_time_between_failures(16_384, 0.173)
>>> round(M / 3600, 1), round(daly_interval(60, M) / 60)
(3.1, 19)

References
----------
J. W. Young, "A First Order Approximation to the Optimum Checkpoint Interval", Communications of the ACM 17, 1974.
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22, 2006.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from gpuguide.errors import GpuguideError

__all__ = [
    "DAY",
    "YEAR",
    "SimulatedRun",
    "daly_interval",
    "lost_share",
    "mean_time_between_failures",
    "simulate",
    "young_interval",
]

DAY = 86_400.0
YEAR = 365.25 * DAY


def mean_time_between_failures(gpus: int, failures_per_gpu_year: float) -> float:
    """Return the seconds between two failures of a job, on average.

    Parameters
    ----------
    gpus : int
        GPUs of the job, one or more.
    failures_per_gpu_year : float
        Failures that stop the job, of whatever part, for each GPU and year; above 0.

    Raises
    ------
    GpuguideError
        If a number makes no sense.
    """
    _check_positive(gpus=gpus, failures_per_gpu_year=failures_per_gpu_year)
    return YEAR / (gpus * failures_per_gpu_year)


def young_interval(delta: float, M: float) -> float:
    """Return the work between two saves that loses least time, for saves that are short: Young's sqrt(2 δ M).

    Errors as in :func:`daly_interval`.
    """
    _check_positive(delta=delta, M=M)
    return math.sqrt(2 * delta * M)


def daly_interval(delta: float, M: float) -> float:
    """Return the work between two saves that loses least time, in seconds: Daly's.

    Parameters
    ----------
    delta : float
        Seconds that a save stalls the job, above 0.
    M : float
        Mean seconds between two failures, above 0.

    Raises
    ------
    GpuguideError
        If a number is not above 0.
    """
    _check_positive(delta=delta, M=M)
    if delta >= 2 * M:
        return M
    ratio = delta / (2 * M)
    return math.sqrt(2 * delta * M) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - delta


def lost_share(tau: float, delta: float, R: float, M: float) -> float:
    """Return the share of its time that a job loses to saves, restarts and repeated work, by Daly's model.

    Parameters
    ----------
    tau, delta, R, M : float
        Seconds of work between two saves, of a save, of a restart, and between two failures on average.

    Raises
    ------
    GpuguideError
        If interval or mean time between failures is not above 0, or another number is negative.
    """
    _check_positive(tau=tau, M=M)
    _check_not_negative(delta=delta, R=R)
    time_for_tau = M * math.exp(R / M) * math.expm1((tau + delta) / M)
    return 1 - tau / time_for_tau


@dataclass(frozen=True)
class SimulatedRun:
    """What a job did with its time, in seconds."""

    failures: int
    kept: float
    """Work that no failure undid"""
    saving: float
    repeated: float
    """Work that was done and had not been saved"""
    restarting: float

    @property
    def elapsed(self) -> float:
        """All of its time."""
        return self.kept + self.saving + self.repeated + self.restarting

    @property
    def kept_share(self) -> float:
        """Share of its time that led to the result."""
        return self.kept / self.elapsed


def simulate(
    duration: float,
    tau: float,
    delta: float,
    R: float,
    M: float,
    *,
    write: float = 0.0,
    seed: int = 0,
) -> SimulatedRun:
    """Return what a job does with its time when it fails at random.

    Parameters
    ----------
    duration : float
        Seconds to simulate, at least; the run ends with the failure after them.
    tau, delta, R, M : float
        As for :func:`lost_share`.
    write : float
        Seconds after its stall until a save is complete, while the job goes on.
    seed : int
        Of the random numbers.

    Raises
    ------
    GpuguideError
        As in :func:`lost_share`.
    """
    _check_positive(duration=duration, tau=tau, M=M)
    _check_not_negative(delta=delta, R=R, write=write)
    failure = random.Random(seed)
    elapsed, failures, saves, repeated, restarting = 0.0, 0, 0, 0.0, 0.0
    while elapsed < duration:
        until_failure = failure.expovariate(1 / M)
        elapsed, failures = elapsed + until_failure, failures + 1
        # -- the job restarts, if it is left the time
        restart = min(R, until_failure)
        restarting += restart
        # -- then it works and saves; what came after the last complete save is lost
        running = until_failure - restart
        complete = int(max(0.0, running - write) // (tau + delta))
        saves += complete
        repeated += running - complete * (tau + delta)
    return SimulatedRun(failures, saves * tau, saves * delta, repeated, restarting)


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise GpuguideError(f"{name} is {value}; it must be above 0 and finite.")


def _check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < math.inf:
            raise GpuguideError(f"{name} is {value}; it must be 0 or more, and finite.")
