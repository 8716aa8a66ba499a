"""Measuring one case from a notebook: both values where it can be measured, and the reason where it cannot."""

from __future__ import annotations

import pytest

from gpuguide.errors import UnknownName
from gpuguide.measure import reference, reference_gpu
from gpuguide.measure.here import here

COPY = "ceilings/copy:bandwidth"
LAUNCH = "ceilings/launch:time"


def test_both_values_with_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "h100-sxm")
    found = here(COPY)
    assert found.yours is not None
    published = reference.measurement(COPY)
    assert str(found).startswith(f"published {published.text} on {reference_gpu.name()} / yours ")
    assert str(found).endswith(f" on {found.where}")
    assert found.yours.unit == published.metric.unit


def test_a_few_samples_are_enough_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "h100-sxm")
    usual = here(COPY).yours
    monkeypatch.setenv("GPUGUIDE_QUICK", "1")
    quick = here(COPY).yours
    assert usual is not None
    assert quick is not None
    assert quick.summary.n < 20 <= usual.summary.n


def test_without_a_gpu_the_published_value_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUGUIDE_FAKE_DEVICE", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = here(LAUNCH)
    assert found.yours is None
    assert str(found).startswith(f"published {reference.measurement(LAUNCH).text} on {reference_gpu.name()} / yours: ")
    assert "PyTorch sees no CUDA GPU here" in str(found)


def test_a_number_format_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "t4")
    text = str(here("ceilings/matmul-fp8:throughput"))
    assert "yours: not measured, skipped on" in text
    assert "fp8" in text


def test_what_was_never_published_is_an_error() -> None:
    with pytest.raises(UnknownName):
        here("ceilings/copi:bandwidth")
