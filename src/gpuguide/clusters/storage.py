"""What a parallel file system does with a file, and how long it takes to read, to write and to open.

A file is cut into stripes, which lie on several storage targets in turn, as cards are dealt. Data go to the targets
directly; names and layouts are with the metadata server, which every open asks first.

>>> [part.target for part in stripes_of(0, 4 * MIB, stripe_size=MIB, stripe_count=4)]
[0, 1, 2, 3]
>>> [part.target for part in stripes_of(0, 4 * MIB, stripe_size=4 * MIB, stripe_count=1)]
[0]

References
----------
Lustre operations manual, chapter "Managing File Layout (Striping) and Free Space".
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from gpuguide.errors import GpuguideError

__all__ = ["MIB", "StripePart", "seconds_to_open", "seconds_to_transfer", "stripes_of"]

MIB = 2**20


@dataclass(frozen=True)
class StripePart:
    """Consecutive bytes of a file that lie on one storage target."""

    target: int
    """Number of the target among those of the file, from 0"""
    offset: int
    """Of the first byte in the file"""
    size: int


def stripes_of(offset: int, size: int, *, stripe_size: int, stripe_count: int) -> Iterator[StripePart]:
    """Yield the parts of a range of a file's bytes, and the target on which each lies.

    Parameters
    ----------
    offset, size : int
        The first byte, and how many; 0 or more.
    stripe_size, stripe_count : int
        Bytes of a stripe, and targets over which the file is striped; 1 or more.

    Raises
    ------
    GpuguideError
        If a number makes no sense.
    """
    _check(offset=offset >= 0, size=size >= 0, stripe_size=stripe_size >= 1, stripe_count=stripe_count >= 1)
    end = offset + size
    while offset < end:
        stripe = offset // stripe_size
        part = min(end, (stripe + 1) * stripe_size) - offset
        yield StripePart(stripe % stripe_count, offset, part)
        offset += part


def seconds_to_transfer(
    size: float, *, stripe_count: int, target_rate: float, clients: int = 1, client_rate: float = math.inf
) -> float:
    """Return the least seconds that clients take to read or write a file together.

    The targets of the file limit them, or their own links to the network, whichever is slower.

    Parameters
    ----------
    size : float
        Bytes of the file.
    stripe_count, clients : int
        Targets over which it is striped, and clients that share the work; 1 or more.
    target_rate, client_rate : float
        B/s of one target, and of one client's link; above 0.

    Raises
    ------
    GpuguideError
        If a number makes no sense.
    """
    _check(
        size=size >= 0,
        stripe_count=stripe_count >= 1,
        target_rate=target_rate > 0,
        clients=clients >= 1,
        client_rate=client_rate > 0,
    )
    return size / min(stripe_count * target_rate, clients * client_rate)


def seconds_to_open(files: int, *, latency: float, at_once: int = 1, opens_per_second: float = math.inf) -> float:
    """Return the least seconds that it takes to open files, whatever is in them.

    Parameters
    ----------
    files : int
        How many, 0 or more.
    latency : float
        Seconds from asking to open one until it is open.
    at_once : int
        Files that are being opened at the same time, 1 or more.
    opens_per_second : float
        What the metadata server manages for all clients together, above 0.

    Raises
    ------
    GpuguideError
        If a number makes no sense.
    """
    _check(files=files >= 0, latency=latency >= 0, at_once=at_once >= 1, opens_per_second=opens_per_second > 0)
    return max(files * latency / at_once, files / opens_per_second)


def _check(**makes_sense: bool) -> None:
    for name, right in makes_sense.items():
        if not right:
            raise GpuguideError(f"{name} makes no sense: sizes must be 0 or more, and counts and rates above 0.")
