"""Matmuls by format: PyTorch's, which are cuBLAS's, and ours.

The second matrix is the transpose of a contiguous one, as the weight of a linear layer is. Both contenders sum fp8 with
the bits that Hopper's tensor cores keep, ``use_fast_accum=True`` of ``torch._scaled_mm``.

``error`` is that against float64 of the numbers before they were stored in the format, so it holds the rounding of the
matrices, of the sums and of the result. The check before the timing allows for no rounding of the matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from gpuguide.benchmarks.inputs import count_input_sets
from gpuguide.costs import roofline
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, find_missing_feature, powers_of_two
from gpuguide.measure.records import Metric, Rate
from gpuguide.systems import ceilings

FORMATS = ("fp32", "tf32", "fp16", "bf16", "fp8")
OURS = ("fp16", "bf16", "fp8")
"""Formats that our matmul supports"""
SQUARES = powers_of_two(1024, 16384)
TOKENS = 8192
MODEL = ((768, 2304), (768, 768), (768, 3072), (3072, 768), (768, 50304))
"""Inner size and columns of the matmuls of GPT-2 small: queries, keys and values; the output of attention; into and
out of the feed-forward part; logits, for a vocabulary padded to a multiple of 64"""
ROWS_CHECKED = 64
COLUMNS_CHECKED_AT_ONCE = 4096
Multiply = Callable[["Operands"], torch.Tensor]


@dataclass(frozen=True)
class Operands:
    """Two matrices in a format."""

    left: torch.Tensor
    """``(rows, inner)``"""
    right: torch.Tensor
    """``(inner, columns)``, the transpose of a contiguous matrix"""
    format: str
    scale: torch.Tensor
    """(), a one, for matmuls in fp8"""


@dataclass(frozen=True)
class Reference:
    """Some rows of the result before anything was stored in the format."""

    rows: torch.Tensor
    """``(ROWS_CHECKED,)``, which they are"""
    exact: torch.Tensor
    """``(ROWS_CHECKED, columns)``, float64"""


def matmul_shape(keys: Keys) -> tuple[int, int, int]:
    """Return rows, inner size and columns of a case."""
    return int(keys["rows"]), int(keys["inner"]), int(keys["columns"])


def draw(keys: Keys, device: str) -> tuple[Operands, Reference]:
    """Return matrices of N(0, 1) values in the format of a case, and some rows of their product in float64."""
    rows, inner, columns = matmul_shape(keys)
    left, right = torch.randn(rows, inner, device=device), torch.randn(columns, inner, device=device)
    chosen = torch.linspace(0, rows - 1, min(ROWS_CHECKED, rows), device=device).long()
    exact = matmul_in_float64(left[chosen], right.t())
    return store_operands(left, right, str(keys["format"])), Reference(chosen, exact)


def store_operands(left: torch.Tensor, right: torch.Tensor, format: str) -> Operands:
    """Return matrices in a format; those of tf32 are stored in fp32, and rounded by the matmul."""
    dtype = torch.float8_e4m3fn if format == "fp8" else ceilings.STORAGE[format]
    return Operands(left.to(dtype), right.to(dtype).t(), format, torch.ones((), device=left.device))


def matmul_in_float64(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return a matmul in float64, a part of the columns at a time."""
    wide = left.double()
    return torch.cat([wide @ part.double() for part in right.split(COLUMNS_CHECKED_AT_ONCE, dim=1)], dim=1)


def multiply_torch(operands: Operands) -> torch.Tensor:
    """Multiply as PyTorch does."""
    if operands.format == "fp8":
        one = operands.scale
        return torch._scaled_mm(operands.left, operands.right, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    with ceilings.fp32_precision("tf32" if operands.format == "tf32" else "ieee"):
        return operands.left @ operands.right


def ours(operands: Operands) -> torch.Tensor:
    """Multiply with our kernel."""
    from gpuguide.precision.matmul import matmul

    one = operands.scale
    return matmul(operands.left, operands.right, scales=(one, one) if operands.format == "fp8" else None)


def work(multiply: Multiply, device: Device, keys: Keys) -> Work:
    """Multiply, each time matrices that are not in the cache."""
    shape, format = matmul_shape(keys), str(keys["format"])
    rates = {"throughput": Rate("FLOP/s", roofline.matmul_flops(*shape))}
    footprint = int(roofline.matmul_bytes(*shape, ceilings.ELEMENT_SIZE[format]))
    first, reference = draw(keys, device.torch_device)
    sets = [first, *(draw(keys, device.torch_device)[0] for _ in range(count_input_sets(footprint, device) - 1))]
    errors: dict[str, float] = {}

    def check() -> None:
        errors.update(measure_errors(multiply(first), first, reference))
        check_errors(errors, format)

    def further() -> Mapping[str, Metric]:
        return {"error": records.metric("1", [errors["whole"]])}

    calls = [call_on(multiply, each) for each in sets]
    return Work(calls, check, rates, footprint=footprint, further=further)


def call_on(multiply: Multiply, operands: Operands) -> Callable[[], torch.Tensor]:
    """Return the call that multiplies these matrices."""
    return lambda: multiply(operands)


def measure_errors(result: torch.Tensor, operands: Operands, reference: Reference) -> dict[str, float]:
    """Return the errors of some rows, as ratios of norms: against the matrices as stored, and as they were before.

    Both are NaN if any number of the whole result is not finite.
    """
    if not bool(result.isfinite().all()):
        return {"product": float("nan"), "whole": float("nan")}
    found = result[reference.rows].double()
    as_stored = matmul_in_float64(operands.left[reference.rows], operands.right)
    return {"product": relative(found, as_stored), "whole": relative(found, reference.exact)}


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the norm of the difference over that of what is right."""
    return float(torch.linalg.matrix_norm(found - exact) / torch.linalg.matrix_norm(exact))


def check_errors(errors: Mapping[str, float], format: str) -> None:
    """Raise an :class:`AssertionError` if a matmul adds more to the rounding of its matrices than it may."""
    error, accepted = errors["product"], ceilings.RELATIVE_ERROR[format]
    assert error <= accepted, f"the relative error is {error:.1e}, and at most {accepted:.0e} is accepted"


def lacks_format(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip a format for which the GPU has no tensor cores, or None."""
    format = str(keys["format"])
    return None if format == "fp32" else find_missing_feature(frozenset({format}), device)


def not_ours(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip formats that our matmul leaves to cuBLAS, or None."""
    if keys["format"] in OURS:
        return lacks_format(device, keys)
    return f"our matmul supports {', '.join(OURS[:-1])} and {OURS[-1]}"


def cases(device: Device) -> Sequence[Keys]:
    """Return squares from small to large and the matmuls of the model, each in every format; on a CPU none."""
    if not device.is_gpu:
        return []
    shapes = [(size, size, size) for size in SQUARES] + [(TOKENS, inner, columns) for inner, columns in MODEL]
    return [
        {"format": format, "rows": rows, "inner": inner, "columns": columns}
        for rows, inner, columns in shapes
        for format in FORMATS
    ]


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes: both contenders' matrices, one drawn in fp32, and some rows in float64."""
    rows, inner, columns = matmul_shape(keys)
    element = ceilings.ELEMENT_SIZE[str(keys["format"])]
    drawn = 4 * (rows * inner + inner * columns)
    checked = 8 * (4 * ROWS_CHECKED * columns + COLUMNS_CHECKED_AT_ONCE * inner) + 8 * rows * columns
    return 2 * roofline.matmul_bytes(rows, inner, columns, element) + drawn + checked + 2**29


GPU = frozenset({"gpu"})
MATMUL_PRECISION = Benchmark(
    name="matmul-precision",
    title="Matmuls, by format",
    question="How fast is a matmul in each format, and how far from right?",
    contenders={
        "torch": Contender(lambda device, keys: work(multiply_torch, device, keys), GPU, lacks_format, ("cublas",)),
        "gpuguide": Contender(lambda device, keys: work(ours, device, keys), GPU, not_ours),
    },
    cases=cases,
    memory=bytes_needed,
    budget=0.15,
)
