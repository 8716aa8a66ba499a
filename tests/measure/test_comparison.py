"""What differs between two records of one benchmark, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import synthetic_records as synthetic

from gpuguide.measure import comparison, records
from gpuguide.measure.records import Case, Rate, Record


def case(contender: str, seconds: float, rates: dict[str, Rate] | None = None, **keys: records.Key) -> Case:
    measured = {"time": records.metric("s", [seconds] * 20)}
    return Case(keys, contender, 0, "ok", correct="yes", measured=measured, rates=rates or {})


def record(*cases: Case) -> Record:
    return synthetic.record("copy-size", cases, synthetic.PUBLISHED)


def test_the_case_with_the_median_factor_is_shown_with_the_range() -> None:
    rate = {"bandwidth": Rate("B/s", 1e9)}
    published = record(*(case("copy", 1e-3, rate, working_set=size) for size in (1, 2, 3)))
    own = record(*(case("copy", 1e-3 * slower, rate, working_set=s) for s, slower in ((1, 4), (2, 0.5), (3, 2))))
    (found,) = comparison.differences(published, own)
    assert found == comparison.Difference("copy", "working_set=3", "1.00 TB/s", "500 GB/s", "0.50", "0.25 to 2.0 (3)")


def test_half_the_time_is_twice_as_fast() -> None:
    (found,) = comparison.differences(record(case("launch", 4e-6)), record(case("launch", 2e-6)))
    assert (found.published, found.yours, found.speed, found.all_cases) == ("4.00 µs", "2.00 µs", "2.0", "")


def test_only_cases_of_the_same_keys_are_compared() -> None:
    published = record(case("copy", 1.0, size=1), case("copy", 1.0, size=2))
    (found,) = comparison.differences(published, record(case("copy", 4.0, size=2), case("copy", 9.0, size=3)))
    assert (found.case, found.speed, found.all_cases) == ("size=2", "0.25", "")


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ([], "not measured"),
        ([replace(case("copy", 1.0, size=1), status="skipped", reason="needs fp8", measured={})], "skipped, needs fp8"),
        ([case("copy", 1.0, size=8)], "not measured"),
    ],
)
def test_what_is_missing_says_why(own: list[Case], reason: str) -> None:
    (found,) = comparison.differences(record(case("copy", 1.0, size=1)), record(*own))
    assert (found.published, found.yours, found.speed, found.all_cases) == ("1.00 s", reason, "", "")


def test_a_reader_without_the_telling_metric_is_not_compared_by_another() -> None:
    rate = {"throughput": Rate("FLOP/s", 1e9)}
    assert comparison.case_like(case("a", 1.0, rate), record(case("a", 1.0))) is None
