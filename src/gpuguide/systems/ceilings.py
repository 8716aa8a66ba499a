"""The operations whose speed is a machine's ceiling: a copy, a matmul, a transfer, an empty launch.

Each is what a user would write. The formats of the matmuls are those that tensor cores know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

FORMATS = ("bf16", "fp16", "tf32", "fp32", "fp8")
ELEMENT_SIZE = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "fp8": 1}
"""Bytes an element of an operand. TF32 is a mode of computing: its operands are stored as 32-bit floats."""
STORAGE = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
RELATIVE_ERROR = {"bf16": 4e-3, "fp16": 5e-4, "tf32": 1e-3, "fp32": 1e-5, "fp8": 2e-2}
"""Largest accepted error of a matmul of N(0, 1) matrices against float64, as a ratio of norms.

The results are stored in the format itself (bf16 for fp8), and the fp8 reference uses the rounded operands.
"""
RANDOM_BLOCK = 16 * 2**20
"""Bytes after which :func:`random_bytes` repeats itself"""


@dataclass(frozen=True)
class Matmul:
    """A matmul ready to run, with operands and result already in place."""

    left: torch.Tensor
    """(rows, inner)"""
    right: torch.Tensor
    """(inner, columns)"""
    out: torch.Tensor
    """(rows, columns)"""
    format: str
    scale: torch.Tensor
    """(), a one: float8 operands carry a scale each"""

    def __call__(self) -> torch.Tensor:
        """Compute the matmul once into ``out`` and return it."""
        if self.format == "fp8":
            return scaled_matmul(self.left, self.right, self.scale, self.out)
        with fp32_precision("tf32" if self.format == "tf32" else "ieee"):
            return torch.mm(self.left, self.right, out=self.out)


def scaled_matmul(left: torch.Tensor, right: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Multiply two float8 matrices with a scale of one and fast accumulation, as inference libraries do."""
    return torch._scaled_mm(left, right, scale, scale, out_dtype=out.dtype, use_fast_accum=True, out=out)


@contextmanager
def fp32_precision(mode: str) -> Iterator[None]:
    """Let 32-bit CUDA matmuls use TF32 tensor cores (``"tf32"``) or not (``"ieee"``) inside the block.

    PyTorch's default is ``"ieee"``. The setting is global, so it is put back.
    """
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = mode
    try:
        yield
    finally:
        settings.fp32_precision = before


def make_matmul(
    rows: int, inner: int, columns: int, format: str, device: str | torch.device, *, zeros: bool = False
) -> Matmul:
    """Return a matmul of two N(0, 1) matrices (or of zeros) in one of :data:`FORMATS`.

    The result is filled with NaN, so that an element which is never written is found out.
    """

    def operand(height: int, width: int) -> torch.Tensor:
        if zeros:
            return torch.zeros(height, width, device=device)
        return torch.randn(height, width, device=device)

    if format == "fp8":
        left = operand(rows, inner).to(torch.float8_e4m3fn)
        right = operand(columns, inner).to(torch.float8_e4m3fn).t()  # tensor cores want this operand column by column
        result = torch.bfloat16
    else:
        left, right = operand(rows, inner).to(STORAGE[format]), operand(inner, columns).to(STORAGE[format])
        result = STORAGE[format]
    out = torch.full((rows, columns), torch.nan, dtype=result, device=device)
    return Matmul(left, right, out, format, torch.ones((), device=device))


def matmul_error(matmul: Matmul, rows: int = 64) -> float:
    """Return the relative error of the result against float64, on evenly spaced rows.

    Returns
    -------
    float
        Ratio of Frobenius norms; NaN if any element of the whole result is not a finite number.
    """
    result = matmul()
    if not bool(torch.isfinite(result).all()):
        return float("nan")
    chosen = torch.linspace(0, result.shape[0] - 1, min(rows, result.shape[0]), device=result.device).long()
    left = matmul.left[chosen].double()
    reference = torch.cat([left @ right.double() for right in matmul.right.split(4096, dim=1)], dim=1)
    norm = torch.linalg.matrix_norm(reference)
    error = torch.linalg.matrix_norm(result[chosen].double() - reference)
    return float(error / norm) if norm > 0 else float(error)


def copy(source: torch.Tensor, destination: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Return the copy of ``source`` over ``destination``; it is asynchronous where the hardware allows it."""
    return lambda: destination.copy_(source, non_blocking=True)


def random_bytes(size: int, device: str | torch.device, *, pinned: bool = False) -> torch.Tensor:
    """Return ``size`` random bytes as a ``uint8`` tensor of shape ``(size,)``.

    Parameters
    ----------
    size : int
        Bytes.
    device : str or torch.device
        Where they are.
    pinned : bool
        For host memory: page-locked, so that the GPU's copy engine can read it directly.
    """
    data = torch.empty(size, dtype=torch.uint8, device=device, pin_memory=pinned)
    block = torch.randint(0, 256, (min(size, RANDOM_BLOCK),), dtype=torch.uint8, device=device)
    for part in data.split(RANDOM_BLOCK):  # drawing every byte anew takes seconds a GiB on a CPU
        part.copy_(block[: part.numel()])
    return data
