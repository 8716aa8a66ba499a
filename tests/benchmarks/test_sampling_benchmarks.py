from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpuguide.benchmarks import sampling as benchmarks
from gpuguide.errors import GpuguideError
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import records, runner
from gpuguide.measure.benchmark import Keys, lacking, too_large

SAMPLE_TOKEN = declarations.get("sample-token")
SMALL: Keys = {"batch": 8, "vocab": 5003, "logits": "flat"}


def on(gigabytes: int) -> Device:
    """Return a device that has everything but memory."""
    return replace(devices.fake("h100-sxm"), memory=gigabytes * 10**9)


# --- declarations ----------------------------------------------------------------------------------------


def test_the_cases_are_all_batches_vocabularies_and_shapes_of_logits() -> None:
    cases = SAMPLE_TOKEN.cases(on(80))
    assert all(list(keys) == ["batch", "vocab", "logits"] for keys in cases)
    assert len(cases) == len({tuple(keys.values()) for keys in cases}) == 24
    assert {(keys["batch"], keys["vocab"], keys["logits"]) for keys in cases} == {
        (batch, vocab, logits)
        for batch in (1, 8, 64, 256)
        for vocab in (50304, 128256, 262144)
        for logits in ("flat", "peaked")
    }


def test_a_processor_is_not_asked() -> None:
    assert SAMPLE_TOKEN.cases(devices.cpu()) == []
    for contender in SAMPLE_TOKEN.contenders.values():
        assert lacking(contender, devices.cpu()) == "needs a GPU"
        assert lacking(contender, devices.fake("t4")) is None


@pytest.mark.parametrize("gigabytes", [8, 16, 24, 48, 80, 141])
def test_everything_fits_every_gpu(gigabytes: int) -> None:
    device = on(gigabytes)
    assert not any(too_large(SAMPLE_TOKEN, keys, device) for keys in SAMPLE_TOKEN.cases(device))


def test_declared_memory_covers_all_inputs_and_the_sort_that_checks_them() -> None:
    """Beside an input a contender, the check holds float64 logits twice and int64 indices."""
    for keys in SAMPLE_TOKEN.cases(on(80)):
        logits = torch.empty(int(keys["batch"]), int(keys["vocab"]), device="meta")
        ordered = logits.double().sort(dim=-1)
        checking = logits.double().nbytes + ordered.values.nbytes + ordered.indices.nbytes
        assert len(SAMPLE_TOKEN.contenders) * logits.nbytes + checking <= SAMPLE_TOKEN.memory(keys)


def test_everything_runs_on_a_fake_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setattr(runner, "_release_memory", lambda device: None)
    outcome = runner.run([SAMPLE_TOKEN], devices.fake("h100-sxm"), tmp_path, commit="c0ffee")
    (record,) = outcome.records
    assert not records.read(record.path or Path()).stale
    assert len(record.cases) == 24 * len(SAMPLE_TOKEN.contenders)
    assert {(case.status, case.reason) for case in record.cases} == {("ok", "")}


# --- work ------------------------------------------------------------------------------------------------


def test_the_work_is_counted_as_the_cost_model_does() -> None:
    """The host's clock is asked, since what it launches is part of the time."""
    work = benchmarks.work(benchmarks.with_topk, devices.cpu(), SMALL, graph=False)
    assert work.rates["bandwidth"].per_call == work.footprint == 8 * 5003 * 4
    assert work.rates["throughput"].per_call == 8
    assert work.timing == "wall"
    assert work.calls[0]().shape == (8,)


def test_inputs_that_would_stay_in_the_cache_are_many() -> None:
    device = replace(devices.cpu(), l2=500_000)
    work = benchmarks.work(benchmarks.with_topk, device, SMALL, graph=False)
    assert work.footprint * len(work.calls) >= 2 * device.l2
    assert len(work.calls) > 1


def test_peaked_logits_are_farther_apart() -> None:
    drawn = {}

    def spread(logits: torch.Tensor) -> torch.Tensor:
        drawn[shape] = float(logits.std())
        return logits.argmax(dim=-1)

    for shape in ("flat", "peaked"):
        benchmarks.work(spread, devices.cpu(), {**SMALL, "logits": shape}, graph=False).calls[0]()
    assert drawn == {"flat": pytest.approx(1, rel=0.05), "peaked": pytest.approx(5, rel=0.05)}


@pytest.mark.parametrize("shape", ["flat", "peaked"])
@pytest.mark.parametrize("name", ["gpuguide", "transformers", "torch-topk"])
def test_every_sampler_passes_the_check(name: str, shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks, "CHECKED_DRAWS", 4)
    if name == "transformers":
        pytest.importorskip("transformers")
    samplers = {
        "gpuguide": lambda: benchmarks.ours(devices.cpu(), 8),
        "transformers": benchmarks.with_transformers,
        "torch-topk": lambda: benchmarks.with_topk,
    }
    torch.manual_seed(0)
    work = benchmarks.work(samplers[name](), devices.cpu(), {**SMALL, "logits": shape}, graph=False)
    assert work.check is not None
    work.check()


def without_top_k(logits: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(torch.softmax(logits / benchmarks.TEMPERATURE, dim=-1), 1).squeeze(1)


def without_top_p(logits: torch.Tensor) -> torch.Tensor:
    values, tokens = logits.topk(benchmarks.TOP_K, dim=-1)
    drawn = torch.multinomial(torch.softmax(values / benchmarks.TEMPERATURE, dim=-1), 1)
    return tokens.gather(-1, drawn).squeeze(1)


def the_next_row(logits: torch.Tensor) -> torch.Tensor:
    return benchmarks.with_topk(logits).roll(1)


@pytest.mark.parametrize("wrong", [without_top_k, without_top_p, the_next_row])
def test_a_sampler_that_draws_what_is_not_kept_is_found(wrong: benchmarks.Sample) -> None:
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match="a token was drawn that is not kept"):
        benchmarks.check(wrong, torch.randn(8, 5003))


def test_our_sampler_has_a_seed_for_each_row() -> None:
    """Rows with the same logits draw different tokens."""
    sample = benchmarks.ours(devices.cpu(), 64)
    assert len(set(sample(torch.zeros(64, 5003)).tolist())) > 50


def test_without_transformers_its_contender_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.generation", None)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(GpuguideError, match=r"^transformers is not installed; it comes with the extra peers\.$"):
        benchmarks.with_transformers()
