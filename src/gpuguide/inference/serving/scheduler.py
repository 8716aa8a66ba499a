"""Many requests on one engine: who enters when, what is read of prompts, and who leaves.

The engine has a row for each text that is written at a time, here called a slot. With continuous batching, a slot whose
text has ended is given to the next request before the next step. With static batching a batch of requests enters
together, and the next batch when all of its texts have ended: until then the rows of the short ones are computed for
nobody.

The host is always one step ahead of what it knows. While the device writes, it reads the tokens of the step before, so
a stop token is noticed one step late, and the token that was drawn after it is thrown away. That a text has reached its
limit is known without reading.

References
----------
G.-I. Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", 2022, section 3:
scheduling for each step instead of for each request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from gpuguide.errors import GpuguideError
from gpuguide.inference.engine import Engine
from gpuguide.inference.host_copy import Clock, DeviceEvent, HostCopy
from gpuguide.inference.serving.prefill_budget import LEAST, PrefillBudget
from gpuguide.inference.serving.prefill_chunks import ChunkGroup, plan_chunks
from gpuguide.inference.serving.requests import CANCELLED, LIMIT, STOP, Queue, Request, Text, check_fits
from gpuguide.inference.serving.slots import Batch, Slots
from gpuguide.inference.serving.statistics import Step

POLICIES = ("continuous", "static")
"""When requests enter: whenever a slot is free, or a batch at a time"""
CHUNK = 2048
"""Tokens of prompts that are read before a step, at most"""


class TokenCopy(HostCopy):
    """New tokens of some texts on their way to the host.

    Parameters
    ----------
    tokens, clock
        As in :class:`HostCopy`.
    texts : sequence of Text
        Texts that the tokens belong to.
    places : sequence of int
        Index of each text's token in ``tokens``.
    """

    def __init__(self, tokens: torch.Tensor, texts: Sequence[Text], places: Sequence[int], clock: Clock) -> None:
        super().__init__(tokens, clock)
        self.texts = texts
        self.places = places

    def tokens(self) -> list[int]:
        """Wait for the tokens and return them, one for each text."""
        tokens = self.wait()
        return [tokens[place] for place in self.places]


@dataclass(frozen=True)
class UnderWay:
    """A step that the device may still be computing."""

    step: Step
    began: DeviceEvent
    copy: TokenCopy


class Scheduler:
    """Serves requests with an engine.

    Parameters
    ----------
    engine : Engine
        Its rows are the slots. The scheduler takes it over, with all pages of its cache.
    policy : str
        ``continuous`` or ``static``.
    chunk : int
        Tokens of prompts that are read before a step, at most.
    latency_target : float, optional
        Seconds from one token of a text to its next. The scheduler measures its steps, reads as much of prompts before
        each as it can within that time, and uses no more slots than a step can serve within it. A step that serves one
        text may take longer all the same.
    share : bool
        Whether prompts with the same beginning share its pages.
    clock : Clock, optional
        By default the machine's.

    Raises
    ------
    GpuguideError
        If the policy is unknown, or the chunk or the target is too small.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        policy: str = "continuous",
        chunk: int = CHUNK,
        latency_target: float | None = None,
        share: bool = True,
        clock: Clock | None = None,
    ) -> None:
        _check(policy, chunk, latency_target)
        self.engine = engine
        self.continuous = policy == "continuous"
        self.clock = clock or Clock()
        self.slots = Slots(engine, share)
        self.budget = PrefillBudget(latency_target, chunk, self.slots.buckets)
        self.texts: dict[int, Text] = {}
        """All texts since the start by their numbers, also those that have ended"""
        self.steps: list[Step] = []
        """Steps since the start"""
        self._queue = Queue()
        self._reading: list[Text] = []
        self._writing: list[Text] = []
        self._batch = Batch()
        self._under_way: UnderWay | None = None
        self._unfinished = 0
        self._next_number = 0
        self._start = self.clock.now()

    # --- requests --------------------------------------------------------------------------------------

    def submit(self, request: Request) -> int:
        """Put a request into the queue, and return its number. Errors as :meth:`check`."""
        self.check(request)
        number = self._next_number
        self._next_number += 1
        text = Text(number, request, self._now() if request.arrival is None else request.arrival)
        self.texts[number] = text
        if request.new_tokens == 0:
            text.reason = LIMIT
        else:
            self._unfinished += 1
            self._queue.add(text)
        return number

    def check(self, request: Request) -> None:
        """Look whether a request can be served.

        Raises
        ------
        GpuguideError
            If the prompt is empty or holds what is no token, the seed is out of range, or the request can never fit.
        """
        self.engine.check_prompt(request.prompt)
        check_fits(request, self.engine.capacity, self.slots.pages.count)

    def cancel(self, number: int) -> bool:
        """End a request, wherever it is, and return whether there was anything left to end.

        Its slot and pages are free for the next step. What has been written of its text stays.

        Raises
        ------
        GpuguideError
            If no request has this number.
        """
        text = self.texts.get(number)
        if text is None:
            raise GpuguideError(f"There is no request {number}; give a number that submit returned.")
        if text.reason is not None:
            return False
        text.reason = CANCELLED
        self._unfinished -= 1
        if text.slot is not None:
            self._leave([text])
            self._end([text])
        return True

    def run(self, requests: Sequence[Request] = ()) -> list[list[int]]:
        """Serve until no request is left, and return the texts of those given here, without their prompts.

        Errors as :meth:`check`; then none of them is in the queue.
        """
        for request in requests:
            self.check(request)
        numbers = [self.submit(request) for request in requests]
        for _ in self.stream():
            pass
        return [self.texts[number].tokens for number in numbers]

    def stream(self) -> Iterator[tuple[int, int]]:
        """Serve until no request is left, and yield each token as it arrives, after the number of its request.

        Requests may be submitted and cancelled between two tokens.
        """
        while self._unfinished:
            yield from self.step()
            self._wait_for_arrival()
        if self._under_way is not None:
            self.step()  # it writes for nobody, and what comes before the next request would count as its time

    # --- the loop --------------------------------------------------------------------------------------

    def step(self) -> list[tuple[int, int]]:
        """Let requests enter, read some of their prompts, write the next token of each text; return what has arrived.

        Returns
        -------
        list of (int, int)
            Number of the request and token: those of the step before, and the first ones of texts that begin.
        """
        self._admit()
        groups = self._plan() if self._reading else []
        before = self._under_way
        began = before.copy.event if before else DeviceEvent(self.clock, self.engine.decoder.device)
        with torch.inference_mode():
            first = self._read(groups)
            self._under_way = self._write(began, sum(group.cost for group in groups))
        arrived = self._take(before.copy) if before else []
        for copy in first:
            arrived += self._take(copy)
        if before:
            self._measure(before)
        return arrived

    def _admit(self) -> None:
        """Give free slots to those whose turn it is, as long as there are pages for the next one."""
        if not self.continuous and not self.slots.empty:
            return
        while self.slots.next_free is not None and (text := self._queue.first(self._now())):
            # Nobody overtakes: whoever needs many pages would never get them.
            if self.slots.next_free >= self.budget.rows() or not self.slots.enter(text, wait=self.continuous):
                return
            self._queue.pop()
            self._reading.append(text)
            text.entered, text.entered_at = self._now(), len(self.steps)

    def _plan(self) -> list[ChunkGroup]:
        """Choose what is read of prompts before the next tokens are written."""
        if not self._writing:
            return plan_chunks(self._reading, self.budget.chunk)  # nobody is kept waiting
        rows = self.slots.batch((), self.slots.holders()).rows
        return plan_chunks(self._reading, self.budget.tokens(rows), most=self.budget.groups)

    def _read(self, groups: Sequence[ChunkGroup]) -> list[TokenCopy]:
        """Read pieces of prompts, and draw the first token of each text whose prompt ends."""
        told = self.slots.tell_device([text for group in groups for text in group.texts])
        first, at = [], 0
        for group in groups:
            rows, lengths, seeds = told[:, at : at + len(group.texts)]
            at += len(group.texts)
            logits = self.engine.read(group.pieces, rows, group.start)
            self.slots.have_read(group.texts)
            if count := group.ending:
                tokens = self.engine.begin(rows[:count], lengths[:count], logits[:count], seeds[:count])
                first.append(TokenCopy(tokens, group.texts[:count], range(count), self.clock))
                self._begin(group.texts[:count])
        return first

    def _write(self, began: DeviceEvent, read: int) -> UnderWay | None:
        """Write the next token of each text, unless a static batch still reads: it begins together."""
        batch = self._batch if self.continuous or not self._reading else Batch()
        if not batch.rows and not read:
            return None
        tokens = self.engine.step(batch.rows) if batch.rows else self.engine.tokens[:0]
        copy = TokenCopy(tokens, batch.texts, batch.places, self.clock)
        step = Step(batch.rows, len(batch.texts), read)
        self.steps.append(step)
        last = []
        for text in batch.texts:
            text.drawn += 1
            if text.drawn == text.request.new_tokens:
                last.append(text)
        self._end(last)
        return UnderWay(step, began, copy)

    def _take(self, copy: TokenCopy) -> list[tuple[int, int]]:
        """Wait for tokens and hand them to their texts; what was drawn after an end is thrown away."""
        tokens = copy.tokens()
        now = self._now()
        arrived, complete = [], []
        for text, token in zip(copy.texts, tokens, strict=True):
            if text.reason is None:
                reason = text.take(token, now)
                if reason != STOP:
                    arrived.append((text.number, token))
                if reason is not None:
                    complete.append(text)
        self._unfinished -= len(complete)
        self._end(complete)
        return arrived

    def _measure(self, done: UnderWay) -> None:
        """Learn from a step that the device has done."""
        step = done.step
        step.seconds = done.copy.event.seconds_since(done.began)
        self.budget.record(step.rows, step.read, step.seconds)

    # --- what becomes of a text --------------------------------------------------------------------------

    def _begin(self, texts: Sequence[Text]) -> None:
        """Go on from reading to writing: their first tokens have been drawn."""
        self._reading = [text for text in self._reading if text not in texts]
        self._writing = [*self._writing, *texts]
        for text in texts:
            text.began_at, text.drawn = len(self.steps), 1
        self._arrange()
        self._end([text for text in texts if text.request.new_tokens == 1])

    def _end(self, texts: Sequence[Text]) -> None:
        """Write nothing more for some texts, whose last tokens may still be on their way."""
        ending = [text for text in texts if text.ended_at is None]
        if not ending:
            return
        for text in ending:
            text.ended_at = len(self.steps)
        self._reading = [text for text in self._reading if text.ended_at is None]
        self._writing = [text for text in self._writing if text.ended_at is None]
        holders = self.slots.holders()
        if self.continuous:
            self._leave(ending)
        elif all(text.ended_at is not None for text in holders):
            self._leave(holders)
        self._arrange()

    def _leave(self, texts: Sequence[Text]) -> None:
        """Take back slots and pages from those who still have them."""
        for text in texts:
            if text.left_at is None:
                text.left_at = len(self.steps)
                self.slots.leave(text)

    def _arrange(self) -> None:
        """Arrange the next steps: a static batch keeps its rows until all of its texts have ended."""
        begun = [text for text in self.slots.holders() if text.drawn]
        self._batch = self.slots.batch(self._writing, self._writing if self.continuous else begun)

    # --- beside the loop -----------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """Take an empty step with each number of rows that a step can have: on a GPU, each captures a graph.

        Raises
        ------
        GpuguideError
            If texts are being written: they would miss a token.
        """
        if not self.slots.empty:
            raise GpuguideError("Texts are being written; warm up before the first request.")
        with torch.inference_mode():
            self.slots.tell_device()
            for rows in self.slots.buckets:
                self.engine.step(rows)

    def forget(self) -> None:
        """Forget all texts and steps, and set the time to zero. Shared pages and what was learnt of steps stay.

        Raises
        ------
        GpuguideError
            If a request has not ended.
        """
        if self._unfinished:
            left = "1 request has not ended; serve or cancel it first."
            many = f"{self._unfinished} requests have not ended; serve or cancel them first."
            raise GpuguideError(left if self._unfinished == 1 else many)
        self.step()  # what is still under way belongs to nobody
        self.texts.clear()
        self.steps.clear()
        self._start = self.clock.now()

    def _now(self) -> float:
        return self.clock.now() - self._start

    def _wait_for_arrival(self) -> None:
        """Sleep until the next request arrives, if there is nothing else to do."""
        if self._under_way is None and self.slots.empty and self._queue.first(self._now()) is None:
            arrival = self._queue.next_arrival()
            if arrival is not None:
                self.clock.wait(max(arrival - self._now(), 0.0))


def _check(policy: str, chunk: int, latency_target: float | None) -> None:
    if policy not in POLICIES:
        raise GpuguideError(f"The policy is {policy!r}; known: {', '.join(POLICIES)}.")
    if chunk < LEAST:
        raise GpuguideError(f"A chunk of {chunk} tokens is too small; give at least {LEAST}.")
    if latency_target is not None and not latency_target > 0:
        raise GpuguideError(f"A latency target of {latency_target} s cannot be kept; give a time above zero.")
    if latency_target is not None and policy == "static":
        raise GpuguideError("A static batch begins together, whatever the target; set one with continuous batching.")
