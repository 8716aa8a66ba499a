"""The loss a chunk at a time as an operator of PyTorch, ``gpuguide::linear_cross_entropy``, with its gradient.

PyTorch knows a computation by its operator. ``torch.compile`` puts it into its graph without looking
inside, and a fake tensor gets the shapes of its results. It returns the loss together with the gradients of both
operands, as far as they are needed, and autograd holds these until the backward pass. There they are multiplied by the
upstream gradient: in place where possible, because a copy of the head's would take as much memory as the head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from gpuguide import triton_support
from gpuguide.costs import roofline
from gpuguide.cross_entropy import loop
from gpuguide.triton_support import forward_mode

Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""The loss, the gradients of hidden states and head (empty where not needed), and the factor of the sum"""


@torch.library.custom_op("gpuguide::linear_cross_entropy", mutates_args=())
def linear_cross_entropy(
    hidden: torch.Tensor,
    head: torch.Tensor,
    targets: torch.Tensor,
    scale: torch.Tensor | None,
    vocab_size: int,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    chunk: int,
    gradient_dtype: torch.dtype,
    needs_hidden: bool,
    needs_head: bool,
) -> Results:
    """Return the loss and the needed gradients. See :mod:`gpuguide.cross_entropy.loop`."""
    settings = loop.LossSettings(vocab_size, ignore_index, label_smoothing, z_loss, softcap, chunk)
    d_hidden = empty_gradient(hidden, gradient_dtype, needs_hidden)
    d_head = empty_gradient(head, gradient_dtype, needs_head)
    with torch.cuda.device_of(hidden):
        if not (needs_hidden or needs_head):
            loss, used = loop.compute_losses(hidden, head, targets, scale, settings)
        else:
            outputs = d_hidden if needs_hidden else None, d_head if needs_head else None
            loss, used = loop.compute_losses_and_gradients(hidden, head, targets, scale, settings, *outputs)
    return loss, d_hidden, d_head, used


def empty_gradient(operand: torch.Tensor, dtype: torch.dtype, wanted: bool) -> torch.Tensor:
    """Return an uninitialised gradient, or an empty tensor if it is not needed: an operator can only return tensors."""
    return torch.empty(operand.shape if wanted else 0, dtype=dtype, device=operand.device)


@linear_cross_entropy.register_fake
def _shapes(
    hidden: torch.Tensor,
    head: torch.Tensor,
    targets: torch.Tensor,
    scale: torch.Tensor | None,
    vocab_size: int,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
    chunk: int,
    gradient_dtype: torch.dtype,
    needs_hidden: bool,
    needs_head: bool,
) -> Results:
    d_hidden = empty_gradient(hidden, gradient_dtype, needs_hidden)
    d_head = empty_gradient(head, gradient_dtype, needs_head)
    loss, used = (hidden.new_empty((), dtype=loop.accumulation_dtype(hidden.dtype)) for _ in range(2))
    return loss, d_hidden, d_head, used


@register_flop_formula(torch.ops.gpuguide.linear_cross_entropy)
def _flops(
    hidden: torch.Size, head: torch.Size, targets: torch.Size, scale: Any, *settings: Any, out_shape: Any = None
) -> int:
    """Count the products, for PyTorch's ``FlopCounterMode``: it does not look inside an operator."""
    *_, needs_hidden, needs_head = settings
    tokens = hidden.numel() // hidden[-1]
    return (1 + needs_hidden + needs_head) * roofline.matmul_flops(tokens, hidden[-1], head[0])


@linear_cross_entropy.register_vmap
def _vmap(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Results, tuple[int, int, int, int]]:
    """Compute one loss after the other."""
    each = [
        linear_cross_entropy(
            *(part if dim is None else part.select(dim, number) for part, dim in zip(given, in_dims, strict=True))
        )
        for number in range(info.batch_size)
    ]
    loss, d_hidden, d_head, used = (torch.stack(results) for results in zip(*each, strict=True))
    return (loss, d_hidden, d_head, used), (0, 0, 0, 0)


# --- gradients -------------------------------------------------------------------------------------------


class _LinearCrossEntropy(torch.autograd.Function):
    """Autograd function of the operator, for all but ``torch.compile``, which uses the operator itself."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Results:
        return linear_cross_entropy(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        loss, d_hidden, d_head, scale = output
        ctx.mark_non_differentiable(d_hidden, d_head, scale)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(loss, d_hidden, d_head, scale)
        ctx.dtype = inputs[0].dtype
        ctx.gradients_released = False

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor | None, *other_gradients: None) -> tuple[torch.Tensor | None, ...]:
        if ctx.gradients_released:
            raise RuntimeError(
                "The gradient of this linear_cross_entropy was overwritten by the first backward pass. "
                "Compute the loss again before a second backward pass."
            )
        loss, d_hidden, d_head, scale = ctx.saved_tensors
        no_gradients = (None,) * (len(ctx.needs_input_grad) - 2)
        if upstream is None:
            return (None, None, *no_gradients)
        factor = upstream * (scale / loop.FP16_FACTOR) if ctx.dtype == torch.float16 else upstream
        in_place = ctx.gradients_released = can_overwrite(d_hidden)

        def multiply(gradient: torch.Tensor, wanted: bool) -> torch.Tensor | None:
            if not wanted:
                return None
            if in_place:  # autograd does not copy a tensor that has no other owner
                return multiply_(gradient, factor).detach().to(ctx.dtype)
            return _MultipliedGradient.apply(gradient, factor, loss).to(ctx.dtype)

        return (
            multiply(d_hidden, ctx.needs_input_grad[0]),
            multiply(d_head, ctx.needs_input_grad[1]),
            *no_gradients,
        )


class _MultipliedGradient(torch.autograd.Function):
    """Product of a gradient and the upstream gradient, which refuses second derivatives with an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: torch.Tensor, factor: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        return gradient * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        """Save nothing. The loss is an input so that the result depends on the operands."""

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        raise RuntimeError(
            "linear_cross_entropy has no second derivative: its gradient was computed with the loss. "
            "Use torch.nn.functional.cross_entropy on the logits for one."
        )


linear_cross_entropy.register_autograd(_LinearCrossEntropy.backward, setup_context=_LinearCrossEntropy.setup_context)


def linear_cross_entropy_with_gradient(*inputs: Any) -> torch.Tensor:
    """Return the loss with its gradient, in eager mode and under ``torch.compile``."""
    if torch.compiler.is_compiling():
        forward_mode.refuse_compiled()
        return linear_cross_entropy(*inputs)[0]
    loss: torch.Tensor = _LinearCrossEntropy.apply(*inputs)[0]
    return loss


def can_overwrite(gradient: torch.Tensor) -> bool:
    """Return whether a gradient may be overwritten in place: grad mode is off and it is not a traced tensor."""
    return not torch.is_grad_enabled() and type(gradient) is torch.Tensor


def multiply_(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiply in place by one number, and return the result. On a GPU a factor of one takes no pass over memory."""
    if triton_support.supports_triton(values):
        from gpuguide.cross_entropy import fused

        with torch.cuda.device_of(values):
            return fused.multiply_(values, factor)
    return values.mul_(factor)
