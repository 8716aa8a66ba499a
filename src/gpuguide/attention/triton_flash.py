"""Flash attention for use: launches of the kernels in :mod:`gpuguide.attention.flash_kernels`, and its gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
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

HEAD_SIZES = (32, 64, 128)


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


Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, float], tuple[torch.Tensor, torch.Tensor]]
"""Takes q, k, v, whether the mask is causal and the scale, and returns the output and the log-sum-exp"""


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    forward_pass: Forward | None = None,
) -> torch.Tensor:
    """Return attention, with gradients. On a GPU; see :func:`gpuguide.attention.attention`, which checks.

    Parameters
    ----------
    q : torch.Tensor
        ``(batch, heads, queries, head_dim)``, bf16 or fp16.
    k, v : torch.Tensor
        ``(batch, kv_heads, keys, head_dim)``.
    causal : bool
        Whether query ``i`` sees only the keys ``j <= i + keys - queries``.
    scale : float, optional
        What scores are multiplied by; ``1 / sqrt(head_dim)`` by default.
    forward_pass : callable, optional
        :func:`forward` by default.

    Returns
    -------
    torch.Tensor
        As ``q``. Zeros for a query that sees no key.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if scale <= 0:  # the kernels take the highest score before they scale it, and hide keys by -inf
        q, scale = (-q, -scale) if scale else (q * 0, 1.0)
    out: torch.Tensor = _FlashAttention.apply(q, k, v, causal, scale, forward_pass or forward)
    return out


class _FlashAttention(torch.autograd.Function):
    """The forward pass keeps its inputs, the output and the log-sum-exp."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, forward_pass: Forward
    ) -> torch.Tensor:
        out, lse = forward_pass(q, k, v, causal, scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "flash_attention has no second derivative: its backward pass is a kernel of its own. "
                "Use gpuguide.attention.reference.attention for one."
            )
        q, k, v, out, lse = ctx.saved_tensors
        return (*backward(q, k, v, out, lse, upstream[0], ctx.causal, ctx.scale), None, None, None)


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
    for_keys, for_queries = for_keys or launch_of("keys", q), for_queries or launch_of("queries", q)
    d_q, d_k, d_v = (room_like(tensor) for tensor in (q, k, v))
    delta = torch.empty_like(lse)
    rows, columns = for_keys.rows, for_keys.columns
    delta_kernel[(programs(q, rows),)](
        tiles(out, rows), tiles(upstream, rows), delta, q.shape[1], q.shape[2], ROWS=rows, HEAD=q.shape[3]
    )
    backward_keys_kernel[(programs(k, columns),)](
        tiles(q, rows), tiles(k, columns), tiles(v, columns), tiles(upstream, rows),
        tiles(d_k, columns), tiles(d_v, columns), lse, delta, **problem(q, k, causal, scale), **shape(for_keys),
    )  # fmt: skip
    rows, columns = for_queries.rows, for_queries.columns
    backward_queries_kernel[(programs(q, rows),)](
        tiles(q, rows), tiles(k, columns), tiles(v, columns), tiles(upstream, rows), tiles(d_q, rows),
        lse, delta, **problem(q, k, causal, scale), **shape(for_queries),
    )  # fmt: skip
    return d_q, d_k, d_v


def launch_of(kernel: str, q: torch.Tensor) -> Launch:
    """Return how a kernel (``forward``, ``forward-short``, ``keys`` or ``queries``) is launched for some queries."""
    return (HOPPER if q.is_cuda and is_hopper(q.device) else OTHERS)[kernel, q.shape[-1]]


@functools.cache
def is_hopper(device: torch.device) -> bool:
    """Return whether a GPU is one of those the launches were tried on."""
    return torch.cuda.get_device_capability(device)[0] == 9


def tiles(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
    """Return a descriptor that reads and writes ``rows`` rows of one head at a time.

    Heads and positions may lie in memory in any order. What the copy engine cannot address is copied.
    """
    if not is_addressable(tensor):
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [1, 1, rows, tensor.shape[-1]])


def is_addressable(tensor: torch.Tensor) -> bool:
    """Return whether the numbers of a row lie side by side, and rows begin at multiples of 16 bytes."""
    *strides, last = tensor.stride()
    aligned = all(stride > 0 and stride * tensor.element_size() % 16 == 0 for stride in strides)
    return last == 1 and aligned and tensor.data_ptr() % 16 == 0


def room_like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new tensor that a descriptor can write, in the same order in memory where that is possible."""
    room = torch.empty_like(tensor)
    return room if is_addressable(room) else torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


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
