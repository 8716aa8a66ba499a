"""Shapes to measure speed and memory with, where random weights are as good as trained ones.

>>> random_model("gpt2-small", torch.bfloat16).parameter_count()
124439808
"""

from __future__ import annotations

import torch

from gpuguide.errors import unknown
from gpuguide.models import gpt2, llama

SHAPES: dict[str, gpt2.GPT2Config | llama.LlamaConfig] = {
    "gpt2-small": gpt2.GPT2Config(),
    "llama-1b-shape": llama.LlamaConfig(
        vocab_size=128256,
        context=131072,
        layers=16,
        heads=32,
        kv_heads=8,
        hidden=2048,
        inner=8192,
        rope_base=500000.0,
        rope_scaling=llama.RopeScaling(
            factor=32.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context=8192
        ),
        tied=True,
    ),
    "llama-7b-shape": llama.LlamaConfig(
        vocab_size=32000, context=4096, layers=32, heads=32, kv_heads=32, hidden=4096, inner=11008
    ),
}
"""Shapes of GPT-2 small, Llama 3.2 1B and Llama 2 7B"""
SPREAD = 0.02
"""Standard deviation of random weights, as both kinds of model are initialised"""


def config(name: str) -> gpt2.GPT2Config | llama.LlamaConfig:
    """Return a shape by name.

    Raises
    ------
    UnknownName
        If there is none.
    """
    if name not in SHAPES:
        raise unknown("shape", name, SHAPES)
    return SHAPES[name]


def random_model(
    shape: str | gpt2.GPT2Config | llama.LlamaConfig,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> gpt2.GPT2 | llama.Llama:
    """Return a model with random weights, made where it is used.

    PyTorch would draw the weights of a 7B model in fp32 on the processor, which takes minutes and 27 GB. Here the
    modules are built without memory, on the ``meta`` device, and the weights are drawn in their format on their device.

    Parameters
    ----------
    shape : str, gpt2.GPT2Config or llama.LlamaConfig
        A name in :data:`SHAPES`, or a configuration of either kind.
    dtype : torch.dtype
        Format of the weights: fp32, bf16 or fp16.
    device : torch.device or str
        Where they are.
    seed : int
        The same seed gives the same weights on the same kind of device.

    Returns
    -------
    GPT2 or Llama
        In ``eval`` mode. Matrices are normal with a spread of :data:`SPREAD`, norms scale by 1, biases are 0.

    Raises
    ------
    UnknownName
        If there is no shape of that name.
    """
    chosen = config(shape) if isinstance(shape, str) else shape
    model = build_meta_model(chosen, dtype).to_empty(device=device)
    tie(model)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0.0, SPREAD, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
    return model.eval()


def build_meta_model(config: gpt2.GPT2Config | llama.LlamaConfig, dtype: torch.dtype) -> gpt2.GPT2 | llama.Llama:
    """Return a model whose weights have shapes and a format, and no numbers: those of the ``meta`` device."""
    with torch.device("meta"):
        model = gpt2.GPT2(config) if isinstance(config, gpt2.GPT2Config) else llama.Llama(config)
    return model.to(dtype)


def tie(model: gpt2.GPT2 | llama.Llama) -> None:
    """Make the head of a model with a tied head its token embedding again.

    A model that leaves the ``meta`` device gets new memory for each weight, twice for one that stands in two places.
    """
    if isinstance(model.config, gpt2.GPT2Config) or model.config.tied:
        model.head.weight = model.token_embedding.weight
