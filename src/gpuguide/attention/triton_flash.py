"""Launches of the kernels in :mod:`gpuguide.attention.flash_kernels`.

:mod:`gpuguide.attention.flash` makes operators with gradients of them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from gpuguide.attention.flash_kernels import (
    backward_keys_kernel,
    backward_queries_kernel,
    delta_kernel,
    forward_kernel,
)
from gpuguide.attention.layout import HEAD_SIZES, addressable, room_like
from gpuguide.kernels.interpreter import accept_new_numpy

accept_new_numpy()


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched."""

    rows: int
    """Queries in a tile"""
    columns: int
    """Keys in a tile"""
    warps: int
    stages: int
    """Tiles of keys and of values that have room at a time: the one that is computed with, and those under way"""
    split: bool = True
    """Whether tiles that need no mask have a loop of their own"""
    registers: int | None = None
    """Of a thread at most, where fewer than the compiler would take let one more program run at a time"""
    exp2: bool = True
    """Whether powers are taken of two, for which there is an instruction, or of e"""


SHORT = 2048
"""Keys up to which programs are so short that their beginnings count: more of them at a time hide one another's"""
HOPPER = {
    ("forward", 32): Launch(64, 128, 4, 2),
    ("forward", 64): Launch(64, 128, 4, 2),
    ("forward", 128): Launch(64, 64, 4, 3),
    ("forward-short", 32): Launch(64, 64, 4, 2, registers=96),
    ("forward-short", 64): Launch(64, 64, 4, 2, registers=96),
    ("forward-short", 128): Launch(64, 64, 4, 3),
    ("keys", 32): Launch(64, 64, 4, 2),
    ("keys", 64): Launch(64, 64, 4, 2),
    ("keys", 128): Launch(64, 64, 4, 2),
    ("queries", 32): Launch(64, 64, 4, 2),
    ("queries", 64): Launch(64, 64, 4, 2),
    ("queries", 128): Launch(64, 64, 4, 2),
}
"""The fastest on an H100 of what was tried, for each kernel and size of a head (32 was not)"""
OTHERS = {
    (kernel, head_dim): Launch(32 if kernel == "keys" else 64, 64 if kernel == "keys" else 32, 8, 2)
    for kernel in ("forward", "forward-short", "keys", "queries")
    for head_dim in HEAD_SIZES
}
"""Tiles small enough for the registers and the 99 KiB of shared memory of every GPU from compute capability 8.0 on"""


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, launch: Launch | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output, and the log-sum-exp of each query's scores, ``(batch, heads, queries)`` in fp32."""
    launch = launch or launch_of("forward" if k.shape[2] > SHORT else "forward-short", q)
    out = room_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    forward_kernel[(programs(q, launch.rows),)](
        tiles(q, launch.rows), tiles(k, launch.columns), tiles(v, launch.columns), tiles(out, launch.rows), lse,
        SPLIT=launch.split, EXP2=launch.exp2, **problem(q, k, causal, scale), **shape(launch),
    )  # fmt: skip
    return out, lse


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    upstream: torch.Tensor,
    causal: bool,
    scale: float,
    for_keys: Launch | None = None,
    for_queries: Launch | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of q, k and v, from what the forward pass returned and the gradient of its output."""
    delta = delta_of(out, upstream)
    given = (q, k, v, upstream, lse, delta, causal, scale)
    return gradient_of_queries(*given, for_queries), *gradients_of_keys(*given, for_keys)


def delta_of(out: torch.Tensor, upstream: torch.Tensor) -> torch.Tensor:
    """Return the sum of output times its gradient for each query, ``(batch, heads, queries)`` in fp32."""
    rows = launch_of("keys", out).rows
    delta = torch.empty(out.shape[:3], dtype=torch.float32, device=out.device)
    delta_kernel[(programs(out, rows),)](
        tiles(out, rows), tiles(upstream, rows), delta, out.shape[1], out.shape[2], ROWS=rows, HEAD=out.shape[3]
    )
    return delta


def gradient_of_queries(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    upstream: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    causal: bool,
    scale: float,
    launch: Launch | None = None,
) -> torch.Tensor:
    """Return the gradient of q."""
    launch = launch or launch_of("queries", q)
    rows, columns = launch.rows, launch.columns
    d_q = room_like(q)
    backward_queries_kernel[(programs(q, rows),)](
        tiles(q, rows), tiles(k, columns), tiles(v, columns), tiles(upstream, rows), tiles(d_q, rows),
        lse, delta, **problem(q, k, causal, scale), **shape(launch),
    )  # fmt: skip
    return d_q


def gradients_of_keys(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    upstream: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    causal: bool,
    scale: float,
    launch: Launch | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of k and v."""
    launch = launch or launch_of("keys", q)
    rows, columns = launch.rows, launch.columns
    d_k, d_v = room_like(k), room_like(v)
    backward_keys_kernel[(programs(k, columns),)](
        tiles(q, rows), tiles(k, columns), tiles(v, columns), tiles(upstream, rows),
        tiles(d_k, columns), tiles(d_v, columns), lse, delta, **problem(q, k, causal, scale), **shape(launch),
    )  # fmt: skip
    return d_k, d_v


def launch_of(kernel: str, q: torch.Tensor) -> Launch:
    """Return how a kernel (``forward``, ``forward-short``, ``keys`` or ``queries``) is launched for some queries."""
    return (HOPPER if q.is_cuda and is_hopper(q.device) else OTHERS)[kernel, q.shape[-1]]


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Return whether a GPU is one of those the launches were tried on."""
    return torch.cuda.get_device_capability(device)[0] == 9


def tiles(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """Return a descriptor that reads and writes ``rows`` rows of one head at a time.

    What the copy engine cannot address is copied.
    """
    tensor = addressable(tensor)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, 1, rows, tensor.shape[-1]])


def programs(tensor: torch.Tensor, rows: int) -> int:
    """Return how many programs there are, one for each tile."""
    batch, heads, length, _ = tensor.shape
    return int(batch * heads * triton.cdiv(length, rows))


def problem(q: torch.Tensor, k: torch.Tensor, causal: bool, scale: float) -> dict[str, Any]:
    """Return what kernels are told of the problem."""
    sizes = {"heads": q.shape[1], "group": q.shape[1] // k.shape[1], "query_length": q.shape[2]}
    return {**sizes, "key_length": k.shape[2], "scale": scale, "CAUSAL": causal, "HEAD": q.shape[3]}


def shape(launch: Launch) -> dict[str, int]:
    """Return what kernels are told of the tiles."""
    tiles_of = {"ROWS": launch.rows, "COLUMNS": launch.columns}
    limit = {} if launch.registers is None else {"maxnreg": launch.registers}
    return {**tiles_of, "num_warps": launch.warps, "num_stages": launch.stages, **limit}
