"""Small models whose matrices are not square, and adapters with something to add."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gpuguide import lora
from gpuguide.models import gpt2, llama

GPT2 = gpt2.GPT2Config(vocab_size=61, context=16, layers=2, heads=2, hidden=32)
LLAMA = llama.LlamaConfig(vocab_size=61, context=16, layers=2, heads=4, kv_heads=2, hidden=32, inner=48, tied=True)
CONFIGS: dict[str, Any] = {"gpt2": GPT2, "llama": LLAMA}
TOKENS = torch.randint(61, (2, 8), generator=torch.Generator().manual_seed(5))


def model(name: str = "gpt2") -> Any:
    """One of the library's own models, the same each time."""
    torch.manual_seed(0)
    config = CONFIGS[name]
    return (gpt2.GPT2 if isinstance(config, gpt2.GPT2Config) else llama.Llama)(config).eval()


def something_to_add(adapted: nn.Module, seed: int = 1) -> None:
    """Give every B random numbers."""
    generator = torch.Generator().manual_seed(seed)
    for layer in lora.find_adapted_layers(adapted).values():
        for name in layer.adapters:
            up = layer.adapter(name).up
            up.data = (torch.randn(up.shape, generator=generator) * 0.3).to(up.dtype)
