"""Launches of the Triton kernels of attention, with their tile sizes for each GPU and head size.

:mod:`gpuguide.attention.flash` makes operators with gradients of them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from gpuguide.attention.flash_backward_kernels import (
    attn_bwd_dkdv_kernel,
    attn_bwd_dq_kernel,
    attn_bwd_preprocess_kernel,
)
from gpuguide.attention.flash_kernels import attn_fwd_kernel
from gpuguide.attention.layout import HEAD_SIZES, empty_addressable_like, make_addressable
from gpuguide.triton_support.interpreter import accept_new_numpy

accept_new_numpy()


@dataclass(frozen=True)
class LaunchConfig:
    """Tile sizes and compiler options of a kernel's launch."""

    block_m: int
    """Queries in a tile"""
    block_n: int
    """Keys in a tile"""
    num_warps: int
    num_stages: int
    """Depth of the software pipeline: tiles of keys and of values in shared memory at a time"""
    split: bool = True
    """Whether tiles that need no mask have a loop of their own"""
    max_registers: int | None = None
    """Limit of registers per thread, where fewer than the compiler would use let one more program run at a time"""
    exp2: bool = True
    """Whether exponentials are powers of 2, for which there is an instruction, or of e"""


SHORT = 2048
"""Keys up to which a program is so short that more programs at a time, which hide each other's start, are faster"""
HOPPER = {
    ("forward", 32): LaunchConfig(64, 128, 4, 2),
    ("forward", 64): LaunchConfig(64, 128, 4, 2),
    ("forward", 128): LaunchConfig(64, 64, 4, 3),
    ("forward-short", 32): LaunchConfig(64, 64, 4, 2, max_registers=96),
    ("forward-short", 64): LaunchConfig(64, 64, 4, 2, max_registers=96),
    ("forward-short", 128): LaunchConfig(64, 64, 4, 3),
    ("keys", 32): LaunchConfig(64, 64, 4, 2),
    ("keys", 64): LaunchConfig(64, 64, 4, 2),
    ("keys", 128): LaunchConfig(64, 64, 4, 2),
    ("queries", 32): LaunchConfig(64, 64, 4, 2),
    ("queries", 64): LaunchConfig(64, 64, 4, 2),
    ("queries", 128): LaunchConfig(64, 64, 4, 2),
}
"""Fastest of the tile sizes tried on an H100, for each kernel and head size (heads of 32 were not tried)"""
OTHERS = {
    (kernel, head_dim): LaunchConfig(32 if kernel == "keys" else 64, 64 if kernel == "keys" else 32, 8, 2)
    for kernel in ("forward", "forward-short", "keys", "queries")
    for head_dim in HEAD_SIZES
}
"""Tiles that fit the registers and the 99 KiB of shared memory of every GPU of compute capability 8.0 or later"""


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, config: LaunchConfig | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output, and the log-sum-exp of each query's scores, ``(batch, heads, queries)`` in fp32."""
    config = config or default_config("forward" if k.shape[2] > SHORT else "forward-short", q)
    out = empty_addressable_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    attn_fwd_kernel[(count_programs(q, config.block_m),)](
        tile_descriptor(q, config.block_m),
        tile_descriptor(k, config.block_n),
        tile_descriptor(v, config.block_n),
        tile_descriptor(out, config.block_m),
        lse,
        SPLIT=config.split,
        EXP2=config.exp2,
        **problem_arguments(q, k, causal, scale),
        **launch_arguments(config),
    )
    return out, lse


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    causal: bool,
    scale: float,
    dkdv_config: LaunchConfig | None = None,
    dq_config: LaunchConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of q, k and v, from the results of the forward pass and the gradient of its output."""
    delta = compute_delta(out, d_out)
    inputs = (q, k, v, d_out, lse, delta, causal, scale)
    return compute_dq(*inputs, dq_config), *compute_dkdv(*inputs, dkdv_config)


def compute_delta(out: torch.Tensor, d_out: torch.Tensor) -> torch.Tensor:
    """Return the sum of output times its gradient for each query, ``(batch, heads, queries)`` in fp32."""
    block_m = default_config("keys", out).block_m
    delta = torch.empty(out.shape[:3], dtype=torch.float32, device=out.device)
    attn_bwd_preprocess_kernel[(count_programs(out, block_m),)](
        tile_descriptor(out, block_m),
        tile_descriptor(d_out, block_m),
        delta,
        out.shape[1],
        out.shape[2],
        BLOCK_M=block_m,
        HEAD_DIM=out.shape[3],
    )
    return delta


def compute_dq(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    causal: bool,
    scale: float,
    config: LaunchConfig | None = None,
) -> torch.Tensor:
    """Return the gradient of q."""
    config = config or default_config("queries", q)
    block_m, block_n = config.block_m, config.block_n
    dq = empty_addressable_like(q)
    attn_bwd_dq_kernel[(count_programs(q, block_m),)](
        tile_descriptor(q, block_m),
        tile_descriptor(k, block_n),
        tile_descriptor(v, block_n),
        tile_descriptor(d_out, block_m),
        tile_descriptor(dq, block_m),
        lse,
        delta,
        **problem_arguments(q, k, causal, scale),
        **launch_arguments(config),
    )
    return dq


def compute_dkdv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    causal: bool,
    scale: float,
    config: LaunchConfig | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of k and v."""
    config = config or default_config("keys", q)
    block_m, block_n = config.block_m, config.block_n
    dk, dv = empty_addressable_like(k), empty_addressable_like(v)
    attn_bwd_dkdv_kernel[(count_programs(k, block_n),)](
        tile_descriptor(q, block_m),
        tile_descriptor(k, block_n),
        tile_descriptor(v, block_n),
        tile_descriptor(d_out, block_m),
        tile_descriptor(dk, block_n),
        tile_descriptor(dv, block_n),
        lse,
        delta,
        **problem_arguments(q, k, causal, scale),
        **launch_arguments(config),
    )
    return dk, dv


def default_config(kernel: str, q: torch.Tensor) -> LaunchConfig:
    """Return the launch configuration of ``forward``, ``forward-short``, ``keys`` or ``queries`` for a GPU."""
    return (HOPPER if q.is_cuda and is_hopper(q.device) else OTHERS)[kernel, q.shape[-1]]


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Return whether a GPU has compute capability 9, as the one that the tile sizes were tried on."""
    return torch.cuda.get_device_capability(device)[0] == 9


def tile_descriptor(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """Return a descriptor that loads and stores ``rows`` rows of one head at a time.

    A tensor that the copy engine cannot address is copied.
    """
    tensor = make_addressable(tensor)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, 1, rows, tensor.shape[-1]])


def count_programs(tensor: torch.Tensor, rows: int) -> int:
    """Return the size of the grid: one program for each tile."""
    batch, heads, length, _ = tensor.shape
    return int(batch * heads * triton.cdiv(length, rows))


def problem_arguments(q: torch.Tensor, k: torch.Tensor, causal: bool, scale: float) -> dict[str, Any]:
    """Return the kernel arguments that describe the problem: heads, group size, lengths, scale, causal flag."""
    sizes = {"heads": q.shape[1], "group": q.shape[1] // k.shape[1], "seqlen_q": q.shape[2]}
    return {**sizes, "seqlen_k": k.shape[2], "scale": scale, "CAUSAL": causal, "HEAD_DIM": q.shape[3]}


def launch_arguments(config: LaunchConfig) -> dict[str, int]:
    """Return the kernel arguments and compiler options that describe the tiles."""
    blocks = {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n}
    limit = {} if config.max_registers is None else {"maxnreg": config.max_registers}
    return {**blocks, "num_warps": config.num_warps, "num_stages": config.num_stages, **limit}
