"""Attention: reference, tiled version, and kernels.

:func:`attention` chooses the fastest backend for its arguments, and :func:`choose` returns that backend with the
reason. :mod:`~gpuguide.attention.reference` defines attention, :mod:`~gpuguide.attention.tiled` computes it without
storing the scores, and :mod:`~gpuguide.attention.cost` predicts the time and memory of both.

Queries are ``(batch, heads, queries, head_dim)``, keys and values ``(batch, kv_heads, keys, head_dim)``. Causal means
that the last query sees all keys, and each one before it one key less.
"""

from __future__ import annotations

import torch

from gpuguide.attention import flash, sdpa
from gpuguide.attention.checks import check
from gpuguide.attention.choice import BACKENDS, OURS, BackendChoice, cast_for_autocast, check_backend, choose, decide
from gpuguide.attention.reference import scale_or_default

__all__ = ["BACKENDS", "BackendChoice", "attention", "choose"]


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
    """Return attention by the fastest backend for the inputs: our kernels or one of PyTorch's. It has gradients.

    It can be compiled (``torch.compile(fullgraph=True)``), mapped (:func:`torch.vmap`) and transformed
    (:func:`torch.func.grad`). For windows, soft caps and other functions of single scores there is
    :func:`torch.nn.attention.flex_attention.flex_attention`, for sequences of many lengths in one batch
    :func:`torch.nn.attention.varlen.varlen_attn`, and for the log-sum-exp
    :func:`gpuguide.attention.flash.flash_attention_with_log_sum_exp`.

    Gradients can differ by rounding from run to run, because the fastest kernels add parts of the gradient of the
    queries in any order. After :func:`torch.use_deterministic_algorithms`, our kernels add in a fixed order, which is
    slower.

    Launching takes the host of the order of 0.2 ms with our kernels, most of it for the descriptors of the tensors, and
    several times that with gradients. Where the GPU is done sooner, as with short sequences of small batches, the host
    decides: capture such calls in a CUDA graph, or compile them with ``mode="reduce-overhead"``, which does.

    Parameters
    ----------
    q : torch.Tensor
        ``(batch, heads, queries, head_dim)``, in bf16, fp16, fp32 or float64. Under autocast all three are cast.
    k, v : torch.Tensor
        ``(batch, kv_heads, keys, head_dim)``, of the same dtype and on the same device. ``heads`` is a multiple of
        ``kv_heads``; neighbouring heads of queries share one.
    causal : bool
        Hide from each query the keys after its own position: query ``i`` sees key ``j`` if
        ``j <= i + keys - queries``. This is not PyTorch's ``is_causal`` if the lengths differ.
    mask : torch.Tensor, optional
        Mask that broadcasts to ``(batch, heads, queries, keys)``. Boolean: true where a query sees a key.
        In the dtype of ``q``: added to the scores.
    scale : float, optional
        Factor of the scores; ``1 / sqrt(head_dim)`` by default.
    backend : str, optional
        One of :data:`~gpuguide.attention.choice.BACKENDS`; by default the one that :func:`choose` returns.

    Returns
    -------
    torch.Tensor
        ``(batch, heads, queries, head_dim)``, in the dtype of ``q``. Zeros for a query that sees no key.

    Raises
    ------
    ValueError
        If shapes, dtypes or devices do not fit, a mask is passed together with ``causal``, or ``backend`` names one of
        our kernels that does not support the call.
    RuntimeError
        If ``backend`` names one of PyTorch's kernels that does not support the call.
    """
    q, k, v = (cast_for_autocast(tensor) for tensor in (q, k, v))
    mask = None if mask is None else cast_for_autocast(mask)
    check(q, k, v, causal, mask)
    if backend is not None:
        check_backend(backend, q, k, v, mask)
    kernel = backend or decide(q, k, v, causal, mask)[0]
    factor = scale_or_default(scale, q.shape[-1])
    if kernel in OURS:
        return flash.flash_attention(q, k, v, causal=causal, scale=factor, backend=kernel)
    return sdpa.attention(q, k, v, causal=causal, mask=mask, scale=factor, kernel=kernel, exclusive=kernel == backend)
