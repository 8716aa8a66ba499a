"""Steps of programs that people ask about: will ``torch.compile`` or a CUDA graph help?

Five are those of a table that is often copied, one is a matmul alone, and two are models of ``transformers``. A step of
a model in training is forward pass, loss and backward pass, in bf16, without an optimizer. Weights and inputs are
random, from one seed, so that the results of compiled and uncompiled code can be compared.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpuguide.benchmarks.training.contenders import SHAPE
from gpuguide.fusion import reference
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.training.slow import written_out_attention

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Scenario:
    """A step, and the modules in it that may be compiled one by one."""

    make: Callable[[str, Compile], Callable[[], object]]
    """Function of a device and of what compiles a function that returns the step"""
    blocks: bool = False
    """Whether the step has blocks of one kind"""


@dataclass
class BlockCompiler:
    """What compiles the blocks of a model instead of the whole."""

    compile: Compile
    done: list[nn.Module] = field(default_factory=list)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function itself: its blocks are compiled already."""
        return function

    def compile_blocks(self, blocks: Iterable[nn.Module]) -> None:
        """Compile the forward pass of each block."""
        for block in blocks:
            block.forward = self.compile(block.forward)
            self.done.append(block)


def many_small_operations(device: str, compile: Compile, elements: int = 2**14) -> Callable[[], object]:
    """Return 24 operations on arrays so small that launching them takes longer than running them."""
    torch.manual_seed(0)
    arrays = [torch.rand(elements, device=device).bfloat16() for _ in range(3)]
    function = compile(reference.tanh_chain)
    return lambda: function(*arrays)


def large_arrays(device: str, compile: Compile, elements: int = 2**26) -> Callable[[], object]:
    """Return four operations on arrays that no cache holds."""
    torch.manual_seed(0)
    arrays = [torch.rand(elements, device=device).add_(0.5).bfloat16() for _ in range(4)]
    function = compile(reference.add_multiply_relu_divide)
    return lambda: function(*arrays)


def matmul(device: str, compile: Compile, size: int = 8192) -> Callable[[], object]:
    """Return a matmul of square matrices and nothing else."""
    torch.manual_seed(0)
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    function = compile(torch.mm)
    return lambda: function(left, right)


def gpt2(
    batch: int, seq_len: int, written_out: bool = False, shape: GPT2Config = SHAPE
) -> Callable[[str, Compile], Callable[[], object]]:
    """Return what makes a step of GPT-2 small."""

    def make(device: str, compile: Compile) -> Callable[[], object]:
        torch.manual_seed(0)
        model = GPT2(shape).to(device, torch.bfloat16)
        for block in model.blocks if written_out else ():
            block.attention.forward = attention_written_out(block.attention)  # type: ignore[union-attr]
        tokens, targets = torch.randint(shape.vocab_size, (2, batch, seq_len), device=device)
        return training_step(model, model.blocks, lambda: (model(tokens), targets), compile)

    return make


def attention_written_out(attention: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the forward pass of an attention layer with all scores in memory."""

    def forward(hidden: torch.Tensor) -> torch.Tensor:
        batch, seq, width = hidden.shape
        split = attention.query_key_value(hidden).view(batch, seq, 3, attention.heads, width // attention.heads)
        mixed = written_out_attention(*split.permute(2, 0, 3, 1, 4))
        return attention.out(mixed.transpose(1, 2).reshape(batch, seq, width))

    return forward


def training_step(
    model: nn.Module,
    blocks: Iterable[nn.Module],
    predict: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    compile: Compile,
) -> Callable[[], object]:
    """Return forward pass, loss and backward pass of a model, of which ``predict`` gives logits and targets."""
    parameters = list(model.parameters())
    if isinstance(compile, BlockCompiler):
        compile.compile_blocks(blocks)

    def loss() -> torch.Tensor:
        logits, targets = predict()
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    compiled = compile(loss)

    def step() -> object:
        return torch.autograd.grad(compiled(), parameters, allow_unused=True)

    return step


def llama_of_transformers(
    device: str, compile: Compile, layers: int = 8, width: int = 1024, seq_len: int = 512
) -> Callable[[], object]:
    """Return a training step of a small Llama of ``transformers``, batch 4."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32000, hidden_size=width, intermediate_size=11 * width // 4, num_hidden_layers=layers,
        num_attention_heads=16, num_key_value_heads=4, use_cache=False,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    model.to(device, torch.bfloat16)
    tokens, targets = torch.randint(config.vocab_size, (2, 4, seq_len), device=device)
    return training_step(model, model.model.layers, lambda: (model(input_ids=tokens).logits, targets), compile)


def bert_of_transformers(
    device: str, compile: Compile, layers: int = 12, batch: int = 8, seq_len: int = 128
) -> Callable[[], object]:
    """Return the forward pass of a BERT of ``transformers``, as a service runs it."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model: Any = BertModel(BertConfig(num_hidden_layers=layers))
    model.to(device, torch.bfloat16).eval()
    if isinstance(compile, BlockCompiler):
        compile.compile_blocks(model.encoder.layer)
    tokens = torch.randint(30000, (batch, seq_len), device=device)
    mask = torch.ones_like(tokens)
    forward = compile(lambda: model(input_ids=tokens, attention_mask=mask).last_hidden_state)

    def step() -> object:
        with torch.no_grad():
            return forward()

    return step


SCENARIOS = {
    "many-small-operations": Scenario(many_small_operations),
    "large-arrays": Scenario(large_arrays),
    "matmul": Scenario(matmul),
    "small-batch": Scenario(gpt2(1, 128), blocks=True),
    "large-batch": Scenario(gpt2(8, 1024), blocks=True),
    "attention-written-out": Scenario(gpt2(8, 1024, written_out=True), blocks=True),
    "transformers-bert": Scenario(bert_of_transformers, blocks=True),
    "transformers-llama": Scenario(llama_of_transformers, blocks=True),
}
"""Scenarios by the names that cases have"""


def forget_compiled() -> None:
    """Forget what was compiled, and what it held."""
    torch.compiler.reset()
    gc.collect()
