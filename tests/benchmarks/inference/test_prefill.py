from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gpuguide.benchmarks.inference import prefill
from gpuguide.costs import presets
from gpuguide.hardware import device as devices
from gpuguide.inference import cost
from gpuguide.measure import benchmark as declarations
from gpuguide.measure.benchmark import Keys, too_large
from gpuguide.models import shapes

PREFILL = declarations.get("prefill")
MAKERS = {"gpuguide": prefill.ours, "transformers": prefill.hugging_face}
SMALL: Keys = {"model": "tiny-llama", "batch": 3, "prompt": 40}


def test_prompts_are_short_and_long_and_known_to_the_models() -> None:
    cases = PREFILL.cases(devices.fake("h100-sxm"))
    assert all(list(keys) == ["model", "batch", "prompt"] for keys in cases)
    assert {keys["model"] for keys in cases} == {"gpt2-small", "llama-1b-shape", "llama-7b-shape"}
    for keys in cases:
        assert 64 <= int(keys["prompt"]) <= min(4096, shapes.config(str(keys["model"])).context)
    assert PREFILL.cases(devices.cpu()) == []


def test_everything_fits_an_h100_and_the_small_model_every_card() -> None:
    for gigabytes in (8, 80):
        device = replace(devices.fake("h100-sxm"), memory=gigabytes * 10**9)
        for keys in PREFILL.cases(device):
            if gigabytes == 80 or keys["model"] == "gpt2-small":
                assert not too_large(PREFILL, keys, device)


def test_work_is_counted_as_the_cost_model_does() -> None:
    keys: Keys = {"model": "llama-7b-shape", "batch": 2, "prompt": 100}
    rates = prefill.rates(keys)
    assert rates["throughput"].per_call == 2 * cost.prefill_flops(presets.shape("llama-2-7b"), 100)
    assert rates["token_rate"].per_call == 200


@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-llama", "tiny-llama-untied"])
@pytest.mark.parametrize("name", MAKERS)
def test_both_return_the_logits_after_the_last_token(name: str, model: str) -> None:
    work = prefill.work(MAKERS[name], devices.cpu(), {**SMALL, "model": model})
    assert work.timing == "wall"
    assert work.check is not None
    logits = work.calls[0]()
    assert isinstance(logits, torch.Tensor)
    assert logits.shape == (3, 512)
    for _ in range(2):
        work.check()


def test_other_logits_are_found() -> None:
    read = prefill.ours(devices.cpu(), SMALL)
    prefill.check(read(), devices.cpu(), SMALL)
    with pytest.raises(AssertionError, match="the relative error is"):
        prefill.check(read().flip(0), devices.cpu(), SMALL)
    with pytest.raises(AssertionError, match="the relative error is"):
        prefill.check(1.06 * read(), devices.cpu(), SMALL)
