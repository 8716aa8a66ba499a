"""Softmax and log-sum-exp as operators of PyTorch: ``gpuguide::softmax`` and ``gpuguide::log_sum_exp``.

An operator is what the rest of PyTorch knows a kernel by. ``torch.compile`` puts it into its graph without looking
inside, a fake tensor gets the shape of its result, autograd its gradient, and ``torch.vmap`` makes a mapped dimension
one more that leads. Going through PyTorch's dispatcher costs the host some ten microseconds a call.
"""

from __future__ import annotations

from typing import Any

import torch

from gpuguide import kernels
from gpuguide import logits as plain


@torch.library.custom_op("gpuguide::softmax", mutates_args=())
def softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the probabilities of each row."""
    if not kernels.take(logits):
        return plain.softmax(logits).contiguous()
    from gpuguide.softmax import fused

    with torch.cuda.device_of(logits):
        return fused.softmax(logits)


@torch.library.custom_op("gpuguide::log_sum_exp", mutates_args=())
def log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """Return the log-sum-exp of each row."""
    if not kernels.take(logits):
        return torch.logsumexp(plain.at_least_fp32(logits), dim=-1)
    from gpuguide.softmax import fused

    with torch.cuda.device_of(logits):
        return fused.log_sum_exp(logits)


# --- shapes, for fake tensors ----------------------------------------------------------------------------


@softmax.register_fake
def _softmax_shape(logits: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


@log_sum_exp.register_fake
def _log_sum_exp_shape(logits: torch.Tensor) -> torch.Tensor:
    return logits.new_empty(logits.shape[:-1], dtype=torch.promote_types(logits.dtype, torch.float32))


# --- gradients -------------------------------------------------------------------------------------------
# To autograd and torch.compile an operator can tell its gradient. torch.func asks only autograd functions for theirs,
# so there is one around each; torch.compile in its turn refuses functions with a forward mode.


def differentiable_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the probabilities, in the form that whoever asks can differentiate."""
    result: torch.Tensor = (_Softmax.apply if _is_function_wanted() else softmax)(logits)
    return result


def differentiable_log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """Return the log-sum-exp, in the form that whoever asks can differentiate."""
    result: torch.Tensor = (_LogSumExp.apply if _is_function_wanted() else log_sum_exp)(logits)
    return result


def _is_function_wanted() -> bool:
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def times_derivatives(probabilities: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return ``p * (v - sum(p * v))``, by the kernel that PyTorch has for its own softmax.

    The derivatives of a softmax are a symmetric matrix, so this serves both modes.
    """
    result: torch.Tensor = torch.ops.aten._softmax_backward_data(values, probabilities, -1, probabilities.dtype)
    return result


class _Softmax(torch.autograd.Function):
    """The operator with its derivatives, which can be differentiated in turn."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: torch.Tensor) -> torch.Tensor:
        return softmax(logits)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> torch.Tensor:
        (probabilities,) = ctx.saved_tensors
        return times_derivatives(probabilities, upstream)

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        (probabilities,) = ctx.saved_tensors
        return times_derivatives(probabilities, tangent)


class _LogSumExp(torch.autograd.Function):
    """The operator with its derivatives: they are the softmax."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: torch.Tensor) -> torch.Tensor:
        return log_sum_exp(logits)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> torch.Tensor:
        (logits,) = ctx.saved_tensors
        return (differentiable_softmax(logits) * upstream.unsqueeze(-1)).to(logits.dtype)

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        (logits,) = ctx.saved_tensors
        return (differentiable_softmax(logits) * plain.at_least_fp32(tangent)).sum(dim=-1)


for _operator, _function in ((softmax, _Softmax), (log_sum_exp, _LogSumExp)):
    _operator.register_autograd(_function.backward, setup_context=_function.setup_context)


# --- torch.vmap ------------------------------------------------------------------------------------------


@softmax.register_vmap
def _softmax_mapped(info: Any, in_dims: tuple[int], logits: torch.Tensor) -> tuple[torch.Tensor, int]:
    return softmax(logits.movedim(in_dims[0], 0)), 0


@log_sum_exp.register_vmap
def _log_sum_exp_mapped(info: Any, in_dims: tuple[int], logits: torch.Tensor) -> tuple[torch.Tensor, int]:
    return log_sum_exp(logits.movedim(in_dims[0], 0)), 0
