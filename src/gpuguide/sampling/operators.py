"""The draw as an operator of PyTorch, ``gpuguide::sample_token``: for ``torch.compile``, fake tensors, ``torch.vmap``.

It is registered without :func:`torch.library.custom_op`, which adds to each call some ten microseconds of the
host for gradients. A draw has none, and a short batch takes the GPU about as long.
"""

from __future__ import annotations

from typing import Any

import torch

from gpuguide import triton_support
from gpuguide.sampling import reference
from gpuguide.sampling.reference import SamplingSettings

NAME = "gpuguide::sample_token"
DEVICES = ("cpu", "cuda")

torch.library.define(
    NAME,
    "(Tensor logits, Tensor seeds, Tensor step, float temperature, int top_k, float top_p, float min_p) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
sample_token = torch.ops.gpuguide.sample_token


@torch.library.impl(NAME, DEVICES)
def _draw(
    logits: torch.Tensor,
    seeds: torch.Tensor,
    step: torch.Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
) -> torch.Tensor:
    if temperature == 0:
        return reference.greedy_tokens(logits)
    settings = SamplingSettings(temperature, top_k, top_p, min_p)
    if not triton_support.supports_triton(logits):
        return reference.sample_token(logits, seeds, step, settings)
    from gpuguide.sampling import fused

    with torch.cuda.device_of(logits):
        if not step.is_cuda:
            step = torch.full((), int(step), dtype=torch.int64, device=logits.device)
        return fused.draw(logits, seeds, step, settings)[0]


@torch.library.register_fake(NAME)
def _shape(logits: torch.Tensor, seeds: torch.Tensor, *settings: Any) -> torch.Tensor:
    return logits.new_empty(logits.shape[:-1], dtype=torch.int64)


@torch.library.register_vmap(NAME)
def _vmap(
    info: Any,
    in_dims: tuple[int | None, ...],
    logits: torch.Tensor,
    seeds: torch.Tensor,
    step: torch.Tensor,
    *rest: Any,
) -> tuple[torch.Tensor, int]:
    """Draw for all at once: a row's token depends on nothing else in the batch. The step is the same for all."""
    if in_dims[2] is not None:
        raise ValueError("The step of sample_token cannot be mapped over; all rows that are drawn together have one.")
    logits, seeds = (
        part.expand(info.batch_size, *part.shape) if dim is None else part.movedim(dim, 0)
        for part, dim in zip((logits, seeds), in_dims[:2], strict=True)
    )
    return sample_token(logits, seeds, step, *rest), 0
