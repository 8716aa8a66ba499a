"""Settings of each precision in a training step, and the preparation of a model: compiled, captured, in fp8."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from gpuguide.measure.benchmark import Keys
from gpuguide.models.gpt2 import GPT2
from gpuguide.precision import autocast, to_fp8

HEAD = "head"
Prepare = Callable[[GPT2, Keys], GPT2]
"""Function that prepares a model for the steps of a case"""


@dataclass(frozen=True)
class PrecisionMethod:
    """Settings of a precision."""

    autocast: str = "fp32"
    weights: torch.dtype = torch.float32
    """Dtype of the weights, and of the optimizer's states"""
    matmul_precision: str = "highest"
    """Precision of fp32 matmuls, as in ``torch.set_float32_matmul_precision``"""
    scaled: bool = False
    needs: frozenset[str] = frozenset()
    accepted: float = 5e-5
    """Largest accepted error of all gradients together against float64, as a ratio of norms"""


METHODS = {
    "fp32": PrecisionMethod(),
    "tf32": PrecisionMethod(matmul_precision="high", needs=frozenset({"tf32"}), accepted=3e-3),
    "fp16": PrecisionMethod("fp16", scaled=True, needs=frozenset({"fp16"}), accepted=5e-3),
    "bf16": PrecisionMethod("bf16", needs=frozenset({"bf16"}), accepted=1e-2),
    "pure-bf16": PrecisionMethod(weights=torch.bfloat16, needs=frozenset({"bf16"}), accepted=5e-2),
    "fp8": PrecisionMethod("bf16", needs=frozenset({"bf16", "fp8"}), accepted=2e-1),
}


def prepare_fp8(model: GPT2, keys: Keys) -> GPT2:
    """Return a model whose layers multiply in fp8, where that is the precision."""
    if keys["precision"] == "fp8":
        to_fp8(model, keep=[HEAD])
    return model


def compile_blocks(model: GPT2, keys: Keys) -> GPT2:
    """Return the same with its blocks compiled, anew for this case: one block is compiled, and serves for all.

    The contenders after this one forget nothing, which would be the compiled model of this one.
    """
    torch.compiler.reset()
    return with_compiled_blocks(prepare_fp8(model, keys))


def capture_blocks(model: GPT2, keys: Keys) -> GPT2:
    """Return a model with compiled blocks that are captured in CUDA graphs."""
    return with_captured_blocks(with_compiled_blocks(prepare_fp8(model, keys)), keys)


def convert_torchao(model: GPT2, keys: Keys) -> GPT2:
    """Return a model with layers of torchao in fp8, one scale a tensor, and compiled blocks."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig.from_recipe_name("tensorwise")
    convert_to_float8_training(model, module_filter_fn=lambda module, name: name != HEAD, config=config)
    return with_compiled_blocks(model)


def capture_torchao(model: GPT2, keys: Keys) -> GPT2:
    """Return the same, captured in CUDA graphs."""
    return with_captured_blocks(convert_torchao(model, keys), keys)


CAPTURED = (capture_blocks, capture_torchao)


def with_compiled_blocks(model: GPT2) -> GPT2:
    """Compile the blocks of a model in place."""
    for block in model.blocks:
        block.compile(dynamic=False)
    return model


def with_captured_blocks(model: GPT2, keys: Keys) -> GPT2:
    """Capture all blocks of a model in place: in one CUDA graph forward, and in one backward.

    Gradients are where the graph wrote them last, and the next backward pass overwrites them, so each step has one
    micro-batch. Source: https://github.com/pytorch/pytorch/issues/181723. The shape of the input, autocast's format and
    how matmuls in fp32 are computed are those of the capture, whatever surrounds a later call.
    """
    method, weight, blocks = METHODS[str(keys["precision"])], model.token_embedding.weight, nn.Sequential(*model.blocks)
    shape = (int(keys["batch"]), int(keys["seq_len"]), model.config.hidden)
    example = torch.zeros(shape, dtype=method.weights, device=weight.device, requires_grad=True)
    with (
        fp32_matmul_precision(method.matmul_precision),
        autocast(method.autocast, weight.device),
        disable_autocast_cache(),
    ):
        torch.cuda.make_graphed_callables(blocks, (example,))
    model.blocks = nn.ModuleList([blocks])
    return model


@contextmanager
def disable_autocast_cache() -> Iterator[None]:
    """Let autocast keep no copies of weights inside the block: a graph would read those of its first step for ever."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextmanager
def fp32_matmul_precision(precision: str) -> Iterator[None]:
    """Let matmuls in fp32 be computed in TF32 (``"high"``) or not (``"highest"``) inside the block.

    This is the older way to say so, and the one that the compiler of PyTorch 2.11 understands: it stops where only
    the newer one was used. Source: https://github.com/pytorch/pytorch/issues/166387.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
