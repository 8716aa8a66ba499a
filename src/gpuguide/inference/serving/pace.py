"""How much of a prompt fits beside a step, so that those who write do not wait longer than they were promised.

A step that writes one token for each text takes little longer if some tokens of a prompt are read before it, and much
longer if a thousand are. How much longer depends on model, GPU and batch, so it is measured while requests are served,
and what is not known yet is approached from below.

References
----------
A. Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", 2024, section 4: prompts
are read in chunks, between the steps of those who write, and a budget follows from the latency that was promised.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

LEAST = 16
"""Tokens of prompts that are read in a step even if that takes too long, or nobody would ever begin to write"""
RECENT = 8
"""Times of which the median is taken"""
MEMORY = 4096
"""Steps after which everything is learnt anew: clocks change, and a step that was too slow once gets another chance"""

Times = dict[int, deque[float]]


class Pace:
    """What fits into a step.

    Parameters
    ----------
    target : float or None
        Seconds from a token to the next of the same text, at most; ``None`` sets no limit.
    chunk : int
        Tokens of prompts that are read in a step, at most.
    buckets : sequence of int
        Numbers of rows that a step can have, in order.
    """

    def __init__(self, target: float | None, chunk: int, buckets: Sequence[int]) -> None:
        self.target = target
        self.chunk = chunk
        self.buckets = list(buckets)
        self._noted = 0
        self._steps: Times = {}  # by rows: seconds of steps before which nothing was read
        self._reads: Times = {}  # by tokens, rounded down to a power of two: seconds that reading them adds at most

    @property
    def groups(self) -> int | None:
        """Groups that may be read before a step: under a target one, for each takes some time of its own."""
        return None if self.target is None else 1

    def note(self, rows: int, read: int, seconds: float) -> None:
        """Note what a step took.

        Parameters
        ----------
        rows : int
            Of the step; 0 if none was taken.
        read : int
            Tokens of prompts that were read before it, with those that only fill up.
        seconds : float
            From the end of the step before to the end of this one.
        """
        if self.target is None:
            return
        self._noted += 1
        if self._noted % MEMORY == 0:
            self._steps, self._reads = {}, {}
        if read:
            added = max(seconds - self._step(rows), 0.0)
            # Neither fewer tokens nor, for each token, more of them take longer: these are times at most.
            _add(self._reads, max(LEAST, _power_of_two(read)), added * max(1.0, LEAST / read))
        elif rows:
            _add(self._steps, rows, seconds)

    def budget(self, rows: int) -> int:
        """Return how many tokens of prompts may be read before a step with so many rows at most.

        Twice the tokens take at most twice the time, so twice as many are tried as soon as that fits for certain.
        """
        if self.target is None:
            return self.chunk
        room = self.target - self._step(rows)
        allowed, seconds = LEAST, _median(self._reads, LEAST)
        while seconds is not None and seconds <= room and allowed < self.chunk:
            known = _median(self._reads, 2 * allowed)
            seconds = 2 * seconds if known is None else known
            allowed = 2 * allowed if seconds <= room else allowed
        return min(allowed, self.chunk)

    def rows(self) -> int:
        """Return how many rows may be in use: as many as a step alone serves in time.

        More than were ever used are tried with one text more, if the times of the last two numbers of rows promise
        that it fits.
        """
        if self.target is None:
            return self.buckets[-1]
        known = [(rows, seconds) for rows in self.buckets if (seconds := _median(self._steps, rows)) is not None]
        fast = [(rows, seconds) for rows, seconds in known if seconds <= self.target]
        most = fast[-1][0] if fast else self.buckets[0]
        following = next((rows for rows in self.buckets if rows > most), most)
        if following == most or any(rows == following for rows, _ in known) or not fast:
            return most
        rows, seconds = fast[-1]
        before, less = fast[-2] if len(fast) > 1 else (0, seconds)
        expected = seconds + (seconds - less) * (following - rows) / (rows - before)
        return most + 1 if expected <= self.target else most

    def _step(self, rows: int) -> float:
        """Return the seconds of a step alone, or of the largest smaller one that is known."""
        known = (_median(self._steps, bucket) for bucket in reversed(self.buckets) if bucket <= rows)
        return next((seconds for seconds in known if seconds is not None), 0.0)


def _add(times: Times, size: int, seconds: float) -> None:
    """Keep a time, but not the first one of a size: kernels are compiled in it, or a graph is captured."""
    if size in times:
        times[size].append(seconds)
    else:
        times[size] = deque(maxlen=RECENT)


def _median(times: Times, size: int) -> float | None:
    found = times.get(size)
    return statistics.median(found) if found else None


def _power_of_two(number: int) -> int:
    """Return the largest power of two that is not above a number."""
    return 1 << (number.bit_length() - 1)
