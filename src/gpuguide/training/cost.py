"""A training step by part: operations, bytes, and the time that follows from what a GPU can do.

The parts are the matmuls of the layers, attention, the head with the loss, what lies between the matmuls, and the
optimizer. Matmuls are bound by arithmetic, what lies between them and the optimizer by memory, attention and the loss
by both. A step takes as long as its parts after one another, or as its launches, if the host needs longer for these.

Bytes are counted by hand for a layer of GPT-2's kind, per token and hidden size; the comments say how. They are what
kernels as good as PyTorch's own move, and no measurement.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gpuguide.costs.memory import Shape, local
from gpuguide.lora.cost import attention_operations
from gpuguide.training.rungs import ALL

ATTENTION_SHARE = 0.4
"""Share of the rate of matmuls that one kernel of attention reaches with heads of 64, forward and backward"""
SUSTAINED_SHARE = 0.85
"""Share of a burst's rate of matmuls that a GPU keeps up in a step, where nobody measured it"""
LAUNCH_SECONDS = 5e-6
"""From one launch by the host to the next"""
LAUNCHES = {"eager": 90, "compile": 35}
"""Kernels of a layer, forward and backward"""
# Bytes per token, layer and hidden size between the matmuls, forward and backward. In bf16, compiled: twice (residual
# and norm in one: 3 reads or writes of the stream, 1 of the output) 16; activation, four times as wide, 16; backward:
# activation 24, norms 2 * 8, their weights 8, gradients of query, key and value side by side 12, of the biases 18.
BETWEEN = {"bf16": 110.0, "mixed": 134.0, "fp32": 220.0}
# Not compiled: residual and norm apart, casts to bf16 and back, copies of query, key and value.
EAGER = {"bf16": 150.0, "mixed": 220.0, "fp32": 270.0}
ATTENTION_BYTES = 24.0
"""Per token, layer and hidden size, in 16 bits: forward 4 tensors, backward 8"""
SCORE_BYTES = {"bf16": 36.0, "mixed": 50.0, "fp32": 56.0}
"""Per score, where attention writes them out: product, mask and softmax, forward and backward, each a pass or two"""
# Per logit: in chunks one pass in 16 bits beyond the matmuls; all at once and compiled three; else casts to fp32, the
# logarithms, and their gradient in several passes.
CHUNKED_LOGIT = 2.0
COMPILED_LOGIT = {"bf16": 6.0, "mixed": 6.0, "fp32": 12.0}
EAGER_LOGIT = {"bf16": 36.0, "mixed": 36.0, "fp32": 24.0}
# Per parameter: AdamW reads the weight, the gradient and two averages, and writes three of them back. In one pass over
# parameters in 16 bits and their copies it is as much; clipping then reads the gradients once more, in 16 bits.
FUSED, FOREACH, MASTERS, CLIPPING, ONE_PASS_CLIPPING = 28.0, 80.0, 12.0, 12.0, 2.0


@dataclass(frozen=True)
class Part:
    """A part of a step."""

    name: str
    flops: float = 0.0
    """Operations in matmuls"""
    bytes: float = 0.0
    """Bytes of memory that all kernels but the matmuls read and write"""
    share: float = 1.0
    """Share of the rate of matmuls that its operations reach"""


@dataclass(frozen=True)
class Rates:
    """What a GPU can do.

    Parameters
    ----------
    matmul : mapping of str to float
        FLOP/s of matmuls over seconds, by format: ``fp32``, ``bf16``.
    bandwidth : float
        B/s of memory that is read and written.
    """

    matmul: Mapping[str, float]
    bandwidth: float


@dataclass(frozen=True)
class StepCost:
    """A step, and what its parts cost."""

    parts: tuple[Part, ...]
    format: str
    """Format of the matmuls"""
    launches: float
    """Kernels that the host launches one after another; 1 in a graph"""
    tokens: int

    @property
    def flops(self) -> float:
        """Operations of the step: what MFU counts."""
        return sum(part.flops for part in self.parts)

    def part_seconds(self, rates: Rates) -> dict[str, float]:
        """Return the time of each part."""
        rate = rates.matmul[self.format]
        return {part.name: part.flops / (part.share * rate) + part.bytes / rates.bandwidth for part in self.parts}

    def seconds(self, rates: Rates) -> float:
        """Return the time of the step."""
        return max(sum(self.part_seconds(rates).values()), LAUNCH_SECONDS * self.launches)


def precision_of(rungs: Collection[str]) -> str:
    """Return the precision that the memory model calls a step with these rungs."""
    return "fp32" if "bf16" not in rungs else "bf16" if "weights" in rungs else "mixed"


def step_cost(shape: Shape, batch: int, seq_len: int, rungs: Collection[str] = ALL, *, clip: bool = True) -> StepCost:
    """Return what a step costs.

    Parameters
    ----------
    shape : gpuguide.costs.memory.Shape
        Shape of the model.
    batch, seq_len : int
        Sequences of a step, and tokens of each.
    rungs : collection of str
        What the step has of :data:`gpuguide.training.rungs.RUNGS`.
    clip : bool
        Whether gradients are clipped.
    """
    counted, tokens, parameters = local(shape, 1), batch * seq_len, shape.parameters()
    precision = precision_of(rungs)
    compiled = "compile" in rungs
    width = tokens * shape.layers * shape.hidden
    between = (BETWEEN if compiled else EAGER)[precision] * width
    attention = batch * shape.layers * attention_operations(seq_len, shape.queries)
    if "attention" in rungs:
        attending = Part("attention", attention, ATTENTION_BYTES * (2 if precision == "fp32" else 1) * width,
                         ATTENTION_SHARE)  # fmt: skip
    else:  # both halves of the scores are computed
        scores = float(batch * shape.layers * shape.heads * seq_len**2)
        attending = Part("attention", 2.0 * attention, SCORE_BYTES[precision] * scores)
    whole = (COMPILED_LOGIT if compiled else EAGER_LOGIT)[precision]
    logit = CHUNKED_LOGIT if "loss" in rungs else whole
    if precision == "bf16" and "optimizer" in rungs:
        optimizer = FUSED + (ONE_PASS_CLIPPING if clip else 0)
    else:
        optimizer = FUSED if "optimizer" in rungs else FOREACH
        optimizer += (MASTERS if precision == "bf16" else 0) + (CLIPPING if clip else 0)
    parts = (
        Part("matmuls of the layers", 6.0 * tokens * shape.layers * counted.matrices),
        attending,
        Part("head and loss", 6.0 * tokens * counted.head, logit * tokens * shape.vocab),
        Part("between the matmuls", bytes=between),
        Part("optimizer", bytes=optimizer * parameters),
    )
    kernels = shape.layers * LAUNCHES["compile" if compiled else "eager"]
    return StepCost(parts, "fp32" if precision == "fp32" else "bf16", 1 if "graph" in rungs else kernels, tokens)
