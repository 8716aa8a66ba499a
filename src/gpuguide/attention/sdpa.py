"""PyTorch's own attention, made to obey the conventions of this package.

:func:`torch.nn.functional.scaled_dot_product_attention` chooses among several kernels. It differs in two points:

- ``is_causal=True`` hides keys as if the first query stood at the first key (top-left). With as many keys as queries
  that is the same. With more queries than keys the first ones see nothing, and the rest is square. With more keys than
  queries a mask is needed, which rules its flash kernel out; for a single query none is.
- What a query that sees no key gets depends on the version and the kernel. Here its row of the mask is opened and its
  output set to zero, which gives zero gradients too.

Where one of its kernels is known to give wrong results (:mod:`gpuguide.attention.faults`), it is left out.
"""

from __future__ import annotations

import torch
from torch.backends import cuda as allowed
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpuguide.attention.faults import why_not_cudnn
from gpuguide.attention.reference import causal_mask, for_each_head

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
    alone: bool = False,
) -> torch.Tensor:
    """Return attention. Parameters as :func:`gpuguide.attention.attention`, which checks them, and two more.

    Parameters
    ----------
    kernel : str
        One of :data:`KERNELS`, which is asked first; ``sdpa`` leaves the order to PyTorch.
    alone : bool
        Whether no other kernel is asked where this one does not take the call: PyTorch then raises a ``RuntimeError``.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    if q.numel() == 0 or keys == 0:
        return nothing_to_see(q, k, v)
    order = order_of(kernel, alone)
    if not causal or queries == 1:
        return seen_by_mask(q, k, v, mask, scale, order)
    if queries < keys:
        return seen_by_mask(q, k, v, causal_mask(queries, keys, q.device), scale, order)
    blind = queries - keys
    if not blind:
        return asked(q, k, v, None, True, scale, order)
    return functional.pad(asked(q[..., blind:, :], k, v, None, True, scale, order), (0, 0, blind, 0))


def seen_by_mask(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    order: list[SDPBackend] | None,
) -> torch.Tensor:
    """Return attention where a mask, or none, says who sees whom. Zeros where nobody is seen."""
    if mask is None:
        return asked(q, k, v, None, False, scale, order)
    mask = torch.atleast_2d(mask)
    hidden = ~mask if mask.dtype == torch.bool else mask == -torch.inf
    blind = hidden.all(dim=-1, keepdim=True)
    opened = mask.masked_fill(blind, True if mask.dtype == torch.bool else 0.0)
    return asked(q, k, v, opened, False, scale, order).masked_fill(blind, 0.0)


def asked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
    order: list[SDPBackend] | None,
) -> torch.Tensor:
    """Call PyTorch's function, with its kernels asked in some order and without the one that would be wrong."""
    grouped = shares_heads(q, k)
    if why_not_cudnn(q, k, v, masked=mask is not None) is not None:
        order = [kernel for kernel in order or enabled() if kernel != KERNELS["sdpa-cudnn"]]
    if order is None:
        return functional.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=grouped)
    with sdpa_kernel(order, set_priority=True):
        return functional.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=scale, enable_gqa=grouped)


def order_of(first: str, alone: bool = False) -> list[SDPBackend] | None:
    """Return PyTorch's kernels in the order in which they are asked, but for those that somebody has disabled.

    Nothing for PyTorch's own order.
    """
    if first == "sdpa":
        return None
    if alone:
        return [KERNELS[first]]
    return [KERNELS[first], *(kernel for kernel in enabled() if kernel != KERNELS[first])]


def enabled() -> list[SDPBackend]:
    """Return those of PyTorch's kernels that it may use, the formula last."""
    kernels = [KERNELS[name] for name in KERNELS if is_enabled(name)]
    return [*kernels, SDPBackend.MATH] if is_enabled("math") else kernels


@torch.compiler.assume_constant_result
def is_enabled(kernel: str) -> bool:
    """Return whether PyTorch may use a kernel, as ``torch.backends.cuda.enable_cudnn_sdp`` and its like say.

    A compiled function keeps what was so when it was compiled.
    """
    if kernel == "math":
        return allowed.math_sdp_enabled()
    if kernel == "sdpa-cudnn":
        return allowed.cudnn_sdp_enabled()
    return allowed.flash_sdp_enabled() if kernel == "sdpa-flash" else allowed.mem_efficient_sdp_enabled()


def kernels_that_take(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, is_causal: bool
) -> list[str]:
    """Return those of PyTorch's kernels on a GPU that take a call, by its own word."""
    call = allowed.SDPAParams(q, k, v, mask, 0.0, is_causal, shares_heads(q, k))
    takes = {
        "sdpa-cudnn": allowed.can_use_cudnn_attention,
        "sdpa-flash": allowed.can_use_flash_attention,
        "sdpa-efficient": allowed.can_use_efficient_attention,
    }
    return [name for name, can in takes.items() if is_enabled(name) and can(call)]


def nothing_to_see(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return the zeros that queries get where there are no keys, or the nothing that no queries get."""
    keys, values = for_each_head(k, q.shape[1]), for_each_head(v, q.shape[1])
    return (q @ keys.mT) @ values


def shares_heads(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Return whether several heads of queries share one of keys."""
    if q.shape[1] != k.shape[1]:  # noqa: SIM103 - decided here, also of sizes that a compiler keeps open
        return True
    return False
