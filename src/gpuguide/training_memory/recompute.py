"""Activation checkpointing: layers keep their input and are recomputed in the backward pass.

Selective checkpointing keeps the outputs inside a layer that take the longest to compute for their size.
:func:`recompute_by_hand` is the idea in a few lines. :func:`checkpointed` calls PyTorch's checkpointing, which also
restores the states of random numbers and autocast, and stops as soon as all saved tensors are recomputed.

References
----------
T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, section 5: selective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from gpuguide.errors import unknown

aten = torch.ops.aten
ATTENTION_OPERATIONS = {
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
}
MATMUL_OPERATIONS = {aten.mm.default, aten.addmm.default}
KEPT_IN_GPT2 = ("attention.out", "feed_forward.up")
KEPT_IN_LLAMA = ("feed_forward.gate_up",)
"""Linear layers of the library's models whose outputs selective checkpointing keeps, besides that of attention"""

Layer = Callable[..., torch.Tensor]


class _Recomputed(torch.autograd.Function):
    """A function that keeps its input and runs again for its gradient."""

    @staticmethod
    def forward(ctx: Any, layer: Layer, hidden: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.layer, ctx.parameters = layer, parameters
        ctx.save_for_backward(hidden)
        return layer(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        hidden = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.layer(hidden)
        return None, *torch.autograd.grad(output, (hidden, *ctx.parameters), gradient)


def recompute_by_hand(layer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Return ``layer(hidden)``, and keep only ``hidden`` for the backward pass.

    The layer must have no dropout and train all its parameters, and autocast must be off, since their states are not
    restored.
    """
    result: torch.Tensor = _Recomputed.apply(layer, hidden, *layer.parameters())
    return result


def checkpointed(layer: nn.Module, *inputs: Any, keep: Sequence[str] | None = None) -> torch.Tensor:
    """Return ``layer(*inputs)``, which is recomputed in the backward pass.

    Parameters
    ----------
    layer : nn.Module
        One layer of a model.
    *inputs
        Inputs of the layer.
    keep : sequence of str, optional
        Selective checkpointing: names of linear layers in it whose outputs are kept, besides that of attention, such as
        :data:`KEPT_IN_GPT2`.

    Raises
    ------
    GpuguideError
        If the layer has no linear layer of a name.
    """
    if keep is None:
        return checkpoint(layer, *inputs, use_reentrant=False)
    policy = _KeepOutputs(layer, keep)
    contexts = partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(policy.run, *inputs, use_reentrant=False, context_fn=contexts)


class _KeepOutputs:
    """Policy of selective checkpointing: keep the outputs of attention and of chosen linear layers."""

    def __init__(self, layer: nn.Module, names: Sequence[str]) -> None:
        modules = {name: each for name, each in layer.named_modules() if isinstance(each, nn.Linear)}
        for name in names:
            if name not in modules:
                raise unknown("linear layer", name, modules)
        self.layer = layer
        self.kept = [modules[name] for name in names]
        self.inside = False
        """Whether one of the chosen layers is running"""

    def __call__(self, context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        """Return whether the result of an operation is kept or recomputed."""
        keeps = operation in ATTENTION_OPERATIONS or (self.inside and operation in MATMUL_OPERATIONS)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    def run(self, *inputs: Any) -> Any:
        """Call the layer, in the forward pass and again in the backward pass, which may stop it anywhere."""
        self.inside = False
        handles = [each.register_forward_pre_hook(self._enter) for each in self.kept]
        handles += [each.register_forward_hook(self._leave) for each in self.kept]
        try:
            return self.layer(*inputs)
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, *_: Any) -> None:
        self.inside = True

    def _leave(self, *_: Any) -> None:
        self.inside = False
