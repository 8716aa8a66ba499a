"""Checks of the arguments of attention: shapes, dtypes, devices and masks."""

from __future__ import annotations

import torch

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, mask: torch.Tensor | None) -> None:
    """Raise ``ValueError`` with the expected and the actual value if the arguments do not fit each other."""
    shapes = f"given {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}."
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(f"q, k and v must be (batch, heads, length, head_dim); {shapes}")
    if k.shape != v.shape:
        raise ValueError(f"k and v must have the same shape; given {tuple(k.shape)} and {tuple(v.shape)}.")
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q, k and v must agree in batch and head_dim; {shapes}")
    if q.shape[3] == 0:
        raise ValueError(f"head_dim must be at least 1; {shapes}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(
            f"The heads of q must be a multiple of those of k and v, which they share; "
            f"given {q.shape[1]} and {k.shape[1]}."
        )
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k and v must be on one device; given {q.device}, {k.device} and {v.device}.")
    if not q.dtype == k.dtype == v.dtype:
        names = f"{dtype_name(q.dtype)}, {dtype_name(k.dtype)} and {dtype_name(v.dtype)}"
        raise ValueError(f"q, k and v must have one dtype; given {names}.")
    if q.dtype not in DTYPES:
        known = ", ".join(dtype_name(dtype) for dtype in DTYPES)
        raise ValueError(f"q, k and v are {dtype_name(q.dtype)}; convert them to one of {known}.")
    if mask is not None:
        check_mask(mask, q, k, causal)


def check_mask(mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor, causal: bool) -> None:
    """Raise ``ValueError`` if a mask does not fit the tensors."""
    if causal:
        raise ValueError(
            "A mask was given together with causal=True; give one of them. For both, give the mask "
            "mask & gpuguide.attention.reference.causal_mask(queries, keys, device)."
        )
    if mask.device != q.device:
        raise ValueError(f"The mask must be on the device of q; given {mask.device} and {q.device}.")
    if mask.dtype not in (torch.bool, q.dtype):
        raise ValueError(
            f"The mask must be boolean, true where a query sees a key, or {dtype_name(q.dtype)} like q; "
            f"given {dtype_name(mask.dtype)}."
        )
    full_shape = (*q.shape[:3], k.shape[2])
    if mask.ndim > 4 or any(
        size not in (1, full_size) for size, full_size in zip(mask.shape[::-1], full_shape[::-1], strict=False)
    ):
        raise ValueError(
            f"The mask must broadcast to (batch, heads, queries, keys), here {full_shape}; given {tuple(mask.shape)}."
        )


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype without its module.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")
