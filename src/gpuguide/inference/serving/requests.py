"""Requests, the texts that come of them, and the order in which they wait."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite

from gpuguide.errors import GpuguideError
from gpuguide.inference.cache import pages_for
from gpuguide.inference.generate import check_limits, check_seed
from gpuguide.inference.pages import Reservation

LIMIT, STOP, CANCELLED = "limit", "stop", "cancelled"
"""Why a text ended: it has the tokens that were asked for, a stop token was drawn, or nobody wants it any more"""


@dataclass(frozen=True)
class Request:
    """Request of a user."""

    prompt: Sequence[int]
    new_tokens: int
    """Maximum number of new tokens; with 0 the text is empty, and ready at once"""
    stop: frozenset[int] = frozenset()
    """Tokens that end the text and are no part of it; in the prompt they mean nothing"""
    priority: int = 0
    """Requests with a higher one are served first"""
    seed: int = 0
    """Together with the prompt it determines what is drawn, whatever else is served"""
    arrival: float | None = None
    """Seconds after the scheduler's start; by default it arrives when it is submitted"""

    def cache_tokens(self) -> int:
        """Return of how many tokens the cache must hold keys and values: all but the last, after which nobody reads."""
        return len(self.prompt) + max(self.new_tokens - 1, 0)


@dataclass(eq=False)
class Text:
    """The text of one request, and when what happened to it. Times are in seconds after the scheduler's start."""

    number: int
    request: Request
    arrival: float
    tokens: list[int] = field(default_factory=list)
    """Text generated so far, without the prompt"""
    times: list[float] = field(default_factory=list)
    """When each of the tokens reached the host"""
    reason: str | None = None
    """Why it ended: ``LIMIT``, ``STOP`` or ``CANCELLED``; ``None`` until then"""
    slot: int | None = None
    """The engine's row that it has or had"""
    entered: float | None = None
    """When it got its slot"""
    entered_at: int | None = None
    """The step before which it got its slot"""
    began_at: int | None = None
    """The step before which its first token was drawn"""
    ended_at: int | None = None
    """The first step that wrote nothing for it any more"""
    left_at: int | None = None
    """The first step at which its slot was free again"""
    shared: int = 0
    """Tokens of the prompt that did not have to be read, because another prompt begins with them"""
    read: int = 0
    """Tokens of the prompt in the cache"""
    drawn: int = 0
    """Tokens drawn on the device; the last of them are still on their way to the host"""
    reservation: Reservation | None = None

    @property
    def left_to_read(self) -> int:
        """Tokens of the prompt that are not in the cache yet."""
        return len(self.request.prompt) - self.read

    @property
    def waiting_time(self) -> float | None:
        """Seconds from arrival until it got a slot; ``None`` if it never did."""
        return None if self.entered is None else self.entered - self.arrival

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from arrival until its first token was on the host; ``None`` without one."""
        return self.times[0] - self.arrival if self.times else None

    @property
    def times_between_tokens(self) -> list[float]:
        """Seconds from each token to the next."""
        return [after - before for before, after in pairwise(self.times)]

    def take(self, token: int, now: float) -> str | None:
        """Take a token that has arrived, and return why the text ends with it, or ``None`` if it goes on."""
        if token in self.request.stop:
            self.reason = STOP
        else:
            self.tokens.append(token)
            self.times.append(now)
            if len(self.tokens) == self.request.new_tokens:
                self.reason = LIMIT
        return self.reason


def check_fits(request: Request, capacity: int, pages: int) -> None:
    """Raise a :class:`GpuguideError` if a request can never be served.

    Parameters
    ----------
    request : Request
        Its prompt has been checked by :meth:`Engine.check_prompt <gpuguide.inference.Engine.check_prompt>`.
    capacity : int
        Tokens that a text can have.
    pages : int
        Pages of the cache, for all texts together.
    """
    prompt = len(request.prompt)
    check_limits(prompt, request.new_tokens, capacity)
    needed = pages_for(request.cache_tokens())
    if needed > pages:
        raise GpuguideError(
            f"A prompt of {prompt} tokens and {request.new_tokens} more need {needed} pages of the cache, which has "
            f"{pages}; ask for fewer tokens, or give the cache more pages."
        )
    if request.arrival is not None and not isfinite(request.arrival):
        raise GpuguideError(f"A request arrives after {request.arrival} s; give a finite time, or leave it out.")
    check_seed(request.seed)


class Queue:
    """Texts without a slot: first those of the highest priority, and of these who arrived first.

    Who has not arrived yet is not seen. What has been cancelled is dropped.
    """

    def __init__(self) -> None:
        self._coming: list[tuple[float, int, Text]] = []
        self._waiting: list[tuple[int, float, int, Text]] = []

    def add(self, text: Text) -> None:
        """Put a text into the queue."""
        heapq.heappush(self._coming, (text.arrival, text.number, text))

    def first(self, now: float) -> Text | None:
        """Return whose turn it is, and leave it in the queue; ``None`` if nobody has arrived."""
        while self._coming and self._coming[0][0] <= now:
            arrival, number, text = heapq.heappop(self._coming)
            heapq.heappush(self._waiting, (-text.request.priority, arrival, number, text))
        while self._waiting and self._waiting[0][-1].reason is not None:
            heapq.heappop(self._waiting)
        return self._waiting[0][-1] if self._waiting else None

    def pop(self) -> None:
        """Take away the one that :meth:`first` returned."""
        heapq.heappop(self._waiting)

    def next_arrival(self) -> float | None:
        """Return when the next one will arrive that has not yet; ``None`` if nobody will."""
        while self._coming and self._coming[0][-1].reason is not None:
            heapq.heappop(self._coming)
        return self._coming[0][0] if self._coming else None
