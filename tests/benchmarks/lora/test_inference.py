from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gpuguide import lora
from gpuguide.benchmarks.lora import inference, problem
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner
from gpuguide.measure.benchmark import Keys, too_large

LORA_INFERENCE = declarations.get("lora-inference")
SMALL: Keys = {"model": "tiny-llama", "targets": "all", "rank": 4, "batch": 2, "seq_len": 12}
STATES = {
    "merged": (inference.build_merged_model, True),
    "unmerged": (inference.with_adapters, True),
    "base": (problem.model, False),
}


def test_gpt2_alone_fits_a_small_card() -> None:
    small = replace(devices.fake("h100-sxm"), memory=8 * 10**9)
    cases = [keys for keys in LORA_INFERENCE.cases(small) if keys["batch"] == 1 and "gpt2" in str(keys)]
    assert cases
    assert not any(too_large(LORA_INFERENCE, keys, small) for keys in cases)


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the compiler out: it takes minutes on a processor."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-llama"])
@pytest.mark.parametrize("state", STATES)
def test_every_state_gives_the_logits_that_it_should(state: str, model: str) -> None:
    make, adapted = STATES[state]
    work = inference.work(make, devices.cpu(), {**SMALL, "model": model}, adapted=adapted)
    assert work.timing == "graph"
    assert work.check is not None
    work.check()
    assert 0 < work.further()["error"].samples[0] < inference.ACCEPTED_ERROR


@pytest.mark.usefixtures("nothing_compiled")
def test_an_adapter_that_is_not_used_is_found() -> None:
    def forgotten(keys: Keys, device: str) -> problem.Model:
        model = inference.with_adapters(keys, device)
        lora.use_adapter(model, None)
        return model

    work = inference.work(forgotten, devices.cpu(), SMALL)
    assert work.check is not None
    with pytest.raises(AssertionError, match="relative error"):
        work.check()


@pytest.mark.gpu
def test_contenders_are_right_on_a_gpu() -> None:
    for case in runner.measure_case(LORA_INFERENCE, SMALL, devices.current(), quick=True):
        assert case.status == "ok", case
