"""The rounding of a matrix to fp8 as an operator of PyTorch, ``gpuguide::quantize_fp8``, for GPUs.

``torch.compile`` puts an operator into its graph without looking inside, and a fake tensor gets the shape of its
result. It is registered by hand, without :func:`torch.library.custom_op`, which adds to each call some ten microseconds
of the host for gradients that rounding has none of.
"""

from __future__ import annotations

import torch

NAME = "gpuguide::quantize_fp8"

torch.library.define(
    NAME,
    "(Tensor x, ScalarType dtype, float largest, float smallest_scale, bool turned) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
quantize = torch.ops.gpuguide.quantize_fp8
"""Takes a matrix, and returns it in fp8, the same turned if that is wanted, and the scale of both"""


@torch.library.impl(NAME, "cuda")
def _quantize(
    x: torch.Tensor, dtype: torch.dtype, largest: float, smallest_scale: float, turned: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from gpuguide.precision.fp8 import kernels

    with torch.cuda.device_of(x):
        return kernels.quantize(x.contiguous(), dtype, largest, smallest_scale, turned=turned)


@torch.library.register_fake(NAME)
def _shapes(
    x: torch.Tensor, dtype: torch.dtype, largest: float, smallest_scale: float, turned: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rows, columns = x.shape
    other = x.new_empty((columns, rows) if turned else (0, 0), dtype=dtype)
    return x.new_empty((rows, columns), dtype=dtype), other, x.new_empty((), dtype=torch.float32)
