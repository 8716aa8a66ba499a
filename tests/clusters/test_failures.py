"""How often a job fails and should save: formulas against papers, and against a simulation."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.clusters import failures
from gpuguide.clusters.failures import DAY, daly_interval, lost_share, simulate, young_interval
from gpuguide.errors import GpuguideError

HOUR = 3600.0


@pytest.mark.parametrize(("hours", "minutes"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_daly_s_own_examples(hours: float, minutes: float) -> None:
    """Figures 3 to 5 of the paper: a dump of 5 minutes."""
    assert daly_interval(5 * 60, hours * HOUR) / 60 == pytest.approx(minutes, rel=0.01)


def test_the_mean_time_between_failures_by_hand() -> None:
    found = failures.mean_time_between_failures(1000, 0.36525)
    assert found == pytest.approx(DAY)
    assert failures.mean_time_between_failures(2000, 0.36525) == pytest.approx(found / 2)


@given(st.floats(1e-3, 1e4), st.floats(1, 1e7))
def test_no_other_interval_loses_less(delta: float, M: float) -> None:
    if delta > M:
        return
    best = lost_share(daly_interval(delta, M), delta, 0, M)
    for factor in (0.5, 0.9, 1.1, 2):
        assert best <= lost_share(factor * daly_interval(delta, M), delta, 0, M) + 1e-9


@given(st.floats(1e-3, 1), st.floats(1e5, 1e7))
def test_for_short_saves_young_s_interval_is_daly_s(delta: float, M: float) -> None:
    assert young_interval(delta, M) == pytest.approx(daly_interval(delta, M), rel=0.01)


def test_a_save_as_long_as_the_time_between_failures_is_worth_one_try() -> None:
    assert daly_interval(100, 40) == 40


@pytest.mark.parametrize(("delta", "R"), [(10, 300), (60, 600), (600, 60), (0, 1)])
@pytest.mark.parametrize("tau", [100, 1000, 5000])
def test_the_simulation_agrees_with_daly(delta: float, R: float, tau: float) -> None:
    M = 3 * HOUR
    found = simulate(5e4 * M, tau, delta, R, M, seed=1)
    assert found.kept_share == pytest.approx(1 - lost_share(tau, delta, R, M), rel=0.01)


@pytest.mark.parametrize("write", [60, 300])
def test_a_save_in_the_background_is_a_longer_restart(write: float) -> None:
    M = 3 * HOUR
    found = simulate(5e4 * M, 600, 1, 60, M, write=write)
    assert 1 - found.kept_share == pytest.approx(lost_share(600, 1, 60 + write, M), rel=0.02)


@given(st.integers(0, 100), st.floats(1, 1e4), st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0, 1e3))
def test_all_time_is_accounted_for(seed: int, tau: float, delta: float, R: float, write: float) -> None:
    found = simulate(1e5, tau, delta, R, 5000, write=write, seed=seed)
    assert found.elapsed >= 1e5
    assert min(found.kept, found.saving, found.restarting) >= 0
    assert found.repeated >= -1e-6
    assert found == simulate(1e5, tau, delta, R, 5000, write=write, seed=seed)


def test_llama_3_fails_as_often_as_was_published() -> None:
    runs = [simulate(54 * DAY, 600, 10, 300, 54 * DAY / 419, seed=seed).failures for seed in range(200)]
    assert sum(runs) / len(runs) == pytest.approx(420, abs=3 * math.sqrt(419 / 200))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: failures.mean_time_between_failures(0, 1), "gpus"),
        (lambda: failures.mean_time_between_failures(8, 0), "failures_per_gpu_year"),
        (lambda: daly_interval(10, 0), "M"),
        (lambda: young_interval(10, -1), "M"),
        (lambda: daly_interval(0, 10), "delta"),
        (lambda: lost_share(10, 1, -1, 10), "R"),
        (lambda: lost_share(10, 1, 1, math.inf), "M"),
        (lambda: simulate(10, 0, 1, 1, 10), "tau"),
        (lambda: simulate(10, 1, 1, 1, 10, write=-1), "write"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(call: object, name: str) -> None:
    assert callable(call)
    with pytest.raises(GpuguideError, match=f"^{name} is"):
        call()
