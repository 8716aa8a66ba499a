"""Kernels of :mod:`gpuguide.fusion` as operators of PyTorch, with gradients: for eager code and ``torch.compile``.

``torch.compile`` cannot look into a Triton kernel that an autograd function launches, and one without an operator can
change what it computes. An operator tells it all that it needs: a schema, the shapes of its results (*fake*), and the
operator that computes its gradients. So ``torch.compile(fullgraph=True)`` keeps it as one node.

On a CPU and in float64, the operators compute with PyTorch's own operations. On any device, forward mode and the
transforms of :mod:`torch.func` use those operations. In reverse mode an operator can be differentiated once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import functional

from gpuguide import triton_support
from gpuguide.triton_support import forward_mode

DEVICES = ("cpu", "cuda")
WIDEST = 65536
"""Widest row of a layer norm: a program holds a whole row"""

for _schema in (
    "add_layer_norm(Tensor x, Tensor residual, Tensor weight, Tensor bias, float epsilon) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    "add_layer_norm_backward(Tensor dy, Tensor? ds, Tensor s, Tensor weight, Tensor mean, Tensor rstd) "
    "-> (Tensor, Tensor, Tensor)",
    "linear_gelu(Tensor x, Tensor weight, Tensor bias, bool keep_input) -> (Tensor, Tensor)",
):
    torch.library.define(
        f"gpuguide::{_schema.partition('(')[0]}", f"({_schema.partition('(')[2]}", tags=(torch.Tag.pt2_compliant_tag,)
    )


def _is_transformed() -> bool:
    """Return whether forward mode or a transform of :mod:`torch.func` is active, which operators have no rules for."""
    forward_mode.refuse_compiled()
    return not torch.compiler.is_compiling() and (
        forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()
    )


def _refuse_second_derivative(name: str) -> None:
    if torch.is_grad_enabled():
        raise NotImplementedError(
            f"{name} can be differentiated once, so create_graph=True is not supported. For second derivatives, use "
            f"gpuguide.fusion.reference.{name}."
        )


# --- residual and layer norm -----------------------------------------------------------------------------


def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float = 1e-5
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add a residual and normalise the sum, in one kernel on a GPU. Its backward pass takes two kernels.

    Parameters
    ----------
    x, residual : torch.Tensor
        ``(..., columns)``, contiguous, of one shape and dtype.
    weight, bias : torch.Tensor
        ``(columns,)``, of one dtype: that of ``x``, or fp32.
    epsilon : float
        Added to the variance.

    Returns
    -------
    y : torch.Tensor
        ``layer_norm(x + residual)``, like ``x``.
    s : torch.Tensor
        ``x + residual``, the residual of the next block.

    Raises
    ------
    ValueError
        If shapes do not fit, a row is empty or wider than :data:`WIDEST`, or a tensor is not contiguous.
    TypeError
        If dtypes do not fit.
    NotImplementedError
        If it is differentiated with ``create_graph=True``, or in forward mode under ``torch.compile``.
    """
    columns = x.shape[-1] if x.ndim else 0
    if not 0 < columns <= WIDEST:
        raise ValueError(
            f"Rows have 1 to {WIDEST} elements here; given a shape of {tuple(x.shape)}. For wider rows use "
            "torch.nn.functional.layer_norm(x + residual, ...)."
        )
    if residual.shape != x.shape or weight.shape != (columns,) or bias.shape != (columns,):
        raise ValueError(
            f"x and residual have one shape (..., columns), weight and bias (columns,); given {tuple(x.shape)}, "
            f"{tuple(residual.shape)}, {tuple(weight.shape)} and {tuple(bias.shape)}."
        )
    dtypes_fit = residual.dtype == x.dtype and weight.dtype == bias.dtype and weight.dtype in (x.dtype, torch.float32)
    if not (x.is_floating_point() and dtypes_fit):
        raise TypeError(
            f"x and residual have one floating-point dtype, weight and bias the same one or torch.float32; given "
            f"{x.dtype}, {residual.dtype}, {weight.dtype} and {bias.dtype}."
        )
    for name, tensor in (("x", x), ("residual", residual), ("weight", weight), ("bias", bias)):
        if not tensor.is_contiguous():
            raise ValueError(f"{name} is not contiguous: its strides are {tensor.stride()}. Pass {name}.contiguous().")
    function = _compute_norm if _is_transformed() else torch.ops.gpuguide.add_layer_norm
    y, s, _, _ = function(x, residual, weight, bias, epsilon)
    return y, s


def _compute_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, ...]:
    """Return what the operator does, by PyTorch's own operations."""
    s = x + residual
    wide = _compute_dtype(x)
    y, mean, rstd = torch.native_layer_norm(s.to(wide), weight.shape, weight.to(wide), bias.to(wide), epsilon)
    return y.to(x.dtype), s, mean.flatten(), rstd.flatten()


@torch.library.impl("gpuguide::add_layer_norm", DEVICES)
def _add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, ...]:
    if triton_support.supports_triton(x):
        from gpuguide.fusion import layernorm

        return layernorm.launch_forward(x, residual, weight, bias, epsilon)
    return _compute_norm(x, residual, weight, bias, epsilon)


@torch.library.impl("gpuguide::add_layer_norm_backward", DEVICES)
def _add_layer_norm_backward(
    dy: torch.Tensor,
    ds: torch.Tensor | None,
    s: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if triton_support.supports_triton(s):
        from gpuguide.fusion import layernorm

        return layernorm.launch_backward(
            dy.contiguous(), None if ds is None else ds.contiguous(), s, weight, mean, rstd
        )
    columns = s.shape[-1]
    wide = mean.dtype
    x_hat = ((s.reshape(-1, columns).to(wide) - mean.unsqueeze(1)) * rstd.unsqueeze(1)).view(s.shape)
    g = dy.to(wide) * weight.to(wide)
    dx = (g - g.mean(-1, keepdim=True) - x_hat * (g * x_hat).mean(-1, keepdim=True)) * rstd.view(*s.shape[:-1], 1)
    dx = (dx if ds is None else dx + ds).to(s.dtype)
    dw = (dy.to(wide) * x_hat).reshape(-1, columns).sum(0).to(weight.dtype)
    return dx.contiguous(), dw, dy.to(wide).reshape(-1, columns).sum(0).to(weight.dtype)


@torch.library.register_fake("gpuguide::add_layer_norm")
def _add_layer_norm_shapes(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, ...]:
    rows = x.shape[:-1].numel()
    mean, rstd = (x.new_empty(rows, dtype=_compute_dtype(x)) for _ in range(2))
    return torch.empty_like(x), torch.empty_like(x), mean, rstd


@torch.library.register_fake("gpuguide::add_layer_norm_backward")
def _add_layer_norm_backward_shapes(
    dy: torch.Tensor,
    ds: torch.Tensor | None,
    s: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(s), torch.empty_like(weight), torch.empty_like(weight)


def _compute_dtype(x: torch.Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _keep_for_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    _, s, mean, rstd = output
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)  # no pass over zeros where s, or y, is not used
    ctx.save_for_backward(s, inputs[2], mean, rstd)


def _norm_gradients(ctx: Any, dy: torch.Tensor | None, ds: torch.Tensor | None, *_: Any) -> tuple[Any, ...]:
    _refuse_second_derivative("add_layer_norm")
    s, weight, mean, rstd = ctx.saved_tensors
    if dy is None:
        return ds, ds, None, None, None
    dx, dw, db = torch.ops.gpuguide.add_layer_norm_backward(dy, ds, s, weight, mean, rstd)
    return dx, dx, dw, db, None


torch.library.register_autograd("gpuguide::add_layer_norm", _norm_gradients, setup_context=_keep_for_norm)


# --- linear layer and GELU -------------------------------------------------------------------------------


def linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return GELU, in its tanh form, of a linear layer, in one kernel on a GPU.

    Parameters
    ----------
    x : torch.Tensor
        ``(..., inner)``
    weight : torch.Tensor
        ``(columns, inner)``, of the dtype of ``x``.
    bias : torch.Tensor
        ``(columns,)``, of the same dtype.

    Returns
    -------
    torch.Tensor
        ``(..., columns)``. If a gradient is needed, the input of GELU is kept, as large again.

    Raises
    ------
    ValueError
        If shapes do not fit.
    TypeError
        If dtypes differ.
    NotImplementedError
        If it is differentiated with ``create_graph=True``, or in forward mode under ``torch.compile``.
    """
    if x.ndim < 1 or weight.ndim != 2 or x.shape[-1] != weight.shape[1] or bias.shape != weight.shape[:1]:
        raise ValueError(
            "x is (..., inner), weight (columns, inner) and bias (columns,); given "
            f"{tuple(x.shape)}, {tuple(weight.shape)} and {tuple(bias.shape)}."
        )
    if not x.dtype == weight.dtype == bias.dtype:
        raise TypeError(f"x, weight and bias have one dtype; given {x.dtype}, {weight.dtype} and {bias.dtype}.")
    if _is_transformed():
        return functional.gelu(functional.linear(x, weight, bias), approximate="tanh")
    keep_input = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, weight, bias))
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])  # -1 would be ambiguous for an inner size of 0
    y, _ = torch.ops.gpuguide.linear_gelu(rows, weight, bias, keep_input)
    return y.view(*x.shape[:-1], weight.shape[0])


@torch.library.impl("gpuguide::linear_gelu", DEVICES)
def _linear_gelu(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, keep_input: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    if triton_support.supports_triton(x):
        from gpuguide.fusion import matmul_gelu as fused

        if fused.supports(x, weight):
            return fused.launch(x, weight, bias, keep_input)
    before = functional.linear(x, weight, bias)
    return functional.gelu(before, approximate="tanh"), before if keep_input else before.new_empty(0)


@torch.library.register_fake("gpuguide::linear_gelu")
def _linear_gelu_shapes(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, keep_input: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    y = x.new_empty(x.shape[0], weight.shape[0])
    return y, torch.empty_like(y) if keep_input else y.new_empty(0)


def _keep_for_gelu(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # no zeros in the place of the gradient that output[1] does not have
    ctx.save_for_backward(inputs[0], inputs[1], output[1])


def _gelu_gradients(ctx: Any, dy: torch.Tensor, *_: Any) -> tuple[Any, ...]:
    _refuse_second_derivative("linear_gelu")
    x, weight, before = ctx.saved_tensors
    of_x, of_weight, of_bias, _ = ctx.needs_input_grad
    d_before = torch.ops.aten.gelu_backward(dy, before, approximate="tanh")
    return (
        d_before @ weight if of_x else None,
        d_before.t() @ x if of_weight else None,
        d_before.sum(0) if of_bias else None,
        None,
    )


torch.library.register_autograd("gpuguide::linear_gelu", _gelu_gradients, setup_context=_keep_for_gelu)
