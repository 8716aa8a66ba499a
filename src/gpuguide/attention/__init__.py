"""Attention: as it is defined, a tile at a time, and for use.

:func:`attention` is for use. It takes what is given, chooses who computes it, and :func:`choose` says why.
:mod:`~gpuguide.attention.reference` explains what is computed, :mod:`~gpuguide.attention.tiled` how it is done without
storing the scores, and :mod:`~gpuguide.attention.cost` predicts what both cost.

Queries are ``(batch, heads, queries, head_dim)``, keys and values ``(batch, kv_heads, keys, head_dim)``. Causal means
that the last query sees all keys, and each one before it one key less.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gpuguide import kernels
from gpuguide.attention import sdpa
from gpuguide.attention.reference import scale_or_default

__all__ = ["BACKENDS", "Choice", "attention", "choose"]

BACKENDS = ("gluon", "triton", "sdpa")
"""Who can compute: our kernels, with the forward pass's schedule written by hand or by Triton, and
:func:`torch.nn.functional.scaled_dot_product_attention`"""
OLDEST = (9, 0)
"""The compute capability from which on a GPU has the copy engine that moves our kernel's tiles. Without it the kernel
is right, but the library's are faster."""
BY_HAND_GENERATION = 9
"""The major compute capability whose instructions the schedule by hand is written in"""
BY_HAND_HEAD_SIZES = (128,)
"""Where the schedule by hand was the faster of ours on an H100, from 1024 keys on"""
FORMATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Choice:
    """Who computes an attention, and why."""

    backend: str
    reason: str
    """A sentence"""


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    mask: torch.Tensor | None = None,
    scale: float | None = None,
    backend: str | None = None,
) -> torch.Tensor:
    """Return attention, by our kernel where it takes the inputs and by PyTorch's where not. It can be differentiated.

    Parameters
    ----------
    q : torch.Tensor
        ``(batch, heads, queries, head_dim)``, in bf16, fp16, fp32 or float64. Under autocast all three are cast.
    k, v : torch.Tensor
        ``(batch, kv_heads, keys, head_dim)``, of the same format and on the same device. ``heads`` is a multiple of
        ``kv_heads``; neighbouring heads of queries share one.
    causal : bool
        Hide from each query the keys after its own position: query ``i`` sees key ``j`` if
        ``j <= i + keys - queries``. This is not PyTorch's ``is_causal`` if the lengths differ.
    mask : torch.Tensor, optional
        Of a shape that broadcasts to ``(batch, heads, queries, keys)``. Boolean: true where a query sees a key.
        In the format of ``q``: added to the scores.
    scale : float, optional
        What scores are multiplied by; ``1 / sqrt(head_dim)`` by default.
    backend : str, optional
        ``gluon``, ``triton`` or ``sdpa``; by default what :func:`choose` says.

    Returns
    -------
    torch.Tensor
        ``(batch, heads, queries, head_dim)``, in the format of ``q``. Zeros for a query that sees no key.

    Raises
    ------
    ValueError
        If shapes, formats or devices do not fit, a mask comes together with ``causal``, or the backend that was asked
        for cannot do it.
    """
    q, k, v = (_in_autocast_type(tensor) for tensor in (q, k, v))
    mask = None if mask is None else _in_autocast_type(mask)
    chosen = choose(q, k, v, causal=causal, mask=mask)
    if backend is not None:
        _check_backend(backend, chosen, q)
    factor, computing = scale_or_default(scale, q.shape[-1]), backend or chosen.backend
    if computing == "sdpa":
        return sdpa.attention(q, k, v, causal=causal, mask=mask, scale=factor)
    with torch.cuda.device_of(q):
        return _our_kernel(computing)(q, k, v, causal=causal, scale=factor)


def choose(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False, mask: torch.Tensor | None = None
) -> Choice:
    """Return who would compute an attention, and why, without computing it. Parameters, and errors, as for it."""
    _check(q, k, v, causal, mask)
    why_not = _why_not_our_kernel(q, k, mask)
    if why_not is not None:
        return Choice("sdpa", why_not)
    taken = f"takes {_name(q.dtype)} with head_dim {q.shape[-1]} on this GPU"
    if q.shape[-1] in BY_HAND_HEAD_SIZES and _why_not_by_hand(q) is None:
        return Choice("gluon", f"Our kernel {taken}, and is faster there with its schedule written by hand.")
    return Choice("triton", f"Our kernel {taken}.")


def _our_kernel(backend: str) -> Callable[..., torch.Tensor]:
    from gpuguide.attention import triton_flash

    if backend == "triton":
        return triton_flash.flash_attention
    from gpuguide.attention import gluon_flash

    return gluon_flash.flash_attention


def _why_not_our_kernel(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None) -> str | None:
    """Return a sentence on what our kernel lacks for this, or nothing if it takes it."""
    if not q.is_cuda:
        return f"The tensors are on {q.device}, and our kernel runs on NVIDIA GPUs."
    if q.dtype not in (torch.bfloat16, torch.float16):
        return f"The tensors are {_name(q.dtype)}, and our kernel takes bfloat16 and float16."
    if mask is not None:
        return "There is a mask, and our kernel knows none but the causal one."
    if q.numel() == 0 or k.numel() == 0:
        return "There is nothing to compute: a tensor is empty."
    if not kernels.take(q):
        return "Triton, which our kernel is written in, is not installed."
    capability = torch.cuda.get_device_capability(q.device)
    if capability < OLDEST:
        return f"The GPU has compute capability {capability[0]}.{capability[1]}, and our kernel is fast from 9.0 on."
    from gpuguide.attention import triton_flash

    if q.shape[-1] not in triton_flash.HEAD_SIZES:
        known = ", ".join(str(size) for size in triton_flash.HEAD_SIZES)
        return f"head_dim is {q.shape[-1]}, and our kernel takes {known}."
    return None


def _why_not_by_hand(q: torch.Tensor) -> str | None:
    """Return a sentence on what the schedule by hand lacks for what our kernel takes, or nothing."""
    major, minor = torch.cuda.get_device_capability(q.device)
    if major != BY_HAND_GENERATION:
        return f"The GPU has compute capability {major}.{minor}, and the schedule by hand is for 9.0."
    if not _has_gluon():
        return "Gluon, which the schedule by hand is written in, is not part of this Triton."
    return None


def _has_gluon() -> bool:
    return importlib.util.find_spec("triton.experimental.gluon") is not None


# --- checks ----------------------------------------------------------------------------------------------


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, mask: torch.Tensor | None) -> None:
    given = f"given {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}."
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(f"q, k and v must be (batch, heads, length, head_dim); {given}")
    if k.shape != v.shape:
        raise ValueError(f"k and v must have the same shape; given {tuple(k.shape)} and {tuple(v.shape)}.")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q, k and v must agree in batch and head_dim; {given}")
    if q.shape[3] == 0:
        raise ValueError(f"head_dim must be at least 1; {given}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"The heads of q must be a multiple of those of k and v, which they share; "
            f"given {q.shape[1]} and {k.shape[1]}."
        )
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k and v must be on one device; given {q.device}, {k.device} and {v.device}.")
    if not q.dtype == k.dtype == v.dtype:
        names = f"{_name(q.dtype)}, {_name(k.dtype)} and {_name(v.dtype)}"
        raise ValueError(f"q, k and v must have one format; given {names}.")
    if q.dtype not in FORMATS:
        known = ", ".join(_name(dtype) for dtype in FORMATS)
        raise ValueError(f"q, k and v are {_name(q.dtype)}; convert them to one of {known}.")
    if mask is not None:
        _check_mask(mask, q, k, causal)


def _check_mask(mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor, causal: bool) -> None:
    if causal:
        raise ValueError(
            "A mask was given together with causal=True; give one of them. For both, give the mask "
            "mask & gpuguide.attention.reference.causal_mask(queries, keys, device)."
        )
    if mask.device != q.device:
        raise ValueError(f"The mask must be on the device of q; given {mask.device} and {q.device}.")
    if mask.dtype not in (torch.bool, q.dtype):
        raise ValueError(
            f"The mask must be boolean, true where a query sees a key, or {_name(q.dtype)} like q; "
            f"given {_name(mask.dtype)}."
        )
    wanted = (*q.shape[:3], k.shape[2])
    if mask.ndim > 4 or any(
        size not in (1, whole) for size, whole in zip(mask.shape[::-1], wanted[::-1], strict=False)
    ):
        raise ValueError(
            f"The mask must broadcast to (batch, heads, queries, keys), here {wanted}; given {tuple(mask.shape)}."
        )


def _check_backend(backend: str, chosen: Choice, q: torch.Tensor) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"The backend is {backend!r}; it must be one of {', '.join(BACKENDS)}, or None.")
    if backend == "sdpa":
        return
    why_not = chosen.reason if chosen.backend == "sdpa" else None
    if why_not is None and backend == "gluon":
        why_not = _why_not_by_hand(q)
    if why_not is not None:
        raise ValueError(f"The backend {backend} cannot do this: {why_not} Leave the backend out, or ask for sdpa.")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _in_autocast_type(tensor: torch.Tensor) -> torch.Tensor:
    """Cast as autocast casts the operands of products; float64 stays."""
    kind = tensor.device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return tensor
    if not tensor.is_floating_point() or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind))
