"""What a step costs, against operations that PyTorch counts."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gpuguide.finetuning.memory_check import shape_of
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.training import rungs
from gpuguide.training.cost import Rates, step_cost
from gpuguide.training.rungs import ALL, RUNGS

CONFIG = GPT2Config(vocab_size=128, context=32, layers=2, heads=2, hidden=64)
SMALL = shape_of(GPT2Config(vocab_size=50304))
H200 = Rates({"bf16": 650e12, "fp32": 50e12}, 4e12)


def test_operations_are_those_that_pytorch_counts() -> None:
    """Attention's own are left out, of which PyTorch counts both halves, and ours the half that a mask leaves."""
    model = GPT2(CONFIG)
    tokens = torch.randint(128, (3, 32))
    with FlopCounterMode(display=False) as counter:
        rungs.whole_loss(model)(tokens, tokens).backward()
    counted = sum(
        flops for operation, flops in counter.get_flop_counts()["Global"].items() if "attention" not in str(operation)
    )
    cost = step_cost(shape_of(CONFIG), 3, 32)
    assert counted == sum(part.flops for part in cost.parts if part.name != "attention")


@pytest.mark.parametrize("name", [name for name in RUNGS if name != "graph"])
def test_a_step_without_a_rung_is_predicted_to_be_slower(name: str) -> None:
    left_out = {"bf16", "weights"} if name == "bf16" else {name}
    assert step_cost(SMALL, 64, 512, ALL - left_out).seconds(H200) > step_cost(SMALL, 64, 512).seconds(H200)


def test_a_small_step_is_bound_by_its_launches_unless_it_is_captured() -> None:
    launched, captured = step_cost(SMALL, 1, 64, ALL - {"graph"}), step_cost(SMALL, 1, 64)
    assert launched.seconds(H200) > sum(launched.part_seconds(H200).values())
    assert captured.seconds(H200) == sum(captured.part_seconds(H200).values())
