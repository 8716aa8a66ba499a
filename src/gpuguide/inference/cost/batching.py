"""Static and continuous batching, counted in decode steps: who has which row of the batch, and for how long.

A batch has a fixed number of rows, and each row writes one token of its request a step. Requests wait in a queue, all
of them from the beginning. With static batching a batch is filled, and the next one begins when the longest answer of
this one is done. With continuous batching a row takes the next request as soon as its own is done. Prefill is left out,
and so is that a step takes longer the more rows are filled.

>>> [each.finish for each in static_slots([2, 5, 1, 3], rows=2)]
[2, 5, 6, 8]
>>> [each.finish for each in continuous_slots([2, 5, 1, 3], rows=2)]
[2, 5, 3, 6]

References
----------
G.-I. Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", 2022, section 3.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from gpuguide.errors import GpuguideError


@dataclass(frozen=True)
class Slot:
    """Slot of a request: a row of the batch, from one step to another."""

    row: int
    """Counted from 0"""
    start: int
    """Steps that are over when it begins"""
    finish: int
    """Steps that are over when its last token is written"""
    freed: int
    """Steps that are over when the row can take another request; later than ``finish`` where the row waits"""


def static_slots(lengths: Sequence[int], rows: int) -> list[Slot]:
    """Return the slot of each request when a batch runs until its longest answer is done.

    Parameters
    ----------
    lengths : sequence of int
        Tokens of each answer, in the order in which requests are taken.
    rows : int
        Rows of the batch.

    Returns
    -------
    list of Slot
        In the order of the requests.

    Raises
    ------
    GpuguideError
        If there is no request, or a number is below 1.
    """
    _check(lengths, rows)
    slots, start = [], 0
    for batch in _batches(lengths, rows):
        end = start + max(batch)
        slots += [Slot(row, start, start + length, end) for row, length in enumerate(batch)]
        start = end
    return slots


def continuous_slots(lengths: Sequence[int], rows: int) -> list[Slot]:
    """Return the slot of each request when a row takes the next one as soon as its own is done.

    Parameters, result and errors as :func:`static_slots`.
    """
    _check(lengths, rows)
    slots, free = [], [(0, row) for row in range(rows)]  # when each row is free: a heap, the first one first
    for length in lengths:
        start, row = free[0]
        heapq.heapreplace(free, (start + length, row))
        slots.append(Slot(row, start, start + length, start + length))
    return slots


def steps(slots: Sequence[Slot]) -> int:
    """Return how many steps all requests take together."""
    return max(slot.freed for slot in slots)


def occupancy(slots: Sequence[Slot], rows: int) -> float:
    """Return the share of rows and steps in which a token was written, of all there were until the last request."""
    return sum(slot.finish - slot.start for slot in slots) / (rows * steps(slots))


def static_efficiency(lengths: Sequence[int], rows: int) -> float:
    """Return the :func:`occupancy` of static batching, of requests in this order: tokens by rows times longest answers.

    Errors as :func:`static_slots`.
    """
    _check(lengths, rows)
    return sum(lengths) / (rows * sum(max(batch) for batch in _batches(lengths, rows)))


def expected_static_efficiency(lengths: Sequence[int], rows: int) -> float:
    """Return the efficiency of static batching when requests come in any order: mean length by mean longest length.

    The mean of the longest is over all batches of ``rows`` different requests of the list. With the lengths in
    ascending order, the one at place ``i`` of ``n``, counted from 1, is the longest of a batch in
    ``comb(i - 1, rows - 1)`` of ``comb(n, rows)`` cases.

    Raises
    ------
    GpuguideError
        As :func:`static_slots`, or if there are fewer requests than rows.
    """
    _check(lengths, rows)
    if len(lengths) < rows:
        raise GpuguideError(f"There are {len(lengths)} lengths, which do not fill a batch of {rows} rows.")
    ascending = sorted(lengths)
    longest = sum(length * comb(below, rows - 1) for below, length in enumerate(ascending)) / comb(len(lengths), rows)
    return sum(lengths) / len(lengths) / longest


def _batches(lengths: Sequence[int], rows: int) -> list[Sequence[int]]:
    return [lengths[first : first + rows] for first in range(0, len(lengths), rows)]


def _check(lengths: Sequence[int], rows: int) -> None:
    if not len(lengths):
        raise GpuguideError("There are no lengths; give those of at least one answer.")
    if min(lengths) < 1:
        raise GpuguideError(f"A length is {min(lengths)}; an answer has at least 1 token.")
    if rows < 1:
        raise GpuguideError(f"rows is {rows}; a batch has at least 1.")
