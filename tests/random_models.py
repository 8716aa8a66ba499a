"""Small models with random weights that are far from the initial ones, so that each of them matters; and for them
prompts, and caches whose pages are in no order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import nn

from gpuguide.inference import Cache, Decoder, empty_cache
from gpuguide.inference.cache import pages_for
from gpuguide.models import gpt2, llama
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama

Model = TypeVar("Model", bound=nn.Module)


def random_gpt2(seed: int = 0, *, vocab_size: int = 97, context: int = 256, layers: int = 2, heads: int = 2,
                hidden: int = 32) -> GPT2:  # fmt: skip
    """Return a GPT-2 in ``eval`` mode."""
    return _drawn(GPT2(gpt2.GPT2Config(vocab_size, context, layers, heads, hidden)), seed)


def random_llama(seed: int = 0, *, vocab_size: int = 97, context: int = 256, layers: int = 2, heads: int = 4,
                 kv_heads: int = 2, hidden: int = 64, inner: int = 88, tied: bool = False,
                 rope_scaling: llama.RopeScaling | None = None) -> Llama:  # fmt: skip
    """Return a Llama in ``eval`` mode."""
    config = llama.LlamaConfig(vocab_size, context, layers, heads, kv_heads, hidden, inner, tied=tied,
                          rope_scaling=rope_scaling)  # fmt: skip
    return _drawn(Llama(config), seed)


def _drawn(model: Model, seed: int) -> Model:
    """Draw weights with which a product keeps the size of its inputs, and logits differ by some units."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            drawn = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 2:
                weight.copy_(drawn * (0.3 if "embedding" in name else 2.0 * weight.shape[1] ** -0.5))
            else:
                weight.copy_(0.3 * drawn + ("norm.weight" in name))
    return model.eval()


def random_prompts(lengths: Sequence[int], vocab_size: int = 97, seed: int = 0) -> list[list[int]]:
    """Return prompts of some lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in lengths]


def shuffled_cache(decoder: Decoder, rows: int, capacity: int, seed: int = 0) -> Cache:
    """Return a cache whose rows have pages in no order, and whose every number is NaN."""
    cache = empty_cache(decoder, rows, capacity, rows * pages_for(capacity))
    order = torch.randperm(cache.table.numel(), generator=torch.Generator().manual_seed(seed))
    cache.table.copy_(1 + order.view(cache.table.shape))
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    return cache
