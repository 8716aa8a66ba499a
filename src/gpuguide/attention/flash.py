"""FlashAttention as operators of PyTorch, with gradients.

PyTorch knows a kernel by its operator. ``torch.compile`` puts the operator into its graph without looking inside, a
fake tensor gets the shapes of its results, ``torch.vmap`` makes a mapped dimension part of the batch, and autograd asks
for its gradients. There is one operator for each launch:

- ``gpuguide::flash_attention`` returns the output and the log-sum-exp of every query's scores;
- ``gpuguide::flash_delta`` returns what softmax subtracts from the gradient of its weights, one number for each query;
- ``gpuguide::flash_dq`` returns the gradient of the queries, ``gpuguide::flash_dkdv`` those of keys and values;
- ``gpuguide::flash_backward`` returns all three with fewer matmuls, and computes delta itself.

``flash_dq`` and ``flash_dkdv`` are separate, so that an unneeded gradient is not computed. On a CPU, which only tests
use, the operators compute the same with all scores in memory, unless Triton interprets its kernels
(``TRITON_INTERPRET=1``).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from gpuguide.attention import reference
from gpuguide.attention.known_bugs import requires_gradients
from gpuguide.attention.layout import empty_addressable_like
from gpuguide.logits import promote_to_fp32
from gpuguide.triton_support import forward_mode
from gpuguide.triton_support.context import device_of

__all__ = ["flash_attention", "flash_attention_with_log_sum_exp"]


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    backend: str = "triton",
    deterministic: bool = False,
) -> torch.Tensor:
    """Return attention by the library's own kernels, without the checks of :func:`gpuguide.attention.attention`.

    Parameters
    ----------
    q : torch.Tensor
        ``(batch, heads, queries, head_dim)``, bf16 or fp16, on a GPU.
    k, v : torch.Tensor
        ``(batch, kv_heads, keys, head_dim)``.
    causal : bool
        Whether query ``i`` sees only the keys ``j <= i + keys - queries``.
    scale : float, optional
        Factor of the scores; ``1 / sqrt(head_dim)`` by default.
    backend : {"triton", "gluon"}
        Kernels: those of :mod:`gpuguide.attention.triton_flash` for all GPUs, or the warp-specialised ones of
        :mod:`gpuguide.attention.gluon_flash` and :mod:`gpuguide.attention.gluon_backward` for Hopper.
    deterministic : bool
        Whether gradients must be the same bit by bit in every run. By default, the Gluon backward kernel adds the parts
        of dQ in the order in which its programs finish them, so dQ differs from run to run by rounding; dK and dV do
        not. With ``True``, or after :func:`torch.use_deterministic_algorithms`, the slower Triton kernels compute the
        gradients, whose order of additions is fixed. The output is always the same.

    Returns
    -------
    torch.Tensor
        Shape and dtype of ``q``. Zeros for a query that sees no key. It can be differentiated once.
    """
    return flash_attention_with_log_sum_exp(
        q, k, v, causal=causal, scale=scale, backend=backend, deterministic=deterministic
    )[0]


def flash_attention_with_log_sum_exp(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    backend: str = "triton",
    deterministic: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return attention and the log-sum-exp of each query's scores. Parameters as :func:`flash_attention`.

    The log-sum-exp joins attention over parts of the keys: each part is weighted by the exponential of its own.

    Returns
    -------
    tuple of torch.Tensor
        The output, and ``(batch, heads, queries)`` in fp32; ``-inf`` for a query that sees no key.
    """
    factor = reference.scale_or_default(scale, q.shape[-1])
    if factor <= 0:  # the kernels take the highest score before they scale it, and hide keys by -inf
        q, factor = (-q, -factor) if factor else (q * 0, 1.0)
    forward_mode.refuse_compiled()
    function = FlashAttention.apply if is_transformed(q, k, v) else forward
    deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
    result: tuple[torch.Tensor, torch.Tensor] = function(q, k, v, causal, factor, backend, deterministic)
    return result


def is_transformed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Return whether the call is differentiated, transformed or compiled.

    Otherwise the operator is called directly, which takes the host less time than an autograd function.
    """
    return (
        torch.compiler.is_compiling()
        or requires_gradients(q, k, v)
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


# --- the operators ---------------------------------------------------------------------------------------

LIBRARY = torch.library.Library("gpuguide", "FRAGMENT")


def operator(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that computes on a CPU and on a GPU as an operator, and return the operator.

    :func:`torch.library.custom_op` does the same and checks more, and each call takes the host several times as long.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        schema = torch.library.infer_schema(function, mutates_args=())
        LIBRARY.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        for device in ("CPU", "CUDA"):
            LIBRARY.impl(name, function, device)
        overload: Callable[..., Any] = getattr(torch.ops.gpuguide, name).default
        return overload

    return register


@operator("flash_attention")
def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float,
    backend: str,
    deterministic: bool,  # only the backward pass depends on it
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and the log-sum-exp."""
    if not runs_kernels(q):
        out, lse = reference.attention_with_log_sum_exp(q, k, v, causal=causal, scale=scale)
        return empty_addressable_like(q).copy_(out), lse
    with device_of(q):
        if backend == "gluon":
            from gpuguide.attention import gluon_flash

            return gluon_flash.forward(q, k, v, causal, scale)
        from gpuguide.attention import triton_flash

        return triton_flash.forward(q, k, v, causal, scale)


@operator("flash_delta")
def compute_delta(out: torch.Tensor, d_out: torch.Tensor) -> torch.Tensor:
    """Return the sum of output times its gradient, for each query."""
    if not runs_kernels(out):
        return (promote_to_fp32(out) * d_out).sum(-1)
    from gpuguide.attention import triton_flash

    with device_of(out):
        return triton_flash.compute_delta(out, d_out)


@operator("flash_dq")
def compute_dq(
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
    if not runs_kernels(q):
        _, ds = recompute_weights(q, k, v, d_out, lse, delta, causal, scale)
        return empty_addressable_like(q).copy_(scale * ds @ reference.repeat_heads(k, q.shape[1]).to(ds.dtype))
    from gpuguide.attention import triton_flash

    with device_of(q):
        return triton_flash.compute_dq(q, k, v, d_out, lse, delta, causal, scale)


@operator("flash_dkdv")
def compute_dkdv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dK and dV, which one kernel computes."""
    if not runs_kernels(q):
        weights, ds = recompute_weights(q, k, v, d_out, lse, delta, causal, scale)
        dk = reference.sum_shared_heads(scale * ds.mT @ q.to(ds.dtype), k.shape[1])
        dv = reference.sum_shared_heads(weights.mT @ d_out.to(weights.dtype), k.shape[1])
        return empty_addressable_like(k).copy_(dk), empty_addressable_like(v).copy_(dv)
    from gpuguide.attention import triton_flash

    with device_of(q):
        return triton_flash.compute_dkdv(q, k, v, d_out, lse, delta, causal, scale)


@operator("flash_backward")
def compute_all_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    d_lse: torch.Tensor | None,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return dQ, dK and dV."""
    if q.is_cuda:
        from gpuguide.attention import gluon_backward

        if gluon_backward.is_supported(q):
            with device_of(q):
                return gluon_backward.backward(q, k, v, out, lse, d_out, d_lse, causal, scale)
    inputs = (q, k, v, d_out, lse, subtract_from_delta(compute_delta(out, d_out), d_lse), causal, scale)
    return compute_dq(*inputs), *compute_dkdv(*inputs)


def runs_kernels(tensor: torch.Tensor) -> bool:
    """Return whether the kernels can run on a tensor's device: on a GPU, or interpreted."""
    return tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


def recompute_weights(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    d_out: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weights, recomputed from the log-sum-exp, and the gradient of the scores."""
    weights = reference.probabilities(reference.apply_masks(reference.compute_scores(q, k, scale), causal=causal), lse)
    dp = d_out.to(weights.dtype) @ reference.repeat_heads(v, q.shape[1]).to(weights.dtype).mT
    return weights, weights * (dp - delta.unsqueeze(-1))


# --- shapes, for fake tensors ----------------------------------------------------------------------------


@torch.library.register_fake("gpuguide::flash_attention")
def _forward_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return empty_addressable_like(q), empty_row_sums(q)


@torch.library.register_fake("gpuguide::flash_delta")
def _delta_shape(out: torch.Tensor, d_out: torch.Tensor) -> torch.Tensor:
    return empty_row_sums(out)


def empty_row_sums(q: torch.Tensor) -> torch.Tensor:
    """Return an uninitialised tensor for one number of each query."""
    return q.new_empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))


@torch.library.register_fake("gpuguide::flash_dq")
def _queries_shape(q: torch.Tensor, *rest: Any) -> torch.Tensor:
    return empty_addressable_like(q)


@torch.library.register_fake("gpuguide::flash_dkdv")
def _keys_shapes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return empty_addressable_like(k), empty_addressable_like(v)


@torch.library.register_fake("gpuguide::flash_backward")
def _gradient_shapes(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return empty_addressable_like(q), empty_addressable_like(k), empty_addressable_like(v)


# --- gradients -------------------------------------------------------------------------------------------


class FlashAttention(torch.autograd.Function):
    """Autograd function of the operator, which also supports transforms such as :func:`torch.func.grad`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        causal: bool,
        scale: float,
        backend: str,
        deterministic: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return forward(q, k, v, causal, scale, backend, deterministic)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Save the inputs, the output and the log-sum-exp."""
        q, k, v, ctx.causal, ctx.scale, backend, deterministic = inputs
        ctx.at_once = backend == "gluon" and not deterministic
        ctx.save_for_backward(q, k, v, *output)
        ctx.set_materialize_grads(False)  # one of the two gradients may be missing

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        needs_dq, needs_dk, needs_dv = ctx.needs_input_grad[:3]
        needs = (needs_dq, needs_dk or needs_dv)
        inputs = (*ctx.saved_tensors, *upstream, ctx.causal, ctx.scale, *needs, ctx.at_once)
        grads = FlashAttentionBackward.apply(*inputs) if torch.is_grad_enabled() else compute_gradients(*inputs)
        return (*grads, None, None, None, None)


# PyTorch binds the arguments of every call to the signature. A stored signature is several times as fast to look up.
FlashAttention.forward.__signature__ = inspect.signature(FlashAttention.forward)  # type: ignore[attr-defined]


class FlashAttentionBackward(torch.autograd.Function):
    """Backward pass as an autograd function, which refuses second derivatives with an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[torch.Tensor | None, ...]:
        return compute_gradients(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save nothing."""

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        raise RuntimeError(
            "flash_attention has no second derivative: its backward pass is a kernel of its own. "
            "Use gpuguide.attention.reference.attention for one."
        )


def compute_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor | None,
    d_lse: torch.Tensor | None,
    causal: bool,
    scale: float,
    needs_dq: bool,
    needs_dkdv: bool,
    at_once: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """Return the needed gradients of q, k and v, and None for the others; ``at_once`` if all are needed and it may."""
    d_out = torch.zeros_like(out) if d_out is None else d_out
    if at_once and needs_dq and needs_dkdv:
        dq, dk, dv = compute_all_gradients(q, k, v, out, lse, d_out, d_lse, causal, scale)
        return dq, dk, dv
    delta = subtract_from_delta(compute_delta(out, d_out), d_lse)
    dq = compute_dq(q, k, v, d_out, lse, delta, causal, scale) if needs_dq else None
    dk, dv = compute_dkdv(q, k, v, d_out, lse, delta, causal, scale) if needs_dkdv else (None, None)
    return dq, dk, dv


def subtract_from_delta(delta: torch.Tensor, d_lse: torch.Tensor | None) -> torch.Tensor:
    """Return delta, less the gradient of the log-sum-exp if there is one: its derivatives are the weights."""
    return delta if d_lse is None else delta - d_lse


torch.library.register_autograd(
    "gpuguide::flash_attention", FlashAttention.backward, setup_context=FlashAttention.setup_context
)


# --- torch.vmap ------------------------------------------------------------------------------------------


def batching_rule(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that maps an operator over one more dimension by making it a part of the batch.

    A tensor without that dimension is repeated.
    """

    def apply_to_batch(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        merged = [
            merge_into_batch(arg, dim, info.batch_size) if isinstance(arg, torch.Tensor) else arg
            for arg, dim in zip(args, in_dims, strict=True)
        ]
        results = operator(*merged)
        if isinstance(results, torch.Tensor):
            return split_from_batch(results, info.batch_size), 0
        return tuple(split_from_batch(result, info.batch_size) for result in results), tuple(0 for _ in results)

    return apply_to_batch


def merge_into_batch(tensor: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    """Return a tensor whose batch includes the mapped dimension."""
    first = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return first.flatten(0, 1)


def split_from_batch(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """Return a tensor with the mapped dimension in front."""
    return tensor.unflatten(0, (size, tensor.shape[0] // size))


torch.library.register_vmap("gpuguide::flash_attention", batching_rule(forward))
torch.library.register_vmap("gpuguide::flash_delta", batching_rule(compute_delta))
torch.library.register_vmap("gpuguide::flash_dq", batching_rule(compute_dq))
torch.library.register_vmap("gpuguide::flash_dkdv", batching_rule(compute_dkdv))
torch.library.register_vmap("gpuguide::flash_backward", batching_rule(compute_all_gradients))
