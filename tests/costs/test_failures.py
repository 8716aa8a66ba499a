"""The plan of saves: the formulas of the calculator are those of the simulation's module."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuguide.clusters import failures as clusters
from gpuguide.costs import failures
from gpuguide.errors import GpuguideError

numbers = st.integers(1, 10_000)


@given(numbers, numbers, numbers, numbers, st.sampled_from(["blocking", "asynchronous"]), numbers, numbers)
def test_the_plan_is_daly_s(
    gpus: int, count: int, state: int, rate: int, saving: str, stall: int, restart: int
) -> None:
    M = clusters.mean_time_between_failures(gpus, count / 1000)
    assume(restart + state / rate <= 5 * M)
    plan = failures.plan_saves(
        gpus=gpus, failures=count, state=state, rate=rate, saving=saving, stall=stall, restart=restart
    )
    blocking = saving == "blocking"
    delta = state / rate if blocking else stall / 1000
    tau = clusters.daly_interval(delta, M) if blocking else max(clusters.daly_interval(delta, M), state / rate)
    recovery = restart if blocking else restart + state / rate
    assert plan.mean_time_between_failures == pytest.approx(M)
    assert plan.interval == pytest.approx(tau)
    assert plan.lost == pytest.approx(clusters.lost_share(tau, delta, recovery, M), rel=1e-6, abs=1e-9)
    assert plan.kept + plan.lost == pytest.approx(1)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"gpus": 0}, "gpus"),
        ({"failures": 0}, "failures"),
        ({"rate": 0}, "rate"),
        ({"saving": "never"}, "saving"),
        ({"gpus": 10_000_000, "failures": 1_000_000}, "gpus"),
        ({"restart": -1}, "restart"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(GpuguideError, match=f"^{field} is"):
        failures.plan_saves(**{**failures.FIRST, **wrong})
