"""From floating-point weights to integers and scales: plainly, and in the two formats.

Everything is computed in fp32, some rows at a time, so that a matrix needs little memory besides itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn import functional

from gpuguide.quantization.formats import GROUPS, SCALE_FORMATS, ZERO, Int4, Int8, pack

LOWEST, HIGHEST = -8, 7
"""The range of 4 bits with a sign"""
DIVISORS = (4, 5, 6, 7, 7.5, 8, 8.5, 9, 9.5, 10)
"""By what the largest weight of a group is divided for the scales that are tried. Above 7 or 8 it is clipped. The small
ones are for weights that are multiples of some number, which then come back exactly."""
AT_ONCE = 2**23
"""Weights that are quantised at a time: each of the few copies that are made of them takes 32 MiB"""


def round_to_nearest(weight: torch.Tensor, bits: int = 4, group: int | None = None) -> torch.Tensor:
    """Return what is read back of weights that are rounded to the nearest of ``2**bits - 1`` values: the plain version.

    The values lie evenly from minus to plus the largest weight of a group.

    Parameters
    ----------
    weight : torch.Tensor
        ``(out, in)``, floating point.
    bits : int
        Of a weight, 2 or more.
    group : int, optional
        Inputs that share a scale; all of a row if it is left out.

    Returns
    -------
    torch.Tensor
        ``(out, in)``, in the format of the weights.

    Raises
    ------
    TypeError
        If the weights are no floating-point numbers.
    ValueError
        If they are no matrix or an empty one, or bits or group are too few.
    """
    _check_matrix(weight)
    columns = weight.shape[1]
    group = columns if group is None else group
    if bits < 2 or group < 1:
        raise ValueError(f"A weight has {bits} bits and a group {group} inputs; they need at least 2 and 1.")
    grouped = functional.pad(weight.float(), (0, -columns % group)).unflatten(1, (-1, group))
    scale = grouped.abs().amax(dim=-1, keepdim=True) / (2 ** (bits - 1) - 1)
    scale = scale.where(scale > 0, 1)  # of a group of zeros
    values = (grouped / scale).round() * scale
    return values.flatten(1)[:, :columns].to(weight.dtype)


@torch.no_grad()
def quantize_int8(weight: torch.Tensor) -> Int8:
    """Store a matrix in 8 bits a weight, with one scale a row: its largest weight becomes 127 or -127.

    Parameters
    ----------
    weight : torch.Tensor
        ``(out, in)``, floating point; computed with in fp32.

    Raises
    ------
    TypeError
        If the weights are no floating-point numbers.
    ValueError
        If they are no matrix, an empty one, or one of them is NaN or infinite in fp32.
    """
    _check_matrix(weight)
    quantized = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scales = torch.empty(weight.shape[0], 1, dtype=torch.float32, device=weight.device)
    for rows, part in _some_rows(weight):
        scale = part.abs().amax(dim=1, keepdim=True) / 127
        scales[rows] = scale.where(scale > 0, 1)  # of a row of zeros
        quantized[rows] = (part / scales[rows]).round().clamp(-127, 127).to(torch.int8)
    return Int8(quantized, scales)


@torch.no_grad()
def quantize_int4(weight: torch.Tensor, group: int = 128, *, scale_dtype: torch.dtype = torch.bfloat16) -> Int4:
    """Store a matrix in 4 bits a weight, with one scale a group of inputs: the best of those that are tried.

    Parameters
    ----------
    weight : torch.Tensor
        ``(out, in)``, floating point; computed with in fp32. Any number of inputs: the last group is padded.
    group : int
        Inputs that share a scale: 32, 64 or 128.
    scale_dtype : torch.dtype
        Format of the scales: bf16 or fp32. Weights are rounded to multiples of the scale as it is stored.

    Raises
    ------
    TypeError
        If the weights are no floating-point numbers.
    ValueError
        If group or format are others, the weights are no matrix, an empty one, or one of them is NaN or infinite in
        fp32.
    """
    _check_matrix(weight)
    if group not in GROUPS:
        raise ValueError(f"The group is {group!r}; inputs share a scale in groups of 32, 64 or 128.")
    if scale_dtype not in SCALE_FORMATS:
        raise ValueError(f"The scales' format is {scale_dtype}; it must be torch.bfloat16 or torch.float32.")
    outputs, inputs = weight.shape
    padding = -inputs % group
    groups = (inputs + padding) // group
    words = torch.empty(outputs, groups * group // 8, dtype=torch.int32, device=weight.device)
    scales = torch.empty(outputs, groups, dtype=scale_dtype, device=weight.device)
    for rows, part in _some_rows(weight):
        grouped = functional.pad(part, (0, padding)).unflatten(1, (groups, group))
        scales[rows] = _best_scales(grouped, scale_dtype)
        steps = grouped / scales[rows].float().unsqueeze(-1)
        words[rows] = pack(steps.round_().clamp_(LOWEST, HIGHEST).add_(ZERO).to(torch.uint8).flatten(1))
    return Int4(words, scales, inputs)


def _best_scales(grouped: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the scale of each group, ``(rows, groups)``, with the least squared error of those that are tried.

    Errors are taken in units of a group's largest weight, so no square leaves the range of fp32. A group of zeros has
    no such unit: its errors are NaN, NaN is never less than another number, and its scale stays 1.
    """
    largest = grouped.abs().amax(dim=-1)
    best = torch.ones_like(largest, dtype=dtype)
    least = torch.full_like(largest, torch.inf)
    for divisor in (*DIVISORS, *(-divisor for divisor in DIVISORS)):
        # By a tensor, since a GPU divides by a Python number inexactly: it multiplies by the number's inverse.
        scale = (largest / torch.full_like(largest, divisor)).to(dtype)
        steps = grouped / scale.float().unsqueeze(-1)
        missed = steps.round().clamp_(LOWEST, HIGHEST).sub_(steps).square_().sum(dim=-1)
        error = missed * (scale.float() / largest).square_()
        better = error < least
        best, least = torch.where(better, scale, best), torch.where(better, error, least)
    return best


def _check_matrix(weight: torch.Tensor) -> None:
    if not weight.is_floating_point():
        raise TypeError(f"Weights must be floating-point numbers, not {weight.dtype}.")
    if weight.ndim != 2 or not weight.numel():
        shape = tuple(weight.shape)
        raise ValueError(f"Weights must be a matrix (out, in) with a row and a column or more; not {shape}.")


def _some_rows(weight: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield some rows of a matrix at a time, in fp32, with where they lie, and raise if one of them is not finite."""
    count = max(AT_ONCE // weight.shape[1], 1)
    for start in range(0, weight.shape[0], count):
        part = weight[start : start + count].float()
        finite = part.isfinite().all(dim=1)
        if not bool(finite.all()):
            row = start + int((~finite).nonzero()[0])
            raise ValueError(f"Weights must be finite in fp32, but row {row} of {tuple(weight.shape)} is not.")
        yield slice(start, start + count), part
