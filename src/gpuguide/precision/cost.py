"""Memory of a training step, by the format that it computes in.

:mod:`gpuguide.costs.memory` knows what a model keeps. Here is what is different in
:func:`gpuguide.precision.training_step.train_step`: its loss is computed in fp32 whatever the logits are in, and layers
in fp8 keep their inputs and weights in one byte a number.

Assumed are a model of GPT-2's kind, whose head stays out of fp8, the fused AdamW, and attention that keeps no scores.
"""

from __future__ import annotations

from gpuguide.costs import memory
from gpuguide.costs.memory import Setup, Shape

SETUPS = {"fp32": "fp32", "tf32": "fp32", "fp16": "mixed", "bf16": "mixed", "pure-bf16": "bf16", "fp8": "mixed"}
"""Name of each precision in the memory model. TF32 is a compute mode whose numbers are stored in fp32;
layers in fp8 stand in a model that computes in bf16 otherwise."""
HELD_AT_THE_LOSS = ("train_weights", "train_states", "train_workspace", "copies_of_held", "inputs", "activations",
                    "final_norm")  # fmt: skip
LOSS_BYTES = 12
"""Bytes for each logit when the gradient of the loss is computed: its log-probability, the gradient of that, and its
own gradient, in fp32"""


def step_memory(shape: Shape, precision: str, batch: int, seq_len: int) -> float:
    """Return the bytes that a training step takes at its highest point, gradients and states included.

    Parameters
    ----------
    shape : Shape
        Of the model.
    precision : str
        One of :data:`SETUPS`: ``"fp32"``, ``"tf32"``, ``"fp16"``, ``"bf16"`` (both by autocast), ``"pure-bf16"`` (all
        weights, gradients and states in bf16) or ``"fp8"``.
    batch, seq_len : int
        Sequences of a micro-batch, and tokens in each.

    Raises
    ------
    ValueError
        If there is no such precision.
    GpuguideError
        If the model does not take such a batch.
    """
    if precision not in SETUPS:
        raise ValueError(f"There is no precision {precision!r}; there are {', '.join(SETUPS)}.")
    setup = Setup(precision=SETUPS[precision], batch=batch, seq_len=seq_len, optimizer="adamw-fused")
    found = memory.values(shape, setup)
    at_the_loss = sum(float(found[name]) for name in HELD_AT_THE_LOSS) + LOSS_BYTES * float(found["logits"])
    later = [moment.total for moment in memory.predict(shape, setup).moments if not moment.name.startswith("loss")]
    saved = fp8_saved_memory(shape, batch * seq_len) if precision == "fp8" else 0.0
    return max(at_the_loss, *later) - saved


def fp8_saved_memory(shape: Shape, tokens: int) -> float:
    """Return the bytes by which fp8 layers reduce what a bf16 model saves for its backward pass.

    The saved copy of each matrix takes one byte per element instead of two. So do the inputs of the queries, keys and
    values and of both feed-forward matrices. Attention saves its own output in bf16, so the fp8 copy of the input of
    its last matrix is additional.
    """
    values = memory.values(shape, Setup(precision="mixed", seq_len=1))
    matrices = float(values["matrices"])
    return shape.layers * (matrices + tokens * (2 * shape.hidden + shape.intermediate - shape.queries))
