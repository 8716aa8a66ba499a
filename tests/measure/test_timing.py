from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuguide.measure import timing


class Clock:
    """A clock that work moves on."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.calls = 0

    def work(self, seconds: float) -> None:
        self.calls += 1
        self.now += seconds

    def perf_counter(self) -> float:
        return self.now

    def perf_counter_ns(self) -> int:
        return round(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


@pytest.mark.parametrize("seconds", [1e-6, 0.04, 3.0])
def test_the_hosts_clock_gives_the_time_of_one_call(clock: Clock, seconds: float) -> None:
    sample = timing.wall_clock(lambda: clock.work(seconds))
    assert sample() == pytest.approx(seconds, rel=1e-3)
    assert clock.calls == 1


def test_work_before_the_call_does_not_count_and_its_own_is_waited_for(clock: Clock) -> None:
    """A device that works on its own: a call queues work, and only waiting for it takes time."""
    queued = [7.0]

    def synchronize() -> None:
        clock.now += sum(queued)
        queued.clear()

    sample = timing.wall_clock(lambda: queued.append(0.25), synchronize)
    assert sample() == pytest.approx(0.25)
    assert queued == []


def test_warming_up_goes_on_until_enough_time_has_passed(clock: Clock) -> None:
    timing.warm_up(lambda: clock.work(0.001), lambda: None)
    assert clock.calls * 0.001 == pytest.approx(timing.WARM_UP_SECONDS, abs=0.0011)


def test_warming_up_makes_some_calls_however_slow_they_are_and_returns_the_last(clock: Clock) -> None:
    seconds = iter([5.0, 2.0, 1.0])
    assert timing.warm_up(lambda: clock.work(next(seconds)), lambda: None) == pytest.approx(1.0)
    assert clock.calls == timing.WARM_UP_CALLS == 3


def test_warming_up_waits_for_the_work(clock: Clock) -> None:
    def waits() -> Iterator[float]:
        while True:
            yield 0.02

    pending = waits()

    def synchronize() -> None:
        clock.now += next(pending)

    assert timing.warm_up(lambda: None, synchronize) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("launching", "flushing", "count"), [(0.0, 90e-6, 1), (45e-6, 90e-6, 1), (46e-6, 90e-6, 2), (1.0, 90e-6, 16)]
)
def test_the_cache_is_overwritten_for_as_long_as_two_launches_take(
    launching: float, flushing: float, count: int
) -> None:
    assert timing.flushes(launching, flushing) == count
