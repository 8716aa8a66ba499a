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
    assert records.summarise([3.5]) == records.Summary(1, None, None, 3.5, None, None)


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
    assert bandwidth == Metric("B/s", (6000, 3000, 1500, 750), records.summarise([6000, 3000, 1500, 750]))
