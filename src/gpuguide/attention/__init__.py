"""Attention: as it is defined, a tile at a time, and for use.

:func:`attention` is for use. It takes what is given, chooses who computes it, and :func:`choose` says why.
:mod:`~gpuguide.attention.reference` explains what is computed, :mod:`~gpuguide.attention.tiled` how it is done without
storing the scores, and :mod:`~gpuguide.attention.cost` predicts what both cost.

Queries are ``(batch, heads, queries, head_dim)``, keys and values ``(batch, kv_heads, keys, head_dim)``. Causal means
that the last query sees all keys, and each one before it one key less.
"""

from __future__ import annotations

import torch

from gpuguide.attention import flash, sdpa
from gpuguide.attention.checks import check
from gpuguide.attention.choice import BACKENDS, OURS, Choice, check_backend, choose, decide, in_autocast_type
from gpuguide.attention.reference import scale_or_default

__all__ = ["BACKENDS", "Choice", "attention", "choose"]


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
    """Return attention, by the fastest that takes the inputs: our kernels or one of PyTorch's. It has gradients.

    It can be compiled (``torch.compile(fullgraph=True)``), mapped (:func:`torch.vmap`) and transformed
    (:func:`torch.func.grad`). For windows, soft caps and other functions of single scores there is
    :func:`torch.nn.attention.flex_attention.flex_attention`, for sequences of many lengths in one batch
    :func:`torch.nn.attention.varlen.varlen_attn`, and for the log-sum-exp
    :func:`gpuguide.attention.flash.flash_attention_with_log_sum_exp`.

    Launching takes the host of the order of 0.2 ms with our kernels, most of it for the descriptors of the tensors, and
    several times that with gradients. Where the GPU is done sooner, as with short sequences of small batches, the host
    decides: capture such calls in a CUDA graph, or compile them with ``mode="reduce-overhead"``, which does.

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
        One of :data:`~gpuguide.attention.choice.BACKENDS`; by default what :func:`choose` says.

    Returns
    -------
    torch.Tensor
        ``(batch, heads, queries, head_dim)``, in the format of ``q``. Zeros for a query that sees no key.

    Raises
    ------
    ValueError
        If shapes, formats or devices do not fit, a mask comes together with ``causal``, or one of our kernels was asked
        for and cannot do it.
    RuntimeError
        If one of PyTorch's kernels was asked for and cannot do it.
    """
    q, k, v = (in_autocast_type(tensor) for tensor in (q, k, v))
    mask = None if mask is None else in_autocast_type(mask)
    check(q, k, v, causal, mask)
    if backend is not None:
        check_backend(backend, q, k, v, mask)
    computing = backend or decide(q, k, v, causal, mask)[0]
    factor = scale_or_default(scale, q.shape[-1])
    if computing in OURS:
        return flash.flash_attention(q, k, v, causal=causal, scale=factor, by_hand=computing == "gluon")
    return sdpa.attention(q, k, v, causal=causal, mask=mask, scale=factor, kernel=computing, alone=computing == backend)
