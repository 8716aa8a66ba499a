"""Element-wise operations in one kernel, in Triton: however long the chain, each array is read or written once.

The kernel is the same for all of them. It loads a block of each input, applies a function that was compiled into it,
computes in fp32, and stores the result. Chains are short programs of such functions: a compiler that fuses, such as
TorchInductor, writes them from your code.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.autograd import forward_ad

from gpuguide.triton_support.context import device_of

BLOCK = 2048
"""Elements of a program"""
WARPS = 4
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of arrays, which fp32 holds without rounding"""


@triton.jit
def tanh(x):
    """Return tanh, by the exponential: Triton's language has none of its own."""
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def gelu_tanh(x):
    """Return GELU in its tanh form. ``0.5 * (1 + tanh(u))`` is ``sigmoid(2 * u)``."""
    return x * tl.sigmoid(2 * 0.7978845608028654 * (x + 0.044715 * x * x * x))


@triton.jit
def add_all(a, b, c, d):
    """Return ``a + b + c + d``."""
    return a + b + c + d


@triton.jit
def add_mul_relu_div(a, b, c, d):
    """Return ``relu((a + b) * c) / d``. Like PyTorch's, this ReLU of NaN is NaN."""
    return tl.maximum((a + b) * c, 0.0, propagate_nan=tl.PropagateNan.ALL) / d


@triton.jit
def eight_links(x, b, c, d):
    """Take ``x = tanh(x * b + c)`` eight times: 24 operations, and no trip to memory between them."""
    for _ in tl.static_range(8):
        x = tanh(x * b + c)
    return x


@triton.jit
def only_gelu(x, b, c, d):
    """Return GELU of ``x``."""
    return gelu_tanh(x)


@triton.jit
def elementwise_kernel(
    a_ptr,  # (n,)
    b_ptr,  # (n,), read with INPUTS > 1
    c_ptr,  # (n,), read with INPUTS > 2
    d_ptr,  # (n,), read with INPUTS > 3
    out_ptr,  # (n,), written
    n,
    FUNCTION: tl.constexpr,
    INPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Apply ``FUNCTION`` to ``BLOCK`` elements of up to four arrays."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    a = tl.load(a_ptr + offsets, mask=inside, other=1.0).to(tl.float32)
    b, c, d = a, a, a
    if INPUTS > 1:
        b = tl.load(b_ptr + offsets, mask=inside, other=1.0).to(tl.float32)
    if INPUTS > 2:
        c = tl.load(c_ptr + offsets, mask=inside, other=1.0).to(tl.float32)
    if INPUTS > 3:
        d = tl.load(d_ptr + offsets, mask=inside, other=1.0).to(tl.float32)
    tl.store(out_ptr + offsets, FUNCTION(a, b, c, d).to(out_ptr.dtype.element_ty), mask=inside)


def add_four(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Return ``a + b + c + d`` in one kernel and five passes.

    The arrays have one shape and one of :data:`DTYPES`, and are contiguous. The functions of this module have no
    gradients.
    """
    return _apply(add_all, a, b, c, d)


def add_multiply_relu_divide(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Return ``relu((a + b) * c) / d`` in one kernel and five passes; arrays as those of :func:`add_four`."""
    return _apply(add_mul_relu_div, a, b, c, d)


def tanh_chain(x: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Take ``x = tanh(x * b + c)`` eight times in one kernel and four passes; arrays as those of :func:`add_four`."""
    return _apply(eight_links, x, b, c)


def gelu(x: torch.Tensor) -> torch.Tensor:
    """Return GELU in its tanh form, in one kernel and two passes; ``x`` as the arrays of :func:`add_four`."""
    return _apply(only_gelu, x)


def _apply(function: object, *inputs: torch.Tensor) -> torch.Tensor:
    first = inputs[0]
    for other in inputs:
        if other.shape != first.shape or other.dtype != first.dtype or not other.is_contiguous():
            raise ValueError(
                f"The arrays must have one shape and dtype and be contiguous; given {tuple(first.shape)} in "
                f"{first.dtype} and {tuple(other.shape)} in {other.dtype} with strides {other.stride()}. "
                "Call .expand(...), .to(...) or .contiguous() first."
            )
    if first.dtype not in DTYPES:
        raise TypeError(
            f"The kernel computes in fp32, so it takes fp32, bf16 and fp16; given {first.dtype}. Use "
            "gpuguide.fusion.reference."
        )
    if any(_is_differentiated(each) for each in inputs):
        raise NotImplementedError(
            "The element-wise kernels have no gradients. Call them under torch.no_grad(), or use "
            "gpuguide.fusion.reference."
        )
    out = torch.empty_like(first)
    if not out.numel():
        return out
    with device_of(first):
        elementwise_kernel[(triton.cdiv(out.numel(), BLOCK),)](
            *(inputs + (first,) * (4 - len(inputs))),
            out,
            out.numel(),
            FUNCTION=function,
            INPUTS=len(inputs),
            BLOCK=BLOCK,
            num_warps=WARPS,
        )
    return out


def _is_differentiated(array: torch.Tensor) -> bool:
    """Return whether autograd would differentiate what is computed from an array, backward or forward."""
    has_tangent = forward_ad._current_level >= 0 and forward_ad.unpack_dual(array).tangent is not None
    return has_tangent or (torch.is_grad_enabled() and array.requires_grad)
