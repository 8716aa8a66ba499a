"""Every text is what the model writes for its prompt alone, whatever is served beside it, and in good order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from packaged import decoder, held_out, loaded, uncached

from gpuguide.errors import GpuguideError
from gpuguide.inference import Engine, empty_cache, prepare
from gpuguide.inference.cache import PAGE
from gpuguide.inference.serving import (
    Clock,
    Request,
    Scheduler,
    Text,
    lognormal_requests,
    occupancy,
    summarise,
)
from gpuguide.inference.serving.load_test import duration, goodput, slo_attainment, time_per_output_token, with_arrivals
from gpuguide.inference.serving.prefill_chunks import plan_chunks
from gpuguide.inference.serving.scheduler import TokenCopy
from gpuguide.inference.serving.simulation import SimulatedEngine, SimulatedScheduler
from gpuguide.inference.serving.statistics import ENDED, FREE, READING, WRITING
from gpuguide.sampling.reference import SamplingSettings

SLOTS, CAPACITY = 3, 160
NEW = 12
"""The most new tokens that a test asks for where texts are compared"""


def prompt(place: int, length: int) -> list[int]:
    return list(held_out()[97 * place : 97 * place + length])


def alone(request: Request, name: str = "draft") -> list[int]:
    """What the model writes for a request if nobody else is there, without a cache and without stop tokens."""
    return uncached(request.prompt, NEW, name)[: request.new_tokens]


def engine(slots: int = SLOTS, pages: int | None = None, settings: SamplingSettings | None = None) -> Engine:
    cache = None if pages is None else empty_cache(decoder(), slots, CAPACITY, pages)
    return Engine(decoder(), slots, CAPACITY, settings or SamplingSettings(temperature=0.0), cache)


REQUESTS = [Request(prompt(place, length), new) for place, (length, new) in enumerate(
    [(5, 9), (70, 3), (1, 12), (130, 6), (64, 1), (33, 10), (90, 12)]
)]  # fmt: skip


class FakeTime:
    """A clock that moves only when somebody waits or something is done."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.clock = Clock(now=lambda: self.time, wait=self.wait)

    def wait(self, seconds: float) -> None:
        assert seconds >= 0
        self.time += seconds


class CountingEngine(Engine):
    """Writes tokens 1, 2, 3 and so on instead of a text, and takes as long as it is told, in a time of its own."""

    def __init__(self, slots: int, *, capacity: int = 500, a_step: float = 1.0, a_row: float = 0.0,
                 a_token: float = 0.0, a_piece: float = 0.0, pages: int | None = None) -> None:  # fmt: skip
        cache = None if pages is None else empty_cache(decoder(), slots, capacity, pages)
        super().__init__(decoder(), slots, capacity, cache=cache)
        self.fake = FakeTime()
        self.clock = self.fake.clock
        self.a_step, self.a_row, self.a_token, self.a_piece = a_step, a_row, a_token, a_piece

    def read(self, pieces: Sequence[Sequence[int]], rows: torch.Tensor, start: int) -> torch.Tensor:
        assert (self.lengths[rows] == torch.tensor([start + len(piece) for piece in pieces])).all()
        self.fake.time += self.a_piece + self.a_token * len(pieces) * max(map(len, pieces))
        return torch.zeros(len(pieces), 1)

    def choose(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(rows), dtype=torch.int64)

    def step(self, rows: int | None = None) -> torch.Tensor:
        assert rows is not None
        self.fake.time += self.a_step + self.a_row * rows
        self.tokens[:rows] += 1
        return self.tokens[:rows]


def drive(scheduler: Scheduler, most: int = 2000) -> list[list[tuple[int, int]]]:
    """Take steps until nothing is left to do, and return what arrived in each."""
    arrived = []
    while not all(text.reason for text in scheduler.texts.values()):
        arrived.append(scheduler.step())
        assert len(arrived) < most
    assert scheduler.step() == []
    return arrived


def nothing_is_left(scheduler: Scheduler) -> bool:
    slots = scheduler.slots
    return slots.empty and slots.pages.available == slots.pages.count


# --- texts ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Visit:
    """A request, the step before which it comes, and the one before which it is cancelled."""

    request: Request
    comes: int
    cancelled: int | None


VISITS = st.lists(
    st.builds(
        lambda place, length, new, priority, comes, stays: Visit(
            Request(prompt(place, length), new, priority=priority), comes, None if stays is None else comes + stays
        ),
        place=st.integers(0, 2),
        length=st.sampled_from([1, 40, 64, 65, 129, 140]),
        new=st.integers(0, NEW),
        priority=st.integers(0, 2),
        comes=st.integers(0, 8),
        stays=st.none() | st.none() | st.integers(0, 12),
    ),
    min_size=1,
    max_size=8,
)


@given(visits=VISITS, chunk=st.sampled_from([16, 50, 2048]), policy=st.sampled_from(["continuous", "static"]),
       pages=st.sampled_from([3, 5, 9]), share=st.booleans())  # fmt: skip
def test_texts_do_not_depend_on_who_is_served_beside_them(
    visits: list[Visit], chunk: int, policy: str, pages: int, share: bool
) -> None:
    scheduler = Scheduler(engine(pages=pages), policy=policy, chunk=chunk, share=share)
    numbers: dict[int, Visit] = {}
    streamed: dict[int, list[int]] = {}
    for step in range(21):
        for visit in visits:
            if visit.comes == step:
                numbers[scheduler.submit(visit.request)] = visit
        for number, visit in numbers.items():
            if visit.cancelled == step:
                scheduler.cancel(number)
        for number, token in scheduler.step():
            streamed.setdefault(number, []).append(token)
    for arrived in drive(scheduler):
        for number, token in arrived:
            streamed.setdefault(number, []).append(token)
    assert len(numbers) == len(visits)
    for number, visit in numbers.items():
        text = scheduler.texts[number]
        wanted = alone(visit.request)
        assert text.tokens == streamed.get(number, [])
        if text.reason == "cancelled":
            assert text.tokens == wanted[: len(text.tokens)]
        else:
            assert text.reason == "limit"
            assert text.tokens == wanted
    assert nothing_is_left(scheduler)


def test_texts_of_the_main_model() -> None:
    requests = [replace(request, new_tokens=min(request.new_tokens, 6)) for request in REQUESTS[:4]]
    scheduler = Scheduler(Engine(decoder("main"), 2, CAPACITY), chunk=48)
    assert scheduler.run(requests) == [alone(request, "main") for request in requests]


def test_static_batches_write_the_same_in_more_steps() -> None:
    texts, steps = {}, {}
    for policy in ("continuous", "static"):
        scheduler = Scheduler(engine(), policy=policy)
        texts[policy] = scheduler.run(REQUESTS)
        steps[policy] = summarise(scheduler.texts.values(), scheduler.steps)
    assert texts["continuous"] == texts["static"] == [alone(request) for request in REQUESTS]
    assert steps["continuous"].steps < steps["static"].steps
    assert steps["continuous"].occupancy > steps["static"].occupancy
    assert steps["continuous"].tokens == steps["static"].tokens == sum(request.new_tokens for request in REQUESTS)


def test_sampled_texts_depend_on_prompt_and_seed_only() -> None:
    requests = [replace(request, seed=seed) for seed, request in enumerate(REQUESTS)]
    sampling = SamplingSettings(temperature=1.0)
    together = Scheduler(engine(settings=sampling)).run(requests)
    backwards = Scheduler(engine(slots=2, settings=sampling), chunk=32, policy="static").run(requests[::-1])[::-1]
    assert together == backwards
    first = requests[0]
    others = Scheduler(engine(settings=sampling)).run([first, replace(first, seed=7), first])
    assert others[0] == others[2] == together[0]
    assert others[1] != others[0]


@pytest.mark.parametrize("policy", ["continuous", "static"])
def test_stop_tokens_end_a_text_and_are_no_part_of_it(policy: str) -> None:
    request = REQUESTS[5]
    wanted = alone(request)
    place = next(place for place in range(2, 9) if wanted[place] not in wanted[:place])
    stopped = replace(request, stop=frozenset({wanted[place], request.prompt[-1]} - set(wanted[:place])))
    at_once = replace(request, stop=frozenset({wanted[0]}))
    at_the_limit = replace(request, new_tokens=place + 1, stop=frozenset({wanted[place]}))
    scheduler = Scheduler(engine(), policy=policy)
    texts = scheduler.run([stopped, at_once, at_the_limit, request])
    assert texts == [wanted[:place], [], wanted[:place], wanted]
    assert [text.reason for text in scheduler.texts.values()] == ["stop", "stop", "stop", "limit"]
    assert scheduler.texts[1].time_to_first_token is None
    assert nothing_is_left(scheduler)


def test_stop_tokens_in_the_prompt_do_not_stop() -> None:
    request = REQUESTS[3]
    stop = frozenset(request.prompt) - frozenset(alone(request))
    assert stop
    assert Scheduler(engine()).run([replace(request, stop=stop)]) == [alone(request)]


def test_stream_yields_tokens_as_they_arrive() -> None:
    scheduler = Scheduler(engine())
    numbers = [scheduler.submit(request) for request in REQUESTS[:3]]
    late: int | None = None
    texts: dict[int, list[int]] = {}
    for number, token in scheduler.stream():
        texts.setdefault(number, []).append(token)
        if late is None:
            late = scheduler.submit(REQUESTS[3])
    assert late is not None
    assert [texts[number] for number in [*numbers, late]] == [alone(request) for request in REQUESTS[:4]]
    first_of_the_late_one = scheduler.texts[late].times[0]
    assert first_of_the_late_one < max(scheduler.texts[number].times[-1] for number in numbers)


def test_the_host_reads_tokens_while_the_next_step_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    writes = CountingEngine(1)
    step = writes.step
    monkeypatch.setattr(writes, "step", lambda rows: (happened.append("step"), step(rows))[1])
    read = TokenCopy.tokens
    monkeypatch.setattr(TokenCopy, "tokens", lambda self: (happened.append("look"), read(self))[1])
    assert Scheduler(writes).run([Request([1], 4)]) == [[1, 2, 3, 4]]
    assert happened == ["step", "look", "step", "look", "step", "look", "look"], "the first look is at the prompt's end"


# --- order ---------------------------------------------------------------------------------------------


def test_priority_goes_before_arrival() -> None:
    scheduler = Scheduler(CountingEngine(1))
    for priority in (0, 1, 0, 2, 1):
        scheduler.submit(Request([1], 2, priority=priority))
    drive(scheduler)
    assert sorted(scheduler.texts, key=lambda number: scheduler.texts[number].entered_at or 0) == [3, 1, 4, 0, 2]


def test_requests_that_have_not_arrived_wait_for_their_time() -> None:
    writes = CountingEngine(1)
    scheduler = Scheduler(writes, clock=writes.clock)
    for arrival in (50.0, 3.5, 7.0):
        scheduler.submit(Request([1], 2, arrival=arrival))
    scheduler.submit(Request([1], 3, arrival=60.0))
    for _ in scheduler.stream():
        pass
    assert [text.entered for text in scheduler.texts.values()] == [50.0, 3.5, 7.0, 60.0]
    assert [text.waiting_time for text in scheduler.texts.values()] == [0.0] * 4


def test_nobody_overtakes_who_waits_for_pages() -> None:
    scheduler = Scheduler(CountingEngine(3, pages=6))
    for length in (3 * PAGE, 4 * PAGE, 1):
        scheduler.submit(Request([length % 7] * length, 1 if length == 1 else 5))
    drive(scheduler)
    entered = [text.entered_at or 0 for text in scheduler.texts.values()]
    assert entered == sorted(entered)
    assert entered[0] < entered[1] == entered[2]


def test_the_lowest_slots_are_used_and_only_as_many_rows_as_needed() -> None:
    scheduler = Scheduler(CountingEngine(6))
    scheduler.run([Request([1], new) for new in (9, 2, 3, 2, 6)])
    assert [text.slot for text in scheduler.texts.values()] == [0, 1, 2, 3, 4]
    assert [step.rows for step in scheduler.steps] == [6, 6, 6, 6, 6, 1, 1, 1]
    scheduler.run([Request([1], 2)])
    assert scheduler.texts[5].slot == 0


def test_nobody_joins_a_static_batch() -> None:
    scheduler = Scheduler(CountingEngine(3), policy="static")
    first, cancelled = scheduler.submit(Request([1], 5)), scheduler.submit(Request([1], 5))
    scheduler.step()
    late = scheduler.submit(Request([1], 5))
    scheduler.cancel(cancelled)
    drive(scheduler)
    assert scheduler.texts[late].entered_at == scheduler.texts[first].left_at == 4


def test_rows_that_are_free_stay_empty() -> None:
    writes = engine()
    scheduler = Scheduler(writes)
    for place in (2, 1, 5):
        scheduler.submit(REQUESTS[place])
    while scheduler.texts[1].left_at is None:
        scheduler.step()
    for _ in range(3):
        scheduler.step()
    assert writes.writing.tolist() == [True, False, True]
    assert writes.lengths[1] == 0
    assert not writes.cache.table[1].any()


# --- leaving early -------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["continuous", "static"])
def test_cancelling_frees_slot_and_pages_and_harms_nobody(policy: str) -> None:
    scheduler = Scheduler(engine(), policy=policy, chunk=32, share=False)
    writing, reading, other, waiting, last = (scheduler.submit(REQUESTS[place]) for place in (5, 3, 0, 6, 1))
    scheduler.step()
    scheduler.step()
    before = scheduler.slots.pages.available
    assert scheduler.cancel(reading)
    assert scheduler.slots.pages.available == before + 3
    assert scheduler.cancel(writing)
    assert scheduler.cancel(waiting)
    assert not scheduler.cancel(waiting)
    drive(scheduler)
    assert not scheduler.cancel(other)
    assert scheduler.texts[other].tokens == alone(REQUESTS[0])
    assert scheduler.texts[last].tokens == alone(REQUESTS[1])
    assert scheduler.texts[reading].tokens == []
    assert scheduler.texts[waiting].entered is None
    assert scheduler.texts[writing].reason == "cancelled"
    assert nothing_is_left(scheduler)


def test_a_cancelled_text_gets_no_tokens_that_were_under_way() -> None:
    scheduler = Scheduler(CountingEngine(1))
    number = scheduler.submit(Request([1], 9))
    assert scheduler.step() == [(number, 1)]
    assert scheduler.step() == [(number, 2)]
    scheduler.cancel(number)
    assert scheduler.step() == []
    assert scheduler.texts[number].tokens == [1, 2]


def test_surplus_tokens_do_not_reach_the_next_text_in_the_slot() -> None:
    scheduler = Scheduler(CountingEngine(1))
    assert scheduler.run([Request([1], 9, stop=frozenset({3})), Request([1], 4)]) == [[1, 2], [1, 2, 3, 4]]
    assert [step.writing for step in scheduler.steps] == [1] * 6, "one of them for nobody"


# --- what is shared ------------------------------------------------------------------------------------


def test_prompts_with_the_same_beginning_share_it() -> None:
    beginning = prompt(0, 2 * PAGE)
    requests = [Request(beginning + prompt(place, 9), 4) for place in range(4)] + [Request(beginning, 4)]
    runs = {}
    for share in (True, False):
        scheduler = Scheduler(engine(), share=share)
        assert scheduler.run(requests) == [alone(request) for request in requests]
        runs[share] = summarise(scheduler.texts.values(), scheduler.steps)
    assert runs[False].shared_tokens == 0
    assert runs[False].prompt_tokens == 4 * (2 * PAGE + 9) + 2 * PAGE
    assert runs[True].shared_tokens == 3 * 2 * PAGE + PAGE
    assert runs[True].prompt_tokens == runs[False].prompt_tokens - runs[True].shared_tokens


def test_shared_pages_let_more_texts_in() -> None:
    beginning = [5] * (2 * PAGE)
    most = {}
    for share in (True, False):
        scheduler = Scheduler(CountingEngine(4, pages=6), share=share)
        scheduler.run([Request([*beginning, token], 6) for token in range(4)])
        most[share] = max(step.writing for step in scheduler.steps)
    assert most == {True: 4, False: 2}


def test_prompts_are_kept_after_their_texts() -> None:
    scheduler = Scheduler(engine(pages=6))
    request = Request(prompt(0, 2 * PAGE + 3), 5)
    assert scheduler.run([request]) == [alone(request)]
    scheduler.forget()
    assert scheduler.run([request]) == [alone(request)]
    [text] = scheduler.texts.values()
    assert text.shared == 2 * PAGE
    assert scheduler.run(REQUESTS[:4]) == [alone(other) for other in REQUESTS[:4]], "they need the pages"


# --- latency -------------------------------------------------------------------------------------------


def slow_engine() -> CountingEngine:
    return CountingEngine(8, capacity=500, a_step=0.010, a_row=0.001, a_token=0.0002, a_piece=0.002)


def test_a_latency_target_is_kept() -> None:
    """A step takes 10 ms and 1 ms a row, and a piece of a prompt 2 ms and 0.2 ms a token: 400 tokens make it 100 ms."""
    gaps, rows, read = {}, {}, {}
    for target in (0.016, 0.030, 0.100, None):
        writes = slow_engine()
        scheduler = Scheduler(writes, clock=writes.clock, latency_target=target)
        scheduler.run([Request([place % 11] * (400 if place % 3 else 30), 40) for place in range(40)])
        assert all(len(text.tokens) == 40 for text in scheduler.texts.values())
        gaps[target] = max(gap for text in scheduler.texts.values() for gap in text.times_between_tokens)
        rows[target] = max(step.rows for step in scheduler.steps)
        read[target] = max(after.read for before, after in pairwise(scheduler.steps) if before.writing > 1)
    assert gaps[None] > 0.200
    assert gaps[0.030] <= 0.030
    assert gaps[0.100] <= 0.100
    assert (read[0.030], read[0.100]) == (64, 256), "beside 4 rows, 16 ms are left; beside 8 rows, 82 ms"
    assert rows == {0.016: 4, 0.030: 8, 0.100: 8, None: 8}, "18 ms with 8 rows"
    assert read[None] > 400
    # With 4 rows a step takes 14 ms, and the least that must be read of a prompt 5.2 ms.
    assert read[0.016] == 16
    assert 0.016 < gaps[0.016] <= 0.0192 + 1e-9


def test_odd_pieces_do_not_mislead() -> None:
    """Pieces of 65 tokens would fit beside a step, and pieces of 128 would not."""
    writes = CountingEngine(2, a_step=0.010, a_token=0.0002)
    scheduler = Scheduler(writes, clock=writes.clock, latency_target=0.030, share=False)
    for _ in range(4):
        scheduler.run([Request([1] * 65, 6)])
    scheduler.run([Request([1], 100), *[Request([1] * 400, 3)] * 5])
    assert max(gap for text in scheduler.texts.values() for gap in text.times_between_tokens) <= 0.030


def test_where_nobody_writes_a_prompt_is_read_at_once() -> None:
    writes = slow_engine()
    scheduler = Scheduler(writes, clock=writes.clock, latency_target=0.020)
    scheduler.run([Request([1] * 400, 3)])
    assert [step.read for step in scheduler.steps] == [400, 0]


def test_what_was_too_slow_once_is_tried_again() -> None:
    writes = slow_engine()
    scheduler = Scheduler(writes, clock=writes.clock, latency_target=0.030)
    writes.a_row = 0.02
    scheduler.run([Request([1], 300) for _ in range(8)])
    assert max(step.rows for step in scheduler.steps) == 2, "one with 2 rows takes too long"
    writes.a_row = 0.001
    scheduler.run([Request([1], 300) for _ in range(40)])
    assert max(step.rows for step in scheduler.steps) == 8


# --- numbers -------------------------------------------------------------------------------------------


def test_times_of_a_request() -> None:
    writes = CountingEngine(1, a_step=2.0, a_token=0.5)
    scheduler = Scheduler(writes, clock=writes.clock)
    scheduler.run([Request([1] * 4, 3), Request([1] * 2, 2, arrival=1.0)])
    first, second = scheduler.texts.values()
    # Its prompt is read until 2, and the steps last until 4 and 6. Then the other's prompt is read, until 7, and the
    # third step lasts until 9. Nothing here runs while the host looks, so a token waits for the end of the next step.
    assert first.times == [4.0, 6.0, 9.0]
    assert (first.waiting_time, first.time_to_first_token, first.times_between_tokens) == (0.0, 4.0, [2.0, 3.0])
    assert (second.entered, second.waiting_time) == (6.0, 5.0)
    assert [step.seconds for step in scheduler.steps] == [4.0, 2.0, 3.0]


def test_the_time_between_two_runs_belongs_to_no_step() -> None:
    """When a stop token ends the last text, the step after it is still under way."""
    writes = CountingEngine(1, a_step=2.0)
    scheduler = Scheduler(writes, clock=writes.clock)
    assert scheduler.run([Request([1], 9, stop=frozenset({3}))]) == [[1, 2]]
    assert [step.seconds for step in scheduler.steps] == [2.0] * 3
    writes.fake.wait(1000.0)
    scheduler.run([Request([1], 3)])
    assert [step.seconds for step in scheduler.steps] == [2.0] * 5


def test_occupancy_is_who_had_which_slot_when() -> None:
    def run(policy: str) -> list[list[int]]:
        scheduler = Scheduler(CountingEngine(2), policy=policy, chunk=16)
        scheduler.run([Request([2] * 16, 2), Request([1] * 20, 3), Request([3], 4)])
        happened = occupancy(scheduler.texts.values(), scheduler.steps, 2)
        wrote = [(happened[:, place] == WRITING).sum() for place in range(len(scheduler.steps))]
        assert wrote == [step.writing for step in scheduler.steps]
        return happened.tolist()

    r, w, e, f = READING, WRITING, ENDED, FREE
    # Two new tokens are one step after the one that is drawn when the prompt has been read.
    assert run("continuous") == [[w, r, w, w, w], [r, r, w, w, f]]
    assert run("static") == [[r, r, w, e, w, w, w], [r, r, w, w, f, f, f]]


def test_a_run_in_numbers() -> None:
    writes = CountingEngine(2)
    scheduler = Scheduler(writes, clock=writes.clock)
    empty = summarise(scheduler.texts.values(), scheduler.steps)
    assert (empty.steps, empty.occupancy, empty.time_to_first_token) == (0, 0.0, None)
    scheduler.run([Request([1] * 70, 3), Request([1] * 70, 2)])
    run = summarise(scheduler.texts.values(), scheduler.steps)
    assert (run.requests, run.tokens, run.prompt_tokens, run.shared_tokens) == (2, 5, 76, 64)
    assert run.occupancy == 3 / 3


# --- bad input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request([], 1), r"The prompt has no tokens"),
        (Request([1], -1), r"-1 new tokens"),
        (Request([1] * CAPACITY, 1), r"160 tokens .* capacity of 160"),
        (Request([1] * 150, 11), r"150 tokens and 11 .* capacity of 160; ask for 10"),
        (Request([1] * 120, 20), r"A prompt of 120 tokens and 20 more need 3 pages of the cache, which has 2; ask for"),
        (Request([2048], 1), r"holds a token that is not below 2048"),
        (
            Request([1], 1, arrival=float("nan")),
            r"after nan s",
        ),
        (
            Request([1], 1, arrival=float("inf")),
            r"after inf s",
        ),
        (Request([1], 1, seed=-1), r"seed is -1; .* 8796093022207"),
        (Request([1], 1, seed=2**43), r"seed is 8796093022208"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(request_: Request, message: str) -> None:
    scheduler = Scheduler(engine(slots=1, pages=2))
    with pytest.raises(GpuguideError, match=message):
        scheduler.submit(request_)
    with pytest.raises(GpuguideError, match=message):
        scheduler.run([Request([1], 1), request_])
    assert not scheduler.texts
    assert scheduler.run([Request(prompt(0, 9), 2)]) == [alone(Request(prompt(0, 9), 2))]


def test_no_new_tokens_are_an_empty_text_at_once() -> None:
    scheduler = Scheduler(engine())
    number = scheduler.submit(Request([1], 0))
    assert scheduler.texts[number].reason == "limit"
    assert scheduler.run() == []
    assert scheduler.steps == []


def test_the_longest_text_that_fits() -> None:
    request = Request(prompt(1, CAPACITY - NEW), NEW)
    scheduler = Scheduler(engine(slots=2), policy="static")
    assert scheduler.run([request, Request(prompt(2, 3), 1)])[0] == alone(request)


def test_cancelling_what_does_not_exist() -> None:
    scheduler = Scheduler(engine())
    with pytest.raises(GpuguideError, match=r"There is no request 7; give a number that submit returned\."):
        scheduler.cancel(7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "statick"}, r"The policy is 'statick'; known: continuous, static\."),
        ({"chunk": 15}, r"A chunk of 15 tokens is too small; give at least 16\."),
        ({"latency_target": 0.0}, r"A latency target of 0\.0 s cannot be kept"),
        ({"latency_target": float("nan")}, r"A latency target of nan s cannot be kept"),
        ({"latency_target": 1.0, "policy": "static"}, r"A static batch begins together, whatever the target"),
    ],
)
def test_bad_settings(settings: dict[str, object], message: str) -> None:
    with pytest.raises(GpuguideError, match=message):
        Scheduler(engine(), **settings)  # type: ignore[arg-type]


def test_warming_up_and_forgetting_are_for_an_idle_scheduler() -> None:
    scheduler = Scheduler(engine())
    scheduler.warm_up()
    scheduler.submit(REQUESTS[0])
    scheduler.step()
    with pytest.raises(GpuguideError, match=r"Texts are being written; warm up before the first request\."):
        scheduler.warm_up()
    with pytest.raises(GpuguideError, match=r"1 request has not ended; serve or cancel it first\."):
        scheduler.forget()
    drive(scheduler)
    assert scheduler.texts[0].tokens == alone(REQUESTS[0])
    scheduler.forget()
    assert not scheduler.texts
    assert not scheduler.steps


# --- parts ---------------------------------------------------------------------------------------------


@given(
    lengths=st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0, 0, 0, 16])), max_size=8),
    budget=st.integers(1, 150),
)
def test_a_plan_keeps_to_its_budget_and_to_the_order(lengths: list[tuple[int, int]], budget: int) -> None:
    texts = [
        Text(number, Request(list(range(read + length)), 1), 0.0, read=read)
        for number, (length, read) in enumerate(lengths)
    ]
    left = {text.number: text.left_to_read for text in texts}
    before = {text.number: text.read for text in texts}
    groups = plan_chunks(texts, budget)
    assert sum(group.cost for group in groups) <= budget
    planned = [text.number for group in groups for text in group.texts]
    assert len(set(planned)) == len(planned)
    if texts:
        leader = next(piece for group in groups for text, piece in zip(group.texts, group.pieces, strict=True)
                      if text is texts[0])  # fmt: skip
        assert len(leader) == min(left[0], budget)
    for group in groups:
        assert sum(map(len, group.pieces)) * 2 > group.cost
        for place, (text, piece) in enumerate(zip(group.texts, group.pieces, strict=True)):
            assert before[text.number] == group.start
            assert piece == list(range(group.start, text.read))
            assert (text.left_to_read == 0) == (place < group.ending)
    if sum(left.values()) <= budget and len({read for _, read in lengths}) == len(lengths):
        assert not any(text.left_to_read for text in texts)


def test_lognormal_requests_have_the_stated_lengths() -> None:
    requests = lognormal_requests(4000, 1, vocab_size=50, capacity=10**6, prompt_median=200, prompt_sigma=0.5,
                                  text_median=100, text_sigma=1.0, rate=10.0)  # fmt: skip
    prompts, texts = (np.log([len(request.prompt) for request in requests]), np.log([r.new_tokens for r in requests]))
    assert np.exp(np.median(prompts)) == pytest.approx(200, rel=0.05)
    assert np.exp(np.median(texts)) == pytest.approx(100, rel=0.1)
    assert prompts.std() == pytest.approx(0.5, rel=0.05)
    assert texts.std() == pytest.approx(1.0, rel=0.05)
    arrivals = [request.arrival or 0.0 for request in requests]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(400, rel=0.1)
    assert {token for request in requests for token in request.prompt} == set(range(50))


def test_lognormal_requests_fit_and_are_the_same_every_time() -> None:
    requests = lognormal_requests(200, 3, vocab_size=2048, capacity=256)
    assert requests == lognormal_requests(300, 3, vocab_size=2048, capacity=256)[:200]
    assert requests != lognormal_requests(200, 4, vocab_size=2048, capacity=256)
    assert max(len(request.prompt) for request in requests) == 128
    assert max(len(request.prompt) + request.new_tokens for request in requests) == 256
    assert min(request.new_tokens for request in requests) >= 1
    assert {request.arrival for request in requests} == {0.0}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"capacity": 1}, r"Requests are drawn with capacity = 1; give at least 2\."),
        ({"text_sigma": float("nan")}, r"Requests are drawn with text_sigma = nan; give at least 0\."),
        ({"rate": 0.0}, r"Requests arrive at a rate of 0\.0 a second; give one above zero\."),
    ],
)
def test_requests_that_cannot_be_drawn(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(GpuguideError, match=message):
        lognormal_requests(**{"count": 1, "seed": 0, "vocab_size": 9, "capacity": 9, **wrong})  # type: ignore[arg-type]


# --- load tests, simulated -----------------------------------------------------------------------------


def test_bursts_have_the_same_rate_and_gaps_that_vary_more() -> None:
    requests = [Request([0], 1, priority=1)] * 4000

    def gaps(burstiness: float, seed: int = 2) -> np.ndarray:
        drawn = with_arrivals(requests, 5.0, burstiness=burstiness, seed=seed)
        assert all(request.priority == 1 for request in drawn)
        return np.diff([0.0, *(request.arrival or 0.0 for request in drawn)])

    for burstiness in (0.2, 1.0, 4.0):
        assert gaps(burstiness).mean() == pytest.approx(0.2, rel=0.15)
        assert gaps(burstiness).std() == pytest.approx(0.2 / burstiness**0.5, rel=0.15)
    assert with_arrivals(requests, 5.0) == with_arrivals(requests, 5.0, burstiness=1.0, seed=0)
    assert not np.array_equal(gaps(1.0), gaps(1.0, seed=3))


def simulated(rows: int, **settings: int) -> SimulatedScheduler:
    """A step takes 1 s and 0.5 s for each row, a prefill 0.25 s for each token."""
    return SimulatedScheduler(SimulatedEngine(rows, 500, step_time=lambda count: 1.0 + 0.5 * count,
                                              prefill_time=lambda tokens: 0.25 * tokens, **settings))  # fmt: skip


def test_simulated_times_are_those_of_the_device() -> None:
    """Unlike with a clock that the host moves, a token is there when its own step ends."""
    scheduler = simulated(1)
    scheduler.run([Request([0] * 4, 3), Request([0] * 2, 2, arrival=1.0), Request([0], 1, arrival=50.0)])
    first, second, third = scheduler.texts.values()
    assert first.times == [1.0, 2.5, 4.0]
    assert second.times == [4.5, 6.0]
    assert third.times == [50.25], "the device was idle until it arrived"
    assert (time_per_output_token(first), time_per_output_token(third)) == (1.5, 0.0)
    assert [step.seconds for step in scheduler.steps if step.rows] == [2.5, 1.5, 2.0]


@pytest.mark.parametrize("policy", ["continuous", "static"])
def test_a_simulated_run_takes_the_steps_of_a_real_one(policy: str) -> None:
    real = Scheduler(Engine(decoder(), SLOTS, CAPACITY), policy=policy, chunk=48)
    engine = SimulatedEngine(SLOTS, CAPACITY, step_time=lambda rows: 1.0, prefill_time=lambda tokens: 1.0)
    fake = SimulatedScheduler(engine, policy=policy, chunk=48)
    texts = real.run(REQUESTS)
    assert list(map(len, fake.run(REQUESTS))) == list(map(len, texts))
    assert [(step.rows, step.writing, step.read) for step in fake.steps] == [
        (step.rows, step.writing, step.read) for step in real.steps
    ]
    assert nothing_is_left(fake)


def test_simulated_pages_limit_who_enters() -> None:
    scheduler = simulated(2, pages=2)
    scheduler.run([Request([0] * PAGE, 2)] * 2)
    assert max(step.writing for step in scheduler.steps) == 1


def test_goodput_counts_who_meets_the_slo() -> None:
    scheduler = simulated(1)
    scheduler.run([Request([0] * 4, 3), Request([0] * 2, 2)])
    texts = list(scheduler.texts.values())  # first tokens at 1 s and 4.5 s, 1.5 s between tokens, all done at 6 s
    assert [slo_attainment(texts, ttft=wait, tpot=1.5) for wait in (0.5, 1.0, 4.5)] == [0.0, 0.5, 1.0]
    assert slo_attainment(texts, ttft=9.0, tpot=1.4) == 0.0
    assert duration(texts) == 6.0
    assert goodput(texts, ttft=1.0, tpot=2.0) == pytest.approx(1 / 6)
    assert goodput(texts, ttft=0.5, tpot=2.0) == 0.0
    scheduler.cancel(scheduler.submit(Request([0], 5)))
    assert slo_attainment(scheduler.texts.values(), ttft=4.5, tpot=1.5) == pytest.approx(2 / 3)


def test_what_cannot_be_simulated_or_met() -> None:
    with pytest.raises(GpuguideError, match=r"rows = 0 serves nobody"):
        simulated(0)
    with pytest.raises(GpuguideError, match="prompt has no tokens"):
        simulated(1).run([Request([], 1)])
    with pytest.raises(GpuguideError, match=r"rate = 0"):
        with_arrivals([], 0)
    with pytest.raises(GpuguideError, match=r"burstiness = inf"):
        with_arrivals([], 1.0, burstiness=float("inf"))
    with pytest.raises(GpuguideError, match=r"tpot = 0 s"):
        slo_attainment([], ttft=1, tpot=0)
    with pytest.raises(GpuguideError, match="no requests"):
        goodput([], ttft=1, tpot=1)


# --- on a GPU ------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("policy", ["continuous", "static"])
def test_texts_on_a_gpu(policy: str) -> None:
    """In fp32; stops, shared pages and cancelled requests while the host is a step behind."""
    beginning = prompt(0, PAGE)
    requests = [*REQUESTS, *(Request(beginning + prompt(place, 9), 8) for place in range(3))]
    stop = frozenset({alone(REQUESTS[2])[5]})
    gpu = prepare(loaded().model, device="cuda")
    scheduler = Scheduler(Engine(gpu, SLOTS, CAPACITY), policy=policy, chunk=48)
    scheduler.warm_up()
    numbers = [scheduler.submit(replace(request, stop=stop)) for request in requests]
    cancelled = scheduler.submit(REQUESTS[0])
    for step, _ in enumerate(scheduler.stream()):
        if step == 3:
            scheduler.cancel(cancelled)
    for number, request in zip(numbers, requests, strict=True):
        wanted = alone(request)
        ends = next((place for place, token in enumerate(wanted) if token in stop), len(wanted))
        assert scheduler.texts[number].tokens == wanted[:ends]
    assert nothing_is_left(scheduler)
    assert all(step.seconds is not None and step.seconds > 0 for step in scheduler.steps)
