from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpuguide.benchmarks.training_memory import variants as benchmarks
from gpuguide.benchmarks.training_memory.variants import CHECKED, VARIANTS, MemoryVariant, VariantTraining
from gpuguide.gradients import kept_bytes
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import records, runner
from gpuguide.measure.benchmark import too_large

TRAINING_MEMORY = declarations.get("training-memory")
each_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


def on(gigabytes: int) -> Device:
    """Return a device that has everything but memory."""
    return replace(devices.fake("h100-sxm"), memory=gigabytes * 10**9)


@pytest.mark.parametrize(("gigabytes", "fitting"), [(8, 2), (16, 3), (24, 4), (80, 4)])
def test_what_does_not_fit_is_left_out(gigabytes: int, fitting: int) -> None:
    device = on(gigabytes)
    assert sum(not too_large(TRAINING_MEMORY, keys, device) for keys in TRAINING_MEMORY.cases(device)) == fitting


@pytest.mark.parametrize(("gpu", "lacks"), [("t4", set(VARIANTS) - {"train-fp32"}), ("h100-sxm", set())])
def test_everything_runs_on_a_fake_device_and_computes_nothing(tmp_path: Path, gpu: str, lacks: set[str]) -> None:
    outcome = runner.run([TRAINING_MEMORY], devices.fake(gpu), tmp_path, commit="c0ffee")
    (record,) = outcome.records
    assert not records.read(record.path or Path()).stale
    for case in record.cases:
        assert (case.status, case.reason) == ("ok", "") or case.contender in lacks or "GiB" in case.reason


@each_variant
def test_a_right_model_passes_the_check(variant: MemoryVariant) -> None:
    torch.manual_seed(0)
    benchmarks.check_logits(variant, "cpu")


@each_variant
def test_a_wrong_model_is_found(variant: MemoryVariant, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(setup: VariantTraining) -> torch.Tensor:
        result = right(setup)
        if result.dtype != torch.float64:
            result[:, -1] *= 1.5
        return result

    right = VariantTraining.logits
    monkeypatch.setattr(VariantTraining, "logits", wrong)
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match="relative error"):
        benchmarks.check_logits(variant, "cpu")


@each_variant
def test_a_step_trains_and_leaves_no_gradients(variant: MemoryVariant) -> None:
    torch.manual_seed(0)
    setup = VariantTraining(variant, CHECKED, "cpu")
    matrices = [weight for weight in setup.model.parameters() if weight.ndim == 2]  # bf16 is too coarse for the norms'
    before = [weight.detach().clone() for weight in matrices]
    setup.step()
    changed = [not torch.equal(old, new) for old, new in zip(before, matrices, strict=True)]
    assert all(changed) if variant.trains else not any(changed)
    assert all(weight.grad is None for weight in setup.model.parameters())


def test_each_variant_differs_from_the_others_in_what_it_says() -> None:
    steps = {name: VariantTraining(variant, CHECKED, "cpu") for name, variant in VARIANTS.items()}
    by_variant = {name: kept_bytes(step.forward) for name, step in steps.items()}
    assert by_variant["forward-bf16"] == 0
    assert by_variant["train-bf16"] < by_variant["train-mixed"] < by_variant["train-fp32"]
    assert by_variant["train-checkpointed"] < by_variant["train-mixed"] < by_variant["train-unfused"]
