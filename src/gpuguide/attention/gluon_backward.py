"""Launch of the backward kernel in :mod:`gpuguide.attention.gluon_backward_kernels`, with its schedules.

:mod:`gpuguide.attention.flash` makes an operator of it.
"""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass

import torch
import triton
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from gpuguide.attention import triton_flash
from gpuguide.attention.flash_backward_kernels import attn_bwd_convert_kernel, attn_bwd_prepare_kernel
from gpuguide.attention.gluon_backward_kernels import attn_bwd_kernel
from gpuguide.attention.gluon_flash import REGISTERS, tile_descriptor
from gpuguide.attention.layout import empty_addressable_like

HALF_N, BLOCK_N = 64, 128
"""Keys of a group of warps, and of a program"""


@dataclass(frozen=True)
class BackwardSchedule:
    """Tile size of the kernel, and the order of its programs."""

    block_m: int
    """Queries in a tile"""
    num_stages: int = 2
    """Buffers in shared memory for tiles of queries, of the gradient of the output and of dS; at least two"""
    section: int = 8
    """Heads of keys whose programs run together, the longest first"""
    delay_dq: bool = True
    """Whether dQ of a tile is computed one tile later, so that the two groups of warps do not wait for each other"""
    accumulate: bool = True
    """Whether programs add to dQ; otherwise they overwrite it, so dQ is wrong and the time of adding is saved"""


SCHEDULES = {64: BackwardSchedule(block_m=128, delay_dq=False), 128: BackwardSchedule(block_m=64)}
"""Default schedule for each head size that the kernel supports, from trials on an H200. The record of the benchmark
``attention-tiles`` has a faster one for heads of 64: tiles of 64 queries and a delayed dQ."""


def is_supported(q: torch.Tensor) -> bool:
    """Return whether the kernel supports the GPU and the head size of q, and the installed Triton can compile it."""
    return triton_flash.is_hopper(q.device) and q.shape[3] in SCHEDULES and can_add_to_global_memory()


@functools.cache
def can_add_to_global_memory() -> bool:
    """Return whether the installed Triton has the copy engine's addition, which Gluon does not export; warn if not."""
    try:
        from triton._C.libtriton import gluon_ir, ir

        found = hasattr(gluon_ir.GluonOpBuilder, "create_async_tma_reduce") and hasattr(ir, "DESCRIPTOR_REDUCE_KIND")
    except ImportError:
        found = False
    if not found:
        warnings.warn(
            f"Triton {triton.__version__} lacks the copy engine's addition (create_async_tma_reduce), so the slower "
            "Triton kernels compute the gradients of attention. Triton 3.6 and 3.7 have it.",
            RuntimeWarning,
            stacklevel=2,
        )
    return found


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    d_lse: torch.Tensor | None,
    causal: bool,
    scale: float,
    schedule: BackwardSchedule | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of q, k and v, from the results of the forward pass and their gradients.

    Rounding of the gradient of q differs from run to run, because programs add to it in any order.
    """
    schedule = schedule or SCHEDULES[q.shape[3]]
    block_m = schedule.block_m
    lse, delta, dq_sum = prepare(out, d_out, lse, d_lse, block_m)
    dk, dv = empty_addressable_like(k), empty_addressable_like(v)
    attn_bwd_kernel[(triton_flash.count_programs(k, BLOCK_N),)](
        tile_descriptor(q, block_m),
        tile_descriptor(k, HALF_N),
        tile_descriptor(v, HALF_N),
        tile_descriptor(d_out, block_m),
        row_descriptor(lse, block_m),
        row_descriptor(delta, block_m),
        row_descriptor(dq_sum, dq_sum.shape[1]),
        tile_descriptor(dk, HALF_N),
        tile_descriptor(dv, HALF_N),
        **triton_flash.problem_arguments(q, k, causal, scale),
        ACCUMULATE=schedule.accumulate,
        DELAY=schedule.delay_dq,
        SECTION=schedule.section,
        STAGES=schedule.num_stages,
        BLOCK_M=block_m,
        num_warps=4,
        maxnreg=REGISTERS,
    )
    return convert(dq_sum, q, scale, block_m), dk, dv


def prepare(
    out: torch.Tensor, d_out: torch.Tensor, lse: torch.Tensor, d_lse: torch.Tensor | None, block_m: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return lse to base 2 and delta, padded to a length that the copy engine can address, and zeros for dq.

    Returns
    -------
    tuple of torch.Tensor
        Two of ``(batch, heads, padded)``; ``(batch * heads * tiles * 2, block_m * head_dim // 2)``, a row for each half
        of a tile of dq. All in fp32.
    """
    batch, heads, seqlen_q, head_dim = out.shape
    padded = triton.cdiv(seqlen_q, 4) * 4  # rows of 16 bytes
    halves = 2 * triton_flash.count_programs(out, block_m)
    lse_base_2, delta = torch.empty(2, batch, heads, padded, dtype=torch.float32, device=out.device)
    dq_sum = torch.empty(halves, block_m * head_dim // 2, dtype=torch.float32, device=out.device)
    attn_bwd_prepare_kernel[(triton_flash.count_programs(out, block_m),)](
        triton_flash.tile_descriptor(out, block_m),
        triton_flash.tile_descriptor(d_out, block_m),
        lse,
        lse if d_lse is None else d_lse.contiguous(),
        lse_base_2,
        delta,
        dq_sum,
        heads,
        seqlen_q,
        padded,
        HAS_D_LSE=d_lse is not None,
        BLOCK_M=block_m,
        HEAD_DIM=head_dim,
    )
    return lse_base_2, delta, dq_sum


def convert(dq_sum: torch.Tensor, q: torch.Tensor, scale: float, block_m: int) -> torch.Tensor:
    """Return dq, scaled and in 16 bits, from its sum in the order of registers."""
    dq = empty_addressable_like(q)
    attn_bwd_convert_kernel[(triton_flash.count_programs(q, block_m),)](
        dq_sum,
        triton_flash.tile_descriptor(dq, block_m),
        q.shape[1],
        q.shape[2],
        scale,
        BLOCK_M=block_m,
        HEAD_DIM=q.shape[3],
    )
    return dq


def row_descriptor(tensor: torch.Tensor, columns: int) -> TensorDescriptor:
    """Return a descriptor that moves ``columns`` numbers of the last dimension at a time, in fp32."""
    shape, strides = list(tensor.shape), list(tensor.stride())
    block = [1] * (tensor.ndim - 1) + [columns]
    return TensorDescriptor(tensor, shape, strides, block, NVMMASharedLayout(0, 32, rank=tensor.ndim))
