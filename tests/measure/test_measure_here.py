"""Measuring one case from a notebook: both values where it can be measured, and the reason where it cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuguide.errors import UnknownName
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import citation, page_gpu, reference_gpu, runner
from gpuguide.measure.measure_here import here

COPY = "ceilings/copy:time"
LAUNCH = "ceilings/launch:time"


def test_both_values_with_their_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "h100-sxm")
    found = here(COPY)
    assert found.yours is not None
    published = citation.measurement(COPY)
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
    assert str(found).startswith(f"published {citation.measurement(LAUNCH).text} on {reference_gpu.name()} / yours: ")
    assert "PyTorch sees no CUDA GPU here" in str(found)


def test_a_number_format_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "t4")
    text = str(here("ceilings/matmul-fp8:throughput"))
    assert "yours: not measured, skipped on" in text
    assert "fp8" in text


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let the published benchmark be one of two GPUs, and note when it is to end what it started."""
    found: list[str] = []
    together = replace(declarations.get("ceilings"), gpus=2, end=lambda: found.append("end"))
    monkeypatch.setattr(declarations, "get", lambda name: together)
    return found


def test_what_several_gpus_do_together_is_measured_on_several_and_ended(
    monkeypatch: pytest.MonkeyPatch, ended: list[str]
) -> None:
    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "h100-sxm")
    counts = []
    measure_case = runner.measure_case

    def noted(benchmark: Any, keys: Any, device: devices.Device, quick: bool) -> Any:
        counts.append(device.count)
        assert ended == []
        return measure_case(benchmark, keys, device, quick)

    monkeypatch.setattr(runner, "measure_case", noted)
    assert here(COPY).yours is not None
    assert counts == [2]
    assert ended == ["end"]


@pytest.mark.parametrize("published", [2, 8])
def test_what_all_gpus_do_is_measured_on_as_many_as_published(
    monkeypatch: pytest.MonkeyPatch, ended: list[str], published: int
) -> None:
    together, counts = replace(declarations.get("ceilings"), gpus="all"), list[Any]()
    monkeypatch.setattr(declarations, "get", lambda name: together)
    monkeypatch.setattr(page_gpu, "count", lambda slug: published)
    monkeypatch.setattr(devices, "several", lambda device, count: (counts.append(count), device)[1])
    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "h100-sxm")
    here(COPY)
    assert counts == [published]


def test_what_several_gpus_do_together_ends_when_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, ended: list[str]
) -> None:
    def interrupted(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "h100-sxm")
    monkeypatch.setattr(runner, "measure_case", interrupted)
    with pytest.raises(KeyboardInterrupt):
        here(COPY)
    assert ended == ["end"]


@pytest.mark.parametrize(
    ("gpus", "why"), [(0, "PyTorch sees no CUDA GPU here"), (1, "It needs 2 GPUs, and PyTorch sees 1.")]
)
def test_with_fewer_gpus_the_published_value_and_how_many_it_takes(
    monkeypatch: pytest.MonkeyPatch, ended: list[str], gpus: int, why: str
) -> None:
    one = devices.cpu() if gpus == 0 else replace(devices.fake("h100-sxm"), backend="cuda")
    monkeypatch.setattr(devices, "current_or_cpu", lambda: one)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    found = here(COPY)
    assert found.yours is None
    assert f"yours: not measured, {why}" in str(found)


def test_a_metric_that_the_device_does_not_give_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "h100-sxm")
    assert "gave no bandwidth" in str(here("ceilings/copy:bandwidth"))


def test_what_was_never_published_is_an_error() -> None:
    with pytest.raises(UnknownName):
        here("ceilings/copi:bandwidth")
