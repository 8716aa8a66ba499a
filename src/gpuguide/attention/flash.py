"""Flash attention for use: our kernels as operators of PyTorch, with gradients.

An operator is what the rest of PyTorch knows a kernel by. ``torch.compile`` puts it into its graph without looking
inside, a fake tensor gets the shapes of its results, ``torch.vmap`` makes a mapped dimension part of the batch, and
autograd asks for its gradients. There is one for each launch:

- ``gpuguide::flash_attention`` gives the output and the log-sum-exp of every query's scores;
- ``gpuguide::flash_delta`` what softmax subtracts from the gradient of its weights, one number for each query;
- ``gpuguide::flash_queries`` the gradient of the queries, ``gpuguide::flash_keys`` those of keys and values.

The last two are separate, so that a gradient nobody asks for costs nothing. On a CPU they compute the same with all
scores in memory, unless Triton interprets its kernels (``TRITON_INTERPRET=1``): there they are for tests.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from gpuguide.attention import reference
from gpuguide.attention.faults import gradients_asked
from gpuguide.attention.layout import room_like
from gpuguide.kernels import forward_mode
from gpuguide.kernels.context import device_of
from gpuguide.logits import at_least_fp32

__all__ = ["flash_attention", "flash_attention_with_log_sum_exp"]


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    by_hand: bool = False,
) -> torch.Tensor:
    """Return attention by our kernels. See :func:`gpuguide.attention.attention`, which checks and chooses.

    Parameters
    ----------
    q : torch.Tensor
        ``(batch, heads, queries, head_dim)``, bf16 or fp16, on a GPU.
    k, v : torch.Tensor
        ``(batch, kv_heads, keys, head_dim)``.
    causal : bool
        Whether query ``i`` sees only the keys ``j <= i + keys - queries``.
    scale : float, optional
        What scores are multiplied by; ``1 / sqrt(head_dim)`` by default.
    by_hand : bool
        Whether the forward pass is that of :mod:`gpuguide.attention.gluon_flash`.

    Returns
    -------
    torch.Tensor
        As ``q``. Zeros for a query that sees no key. It can be differentiated once.
    """
    return flash_attention_with_log_sum_exp(q, k, v, causal=causal, scale=scale, by_hand=by_hand)[0]


def flash_attention_with_log_sum_exp(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    by_hand: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention and the log-sum-exp of each query's scores. Parameters as :func:`flash_attention`.

    With it, attention over parts of the keys can be joined: each part counts by the exponential of its own.

    Returns
    -------
    tuple of torch.Tensor
        The output, and ``(batch, heads, queries)`` in fp32; ``-inf`` for a query that sees no key.
    """
    factor = reference.scale_or_default(scale, q.shape[-1])
    if factor <= 0:  # the kernels take the highest score before they scale it, and hide keys by -inf
        q, factor = (-q, -factor) if factor else (q * 0, 1.0)
    forward_mode.refuse_compiled()
    called = FlashAttention.apply if is_transformed(q, k, v) else forward
    result: tuple[torch.Tensor, torch.Tensor] = called(q, k, v, causal, factor, by_hand)
    return result


def is_transformed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Return whether anybody may want more than the result: derivatives, a transform or a graph.

    Without, the operator is called by itself, which costs the host less than an autograd function.
    """
    return (
        torch.compiler.is_compiling()
        or gradients_asked(q, k, v)
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


# --- the operators ---------------------------------------------------------------------------------------

LIBRARY = torch.library.Library("gpuguide", "FRAGMENT")


def operator(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make an operator of a function that computes on a CPU and on a GPU, and return it in the function's place.

    :func:`torch.library.custom_op` does the same and checks more, and each call takes the host several times as long.
    """

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        schema = torch.library.infer_schema(function, mutates_args=())
        LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        for device in ("CPU", "CUDA"):
            LIBRARY.impl(name, function, device)
        found: Callable[..., Any] = getattr(torch.ops.gpuguide, name).default
        return found

    return made


@operator("flash_attention")
def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, by_hand: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and the log-sum-exp."""
    if not kernels_run(q):
        out, lse = reference.attention_with_log_sum_exp(q, k, v, causal=causal, scale=scale)
        return room_like(q).copy_(out), lse
    with device_of(q):
        if by_hand:
            from gpuguide.attention import gluon_flash

            return gluon_flash.forward(q, k, v, causal, scale)
        from gpuguide.attention import triton_flash

        return triton_flash.forward(q, k, v, causal, scale)


@operator("flash_delta")
def delta_of(out: torch.Tensor, d_out: torch.Tensor) -> torch.Tensor:
    """Return the sum of output times its gradient, for each query."""
    if not kernels_run(out):
        return (at_least_fp32(out) * d_out).sum(-1)
    from gpuguide.attention import triton_flash

    with device_of(out):
        return triton_flash.delta_of(out, d_out)


@operator("flash_queries")
def gradient_of_queries(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    causal: bool,
    scale: float,
) -> torch.Tensor:
    """Return dQ."""
    if not kernels_run(q):
        _, d_scores = recomputed(q, k, v, d_out, lse, delta, causal, scale)
        return room_like(q).copy_(scale * d_scores @ reference.for_each_head(k, q.shape[1]).to(d_scores.dtype))
    from gpuguide.attention import triton_flash

    with device_of(q):
        return triton_flash.gradient_of_queries(q, k, v, d_out, lse, delta, causal, scale)


@operator("flash_keys")
def gradients_of_keys(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dK and dV, which one kernel makes."""
    if not kernels_run(q):
        weights, d_scores = recomputed(q, k, v, d_out, lse, delta, causal, scale)
        d_k = reference.of_shared_heads(scale * d_scores.mT @ q.to(d_scores.dtype), k.shape[1])
        d_v = reference.of_shared_heads(weights.mT @ d_out.to(weights.dtype), k.shape[1])
        return room_like(k).copy_(d_k), room_like(v).copy_(d_v)
    from gpuguide.attention import triton_flash

    with device_of(q):
        return triton_flash.gradients_of_keys(q, k, v, d_out, lse, delta, causal, scale)


def kernels_run(tensor: torch.Tensor) -> bool:
    """Return whether the kernels run where a tensor is: on a GPU, or interpreted."""
    return tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


def recomputed(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights, made again from the log-sum-exp, and the gradient of the scores."""
    weights = reference.probabilities(reference.masked(reference.scaled_scores(q, k, scale), causal=causal), lse)
    d_weights = d_out.to(weights.dtype) @ reference.for_each_head(v, q.shape[1]).to(weights.dtype).mT
    return weights, weights * (d_weights - delta.unsqueeze(-1))


# --- shapes, for fake tensors ----------------------------------------------------------------------------


@torch.library.register_fake("gpuguide::flash_attention")
def _forward_shapes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, by_hand: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return room_like(q), one_for_each_query(q)


@torch.library.register_fake("gpuguide::flash_delta")
def _delta_shape(out: torch.Tensor, d_out: torch.Tensor) -> torch.Tensor:
    return one_for_each_query(out)


def one_for_each_query(q: torch.Tensor) -> torch.Tensor:
    """Return room for a sum of each query."""
    return q.new_empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))


@torch.library.register_fake("gpuguide::flash_queries")
def _queries_shape(q: torch.Tensor, *rest: Any) -> torch.Tensor:
    return room_like(q)


@torch.library.register_fake("gpuguide::flash_keys")
def _keys_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return room_like(k), room_like(v)


# --- gradients -------------------------------------------------------------------------------------------


class FlashAttention(torch.autograd.Function):
    """The operator with its gradients, for transforms such as :func:`torch.func.grad` too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, by_hand: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return forward(q, k, v, causal, scale, by_hand)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Keep the inputs, the output and the log-sum-exp."""
        q, k, v, ctx.causal, ctx.scale, _ = inputs
        ctx.save_for_backward(q, k, v, *output)
        ctx.set_materialize_grads(False)  # nobody may ask for the gradient of one of the two

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        of_queries, of_keys, of_values = ctx.needs_input_grad[:3]
        given = (*ctx.saved_tensors, *upstream, ctx.causal, ctx.scale, of_queries, of_keys or of_values)
        found = Gradients.apply(*given) if torch.is_grad_enabled() else gradients(*given)
        return (*found, None, None, None)


# PyTorch binds the arguments of every call to the signature, and finds one that is written down several times as fast.
FlashAttention.forward.__signature__ = inspect.signature(FlashAttention.forward)  # type: ignore[attr-defined]


class Gradients(torch.autograd.Function):
    """The gradients, where somebody might want to differentiate them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*given: Any) -> tuple[torch.Tensor | None, ...]:
        return gradients(*given)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        raise RuntimeError(
            "flash_attention has no second derivative: its backward pass is a kernel of its own. "
            "Use gpuguide.attention.reference.attention for one."
        )


def gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor | None,
    d_lse: torch.Tensor | None,
    causal: bool,
    scale: float,
    of_queries: bool,
    of_keys: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Return those gradients that are asked for, and None for others.

    The log-sum-exp sends its gradient through the weights alone, which are its derivatives: a row's is subtracted from
    its delta.
    """
    d_out = torch.zeros_like(out) if d_out is None else d_out
    delta = delta_of(out, d_out)
    delta = delta if d_lse is None else delta - d_lse
    d_q = gradient_of_queries(q, k, v, d_out, lse, delta, causal, scale) if of_queries else None
    d_k, d_v = gradients_of_keys(q, k, v, d_out, lse, delta, causal, scale) if of_keys else (None, None)
    return d_q, d_k, d_v


torch.library.register_autograd(
    "gpuguide::flash_attention", FlashAttention.backward, setup_context=FlashAttention.setup_context
)


# --- torch.vmap ------------------------------------------------------------------------------------------


def over_batches(called: Callable[..., Any]) -> Callable[..., Any]:
    """Return how an operator is mapped over one more dimension: as a part of the batch.

    A tensor without that dimension is repeated.
    """

    def mapped(info: Any, in_dims: Sequence[int | None], *given: Any) -> tuple[Any, Any]:
        folded = [
            into_batch(each, dim, info.batch_size) if isinstance(each, torch.Tensor) else each
            for each, dim in zip(given, in_dims, strict=True)
        ]
        found = called(*folded)
        if isinstance(found, torch.Tensor):
            return out_of_batch(found, info.batch_size), 0
        return tuple(out_of_batch(each, info.batch_size) for each in found), tuple(0 for _ in found)

    return mapped


def into_batch(tensor: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    """Return a tensor whose batch holds the mapped dimension."""
    first = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return first.flatten(0, 1)


def out_of_batch(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Return a tensor with the mapped dimension in front."""
    return tensor.unflatten(0, (size, tensor.shape[0] // size))


torch.library.register_vmap("gpuguide::flash_attention", over_batches(forward))
torch.library.register_vmap("gpuguide::flash_delta", over_batches(delta_of))
torch.library.register_vmap("gpuguide::flash_queries", over_batches(gradient_of_queries))
torch.library.register_vmap("gpuguide::flash_keys", over_batches(gradients_of_keys))
