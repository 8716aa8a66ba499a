"""Chunked-prefill token budget: prompt tokens to process per decode step within an inter-token latency (ITL) SLO.

A decode step takes little longer if a few tokens of a prompt are prefilled before it, and much longer with a thousand.
How much longer depends on model, GPU and batch, so it is measured while requests are served, and sizes that were not
measured yet are approached from below.

References
----------
A. Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", 2024, section 4: prompts
are prefilled in chunks between decode steps, and a token budget follows from the latency target.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

LEAST = 16
"""Prompt tokens of a step even if that exceeds the target; otherwise no request would ever start to decode"""
RECENT = 8
"""Number of recent times of which the median is taken"""
MEMORY = 4096
"""Steps after which all times are measured again: clocks change, and a size that was once too slow is retried"""

Times = dict[int, deque[float]]


class PrefillBudget:
    """The token budget of prefill, and the rows of a decode step, for an inter-token latency target.

    Parameters
    ----------
    target : float or None
        Inter-token latency target (SLO) in seconds; ``None`` sets no limit.
    chunk : int
        Prompt tokens of a step at most.
    buckets : sequence of int
        Batch sizes that a decode step can have, in ascending order.
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
        """Limit on chunk groups before a step: one under a target, because each group takes a time of its own."""
        return None if self.target is None else 1

    def record(self, rows: int, read: int, seconds: float) -> None:
        """Record the time of a step.

        Parameters
        ----------
        rows : int
            Rows of the step; 0 if it only prefilled.
        read : int
            Prompt tokens that were prefilled before it, padding included.
        seconds : float
            Time from the end of the step before to the end of this one.
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

    def tokens(self, rows: int) -> int:
        """Return the budget: prompt tokens that may be prefilled before a step with this many rows.

        Twice the tokens take at most twice the time, so the budget doubles as soon as that is certain to fit.
        """
        if self.target is None:
            return self.chunk
        spare = self.target - self._step(rows)
        allowed, seconds = LEAST, _median(self._reads, LEAST)
        while seconds is not None and seconds <= spare and allowed < self.chunk:
            known = _median(self._reads, 2 * allowed)
            seconds = 2 * seconds if known is None else known
            allowed = 2 * allowed if seconds <= spare else allowed
        return min(allowed, self.chunk)

    def rows(self) -> int:
        """Return the limit on rows in use: the largest batch whose decode step meets the target.

        A larger batch than ever before is tried with one more request, if extrapolating the times of the last two batch
        sizes says that it fits.
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
        """Return the seconds of a step without prefill, or those of the largest smaller batch that was measured."""
        known = (_median(self._steps, bucket) for bucket in reversed(self.buckets) if bucket <= rows)
        return next((seconds for seconds in known if seconds is not None), 0.0)


def _add(times: Times, size: int, seconds: float) -> None:
    """Add a time, except the first one of a size, in which kernels are compiled or a graph is captured."""
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
