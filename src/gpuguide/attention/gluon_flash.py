"""Launch of the warp-specialised kernel in :mod:`gpuguide.attention.gluon_kernels`, with its schedule.

:mod:`gpuguide.attention.flash` makes an operator of it.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
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
    persistent: bool = True
    """Whether a program on each multiprocessor computes one pair of query tiles after another; otherwise, each pair has
    a program of its own"""
    interleave_heads: bool = True
    """Whether several heads are computed together under a causal mask, the longest rows of all of them first;
    otherwise, one head is computed after another"""
    carry_fp32: bool = True
    """Whether exponentials become 16-bit numbers while the next scores are computed, not before"""
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
    pairs, properties = triton_flash.count_programs(q, 2 * schedule.block_m), device_properties(q.device)
    programs = min(pairs, properties.multi_processor_count) if schedule.persistent else pairs
    section = heads_per_section(q, k, schedule, properties) if causal and schedule.interleave_heads else 1
    tickets = (torch.zeros if pairs > programs else torch.empty)(1, dtype=torch.int32, device=q.device)
    attn_fwd_kernel[(programs,)](
        tile_descriptor(q, schedule.block_m),
        tile_descriptor(k, schedule.block_n),
        tile_descriptor(v, schedule.block_n),
        tile_descriptor(out, schedule.block_m),
        lse,
        tickets,
        all_heads=q.shape[0] * q.shape[1],
        section=section,
        **triton_flash.problem_arguments(q, k, causal, scale),
        BLOCK_M=schedule.block_m,
        BLOCK_N=schedule.block_n,
        Q_STAGES=2,
        STAGES=schedule.num_stages,
        CARRY_FP32=schedule.carry_fp32,
        OVERLAP_SOFTMAX=schedule.overlap_softmax,
        PING_PONG=schedule.ping_pong,
        num_warps=4,
        maxnreg=REGISTERS,
    )
    return out, lse


def heads_per_section(q: torch.Tensor, k: torch.Tensor, schedule: Schedule, properties: Any) -> int:
    """Return how many heads are computed together.

    There are enough for two pairs of query tiles on each multiprocessor, so that short rows fill the gaps that long
    ones leave, but no more than those whose keys and values fit half of the L2 cache. All sections are of one size, but
    for a remainder: a last one of a few heads would end with long rows.
    """
    pairs_per_head = triton.cdiv(q.shape[2], 2 * schedule.block_m)
    bytes_per_head = 2 * k.shape[2] * k.shape[3] * k.element_size() * k.shape[1] // q.shape[1]
    enough = 2 * properties.multi_processor_count // max(1, pairs_per_head)
    most = max(1, min(enough, properties.L2_cache_size // 2 // max(1, bytes_per_head)))
    all_heads = q.shape[0] * q.shape[1]
    sections = max(1, triton.cdiv(all_heads, most))
    return max(1, triton.cdiv(all_heads, sections))


@functools.cache
def device_properties(device: torch.device) -> Any:
    """Return the properties of a GPU; PyTorch takes the host several microseconds to look them up."""
    return torch.cuda.get_device_properties(device)


def tile_descriptor(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """Return a descriptor that loads and stores ``rows`` rows of one head at a time, as Triton's does."""
    tensor, head_dim = make_addressable(tensor), tensor.shape[-1]
    layout = smem_layout(head_dim, tensor.element_size())
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, 1, rows, head_dim], layout)


@functools.cache
def smem_layout(head_dim: int, element_size: int) -> NVMMASharedLayout:
    """Return the layout of a tile in shared memory: the order in which the tensor cores read it."""
    return NVMMASharedLayout(min(128, head_dim * element_size), 8 * element_size, rank=4)
