from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.measure import records
from gpuguide.measure.records import Metric

Fields = dict[str, Any]


times = st.floats(1e-12, 1e6)


@given(st.lists(st.floats(-1e12, 1e12), min_size=2, max_size=200))
def test_quantiles_are_those_of_numpy(samples: list[float]) -> None:
    found = records.summarise(samples)
    expected = np.quantile(np.array(samples), [0.05, 0.25, 0.5, 0.75, 0.95])
    scale = max(map(abs, samples))
    assert found.n == len(samples)
    np.testing.assert_allclose([found.p5, found.p25, found.median, found.p75, found.p95], expected, atol=1e-12 * scale)


def test_one_sample_has_no_quantiles() -> None:
    assert records.summarise([3.5]) == records.SampleSummary(1, None, None, 3.5, None, None)


@given(st.lists(times, min_size=1, max_size=20))
def test_samples_are_kept_to_seven_digits(samples: list[float]) -> None:
    np.testing.assert_allclose(records.metric("s", samples).samples, samples, rtol=5.1e-7)


@pytest.mark.parametrize("samples", [[], [math.nan], [1.0, math.inf]])
def test_a_metric_that_no_record_could_hold_is_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="measure"):
        records.metric("s", samples)


def test_rates_are_derived_from_every_sample(record_file: Any) -> None:
    record = records.read(record_file.write(record_file.content()))
    bandwidth = record.cases[0].metrics["bandwidth"]
    assert bandwidth == Metric("B/s", (6000, 3000, 1500, 750), records.summarise([6000, 3000, 1500, 750]), (1, 3))


turns_of_samples = st.lists(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=9), min_size=1, max_size=5)


@given(turns_of_samples)
def test_the_spreads_of_turns_are_those_of_numpy(turns: list[list[float]]) -> None:
    found = records.metric("s", [each for turn in turns for each in turn], map(len, turns))
    kept = [np.array(turn) for turn in found.samples_by_turn]
    assert [len(turn) for turn in kept] == [len(turn) for turn in turns]
    several = [turn for turn in kept if len(turn) > 1]
    within = [(np.quantile(turn, 0.75) - np.quantile(turn, 0.25)) / np.median(turn) for turn in several]
    assert found.spread_within_turns == (pytest.approx(np.median(within)) if within else None)
    medians = [np.median(turn) for turn in kept]
    between = np.ptp(medians) / np.median(np.concatenate(kept))
    assert found.spread_between_turns == (pytest.approx(between) if len(turns) > 1 else None)


def test_without_turns_there_is_no_spread_of_turns() -> None:
    found = records.metric("s", [1.0, 2.0, 3.0])
    assert (found.turns, found.samples_by_turn, found.spread_within_turns, found.spread_between_turns) == (
        (),
        [],
        None,
        None,
    )


def test_a_median_of_zero_has_no_spread_in_shares() -> None:
    found = records.metric("1", [0.0, 0.0, 0.0, 0.0], [2, 2])
    assert (found.spread_within_turns, found.spread_between_turns) == (None, None)


def test_turns_that_do_not_match_the_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="turns of 5 samples in all cannot have measured 4"):
        records.metric("s", [1.0, 2.0, 3.0, 4.0], [2, 3])
