"""Softmax and log-sum-exp of long rows at the speed of a copy: ``gpuguide::softmax``, ``gpuguide::log_sum_exp``.

On a GPU each is one kernel (:mod:`gpuguide.logits.fused`) that reads every logit once. On a CPU they are the plain
versions of :mod:`gpuguide.logits`. They have gradients, and work with ``torch.compile`` and ``torch.func``.

PyTorch knows a kernel by its operator. ``torch.compile`` puts it into its graph without looking inside, a fake tensor
gets the shape of its result, and ``torch.vmap`` adds a mapped dimension to the leading ones. Autograd functions
around the operators give them derivatives, in both modes and for ``torch.func``.

They are registered without :func:`torch.library.custom_op`, which takes the host some thirty microseconds a call, as
much as a short softmax takes the GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from gpuguide import triton_support
from gpuguide.logits import probabilities as plain
from gpuguide.logits.checks import check_shape
from gpuguide.triton_support import forward_mode

DEVICES = ("cpu", "cuda")

for _name in ("softmax", "log_sum_exp"):
    torch.library.define(f"gpuguide::{_name}", "(Tensor logits) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))


def fused_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the probabilities of each row, reading every logit once on a GPU.

    Parameters
    ----------
    logits : torch.Tensor
        ``(..., vocab_size)``, floating point.

    Returns
    -------
    torch.Tensor
        Same shape and dtype, contiguous. A row that is no distribution gives NaN.

    Raises
    ------
    ValueError
        If there is no last axis or it is empty, the format is not floating point, or a row is too long for the kernel
        on this GPU.
    """
    check_shape(logits)
    return _call_softmax(logits)


def fused_log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the sum of ``exp`` of each row, shape ``(...)``, in fp32 or wider.

    Parameters, and errors, as :func:`fused_softmax`. A row of nothing but ``-inf`` gives ``-inf``, and one with
    ``+inf`` gives that.
    """
    check_shape(logits)
    return _call_log_sum_exp(logits)


@torch.library.impl("gpuguide::softmax", DEVICES)
def _softmax(logits: torch.Tensor) -> torch.Tensor:
    if not triton_support.supports_triton(logits):
        return plain.softmax(logits).contiguous()
    from gpuguide.logits import fused

    with torch.cuda.device_of(logits):
        return fused.launch_softmax(logits)


@torch.library.impl("gpuguide::log_sum_exp", DEVICES)
def _log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    if not triton_support.supports_triton(logits):
        return torch.logsumexp(plain.promote_to_fp32(logits), dim=-1)
    from gpuguide.logits import fused

    with torch.cuda.device_of(logits):
        return fused.launch_log_sum_exp(logits)


# --- shapes, for fake tensors ----------------------------------------------------------------------------


@torch.library.register_fake("gpuguide::softmax")
def _softmax_shape(logits: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


@torch.library.register_fake("gpuguide::log_sum_exp")
def _log_sum_exp_shape(logits: torch.Tensor) -> torch.Tensor:
    return logits.new_empty(logits.shape[:-1], dtype=torch.promote_types(logits.dtype, torch.float32))


# --- torch.vmap ------------------------------------------------------------------------------------------


@torch.library.register_vmap("gpuguide::softmax")
def _softmax_vmap(info: Any, in_dims: tuple[int], logits: torch.Tensor) -> tuple[torch.Tensor, int]:
    return torch.ops.gpuguide.softmax(logits.movedim(in_dims[0], 0)), 0


@torch.library.register_vmap("gpuguide::log_sum_exp")
def _log_sum_exp_vmap(info: Any, in_dims: tuple[int], logits: torch.Tensor) -> tuple[torch.Tensor, int]:
    return torch.ops.gpuguide.log_sum_exp(logits.movedim(in_dims[0], 0)), 0


# --- derivatives, which can be differentiated in turn ----------------------------------------------------


class _Softmax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(logits: torch.Tensor) -> torch.Tensor:
        return torch.ops.gpuguide.softmax(logits)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> torch.Tensor:
        (probabilities,) = ctx.saved_tensors
        return multiply_jacobian(probabilities, upstream)

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        (probabilities,) = ctx.saved_tensors
        return multiply_jacobian(probabilities, tangent)


class _LogSumExp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(logits: torch.Tensor) -> torch.Tensor:
        return torch.ops.gpuguide.log_sum_exp(logits)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> torch.Tensor:
        (logits,) = ctx.saved_tensors
        return (_call_softmax(logits) * upstream.unsqueeze(-1)).to(logits.dtype)

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        (logits,) = ctx.saved_tensors
        return (_call_softmax(logits) * plain.promote_to_fp32(tangent)).sum(dim=-1)


for _name, _function in (("softmax", _Softmax), ("log_sum_exp", _LogSumExp)):  # for torch.compile
    torch.library.register_autograd(f"gpuguide::{_name}", _function.backward, setup_context=_function.setup_context)


def multiply_jacobian(probabilities: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return ``p * (v - sum(p * v))``, by the kernel of PyTorch's own softmax.

    The derivatives of a softmax are a symmetric matrix, so this serves both modes.
    """
    result: torch.Tensor = torch.ops.aten._softmax_backward_data(values, probabilities, -1, probabilities.dtype)
    return result


def _call_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Return the probabilities of each row, with derivatives if any are needed."""
    if not is_differentiated(logits):
        result: torch.Tensor = torch.ops.gpuguide.softmax(logits)
    else:
        result = _Softmax.apply(logits)
    return result


def _call_log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """Return the log-sum-exp of each row, with derivatives if any are needed."""
    if not is_differentiated(logits):
        result: torch.Tensor = torch.ops.gpuguide.log_sum_exp(logits)
    else:
        result = _LogSumExp.apply(logits)
    return result


def is_differentiated(tensor: torch.Tensor) -> bool:
    """Return whether derivatives with respect to a tensor are needed, in reverse or forward mode."""
    if torch.compiler.is_compiling():
        forward_mode.refuse_compiled()
        return False  # the compiler uses the derivatives of the operator
    if tensor.requires_grad and torch.is_grad_enabled():
        return True
    return forward_ad.unpack_dual(tensor).tangent is not None
