"""Models whose training memory is measured, with layers that can be called in any way, and their batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from gpuguide.benchmarks.training import contenders
from gpuguide.costs import memory, presets
from gpuguide.measure.benchmark import Keys
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.models.llama import Llama, LlamaAttention, LlamaConfig
from gpuguide.training.feeding import split_windows
from gpuguide.training_memory.recompute import KEPT_IN_GPT2, KEPT_IN_LLAMA

GPT2_SMALL = contenders.SHAPE
LLAMA_1B = LlamaConfig(128256, 8192, 16, 32, 8, 2048, 8192, rope_base=500000.0, tied=True)
"""The shape of Llama 3.2 1B"""
LLAMA_7B = LlamaConfig(32000, 4096, 32, 32, 32, 4096, 11008)
"""The shape of Llama 2 7B"""
CONFIGS: dict[str, GPT2Config | LlamaConfig] = {
    "gpt2-small": GPT2_SMALL,
    "llama-1b-shape": LLAMA_1B,
    "llama-7b-shape": LLAMA_7B,
}
LayerCall = Callable[..., torch.Tensor]


class SplitAttention(LlamaAttention):
    """Attention that keeps a copy of the values, not the projection with the queries and keys before their rotation."""

    def split(self, projected: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return queries, keys and a copy of the values."""
        query, key, value = super().split(projected)
        return query, key, value.clone()


def make_model(config: GPT2Config | LlamaConfig, device: str, dtype: torch.dtype = torch.float32) -> GPT2 | Llama:
    """Return a model with the same initial weights each time; each norm of Llama is one operation."""
    torch.manual_seed(0)
    with torch.device(device):
        if isinstance(config, GPT2Config):
            return GPT2(config).to(dtype).train()
        model = Llama(config)
        for block in model.blocks:
            block.attention.__class__ = SplitAttention
            for name in ("attention_norm", "feed_forward_norm"):
                setattr(block, name, nn.RMSNorm(config.hidden, config.norm_epsilon))
        setattr(model, "final_norm", nn.RMSNorm(config.hidden, config.norm_epsilon))  # noqa: B010 - of another class
    return model.to(dtype).train()


def hidden_states(model: GPT2 | Llama, tokens: torch.Tensor, call: LayerCall) -> torch.Tensor:
    """Return the input of the head, ``(batch, seq_len, hidden)``, with each layer called by ``call(layer, ...)``."""
    hidden = model.embed(tokens)
    more: tuple[torch.Tensor, ...] = ()
    if isinstance(model, Llama):
        more = model.rotary(torch.arange(tokens.shape[1], device=tokens.device), hidden.dtype)
    for block in model.blocks:
        hidden = call(block, hidden, *more)
    result: torch.Tensor = model.final_norm(hidden)
    return result


def kept_in(config: GPT2Config | LlamaConfig) -> tuple[str, ...]:
    """Return the linear layers whose outputs selective checkpointing keeps."""
    return KEPT_IN_GPT2 if isinstance(config, GPT2Config) else KEPT_IN_LLAMA


def shape_of(config: GPT2Config | LlamaConfig) -> memory.Shape:
    """Return the shape of a model in the cost model."""
    if isinstance(config, LlamaConfig):
        return memory.Shape(
            config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim, config.inner,
            config.vocab_size, config.context, tied=config.tied,
        )  # fmt: skip
    known = presets.shape("gpt2")
    return replace(
        known, layers=config.layers, hidden=config.hidden, heads=config.heads, kv_heads=config.heads,
        head_dim=config.head_dim, intermediate=4 * config.hidden, vocab=config.vocab_size, context=config.context,
    )  # fmt: skip


def batches(keys: Keys, device: str) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    """Return a function of a step's number that gives its tokens and targets."""
    windows = contenders.windows(keys)

    def draw(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, targets = split_windows(windows.draw(step).to(device))
        return tokens.contiguous(), targets.contiguous()

    return draw


def call_plainly(layer: Any, *inputs: torch.Tensor) -> torch.Tensor:
    """Return the output of a layer."""
    result: torch.Tensor = layer(*inputs)
    return result
