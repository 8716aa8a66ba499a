from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fake_devices import on

from gpuguide.benchmarks import sampling as benchmarks
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.measure import benchmark as declarations
from gpuguide.measure.benchmark import Benchmark, Keys, find_missing_feature, too_large
from gpuguide.sampling.reference import SamplingSettings

SAMPLE_TOKEN, OTHER_SETTINGS = BOTH = [declarations.get(name) for name in ("sample-token", "sample-token-settings")]
SMALL: Keys = {"batch": 8, "vocab": 5003, "logits": "flat"}
PREPARED = {"gpuguide": benchmarks.ours, "transformers": benchmarks.with_transformers, "torch": benchmarks.with_torch}
each = pytest.mark.parametrize("benchmark", BOTH, ids=lambda benchmark: benchmark.name)


# --- declarations ----------------------------------------------------------------------------------------


def test_other_settings_are_drawn_with_from_few_and_from_many_rows_of_one_vocabulary() -> None:
    cases = OTHER_SETTINGS.cases(on(80))
    assert [tuple(keys.items()) for keys in cases] == [
        (("batch", batch), ("vocab", 128256), ("settings", settings))
        for batch in (1, 64, 256)
        for settings in ("top-k-top-p", "top-p", "plain", "min-p")
    ]
    assert [settings.top_k for settings in benchmarks.SETTINGS.values()] == [50, 0, 0, 0]


@each
def test_a_processor_is_not_asked(benchmark: Benchmark) -> None:
    assert benchmark.cases(devices.cpu()) == []
    for contender in benchmark.contenders.values():
        assert find_missing_feature(contender.needs, devices.cpu()) == "needs a GPU"
        assert find_missing_feature(contender.needs, devices.fake("t4")) is None


@each
@pytest.mark.parametrize("gigabytes", [8, 16, 24, 48, 80, 141])
def test_everything_fits_every_gpu(benchmark: Benchmark, gigabytes: int) -> None:
    device = on(gigabytes)
    assert not any(too_large(benchmark, keys, device) for keys in benchmark.cases(device))


def test_declared_memory_covers_all_inputs_and_the_sort_that_checks_them() -> None:
    """Beside an input a contender, the check holds float64 logits twice and int64 indices."""
    for keys in SAMPLE_TOKEN.cases(on(80)):
        logits = torch.empty(int(keys["batch"]), int(keys["vocab"]), device="meta")
        ordered = logits.double().sort(dim=-1)
        checking = logits.double().nbytes + ordered.values.nbytes + ordered.indices.nbytes
        assert len(SAMPLE_TOKEN.contenders) * logits.nbytes + checking <= SAMPLE_TOKEN.memory(keys)


def test_declared_memory_covers_a_check_that_looks_at_the_whole_vocabulary() -> None:
    """Beside an input a contender, what a graph keeps of a sort and a softmax, and ten tensors in float64."""
    for keys in OTHER_SETTINGS.cases(on(80)):
        logits = torch.empty(int(keys["batch"]), int(keys["vocab"]), device="meta")
        held = len(OTHER_SETTINGS.contenders) * logits.nbytes
        in_graph = 7 * logits.nbytes
        assert held + in_graph + 10 * logits.double().nbytes <= OTHER_SETTINGS.memory(keys)


# --- work ------------------------------------------------------------------------------------------------


def test_the_work_is_counted_as_the_cost_model_does() -> None:
    """The host's clock is asked, since what it launches is part of the time."""
    work = benchmarks.work(benchmarks.with_torch, devices.cpu(), SMALL, graph=False)
    assert work.rates["bandwidth"].per_call == work.footprint == 8 * 5003 * 4
    assert work.rates["throughput"].per_call == 8
    assert work.timing == "wall"
    assert work.calls[0]().shape == (8,)


def test_inputs_that_would_stay_in_the_cache_are_many() -> None:
    device = replace(devices.cpu(), l2=500_000)
    work = benchmarks.work(benchmarks.with_torch, device, SMALL, graph=False)
    assert work.footprint * len(work.calls) >= 2 * device.l2
    assert len(work.calls) > 1


def test_peaked_logits_are_farther_apart() -> None:
    drawn = {}

    def prepare(device: Device, batch: int, settings: SamplingSettings) -> benchmarks.Sample:
        def spread(logits: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            drawn[shape] = float(logits.std())
            return logits.argmax(dim=-1)

        return spread

    for shape in ("flat", "peaked"):
        benchmarks.work(prepare, devices.cpu(), {**SMALL, "logits": shape}, graph=False).calls[0]()
    assert drawn == {"flat": pytest.approx(1, rel=0.05), "peaked": pytest.approx(5, rel=0.05)}


@pytest.mark.parametrize("shape", ["flat", "peaked"])
@pytest.mark.parametrize("settings", benchmarks.SETTINGS)
@pytest.mark.parametrize("name", PREPARED)
def test_every_sampler_passes_the_check(name: str, settings: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "CHECKED_DRAWS", 4)
    if name == "transformers":
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    keys = {**SMALL, "logits": shape, "settings": settings}
    work = benchmarks.work(PREPARED[name], devices.cpu(), keys, graph=False)
    assert work.check is not None
    work.check()


CUTS = {
    "top-k": (benchmarks.USUAL, SamplingSettings(temperature=0.8, top_p=0.9)),
    "top-p after top-k": (benchmarks.USUAL, SamplingSettings(temperature=0.8, top_k=50)),
    "top-p alone": (benchmarks.SETTINGS["top-p"], benchmarks.SETTINGS["plain"]),
    "min-p": (benchmarks.SETTINGS["min-p"], benchmarks.SETTINGS["plain"]),
}
"""Settings, and the same without one of the cuts"""


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", PREPARED)
def test_a_sampler_that_leaves_out_a_cut_is_found(name: str, cut: str) -> None:
    if name == "transformers":
        pytest.importorskip("transformers")
    torch.manual_seed(0)
    asked, used = CUTS[cut]
    sample = PREPARED[name](devices.cpu(), 8, used)
    with pytest.raises(AssertionError, match="a token was drawn that is not kept"):
        benchmarks.check(sample, torch.randn(8, 5003), asked)


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a stand-in for FlashInfer's samplers in its place: the same arguments, and the tokens in int32 as there."""

    def sample(logits: torch.Tensor, settings: SamplingSettings, seed: torch.Tensor) -> torch.Tensor:
        assert seed.shape == (1,)
        return benchmarks.with_torch(devices.cpu(), len(logits), settings)(logits, seed).int()

    def from_probabilities(probabilities: torch.Tensor, settings: SamplingSettings, seed: torch.Tensor) -> torch.Tensor:
        assert torch.allclose(probabilities.sum(dim=-1), torch.ones(len(probabilities)))
        return sample(probabilities.log(), settings, seed)

    sampling = SimpleNamespace(
        softmax=lambda logits, temperature: torch.softmax(logits / temperature, dim=-1),
        top_k_top_p_sampling_from_logits=lambda logits, top_k, top_p, *, seed, offset: sample(
            logits, SamplingSettings(top_k=top_k, top_p=top_p), seed
        ),
        top_p_sampling_from_probs=lambda probabilities, top_p, *, seed, offset: from_probabilities(
            probabilities, SamplingSettings(top_p=top_p), seed
        ),
        min_p_sampling_from_probs=lambda probabilities, min_p, *, seed, offset: from_probabilities(
            probabilities, SamplingSettings(min_p=min_p), seed
        ),
        sampling_from_logits=lambda logits, *, seed, offset: sample(logits, SamplingSettings(), seed),
    )
    monkeypatch.setitem(sys.modules, "flashinfer", SimpleNamespace(sampling=sampling))


@pytest.mark.usefixtures("flashinfer")
@pytest.mark.parametrize("settings", benchmarks.SETTINGS)
def test_flashinfer_is_asked_for_the_cuts_of_each_setting(settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "CHECKED_DRAWS", 4)
    torch.manual_seed(0)
    keys = {**SMALL, "settings": settings}
    work = benchmarks.work(benchmarks.with_flashinfer, devices.cpu(), keys, graph=False)
    assert work.check is not None
    work.check()


@pytest.mark.usefixtures("flashinfer")
@pytest.mark.parametrize("cut", CUTS)
def test_flashinfer_asked_for_one_cut_less_is_found(cut: str) -> None:
    torch.manual_seed(0)
    asked, used = CUTS[cut]
    sample = benchmarks.with_flashinfer(devices.cpu(), 8, used)
    with pytest.raises(AssertionError, match="a token was drawn that is not kept"):
        benchmarks.check(sample, torch.randn(8, 5003), asked)


@pytest.mark.usefixtures("flashinfer")
def test_flashinfer_has_no_function_for_min_p_after_top_k() -> None:
    with pytest.raises(ValueError, match=r"min_p=0\.05"):
        benchmarks.with_flashinfer(devices.cpu(), 8, SamplingSettings(top_k=50, min_p=0.05))


def test_a_sampler_that_takes_another_row_is_found() -> None:
    torch.manual_seed(0)
    sample = benchmarks.with_torch(devices.cpu(), 8, benchmarks.USUAL)
    with pytest.raises(AssertionError, match="a token was drawn that is not kept"):
        benchmarks.check(lambda logits, step: sample(logits, step).roll(1), torch.randn(8, 5003), benchmarks.USUAL)


def test_the_check_draws_other_tokens_each_time() -> None:
    """Of a few that are kept it sees all: a sampler with seeds draws the same at the same step."""
    seen = set()
    sample = benchmarks.ours(devices.cpu(), 1, benchmarks.USUAL)

    def watched(logits: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        seen.add((int(step), int(sample(logits, step))))
        return sample(logits, step)

    benchmarks.check(watched, torch.arange(4.0).log1p().reshape(1, 4), benchmarks.USUAL)
    assert sorted(step for step, _ in seen) == list(range(benchmarks.CHECKED_DRAWS))
    assert {token for _, token in seen} == {1, 2, 3}


def test_our_sampler_has_a_seed_for_each_row() -> None:
    """Rows with the same logits draw different tokens."""
    sample = benchmarks.ours(devices.cpu(), 64, benchmarks.USUAL)
    assert len(set(sample(torch.zeros(64, 5003), torch.tensor(0)).tolist())) > 50


def test_contenders_name_the_libraries_that_they_call() -> None:
    """Without one of them the harness skips the contender, with the command that installs it."""
    for benchmark in BOTH:
        assert benchmark.contenders["transformers"].libraries == ("transformers",)
        assert benchmark.contenders["flashinfer"].libraries == ("flashinfer",)
        assert not benchmark.contenders["gpuguide"].libraries
