"""The setup: how a model is trained or used."""

from __future__ import annotations

from dataclasses import dataclass

from gpuguide.costs.memory.faults import LARGEST, check_choice, check_whole
from gpuguide.costs.memory.shape import Shape

PURPOSES = ("train", "generate", "evaluate")
"""``train``: forward, backward, optimizer. ``generate``: read a prompt into a cache, then one token after another.
``evaluate``: one forward pass that gives the logits of all positions."""
TRAINING_PRECISIONS = ("mixed", "bf16", "fp32")
WEIGHT_FORMATS = ("bf16", "fp32", "int8", "int4")
"""Of a model in use. 16-bit floats of either kind take the same. Embedding, head and norms stay in 16 bits."""
OPTIMIZERS = ("adamw", "adamw-fused", "sgd-momentum", "sgd")
CACHE_FORMATS = ("bf16", "fp32", "fp8")


@dataclass(frozen=True)
class Setup:
    """How a model is run.

    Parameters
    ----------
    purpose : str
        One of :data:`PURPOSES`.
    precision : str
        In training one of :data:`TRAINING_PRECISIONS`, else one of :data:`WEIGHT_FORMATS`.
    batch : int
        Sequences on each data-parallel GPU at a time.
    seq_len : int
        Tokens of a sequence; in generation prompt and answer together.
    optimizer : str
        One of :data:`OPTIMIZERS`.
    checkpointing : bool
        Keep only the input of each layer and compute the rest again in the backward pass.
    fused_attention : bool
        Whether the scores of attention stay on the chip (FlashAttention and its like).
    cache : str
        One of :data:`CACHE_FORMATS`, in generation.
    tensor_parallel, data_parallel : int
        GPUs that share each matrix, and groups of GPUs that work on different sequences.
    sharding : int
        What is divided over data-parallel GPUs: nothing (0), optimizer states (1), gradients too (2), weights too (3).
    """

    purpose: str = "train"
    precision: str = "mixed"
    batch: int = 1
    seq_len: int = 1024
    optimizer: str = "adamw"
    checkpointing: bool = False
    fused_attention: bool = True
    cache: str = "bf16"
    tensor_parallel: int = 1
    data_parallel: int = 1
    sharding: int = 0

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tensor_parallel * self.data_parallel


def setup_faults(shape: Shape, setup: Setup) -> dict[str, str]:
    """Return what is wrong with a setup for a model of this shape: a sentence for each field that makes no sense."""
    faults: dict[str, str] = {}
    check_choice(faults, "purpose", setup.purpose, PURPOSES)
    if not faults:
        precisions = TRAINING_PRECISIONS if setup.purpose == "train" else WEIGHT_FORMATS
        check_choice(faults, "precision", setup.precision, precisions)
    check_choice(faults, "optimizer", setup.optimizer, OPTIMIZERS)
    check_choice(faults, "cache", setup.cache, CACHE_FORMATS)
    for name in ("batch", "tensor_parallel", "data_parallel"):
        check_whole(faults, name, getattr(setup, name), LARGEST["count"])
    check_whole(faults, "seq_len", setup.seq_len, LARGEST["size"])
    if "seq_len" not in faults and setup.seq_len > shape.context:
        faults["seq_len"] = f"seq_len is {setup.seq_len}; the model knows {shape.context} positions."
    if "tensor_parallel" not in faults:
        for name in ("heads", "intermediate"):
            if getattr(shape, name) % setup.tensor_parallel:
                faults["tensor_parallel"] = (
                    f"tensor_parallel is {setup.tensor_parallel}; it must divide the {getattr(shape, name)} of {name}."
                )
                break
    if setup.sharding not in (0, 1, 2, 3):
        faults["sharding"] = f"sharding is {setup.sharding}; choose 0, 1, 2 or 3."
    return faults
