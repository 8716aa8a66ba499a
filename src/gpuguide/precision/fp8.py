"""A linear layer whose three products run in fp8: weights and activations in e4m3, gradients in e5m2.

Eight bits hold few numbers, so each tensor, or each block of one, is divided by a scale that brings its largest value
to the largest number of the format; the product is multiplied by both scales. Products are added up in fp32, weights
and their gradients stay in the format that the optimizer wants. Two recipes:

* ``"tensor"``: one scale for a whole tensor, taken anew each time. One outlier makes all others small.
* ``"block"``: a scale for 128 neighbouring values along the axis that is summed over, and for 128 x 128 weights.

On a GPU the recipe ``"tensor"`` multiplies with ``torch._scaled_mm``. Elsewhere, and with blocks, values are rounded to
fp8 all the same and then multiplied in fp32: this is the reference, for errors and not for speed.

References
----------
P. Micikevicius et al., "FP8 Formats for Deep Learning", 2022, https://arxiv.org/abs/2209.05433, section 3. DeepSeek-AI,
"DeepSeek-V3 Technical Report", 2024, https://arxiv.org/abs/2412.19437, section 3.3.2, for the blocks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import nn

from gpuguide.precision.formats import E4M3, E5M2, Format
from gpuguide.precision.support import require

Recipe = Literal["tensor", "block"]
BLOCK = 128
MULTIPLE = 16
"""What the sizes of a product in fp8 have to be multiples of, on a GPU"""
SMALLEST_SCALE = 2.0**-126
"""The smallest normal number of fp32: a tensor of zeros has this scale"""


@dataclass(frozen=True, eq=False)
class Fp8:
    """A matrix in fp8: values times scales."""

    values: torch.Tensor
    """``(rows, columns)``, e4m3 or e5m2"""
    scales: torch.Tensor
    """fp32; without axes for one scale, else ``(rows / block rows, columns / block columns)``, rounded up"""
    block: tuple[int, int] | None
    """Rows and columns that share a scale; all if there is none"""

    def dequantize(self) -> torch.Tensor:
        """Return the numbers that are stored, ``(rows, columns)``, fp32."""
        return self.values.float() * _spread(self.scales, self.block, self.values.shape)

    def transposed(self) -> Fp8:
        """Return the transposed matrix, laid out anew: the products want the axis that they sum over to be the last.

        Raises
        ------
        ValueError
            If the blocks are not square: then the other axis needs scales of its own.
        """
        if self.block is not None and self.block[0] != self.block[1]:
            raise ValueError(f"Blocks of {self.block} cannot be turned; quantise the transposed matrix.")
        return Fp8(self.values.t().contiguous(), self.scales.t() if self.block else self.scales, self.block)


def quantize_fp8(x: torch.Tensor, format: Format = E4M3, block: tuple[int, int] | None = None) -> Fp8:
    """Store a matrix in fp8, with scales that bring the largest values to the largest number of the format.

    Parameters
    ----------
    x : torch.Tensor
        ``(rows, columns)``, floating point. Where a value is infinite or NaN, all that share its scale become NaN, so
        that whoever looks at a result, as a loss scaler does, finds out.
    format : Format
        ``E4M3`` or ``E5M2`` of :mod:`gpuguide.precision.formats`.
    block : (int, int), optional
        Rows and columns that share a scale. Blocks at the edges may be smaller.

    Raises
    ------
    ValueError
        If ``x`` is no matrix, the format is not one of the two, or a block has no size.
    """
    if x.ndim != 2 or format not in (E4M3, E5M2) or format.dtype is None:
        raise ValueError(f"A matrix becomes e4m3 or e5m2; given {tuple(x.shape)} and {format.name}.")
    if block is not None and min(block) < 1:
        raise ValueError(f"Blocks of {block} have no size.")
    x = x.detach().float()
    largest = x.abs().amax() if block is None else _largest(x, block)
    scales = (largest / format.largest).clamp(min=SMALLEST_SCALE)
    shares = x / _spread(scales, block, x.shape)
    return Fp8(torch.where(shares.isfinite(), shares, torch.nan).to(format.dtype), scales, block)


def fp8_product(a: Fp8, b: Fp8, dtype: torch.dtype = torch.bfloat16, *, fast: bool = False) -> torch.Tensor:
    """Return ``a @ b.T``, added up in fp32.

    Parameters
    ----------
    a, b : Fp8
        ``(rows, inner)`` and ``(columns, inner)``. Not both may be e5m2.
    dtype : torch.dtype
        Of the result.
    fast : bool
        On Hopper, add up with fewer bits within the tensor cores. The reference takes no notice.

    Returns
    -------
    torch.Tensor
        ``(rows, columns)``.

    Raises
    ------
    ValueError
        If the shapes do not fit, both are e5m2, or on a GPU a size is no multiple of 16.
    """
    if a.values.shape[1] != b.values.shape[1]:
        raise ValueError(f"Both matrices have the inner axis last; {_shape(a)} and {_shape(b)} do not fit.")
    if a.values.dtype == b.values.dtype == E5M2.dtype:
        raise ValueError("Both matrices are e5m2; tensor cores take at most one, so store one in e4m3.")
    if not a.values.is_cuda or a.block is not None or b.block is not None:
        with torch.autocast(a.values.device.type, enabled=False):  # which would round the matrices once more
            return (a.dequantize() @ b.dequantize().t()).to(dtype)
    if any(size % MULTIPLE for size in (*a.values.shape, *b.values.shape)):
        raise ValueError(f"Sizes of a product in fp8 are multiples of {MULTIPLE}; given {_shape(a)} and {_shape(b)}.")
    return torch._scaled_mm(
        a.values, b.values.t(), scale_a=a.scales, scale_b=b.scales, out_dtype=dtype, use_fast_accum=fast
    )


class _Linear(torch.autograd.Function):
    """``x @ weight.T`` and its gradients, each product in fp8."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, recipe: Recipe, dtype: torch.dtype) -> torch.Tensor:
        """Multiply, and keep both matrices in fp8, as the backward pass reads them."""
        rows, square = ((1, BLOCK), (BLOCK, BLOCK)) if recipe == "block" else (None, None)
        narrow_x, narrow_weight = quantize_fp8(x, E4M3, rows), quantize_fp8(weight, E4M3, square)
        turned_x = narrow_x if rows is None else quantize_fp8(x.t(), E4M3, rows)
        ctx.save_for_backward(turned_x.values, turned_x.scales, narrow_weight.values, narrow_weight.scales)
        ctx.blocks, ctx.types = (rows, square), (x.dtype, weight.dtype)
        return fp8_product(narrow_x, narrow_weight, dtype, fast=True)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        """Return the gradients of inputs and weight."""
        x_values, x_scales, weight_values, weight_scales = ctx.saved_tensors
        rows, square = ctx.blocks
        narrow = quantize_fp8(gradient, E5M2, rows)
        of_x = of_weight = None
        if ctx.needs_input_grad[0]:
            weight = Fp8(weight_values, weight_scales, square)
            of_x = fp8_product(narrow, weight.transposed(), ctx.types[0])
        if ctx.needs_input_grad[1]:
            x = Fp8(x_values, x_scales, rows)
            turned = narrow.transposed() if rows is None else quantize_fp8(gradient.t(), E5M2, rows)
            of_weight = fp8_product(turned, x.transposed() if rows is None else x, ctx.types[1])
        return of_x, of_weight, None, None


class Fp8Linear(nn.Linear):
    """A linear layer that multiplies in fp8, forward and backward; its weights stay what they are.

    Parameters
    ----------
    in_features, out_features : int
        Sizes. On a GPU they are multiples of 16, and so are the rows of an input, all its axes but the last together.
    bias : bool
        Whether to add a bias, in the format of the result.
    recipe : str
        ``"tensor"`` or ``"block"``.
    device, dtype
        Of the weights, as ``torch.nn.Linear`` has them.

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
        """Return the layer's result, ``(..., out_features)``, in autocast's format or that of the input."""
        kind = input.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else input.dtype
        product = _Linear.apply(input.reshape(-1, self.in_features), self.weight, self.recipe, dtype)
        result: torch.Tensor = product.reshape(*input.shape[:-1], self.out_features)
        return result if self.bias is None else result + self.bias.to(dtype)

    def extra_repr(self) -> str:
        """Name the recipe beside the sizes."""
        return f"{super().extra_repr()}, recipe={self.recipe!r}"


def to_fp8(model: nn.Module, recipe: Recipe = "tensor", *, keep: Collection[str] = ()) -> list[str]:
    """Let the linear layers of a model multiply in fp8, in place; parameters stay the same objects.

    Layers whose sizes are no multiples of 16 stay as they are, and so should the last one, which makes logits: name it.

    Parameters
    ----------
    model : torch.nn.Module
        Whose layers of the class ``torch.nn.Linear`` are replaced.
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
        If ``keep`` names what is no linear layer, or the GPU does not multiply in fp8.
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


def _largest(x: torch.Tensor, block: tuple[int, int]) -> torch.Tensor:
    """Return the largest magnitude of each block, NaN where one is there."""
    rows, columns = x.shape
    padded = nn.functional.pad(x, (0, -columns % block[1], 0, -rows % block[0]))
    return padded.unflatten(1, (-1, block[1])).unflatten(0, (-1, block[0])).abs().amax(dim=(1, 3))


def _spread(scales: torch.Tensor, block: tuple[int, int] | None, shape: torch.Size) -> torch.Tensor:
    """Return scales so that each value finds its own."""
    if block is None:
        return scales
    return scales.repeat_interleave(block[0], 0)[: shape[0]].repeat_interleave(block[1], 1)[:, : shape[1]]


def _shape(matrix: Fp8) -> tuple[int, ...]:
    return tuple(matrix.values.shape)
