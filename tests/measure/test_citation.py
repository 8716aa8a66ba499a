from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import synthetic_records as synthetic

from gpuguide.errors import GpuguideError
from gpuguide.measure import citation, digest, folders, records, reference_gpu
from gpuguide.measure.records import Case, Key, Rate, Record, Run

RNG = np.random.default_rng(0)
FAST, SLOW, OTHER = ([float(x) for x in RNG.lognormal(-7, 0.1, n)] for n in (24, 20, 20))


def a_run(commit: str) -> Run:
    return synthetic.run(commit=commit, simulated=False)


def ok(
    keys: dict[str, Key], contender: str, run: int, samples: list[float], turns: tuple[int, ...] = (), **further: Any
) -> Case:
    measured = {"time": records.metric("s", samples, turns), **further}
    return Case(keys, contender, run, "ok", "", "yes", measured, {"throughput": Rate("FLOP/s", 1e9)})


@pytest.fixture(autouse=True)
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish made-up records of a benchmark on the H100 and on a processor."""
    monkeypatch.setattr(folders, "published_folder", lambda: tmp_path)
    error = {"error": records.metric("1", [0.0])}
    square: dict[str, Key] = {"shape": "square", "size": 8192, "causal": True, "dropout": 0.5}
    skinny: dict[str, Key] = {"shape": "skinny", "size": 8192, "causal": False, "dropout": 0.5}
    turned: dict[str, Key] = {"shape": "turned", "size": 8192, "causal": False, "dropout": 0.5}
    cases = (
        ok(turned, "right", 0, FAST, (6, 6, 6, 6)),
        ok(turned, "zeros", 0, SLOW, (9, 5, 1, 5)),
        ok(turned, "cold-clock", 0, SLOW, (10, 10)),
        ok(turned, "inside-l2", 0, SLOW),
        ok(square, "right", 0, FAST, **error),
        ok(square, "zeros", 0, SLOW, **error),
        ok(skinny, "right", 0, FAST),
        ok(skinny, "zeros", 1, SLOW),
        Case(skinny, "no-warm-up", 1, "skipped", "needs fp8"),
    )
    for device, found in ((reference_gpu.slug(), cases), ("cpu", (ok(square, "right", 0, OTHER),))):
        used = (
            a_run("first"),
            a_run("second"),
        )[: 1 + max(case.run for case in found)]
        code = digest.benchmark_digest("timing-mistakes")
        record = Record("timing-mistakes", device, records.HARNESS_VERSION, code, used, found)
        records.write(record, tmp_path / device / "timing-mistakes.json")


def test_a_measurement_is_found() -> None:
    found = citation.measurement("timing-mistakes/right:time shape=square")
    assert found.value == pytest.approx(np.median(FAST), rel=1e-6)
    assert found.summary.n == 24
    assert found.summary.p25 == pytest.approx(np.quantile(FAST, 0.25), rel=1e-6)
    assert found.text == f"{np.median(FAST) * 1e6:.0f} µs"
    assert found.run.commit == "first"
    assert (found.record.device, found.case.contender, found.name) == (reference_gpu.slug(), "right", "time")


def test_a_derived_metric_is_found_and_a_device_can_be_named() -> None:
    found = citation.measurement("timing-mistakes/right:throughput device=cpu")
    assert found.value == pytest.approx(np.median(1e9 / np.array(OTHER)), rel=1e-6)
    assert found.metric.unit == "FLOP/s"
    assert found.record.device == "cpu"


@pytest.mark.parametrize(
    "keys",
    ["shape=square", "causal=true", "causal=true   size=8192", "shape=square dropout=0.5", "causal=true dropout=5e-1"],
)
def test_keys_are_numbers_truths_or_words(keys: str) -> None:
    assert citation.measurement(f"  timing-mistakes/right:time {keys}\n").case.keys["shape"] == "square"


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("false", False), ("8192", 8192), ("0.5", 0.5), ("1e3", 1000.0), ("-1", -1), ("bf16", "bf16")],
)
def test_values_of_keys(text: str, value: Key) -> None:
    found = citation.key_value(text)
    assert found == value
    assert type(found) is type(value)


def test_the_parts_of_a_reference() -> None:
    expected = ("a-b", "c", "d-2", "peak_memory", {"x": 1, "y": "z"}, "cpu")
    assert citation.parse("a-b/c/d-2:peak_memory x=1 device=cpu y=z") == expected
    assert citation.parse("a/b:time") == ("a", "b", None, "time", {}, None)
    assert citation.parse("a/b-0.5/c:time") == ("a", "b-0.5", "c", "time", {}, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "timing-mistakes",
        "timing-mistakes/right",
        "timing-mistakes/right:",
        "timing-mistakes/right time",
        "/right:time",
        "timing-mistakes/:time",
        "timing-mistakes/right:time shape",
        "timing-mistakes/right:time shape=",
        "timing-mistakes/right:time =square",
        "timing-mistakes/right:time shape = square",
        "timing-mistakes/right:time, shape=square",
        "timing-mistakes/a/b/c:time",
        "Timing-Mistakes/right:time",
        "timing mistakes/right:time",
        "../right:time",
    ],
)
def test_what_is_not_a_reference_is_shown_how_to_write_one(text: str) -> None:
    for read in (citation.measurement, citation.ratio):
        with pytest.raises(GpuguideError, match=r"is not a reference\. Write benchmark/contender:metric"):
            read(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("timing-mistake/right:time", ["benchmark", "Did you mean timing-mistakes"]),
        ("timing-mistakes/rihgt:time shape=square", ["contender", "Did you mean right"]),
        ("timing-mistakes/right:trougput shape=square", ["metric", "Did you mean throughput"]),
        ("timing-mistakes/right:time shape=square device=cpux", ["device", "cpu"]),
        ("timing-mistakes/right:time", ["matches 3 cases", "shape=square", "shape=skinny"]),
        ("timing-mistakes/right:time size=8192", ["matches 3 cases"]),
        ("timing-mistakes/right:time size=4096", ["matches 0 cases", "size=8192"]),
        ("timing-mistakes/right:time shaep=square", ["matches 0 cases", "shape=square"]),
        ("timing-mistakes/no-warm-up:time shape=skinny", ["no measurement", "skipped", "needs fp8"]),
        ("timing-mistakes/right/zeros:time shape=square", ["two contenders"]),
        ("timing-mistakes/right:time shape=skinny shape=square", ["'shape'", "twice"]),
        ("copy-size/copy:time", ["no published record", "copy-size"]),
    ],
)
def test_what_does_not_match_exactly_one_case_says_what_there_is(text: str, says: list[str]) -> None:
    with pytest.raises(GpuguideError) as caught:
        citation.measurement(text)
    assert not [part for part in says if part not in str(caught.value)]


def turns(samples: list[float], *counts: int) -> list[np.ndarray]:
    return np.split(np.array(samples), np.cumsum(counts)[:-1])


def test_a_ratio_pairs_the_samples_of_the_same_turn() -> None:
    found = citation.ratio("timing-mistakes/zeros/right:time shape=turned")
    slow, fast = turns(SLOW, 9, 5, 1, 5), turns(FAST, 6, 6, 6, 6)
    ratios = np.concatenate([np.divide.outer(a, b).ravel() for a, b in zip(slow, fast, strict=True)])
    assert found.unpaired == ""
    assert found.value == pytest.approx(np.median(ratios), rel=1e-5)
    assert [found.p25, found.p75] == pytest.approx(np.quantile(ratios, [0.25, 0.75]), rel=1e-5)
    assert found.summary.n == 20


def test_a_drift_from_turn_to_turn_is_not_in_a_ratio(tmp_path: Path) -> None:
    """The clock falls by a tenth each turn: both get slower, and the ratio stays what it is."""
    drift = np.repeat([1.0, 1.1, 1.2, 1.3], 5)
    square: dict[str, Key] = {"shape": "square", "size": 1, "causal": True, "dropout": 0.5}
    cases = tuple(
        ok(square, name, 0, [float(x) for x in factor * drift], (5, 5, 5, 5))
        for name, factor in (("right", 1e-3), ("zeros", 2e-3))
    )
    code = digest.benchmark_digest("timing-mistakes")
    record = Record(
        "timing-mistakes",
        "cpu",
        records.HARNESS_VERSION,
        code,
        (a_run("first"),),
        cases,
    )
    found = citation.ratio("timing-mistakes/zeros/right:time", record)
    assert [found.p25, found.value, found.p75] == pytest.approx([2, 2, 2])
    assert record.case("right").metrics["time"].spread_between_turns == pytest.approx(0.3 / 1.15)


@pytest.mark.parametrize(
    ("contender", "why"),
    [
        ("inside-l2", "the record does not say which turn a sample is of"),
        ("cold-clock", "one was measured in 2 turns and the other in 4"),
    ],
)
def test_samples_without_a_like_turn_are_paired_in_their_order_and_the_ratio_says_so(contender: str, why: str) -> None:
    found = citation.ratio(f"timing-mistakes/{contender}/right:time shape=turned")
    pairs = np.array(SLOW) / np.array(FAST[:20])
    assert found.unpaired == why
    assert found.value == pytest.approx(np.median(pairs), rel=1e-5)
    assert found.summary.n == 20


def test_a_ratio_of_an_old_record_is_that_of_samples_paired_in_their_order() -> None:
    found = citation.ratio("timing-mistakes/zeros/right:time shape=square")
    pairs = np.array(SLOW) / np.array(FAST[:20])
    assert found.summary.n == 20
    assert found.value == pytest.approx(np.median(pairs), rel=1e-5)
    assert [found.p25, found.p75] == pytest.approx(np.quantile(pairs, [0.25, 0.75]), rel=1e-5)
    assert found.text == f"{np.median(pairs):.3g}"
    assert found.unpaired == "the record does not say which turn a sample is of"
    assert (found.numerator.contender, found.denominator.contender) == ("zeros", "right")
    assert found.run.commit == "first"


def test_a_ratio_of_rates_is_the_inverse_of_that_of_times() -> None:
    rates = citation.ratio("timing-mistakes/right/zeros:throughput shape=square")
    times = citation.ratio("timing-mistakes/zeros/right:time shape=square")
    assert rates.value == pytest.approx(times.value, rel=1e-5)
    assert citation.ratio("timing-mistakes/right/right:time shape=square").summary.p95 == 1


def test_a_ratio_of_single_values_has_no_spread() -> None:
    """A peak of memory has no turns, and one value over one value needs none."""
    memory = {name: records.metric("B", [size]) for name, size in (("right", 2048.0), ("zeros", 4096.0))}
    cases = tuple(ok({}, name, 0, FAST, peak_memory=metric) for name, metric in memory.items())
    code = digest.benchmark_digest("timing-mistakes")
    record = Record(
        "timing-mistakes",
        "cpu",
        records.HARNESS_VERSION,
        code,
        (a_run("first"),),
        cases,
    )
    single = citation.ratio("timing-mistakes/zeros/right:peak_memory", record)
    assert single.p25 == single.value == single.p75 == 2
    assert (single.unpaired, single.summary.n) == ("", 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("timing-mistakes/right:time shape=square", "names one contender"),
        ("timing-mistakes/right/zeros:time shape=skinny", "different runs"),
        ("timing-mistakes/right/no-warm-up:time shape=skinny", "no measurement"),
        ("timing-mistakes/right/zeroes:time shape=square", "Did you mean zeros"),
        ("timing-mistakes/right/zeros:time", "matches 3 cases"),
        ("timing-mistakes/right/zeros:error shape=square", "zero"),
    ],
)
def test_a_ratio_that_cannot_be_had_says_why(text: str, says: str) -> None:
    with pytest.raises(GpuguideError, match=says):
        citation.ratio(text)
