"""PyTorch's own attention, made to obey the conventions of this package.

:func:`torch.nn.functional.scaled_dot_product_attention` chooses among several kernels. It differs in two points:

- ``is_causal=True`` hides keys as if the first query stood at the first key (top-left). With as many keys as queries
  that is the same. With more queries than keys the first ones see nothing, and the rest is square. With more keys than
  queries a mask is needed, which rules its flash kernel out; for a single query none is.
- What a query that sees no key gets depends on the version and the kernel. Here its row of the mask is opened and its
  output set to zero, which gives zero gradients too.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from gpuguide.attention.reference import causal_mask, for_each_head


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Return attention. Parameters as :func:`gpuguide.attention.attention`, which checks them."""
    queries, keys = q.shape[-2], k.shape[-2]
    if q.numel() == 0 or keys == 0:
        return nothing_to_see(q, k, v)
    if not causal or queries == 1:
        return _attention(q, k, v, mask, scale)
    if queries < keys:
        return _attention(q, k, v, causal_mask(queries, keys, q.device), scale)
    blind = queries - keys
    seen = functional.scaled_dot_product_attention(
        q[..., blind:, :], k, v, is_causal=True, scale=scale, enable_gqa=shares_heads(q, k)
    )
    return functional.pad(seen, (0, 0, blind, 0)) if blind else seen


def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    grouped = shares_heads(q, k)
    if mask is None:
        return functional.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=grouped)
    mask = torch.atleast_2d(mask)
    hidden = ~mask if mask.dtype == torch.bool else mask == -torch.inf
    blind = hidden.all(dim=-1, keepdim=True)
    opened = mask.masked_fill(blind, True if mask.dtype == torch.bool else 0.0)
    output = functional.scaled_dot_product_attention(q, k, v, attn_mask=opened, scale=scale, enable_gqa=grouped)
    return output.masked_fill(blind, 0.0)


def nothing_to_see(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return the zeros that queries get where there are no keys, or the nothing that no queries get."""
    keys, values = for_each_head(k, q.shape[1]), for_each_head(v, q.shape[1])
    return (q @ keys.mT) @ values


def shares_heads(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Return whether several heads of queries share one of keys."""
    return q.shape[1] != k.shape[1]
