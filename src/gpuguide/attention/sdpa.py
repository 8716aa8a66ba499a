"""PyTorch's attention with the conventions of this package.

:func:`torch.nn.functional.scaled_dot_product_attention` chooses among several kernels. It differs in two points:

- ``is_causal=True`` hides keys as if the first query were at the position of the first key (top-left). With as many
  keys as queries that is the same. With more queries than keys the first ones see nothing, and the rest is square. With
  more keys than queries a mask is needed, which its flash kernel does not support; a single query needs no mask.
- The output of a query that sees no key depends on the version and the kernel. Here its row is unmasked and its output
  set to zero, which also makes its gradients zero.

Where one of its kernels has a known bug (:mod:`gpuguide.attention.known_bugs`), it is skipped.
"""

from __future__ import annotations

import torch
from torch.backends import cuda as cuda_backends
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpuguide.attention.known_bugs import find_cudnn_bug
from gpuguide.attention.reference import causal_mask, repeat_heads

KERNELS = {
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool,
    mask: torch.Tensor | None,
    scale: float,
    kernel: str = "sdpa",
    exclusive: bool = False,
) -> torch.Tensor:
    """Return attention. Parameters as :func:`gpuguide.attention.attention`, which checks them, and two more.

    Parameters
    ----------
    kernel : str
        One of :data:`KERNELS`, which is tried first; ``sdpa`` leaves the order to PyTorch.
    exclusive : bool
        Whether no other kernel is tried: PyTorch raises a ``RuntimeError`` if this one does not support the call.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    if q.numel() == 0 or keys == 0:
        return attend_to_nothing(q, k, v)
    order = kernel_order(kernel, exclusive)
    if not causal or queries == 1:
        return attend_with_mask(q, k, v, mask, scale, order)
    if queries < keys:
        return attend_with_mask(q, k, v, causal_mask(queries, keys, q.device), scale, order)
    blind = queries - keys
    if not blind:
        return call_sdpa(q, k, v, None, True, scale, order)
    return functional.pad(call_sdpa(q[..., blind:, :], k, v, None, True, scale, order), (0, 0, blind, 0))


def attend_with_mask(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    order: list[SDPBackend] | None,
) -> torch.Tensor:
    """Return attention with a mask or without one. Zeros for a query that sees no key."""
    if mask is None:
        return call_sdpa(q, k, v, None, False, scale, order)
    mask = torch.atleast_2d(mask)
    hidden = ~mask if mask.dtype == torch.bool else mask == -torch.inf
    blind = hidden.all(dim=-1, keepdim=True)
    unmasked = mask.masked_fill(blind, True if mask.dtype == torch.bool else 0.0)
    return call_sdpa(q, k, v, unmasked, False, scale, order).masked_fill(blind, 0.0)


def call_sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
    order: list[SDPBackend] | None,
) -> torch.Tensor:
    """Call PyTorch's function with its kernels in an order of preference, but without any that has a known bug."""
    grouped = shares_heads(q, k)
    if find_cudnn_bug(q, k, v, has_mask=mask is not None) is not None:
        order = [kernel for kernel in order or list_enabled_kernels() if kernel != KERNELS["sdpa-cudnn"]]
    if order is None:
        return functional.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=grouped)
    with sdpa_kernel(order, set_priority=True):
        return functional.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=grouped)


def kernel_order(first: str, exclusive: bool = False) -> list[SDPBackend] | None:
    """Return PyTorch's enabled kernels in the order in which they are tried; None stands for PyTorch's own order."""
    if first == "sdpa":
        return None
    if exclusive:
        return [KERNELS[first]]
    return [KERNELS[first], *(kernel for kernel in list_enabled_kernels() if kernel != KERNELS[first])]


def list_enabled_kernels() -> list[SDPBackend]:
    """Return PyTorch's enabled kernels, the unfused one last."""
    kernels = [KERNELS[name] for name in KERNELS if is_enabled(name)]
    return [*kernels, SDPBackend.MATH] if is_enabled("math") else kernels


@torch.compiler.assume_constant_result
def is_enabled(kernel: str) -> bool:
    """Return whether a kernel is enabled (``torch.backends.cuda.enable_cudnn_sdp`` and its like).

    A compiled function keeps the setting at the time of its compilation.
    """
    if kernel == "math":
        return cuda_backends.math_sdp_enabled()
    if kernel == "sdpa-cudnn":
        return cuda_backends.cudnn_sdp_enabled()
    return cuda_backends.flash_sdp_enabled() if kernel == "sdpa-flash" else cuda_backends.mem_efficient_sdp_enabled()


def list_supporting_kernels(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, is_causal: bool
) -> list[str]:
    """Return the names of PyTorch's kernels that support a call on a GPU, according to PyTorch."""
    call = cuda_backends.SDPAParams(q, k, v, mask, 0.0, is_causal, shares_heads(q, k))
    checks = {
        "sdpa-cudnn": cuda_backends.can_use_cudnn_attention,
        "sdpa-flash": cuda_backends.can_use_flash_attention,
        "sdpa-efficient": cuda_backends.can_use_efficient_attention,
    }
    return [name for name, supports in checks.items() if is_enabled(name) and supports(call)]


def attend_to_nothing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return attention without keys, which is zeros, or without queries, which is empty."""
    keys, values = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    return (q @ keys.mT) @ values


def shares_heads(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Return whether several heads of queries share one of keys."""
    if q.shape[1] != k.shape[1]:  # noqa: SIM103 - decided here, also of sizes that a compiler keeps open
        return True
    return False
