"""Quantisation of a matrix to fp8 with one scale, as an operator of PyTorch: ``gpuguide::quantize_fp8``.

On a GPU it runs the kernels, elsewhere the reference. ``torch.compile`` puts an operator into its graph without looking
inside, and a fake tensor gets the shape of its result. It is registered without
:func:`torch.library.custom_op`, which adds to each call some ten microseconds of the host for gradients that rounding
has none of.
"""

from __future__ import annotations

import torch

from gpuguide import triton_support

NAME = "gpuguide::quantize_fp8"

torch.library.define(
    NAME,
    "(Tensor x, ScalarType dtype, float largest, float smallest_scale, bool transposed) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
quantize = torch.ops.gpuguide.quantize_fp8
"""Operator that returns a matrix in fp8, its transpose in fp8 if ``transposed``, and the scale of both"""


Fp8Result = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def reference(
    x: torch.Tensor, dtype: torch.dtype, largest: float, smallest_scale: float, transposed: bool
) -> Fp8Result:
    """Quantise in plain PyTorch."""
    x = x.float()
    most = x.abs().amax() if x.numel() else x.new_zeros(())
    scale = (most / largest).clamp(min=smallest_scale)
    shares = x * scale.reciprocal()  # divisions would take a GPU longer than its memory
    values = torch.where(shares.isfinite(), shares, torch.nan).to(dtype)
    other = values.t().contiguous() if transposed else values.new_empty(0, 0)
    return values, other, scale


def _quantize(
    x: torch.Tensor, dtype: torch.dtype, largest: float, smallest_scale: float, transposed: bool
) -> Fp8Result:
    if not triton_support.supports_triton(x):
        return reference(x, dtype, largest, smallest_scale, transposed)
    from gpuguide.precision.fp8.kernels import quantize

    with torch.cuda.device_of(x):
        return quantize(x.contiguous(), dtype, largest, smallest_scale, transposed=transposed)


@torch.library.register_fake(NAME)
def _shapes(x: torch.Tensor, dtype: torch.dtype, largest: float, smallest_scale: float, transposed: bool) -> Fp8Result:
    rows, columns = x.shape
    other = x.new_empty((columns, rows) if transposed else (0, 0), dtype=dtype)
    return x.new_empty((rows, columns), dtype=dtype), other, x.new_empty((), dtype=torch.float32)


torch.library.impl(NAME, "CompositeExplicitAutograd", reference)
torch.library.impl(NAME, "cuda", _quantize)
