"""The loss a chunk at a time as an operator of PyTorch, ``gpuguide::linear_cross_entropy``, with its gradient.

An operator is what the rest of PyTorch knows a computation by. ``torch.compile`` puts it into its graph without looking
inside, and a fake tensor gets the shapes of its results. It returns the loss together with the gradients of both
operands, as far as they are wanted, and autograd holds these until the backward pass. There they are multiplied by the
gradient that arrives from above: in place, where nobody else can ask for them, because a copy of the head's would take
as much memory as the head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import register_flop_formula

from gpuguide import kernels
from gpuguide.costs import roofline
from gpuguide.cross_entropy import loop
from gpuguide.kernels import forward_mode

Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""The loss, the gradients of hidden states and head (empty where not wanted), and what the sum was multiplied by"""


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
    wants_hidden: bool,
    wants_head: bool,
) -> Results:
    """Return the loss, and those gradients that are wanted. See :mod:`gpuguide.cross_entropy.loop`."""
    settings = loop.Settings(vocab_size, ignore_index, label_smoothing, z_loss, softcap, chunk)
    d_hidden = room_for_gradient(hidden, gradient_dtype, wants_hidden)
    d_head = room_for_gradient(head, gradient_dtype, wants_head)
    with torch.cuda.device_of(hidden):
        if not (wants_hidden or wants_head):
            loss, used = loop.losses_alone(hidden, head, targets, scale, settings)
        else:
            rooms = d_hidden if wants_hidden else None, d_head if wants_head else None
            loss, used = loop.losses_and_gradients(hidden, head, targets, scale, settings, *rooms)
    return loss, d_hidden, d_head, used


def room_for_gradient(operand: torch.Tensor, dtype: torch.dtype, wanted: bool) -> torch.Tensor:
    """Return room for an operand's gradient, empty where nobody wants it: an operator returns tensors alone."""
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
    wants_hidden: bool,
    wants_head: bool,
) -> Results:
    d_hidden = room_for_gradient(hidden, gradient_dtype, wants_hidden)
    d_head = room_for_gradient(head, gradient_dtype, wants_head)
    loss, used = (hidden.new_empty((), dtype=loop.wide(hidden.dtype)) for _ in range(2))
    return loss, d_hidden, d_head, used


@register_flop_formula(torch.ops.gpuguide.linear_cross_entropy)
def _flops(
    hidden: torch.Size, head: torch.Size, targets: torch.Size, scale: Any, *settings: Any, out_shape: Any = None
) -> int:
    """Count the products, for PyTorch's ``FlopCounterMode``: it does not look inside an operator."""
    *_, wants_hidden, wants_head = settings
    tokens = hidden.numel() // hidden[-1]
    return (1 + wants_hidden + wants_head) * roofline.matmul_flops(tokens, hidden[-1], head[0])


@linear_cross_entropy.register_vmap
def _mapped(info: Any, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Results, tuple[int, int, int, int]]:
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
    """The operator with its gradient, for all who ask but ``torch.compile``: that takes the operator itself."""

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
        ctx.handed_out = False

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor | None, *of_the_rest: None) -> tuple[torch.Tensor | None, ...]:
        if ctx.handed_out:
            raise RuntimeError(
                "The gradient of this linear_cross_entropy was handed out already. Compute the loss again before a "
                "second backward pass."
            )
        loss, d_hidden, d_head, scale = ctx.saved_tensors
        unwanted = (None,) * (len(ctx.needs_input_grad) - 2)
        if upstream is None:
            return (None, None, *unwanted)
        factor = upstream * (scale / loop.FP16_FACTOR) if ctx.dtype == torch.float16 else upstream
        in_place = ctx.handed_out = can_overwrite(d_hidden)

        def multiplied(gradient: torch.Tensor, wanted: bool) -> torch.Tensor | None:
            if not wanted:
                return None
            if in_place:  # autograd takes a tensor as it is, if nobody else has it: so hand out one of its own
                return multiply_(gradient, factor).detach().to(ctx.dtype)
            return _Multiplied.apply(gradient, factor, loss).to(ctx.dtype)

        return (
            multiplied(d_hidden, ctx.needs_input_grad[0]),
            multiplied(d_head, ctx.needs_input_grad[1]),
            *unwanted,
        )


class _Multiplied(torch.autograd.Function):
    """A gradient times the one from above, which says so where it is differentiated itself."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: torch.Tensor, factor: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        return gradient * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        """Keep nothing. The loss is among the inputs so that the result is known to depend on the operands."""

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        raise RuntimeError(
            "linear_cross_entropy has no second derivative: its gradient was computed with the loss. "
            "Use torch.nn.functional.cross_entropy on the logits for one."
        )


linear_cross_entropy.register_autograd(_LinearCrossEntropy.backward, setup_context=_LinearCrossEntropy.setup_context)


def differentiable(*inputs: Any) -> torch.Tensor:
    """Return the loss, in the form that whoever asks can differentiate."""
    if torch.compiler.is_compiling():
        forward_mode.refuse_compiled()
        return linear_cross_entropy(*inputs)[0]
    loss: torch.Tensor = _LinearCrossEntropy.apply(*inputs)[0]
    return loss


def can_overwrite(gradient: torch.Tensor) -> bool:
    """Return whether nobody will ask for a gradient again: none differentiates what is done with it, or traces it."""
    return not torch.is_grad_enabled() and type(gradient) is torch.Tensor


def multiply_(values: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Multiply in place by one number, and return the result. On a GPU a factor of one costs nothing."""
    if kernels.take(values):
        from gpuguide.cross_entropy import fused

        with torch.cuda.device_of(values):
            return fused.multiply_(values, factor)
    return values.mul_(factor)
