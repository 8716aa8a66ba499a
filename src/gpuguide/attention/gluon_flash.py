"""Launch of the warp-specialised kernel in :mod:`gpuguide.attention.gluon_kernels`, with its schedule.

:mod:`gpuguide.attention.flash` makes an operator of it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from gpuguide.attention import triton_flash
from gpuguide.attention.gluon_kernels import attn_fwd_kernel
from gpuguide.attention.layout import empty_addressable_like, make_addressable


@dataclass(frozen=True)
class Schedule:
    """Tile sizes of the kernel, and which work overlaps."""

    block_m: int = 64
    """Queries in the tile of a group: one instruction of four warps multiplies as many"""
    block_n: int = 128
    """Keys in a tile"""
    num_stages: int = 2
    """Buffers in shared memory for tiles of keys, and as many for tiles of values"""
    overlap_softmax: bool = True
    """Whether exponentials are computed during the second matmul; otherwise the assembler may wait for it first"""
    ping_pong: bool = True
    """Whether the two groups start their matmuls in turn"""


DEFAULT_SCHEDULE = Schedule()
REGISTERS = 168
"""Registers of a thread on average: 65536 for 12 warps. The groups that compute take 240, the warp that loads 24."""


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float,
    schedule: Schedule = DEFAULT_SCHEDULE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output, and the log-sum-exp of each query's scores, ``(batch, heads, queries)`` in fp32."""
    out = empty_addressable_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    attn_fwd_kernel[(triton_flash.count_programs(q, 2 * schedule.block_m),)](
        tile_descriptor(q, schedule.block_m),
        tile_descriptor(k, schedule.block_n),
        tile_descriptor(v, schedule.block_n),
        tile_descriptor(out, schedule.block_m),
        lse,
        **triton_flash.problem_arguments(q, k, causal, scale),
        BLOCK_M=schedule.block_m,
        BLOCK_N=schedule.block_n,
        STAGES=schedule.num_stages,
        OVERLAP_SOFTMAX=schedule.overlap_softmax,
        PING_PONG=schedule.ping_pong,
        num_warps=4,
        maxnreg=REGISTERS,
    )
    return out, lse


def tile_descriptor(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """Return a descriptor that loads and stores ``rows`` rows of one head at a time, as Triton's does."""
    tensor, head_dim = make_addressable(tensor), tensor.shape[-1]
    layout = smem_layout(head_dim, tensor.element_size())
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, 1, rows, head_dim], layout)


@functools.cache
def smem_layout(head_dim: int, element_size: int) -> NVMMASharedLayout:
    """Return the layout of a tile in shared memory: the order in which the tensor cores read it."""
    return NVMMASharedLayout(min(128, head_dim * element_size), 8 * element_size, rank=4)
