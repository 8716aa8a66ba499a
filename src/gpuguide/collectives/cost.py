"""What a collective sends, in how many steps, and how long that takes: by ring, by tree, in two levels.

An algorithm sends a number of bytes out of each rank, in messages that wait for one another. Its time over a link is
``messages · latency + bytes / bandwidth`` (:func:`gpuguide.costs.transfers.time_to_move`).

A ring sends the fewest bytes, in ``2 (n − 1)`` messages for an all-reduce. A tree needs ``2 log₂ n`` and sends all of
the bytes in each, so that it is faster for small ones. Where ranks are in groups, such as nodes, with a fast link
inside and a slow one between, a two-level sum sends only ``1 / ranks in a group`` of the bytes over the slow one.

References
----------
R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005.
NVIDIA nccl-tests, ``doc/PERFORMANCE.md``: bus bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from gpuguide.costs.transfers import FittedTimes, Transfer, time_to_move
from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware.links import Link

AnyLink = str | Link | FittedTimes
"""A link of the table by its id, a link, or a fit to measured times"""
RING: Mapping[str, tuple[Callable[[int], float], Callable[[int], int]]] = MappingProxyType(
    {
        "all-reduce": (lambda n: 2 * (n - 1) / n, lambda n: 2 * (n - 1)),
        "reduce-scatter": (lambda n: (n - 1) / n, lambda n: n - 1),
        "all-gather": (lambda n: (n - 1) / n, lambda n: n - 1),
        "all-to-all": (lambda n: (n - 1) / n, lambda n: n - 1),
        "broadcast": (lambda n: min(1, n - 1), lambda n: n - 1),
        "reduce": (lambda n: min(1, n - 1), lambda n: n - 1),
    }
)
"""Of each collective: share of the message that a rank sends, and steps. The message is the longer one of what a rank
has before and after: of an all-gather all parts together. A broadcast and a reduction go along a chain in pieces."""


def ring(collective: str, size: float, gpus: int) -> Transfer:
    """Return what each rank sends where the ranks form a ring.

    Parameters
    ----------
    collective : str
        One of :data:`RING`.
    size : float
        Bytes of the message: the longer one of what a rank has before and after.
    gpus : int
        Ranks.

    Raises
    ------
    GpuguideError
        If there is no such collective, or a number makes no sense.

    Examples
    --------
    >>> [ring("all-reduce", 1000, gpus).moved for gpus in (1, 2, 4, 8)]
    [0.0, 1000.0, 1500.0, 1750.0]
    """
    if collective not in RING:
        raise unknown("collective", collective, RING)
    _check(size, gpus)
    share, steps = RING[collective]
    return Transfer(float(share(gpus) * size), steps(gpus))


def tree(size: float, gpus: int) -> Transfer:
    """Return what an all-reduce up and down a binary tree sends: the message in every one of ``2 log₂ n`` steps.

    >>> tree(1000, 8).messages
    6
    """
    _check(size, gpus)
    steps = 2 * math.ceil(math.log2(gpus))
    return Transfer(float(steps * size), steps)


def two_level_time(
    size: float, inside: int, groups: int, link_inside: AnyLink, link_between: AnyLink, *, latency: float = 0.0
) -> float:
    """Return the seconds of an all-reduce in two levels.

    A reduce-scatter in each group leaves each rank a part, an all-reduce of that part goes over one rank of each group,
    and an all-gather in each group spreads the sums.

    Parameters
    ----------
    size : float
        Bytes of the message.
    inside, groups : int
        Ranks of a group, and groups.
    link_inside, link_between : str, Link or FittedTimes
        What each rank has to the others of its group, and to its counterparts in other groups.
    latency : float
        Seconds of a message, where links are not fits.

    Raises
    ------
    GpuguideError
        If a link is unknown or a number makes no sense.

    Examples
    --------
    >>> flat = time_to_move(ring("all-reduce", 10**9, 16), "infiniband-ndr")
    >>> round(flat / two_level_time(10**9, 8, 2, "nvlink-4", "infiniband-ndr"), 1)
    5.9
    """
    spread = ring("reduce-scatter", size, inside), ring("all-gather", size, inside)
    between = ring("all-reduce", size / inside, groups)
    return sum(time_to_move(each, link_inside, latency=latency) for each in spread) + time_to_move(
        between, link_between, latency=latency
    )


def tree_wins_below(gpus: int, bandwidth: float, latency: float) -> float:
    """Return the bytes of a message below which the tree is faster than the ring; 0 where it never is.

    Parameters
    ----------
    gpus : int
        Ranks.
    bandwidth, latency : float
        Of a message, in B/s and s.

    Examples
    --------
    >>> round(tree_wins_below(8, 300e9, 5e-6) / 1e6, 1)
    2.8
    """
    around, up = ring("all-reduce", 1.0, gpus), tree(1.0, gpus)
    more_bytes, more_messages = up.moved - around.moved, around.messages - up.messages
    return more_messages * latency * bandwidth / more_bytes if more_bytes > 0 < more_messages else 0.0


def bus_bandwidth(collective: str, size: float, gpus: int, seconds: float) -> float:
    """Return the bytes that a rank of a ring sends, a second: to be compared with one direction of a link.

    That is ``busbw`` of nccl-tests. Its ``algbw`` is ``size / seconds``. Errors as :func:`ring`.

    >>> bus_bandwidth("all-reduce", 10**9, 8, 5e-3) / 1e9
    350.0
    """
    return ring(collective, size, gpus).moved / seconds


def _check(size: float, gpus: int) -> None:
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
        raise GpuguideError(f"The number of GPUs is {gpus!r}; it must be 1 or more.")
    if not 0 <= size < math.inf:
        raise GpuguideError(f"The message has {size!r} bytes; write 0 or more.")
