"""Comparisons in words, and the predicates that make them true."""

from __future__ import annotations

from pathlib import Path

import pytest
import synthetic_records as synthetic

from gpuguide.claims import assertion, expression
from gpuguide.errors import GpuguideError
from gpuguide.measure import folders, reference_gpu

RATIO = 'ratio("timing-mistakes/zeros/right:throughput shape=square")'


@pytest.fixture(autouse=True)
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "published_folder", lambda: tmp_path)
    monkeypatch.setattr(reference_gpu, "slug", lambda: synthetic.PUBLISHED[0])
    synthetic.write_all(tmp_path)


def test_words_that_hold_give_what_they_rest_on() -> None:
    found = assertion.read(f"faster, by far | {RATIO}.p25 > 1 and measurement('ceilings/copy:bandwidth').p5 > 1e12")
    assert found.words == "faster, by far"
    assert [reading.record.benchmark for reading in assertion.check(found)] == ["timing-mistakes", "ceilings"]


def test_words_that_do_not_hold_say_what_was_found() -> None:
    with pytest.raises(assertion.DoesNotHold) as caught:
        assertion.check(assertion.read(f"slower | {RATIO}.p75 < 1"))
    for part in ("'slower' does not hold on NVIDIA H100 80GB HBM3", f"{RATIO}.p75 < 1 is false", "is 1.25 (p25–p75 "):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("faster", "is no assertion"),
        ("| 1 > 2", "is no assertion"),
        ("faster |", "is no assertion"),
        ("faster | 2 > 1", "reads no record"),
        ("faster | datasheet('h200', 'sms') > 1", "reads no record"),
        ("faster | ratio(", "is not an expression"),
        (f"faster | {RATIO}.p25", "neither true nor false"),
        ("faster | ratio('timing-mistakes/zero/right:throughput').p25 > 1", "no contender"),
        ("faster | __import__('os') > 1", "__import__"),
    ],
)
def test_what_is_no_assertion_is_refused(text: str, says: str) -> None:
    with pytest.raises(GpuguideError, match=says):
        assertion.check(assertion.read(text))


def test_no_assertion_rests_on_another_gpu(tmp_path: Path) -> None:
    synthetic.write_all(tmp_path, synthetic.OTHER)
    for device, says in (("nvidia-h200", "NVIDIA H200 is drawn in figures only"), ("cpu", None)):
        synthetic.write_all(tmp_path, ("cpu", "A processor"))
        found = assertion.read(f"fast | measurement('ceilings/copy:bandwidth device={device}').p25 > 1e9")
        if says is None:
            assert assertion.check(found)[0].record.device == "cpu"
        else:
            with pytest.raises(GpuguideError, match=says):
                assertion.check(found)


def test_the_ledger_names_the_gpu() -> None:
    assert expression.evaluate("gpu('a short')") == "an H100"
    assert expression.evaluate("datasheet('reference', 'sms')") == 132
    assert expression.lookups(expression.parse("gpu('short')")) == [("gpu", ("short",))]
    for wrong in ("gpu(1)", "gpu('a', 'b')", "gpu('shrt')"):
        with pytest.raises(GpuguideError):
            expression.evaluate(wrong)
