"""Bytes of a number, and of what training and inference have in common."""

from __future__ import annotations

from gpuguide.costs.memory.setup import Setup
from gpuguide.costs.memory.shape import Shape

MIB = 2**20
ELEMENT_SIZE = {"fp32": 4.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5 + 2 / 128}
"""Bytes a number. Four-bit weights have a 16-bit scale for every 128 of them (Frantar et al., "GPTQ", 2022)."""
LIBRARY_WORKSPACE = 32 * MIB
"""What cuBLAS keeps for each thread that computes products, on a GPU of compute capability 9.0"""


def scores(shape: Shape, setup: Setup) -> float:
    """Return the bytes of the scores of all heads, in fp32."""
    return 4 * setup.batch * shape.heads / setup.tensor_parallel * setup.seq_len**2


def compute_size(setup: Setup) -> float:
    """Return the bytes of a number in products and attention."""
    return 4.0 if setup.precision == "fp32" else 2.0


def stream_size(setup: Setup) -> float:
    """Return the bytes of a number in the stream of hidden states."""
    return 2.0 if setup.precision in ("bf16", "int8", "int4") else 4.0
