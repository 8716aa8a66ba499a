"""The memory of a training step, against the tensors that are alive in one."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from alive import Ledger

from gpuguide.costs.memory import Shape
from gpuguide.errors import GpuguideError
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.precision import LossScaler, TrainingSetup, to_fp8, train_step
from gpuguide.precision.cost import SETUPS, fp8_saved_memory, step_memory

SMALL = GPT2Config(vocab_size=3008, context=128, layers=3, heads=4, hidden=128)
AUTOCAST = {"fp16": "fp16", "bf16": "bf16", "fp8": "bf16"}


def shape_of(config: GPT2Config) -> Shape:
    """Return the shape of a model, for the cost model."""
    return Shape(
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.heads,
        head_dim=config.head_dim,
        intermediate=4 * config.hidden,
        vocab=config.vocab_size,
        context=config.context,
        gated=False,
        tied=True,
        learned_positions=True,
        bias="all",
        layer_norm=True,
    )


@cache
def peak_of_a_step(precision: str, batch: int, seq_len: int) -> int:
    """Return the most bytes alive in the second step of training."""
    torch.manual_seed(0)
    model = GPT2(SMALL).to(torch.bfloat16 if precision == "pure-bf16" else torch.float32)
    if precision == "fp8":
        to_fp8(model, keep=["head"])
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = LossScaler(1024.0, enabled=precision == "fp16")
    training = TrainingSetup(model, optimizer, scaler, format=AUTOCAST.get(precision, "fp32"))
    tokens = torch.randint(SMALL.vocab_size, (2, batch, seq_len))
    with Ledger() as ledger:
        for tensor in (*model.parameters(), tokens):
            ledger.count(tensor.data)
        train_step(training, [(tokens[0], tokens[1])])
        ledger.peak = ledger.now
        train_step(training, [(tokens[0], tokens[1])])
    return ledger.peak


@pytest.mark.parametrize("precision", SETUPS)
def test_a_step_takes_what_the_tensors_alive_add_up_to(precision: str) -> None:
    workspace = 2 * 2**25
    predicted = step_memory(shape_of(SMALL), precision, 4, 128) - workspace
    assert predicted == pytest.approx(peak_of_a_step(precision, 4, 128), rel=0.016)


def test_fp8_keeps_less_than_bf16_by_what_is_counted() -> None:
    """Measured beside the prediction: the logits, which are most of a step, cannot hide an error here."""
    difference = peak_of_a_step("bf16", 4, 128) - peak_of_a_step("fp8", 4, 128)
    assert fp8_saved_memory(shape_of(SMALL), 4 * 128) == pytest.approx(difference, rel=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", SETUPS)
def test_a_step_on_a_gpu_takes_what_was_predicted(precision: str) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("the workspace that is assumed is that of Hopper")
    config = GPT2Config(vocab_size=16384, context=512, layers=4, heads=4, hidden=256)
    torch._C._cuda_clearCublasWorkspaces()
    before = torch.cuda.memory_allocated()
    with torch.device("cuda"):
        model = GPT2(config).to(torch.bfloat16 if precision == "pure-bf16" else torch.float32)
    if precision == "fp8":
        to_fp8(model, keep=["head"])
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = LossScaler(1024.0, enabled=precision == "fp16")
    training = TrainingSetup(model, optimizer, scaler, format=AUTOCAST.get(precision, "fp32"))
    tokens = torch.randint(config.vocab_size, (2, 8, 512), device="cuda")
    train_step(training, [(tokens[0], tokens[1])])
    torch.cuda.reset_peak_memory_stats()
    train_step(training, [(tokens[0], tokens[1])])
    measured = torch.cuda.max_memory_allocated() - before
    assert step_memory(shape_of(config), precision, 8, 512) == pytest.approx(measured, rel=0.03)


def test_what_makes_no_sense_is_named() -> None:
    with pytest.raises(ValueError, match="no precision 'fp12'; there are fp32, tf32, fp16"):
        step_memory(shape_of(SMALL), "fp12", 4, 128)
    with pytest.raises(GpuguideError, match="knows 128 positions"):
        step_memory(shape_of(SMALL), "bf16", 4, 256)
