"""How long a collective takes, predicted from other collectives with messages of the same size.

Bytes over bandwidth do not give it: on two GPUs, an all-gather sends half as many bytes as an all-reduce and takes more
than half its time. What a ring does besides sending is in NCCL's source. In its last step a rank of an all-reduce, a
reduce-scatter or an all-gather receives a part of the message, adds or copies it, and sends nothing meanwhile. So the
time has four terms, each a count that follows from the collective and the number of GPUs, times a time in seconds::

    fixed + steps · step + sent · link + local · alone

=============== ======= ============ =======
collective      steps   sent         local
=============== ======= ============ =======
all-reduce      2n − 1  2 (n − 1)/n  1/n
reduce-scatter  n       (n − 1)/n    1/n
all-gather      n       (n − 1)/n    1/n
all-to-all      n       (n − 1)/n    0
broadcast       n − 1   1            0
reduce          n − 1   1            0
=============== ======= ============ =======

``sent`` and ``local`` are shares of the message, which is the longer one of what a rank has before and after. An
all-to-all copies each rank's own part too, but by other warps than those that send. NCCL changes protocol and number of
channels with the size, so each size has four times of its own; ``fixed`` grows with the size, and is what neither steps
nor bytes account for.

References
----------
NVIDIA NCCL, ``src/device/all_reduce.h``, ``all_gather.h``, ``reduce_scatter.h``, ``broadcast.h``, ``reduce.h`` and
``sendrecv.h``: the steps of each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from itertools import combinations
from typing import TypeAlias

import numpy as np

from gpuguide.collectives.cost import ring
from gpuguide.errors import GpuguideError

ENDS_LOCALLY = {"all-reduce", "reduce-scatter", "all-gather"}
"""Rings whose last step adds or copies a part and sends nothing"""
Times: TypeAlias = Mapping[tuple[str, int], float]
"""Seconds by collective and number of GPUs, all for messages of one size"""


@dataclass(frozen=True)
class RingTimes:
    """Times of what collectives consist of, for messages of one size, in seconds."""

    fixed: float
    """Of every collective"""
    step: float
    """Of a step that waits for the one before"""
    link: float
    """To send as many bytes as the message has"""
    alone: float
    """To add or copy as many bytes while nothing is sent"""

    def time(self, collective: str, gpus: int) -> float:
        """Return the seconds that a collective takes. Errors as :func:`count_work`."""
        return float(np.dot(count_work(collective, gpus), astuple(self)))


def count_work(collective: str, gpus: int) -> tuple[float, float, float, float]:
    """Return 1, and the steps, the share sent and the share added or copied without sending, of a rank.

    Parameters
    ----------
    collective : str
        One of :data:`gpuguide.collectives.cost.RING`.
    gpus : int
        Ranks.

    Raises
    ------
    GpuguideError
        If there is no such collective, or the number makes no sense.

    Examples
    --------
    >>> count_work("all-reduce", 4)
    (1, 7, 1.5, 0.25)
    >>> count_work("broadcast", 4)
    (1, 3, 1.0, 0)
    """
    sent = ring(collective, 1, gpus)
    local = 1 / gpus if collective in ENDS_LOCALLY else 0
    return 1, sent.messages + (collective in ENDS_LOCALLY | {"all-to-all"}), sent.moved, local


def fit_ring_times(times: Times) -> RingTimes:
    """Return the four times that fit measured ones best: the least sum of squared relative errors, none below zero.

    Parameters
    ----------
    times : mapping from (str, int) to float
        Seconds by collective and number of GPUs, of one size of message.

    Raises
    ------
    GpuguideError
        If a time is not above zero, or the collectives are too alike to tell the four terms apart.

    Examples
    --------
    >>> right = RingTimes(fixed=20e-6, step=2e-6, link=100e-6, alone=40e-6)
    >>> names = "all-reduce", "reduce-scatter", "all-to-all", "broadcast"
    >>> found = fit_ring_times({(name, gpus): right.time(name, gpus) for name in names for gpus in (2, 4)})
    >>> round(found.time("all-gather", 4) / right.time("all-gather", 4), 6)
    1.0
    """
    if not all(0 < time < math.inf for time in times.values()):
        raise GpuguideError("A time is not above zero; measure it again.")
    work = np.array([count_work(*key) for key in times]).reshape(len(times), 4)
    if np.linalg.matrix_rank(work) < 4:
        raise GpuguideError(
            f"Times of {len(times)} collectives do not tell the four terms apart; measure others, or more GPUs."
        )
    relative = work / np.array(list(times.values()))[:, None]
    least, best = math.inf, np.zeros(4)
    for terms in (list(some) for count in range(1, 5) for some in combinations(range(4), count)):
        found = np.zeros(4)
        found[terms] = np.linalg.lstsq(relative[:, terms], np.ones(len(times)), rcond=None)[0]
        error = float(np.square(relative @ found - 1).sum())
        if (found >= 0).all() and error < least:
            least, best = error, found
    return RingTimes(*best.tolist())


def predict_left_out(times: Times) -> dict[tuple[str, int], float]:
    """Return for each collective what a fit to all others predicts, with none of its own times, of any number of GPUs.

    Errors as :func:`fit_ring_times`.
    """
    found = {}
    for left_out in dict.fromkeys(name for name, _ in times):
        fit = fit_ring_times({key: time for key, time in times.items() if key[0] != left_out})
        found.update({(name, gpus): fit.time(name, gpus) for name, gpus in times if name == left_out})
    return found
