"""Linear layer with three fp8 matmuls, whose weights and their gradients stay in the optimizer's dtype."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, get_args

import torch
from torch import nn

from gpuguide.precision.formats import E4M3, E5M2
from gpuguide.precision.fp8.matrix import MULTIPLE, Fp8, fp8_matmul, quantize_fp8, quantize_fp8_with_transpose
from gpuguide.precision.support import require

Recipe = Literal["tensor", "block"]
BLOCK = 128
"""Values that share a scale in the recipe ``"block"``"""


class _Linear(torch.autograd.Function):
    """``x @ weight.T`` and its gradients, each matmul in fp8."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, recipe: Recipe, dtype: torch.dtype) -> torch.Tensor:
        """Multiply, and save both matrices in fp8 and transposed, as the backward pass reads them."""
        if recipe == "block":
            blocks = ((1, BLOCK), (BLOCK, BLOCK))
            fp8_x, fp8_weight = quantize_fp8(x, E4M3, blocks[0]), quantize_fp8(weight, E4M3, blocks[1])
            transposed_x, transposed_weight = quantize_fp8(x.t(), E4M3, blocks[0]), fp8_weight.transpose()
        else:
            fp8_x, transposed_x = quantize_fp8_with_transpose(x)
            fp8_weight, transposed_weight = quantize_fp8_with_transpose(weight)
        ctx.save_for_backward(
            transposed_x.values, transposed_x.scales, transposed_weight.values, transposed_weight.scales
        )
        ctx.blocks, ctx.types = (transposed_x.block, transposed_weight.block), (x.dtype, weight.dtype)
        return fp8_matmul(fp8_x, fp8_weight, dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        """Return the gradients of inputs and weight."""
        x_values, x_scales, weight_values, weight_scales = ctx.saved_tensors
        rows, square = ctx.blocks
        if rows is None:
            quantized, transposed = quantize_fp8_with_transpose(gradient, E5M2)
        else:
            quantized, transposed = quantize_fp8(gradient, E5M2, rows), quantize_fp8(gradient.t(), E5M2, rows)
        x_gradient = weight_gradient = None
        if ctx.needs_input_grad[0]:
            x_gradient = fp8_matmul(quantized, Fp8(weight_values, weight_scales, square), ctx.types[0])
        if ctx.needs_input_grad[1]:
            weight_gradient = fp8_matmul(transposed, Fp8(x_values, x_scales, rows), ctx.types[1])
        return x_gradient, weight_gradient, None, None


class Fp8Linear(nn.Linear):
    """A linear layer that multiplies in fp8, forward and backward; its weights keep their dtype.

    Parameters
    ----------
    in_features, out_features : int
        Sizes. On a GPU they are multiples of 16, and so are the rows of an input, all its axes but the last together.
    bias : bool
        Whether to add a bias, in the format of the result.
    recipe : str
        ``"tensor"`` or ``"block"``.
    device, dtype
        Device and dtype of the weights, as in ``torch.nn.Linear``.

    Raises
    ------
    ValueError
        If there is no such recipe, or the GPU does not multiply in fp8; the message says what it does.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        recipe: Recipe = "tensor",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if recipe not in get_args(Recipe):
            raise ValueError(f"There is no recipe {recipe!r}; there are {' and '.join(get_args(Recipe))}.")
        super().__init__(in_features, out_features, bias, device=device, dtype=dtype)
        if self.weight.is_cuda:
            require(E4M3, self.weight.device)
        self.recipe: Recipe = recipe

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the layer's result, ``(..., out_features)``, in autocast's dtype or that of the input."""
        device_type = input.device.type
        dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else input.dtype
        product = _Linear.apply(input.reshape(-1, self.in_features), self.weight, self.recipe, dtype)
        result: torch.Tensor = product.reshape(*input.shape[:-1], self.out_features)
        return result if self.bias is None else result + self.bias.to(dtype)

    def extra_repr(self) -> str:
        """Add the recipe to the sizes."""
        return f"{super().extra_repr()}, recipe={self.recipe!r}"


def to_fp8(model: nn.Module, recipe: Recipe = "tensor", *, keep: Collection[str] = ()) -> list[str]:
    """Make the linear layers of a model multiply in fp8, in place; parameters stay the same objects.

    Layers whose sizes are no multiples of 16 stay as they are, and so should the last one, which makes logits: name it.

    Parameters
    ----------
    model : torch.nn.Module
        Model whose layers of the class ``torch.nn.Linear`` are replaced.
    recipe : str
        ``"tensor"`` or ``"block"``.
    keep : collection of str
        Names of layers that stay, as ``model.named_modules()`` has them.

    Returns
    -------
    list of str
        Names of the layers that were replaced.

    Raises
    ------
    ValueError
        If ``keep`` names something other than a linear layer, or the GPU does not multiply in fp8.
    """
    linear = {name: each for name, each in model.named_modules() if type(each) is nn.Linear}
    if missing := set(keep) - set(linear):
        raise ValueError(
            f"{', '.join(sorted(missing))} is no linear layer of the model; there are {', '.join(linear)}."
        )
    fits = {name: each for name, each in linear.items() if not any(size % MULTIPLE for size in each.weight.shape)}
    replaced = [name for name in fits if name and name not in keep]
    for name in replaced:
        old = linear[name]
        if old.weight.is_cuda:
            require(E4M3, old.weight.device)
        new = Fp8Linear(old.in_features, old.out_features, old.bias is not None, recipe=recipe, device="meta")
        new.weight, new.bias = old.weight, old.bias
        new.train(old.training)
        model.set_submodule(name, new)
    return replaced
