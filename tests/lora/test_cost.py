"""Parameters against models and the notes' numbers, operations against PyTorch's counter, bytes against tensors."""

from __future__ import annotations

import pytest
import small_adapted as small
import torch

from gpuguide import lora, training
from gpuguide.errors import GpuguideError
from gpuguide.lora import cost

C_ATTN, C_PROJ, C_FC, MLP_PROJ = (768, 2304), (768, 768), (768, 3072), (3072, 768)
GPT2_SMALL = 124_439_808
CHOICES = {
    "the notes'": (["c_attn", "c_proj"], [C_ATTN, C_PROJ, MLP_PROJ], 1_622_016, 1.29),
    "attention alone": (["c_attn"], [C_ATTN], 589_824, 0.47),
    "all": (["c_attn", "c_proj", "c_fc"], [C_ATTN, C_PROJ, C_FC, MLP_PROJ], 2_359_296, 1.86),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_shares_of_gpt2_are_those_that_one_reads(choice: str) -> None:
    _, layer, trained, percent = CHOICES[choice]
    share = cost.trainable_share(12 * layer, 16, GPT2_SMALL)
    assert round(share * (GPT2_SMALL + trained)) == trained
    assert round(100 * share, 2) == percent


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("choice", CHOICES)
def test_a_whole_gpt2_of_transformers_has_them(choice: str) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    targets, layer, trained, _ = CHOICES[choice]
    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config())
    lora.add_adapters(model, targets, lora.Settings(rank=16))
    count = lora.count_parameters(model)
    assert (count.trained, count.frozen) == (trained, GPT2_SMALL)
    assert count.share == cost.trainable_share(12 * layer, 16, GPT2_SMALL)


def test_a_step_takes_what_its_products_take() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.randn(7, 6, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        (x @ torch.randn(6, 10)).sum().backward()
    assert counter.get_total_flops() == 7 * cost.base_operations(6, 10)
    both = cost.step_operations([(6, 10)], [(10, 4)], 2)
    assert both == cost.lora_operations(6, 10, 2) + cost.base_operations(10, 4)


def test_large_matrices_with_thin_adapters_take_two_thirds() -> None:
    assert cost.lora_operations(4096, 4096, 8) / cost.full_operations(4096, 4096) == pytest.approx(2 / 3, rel=0.01)
    first = cost.lora_operations(4096, 4096, 8, input_gradient=False)
    assert first / cost.full_operations(4096, 4096) == pytest.approx(1 / 3, rel=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_of_training_are_those_of_the_tensors(dtype: torch.dtype) -> None:
    model = small.model().bfloat16()
    lora.add_adapters(model, ["up", "down"], lora.Settings(rank=2), dtype=dtype)
    loss = training.WithoutHead(model).loss
    step = training.TrainingStep(loss, model.parameters(), 2, 8, training.StepSettings(backend=None))
    step(small.TOKENS, small.TOKENS)
    held = {id(each): each.nbytes for each in (*model.parameters(), *step.masters.trained)}
    gradients = {
        id(each.grad): each.grad.nbytes for each in (*step.parameters, *step.masters.trained) if each.grad is not None
    }
    states = sum(
        each.nbytes for state in step.optimizer.state.values() for name, each in state.items() if name != "step"
    )
    count = lora.count_parameters(model)
    predicted = cost.training_bytes(count.frozen, count.trained, trained_bytes=4 if dtype == torch.float32 else 6)
    assert sum(held.values()) + sum(gradients.values()) + states == predicted


def test_nf4_takes_what_it_says() -> None:
    packed = lora.quantize_nf4(torch.randn(256, 256))
    assert cost.training_bytes(256 * 256, 1, frozen_bits=4 + 8 / 64 + 64 / (64 * 256)) - 16 == packed.nbytes


@pytest.mark.parametrize(
    "call",
    [
        lambda: cost.adapter_parameters(0, 1, 1),
        lambda: cost.full_operations(1, 0),
        lambda: cost.trainable_share([(1, 1)], 0, 5),
        lambda: cost.training_bytes(-1, 1),
        lambda: cost.training_bytes(1, 0),
    ],
)
def test_what_makes_no_sense_is_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(GpuguideError, match="must be"):
        call()
