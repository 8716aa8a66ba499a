"""The losses that are compared: ours, PyTorch's, and those of other libraries. All take and give the same."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from gpuguide.cross_entropy import linear_cross_entropy
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Keys

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Function of hidden states ``(tokens, hidden)``, head ``(vocab, hidden)``, targets ``(tokens,)``; returns the loss"""
Preparation = Callable[[Device, Keys], Loss]
"""Function that returns the loss of a case; its libraries are installed, and the device is not a fake one"""


def whole(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss as models compute it: all logits, in fp32."""
    return functional.cross_entropy(functional.linear(hidden, head).float(), targets)


def ours(device: Device, keys: Keys) -> Loss:
    """Return the loss of this library, with the chunk of the case if it has one."""
    return functools.partial(linear_cross_entropy, chunk=int(keys["chunk"]) if "chunk" in keys else None)


def eager(device: Device, keys: Keys) -> Loss:
    """Return the loss as models compute it."""
    return whole


def compile_loss(device: Device, keys: Keys) -> Loss:
    """Return the same, to be compiled for the one shape that it is called with next."""
    torch.compiler.reset()
    return torch.compile(whole, dynamic=False)


def compile_in_chunks(device: Device, keys: Keys) -> Loss:
    """Return the same, with the pass of the compiler that cuts such a matmul and what follows into chunks.

    By itself it cuts only matmuls that are more than eight times what they read, and into eight parts. Here it cuts
    every one. Nothing is forgotten before, which would be the other compiled loss of the case.
    """
    options: dict[str, Any] = {"auto_chunker.enable": True, "auto_chunker.amplify_ratio_threshold": 0}
    return torch.compile(whole, dynamic=False, options=options)


def require_chunker() -> str | None:
    """Return the reason to skip a compiler without such a pass, or None."""
    from torch import _inductor

    if "auto_chunker.enable" in _inductor.list_options():
        return None
    return f"the compiler of PyTorch {torch.__version__} does not cut into chunks (auto_chunker)"


def torchs_own(device: Device, keys: Keys) -> Loss:
    """Return PyTorch's own loss in chunks, with the chunk that it chooses."""
    options: Any = torch.nn.LinearCrossEntropyOptions()  # type: ignore[attr-defined,unused-ignore]
    loss: Any = functional.linear_cross_entropy  # type: ignore[attr-defined,unused-ignore]
    return functools.partial(loss, options=options)


def require_torchs_own() -> str | None:
    """Return the reason to skip a PyTorch without its own loss in chunks, or None."""
    if hasattr(functional, "linear_cross_entropy"):
        return None
    return f"PyTorch {torch.__version__} has no linear_cross_entropy; 2.13 has"


def liger(device: Device, keys: Keys) -> Loss:
    """Return the loss of the library liger-kernel, which takes the positions in chunks too.

    It chooses the chunk so that its logits take about as much as all hidden states, or as much as a factor times that,
    which can be given.
    """
    from liger_kernel.transformers.functional import liger_fused_linear_cross_entropy

    more = {}
    if "chunk" in keys:
        factor = factor_of_liger(*(int(keys[name]) for name in ("tokens", "hidden", "vocab", "chunk")))
        more = {"chunk_mem_const": factor} if factor > 1 else {}  # versions before 0.8.5 have no factor
    return lambda hidden, head, targets: liger_fused_linear_cross_entropy(hidden, head, targets, **more)


def chunk_of_liger(tokens: int, hidden: int, vocab: int, factor: int = 1) -> int:
    """Return the chunk that Liger takes, as its ``ops/fused_linear_cross_entropy.py`` of version 0.8.5 computes it."""
    parts = math.ceil(vocab / (factor * hidden))
    fewest = math.ceil(tokens / parts)
    return min(1 << (fewest - 1).bit_length(), tokens)


def factor_of_liger(tokens: int, hidden: int, vocab: int, chunk: int) -> int:
    """Return the smallest factor with which Liger takes a chunk.

    Raises
    ------
    ValueError
        If it takes that one with no factor.
    """
    for factor in range(1, math.ceil(vocab / hidden) + 1):
        if chunk_of_liger(tokens, hidden, vocab, factor) == chunk:
            return factor
    raise ValueError(f"Liger takes {tokens} tokens in chunks of {chunk} with no factor.")


def cut(device: Device, keys: Keys) -> Loss:
    """Return Apple's cut-cross-entropy, which never writes logits, and computes them again in the backward pass.

    It leaves out gradients of blocks in which no probability reaches 2⁻¹².
    """
    from cut_cross_entropy import linear_cross_entropy as cut_cross_entropy

    return cut_cross_entropy  # type: ignore[no-any-return,unused-ignore]


def cut_exact(device: Device, keys: Keys) -> Loss:
    """Return the same, which leaves nothing out."""
    from cut_cross_entropy import linear_cross_entropy as cut_cross_entropy

    return functools.partial(cut_cross_entropy, filter_eps=None)
