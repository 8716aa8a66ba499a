"""The setup: how a model is trained or used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gpuguide.costs.fields import faults_of
from gpuguide.costs.memory.model import FORMULAS, SETUP_FIELDS, SETUP_RULES, choices
from gpuguide.costs.memory.shape import Shape

PURPOSES = choices("purpose")
"""``train``: forward, backward, optimizer. ``generate``: read a prompt into a cache, then one token after another.
``evaluate``: one forward pass that gives the logits of all positions."""
TRAINING_PRECISIONS: tuple[str, ...] = SETUP_FIELDS["precision"].options({"purpose": "train"})
WEIGHT_FORMATS: tuple[str, ...] = SETUP_FIELDS["precision"].options({"purpose": "generate"})
"""Of a model in use. 16-bit floats of either kind take the same. Embedding, head and norms stay in 16 bits."""
OPTIMIZERS = choices("optimizer")
CACHE_FORMATS = choices("cache")
ADAPTED = choices("adapted")
"""Which matrices have adapters: those of queries and values, all four of attention, or all of the layers"""
BASES = choices("base")
"""Formats of frozen weights beside adapters"""
PREFILLS = choices("prefill")
LOSSES = choices("loss")
ACTIVATIONS = choices("activation")
"""``gelu-new``: GPT-2's activation function as ``transformers`` writes it out; ``fused``: any that is one operation"""


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
    accumulation : int
        Batches whose gradients are added up before the optimizer's step.
    lora_rank : int
        Rank of trained adapters beside frozen weights (LoRA), or 0 to train all weights.
    adapted : str
        One of :data:`ADAPTED`, where there are adapters.
    base : str
        One of :data:`BASES`: how the weights beside adapters are stored. ``nf4`` is QLoRA.
    prefill : str
        One of :data:`PREFILLS`: whether prompts are read all at once, in generation, or ``chunk`` tokens at a time.
    chunk : int
        Tokens of all sequences together that go through the layers at once in chunked prefill.
    checkpoint_every : int
        With checkpointing: compute every n-th layer again, and keep all of the others.
    selective : bool
        With checkpointing: keep the outputs of attention and of the first matmuls of the feed-forward part as well, and
        in layers that are not gated that of the matmul after attention.
    offloaded : bool
        Keep activations on the host: those of one layer are on the GPU, and of two in the backward pass.
    loss : str
        One of :data:`LOSSES`: of all logits at once, or a chunk of them at a time.
    optimizer_in_backward : bool
        Update each weight as soon as its gradient is there, and free the gradient.
    activation : str
        One of :data:`ACTIVATIONS`, where the feed-forward part is not gated.
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
    accumulation: int = 1
    lora_rank: int = 0
    adapted: str = "all"
    base: str = "bf16"
    prefill: str = "whole"
    chunk: int = 2048
    checkpoint_every: int = 1
    selective: bool = False
    offloaded: bool = False
    loss: str = "whole"
    optimizer_in_backward: bool = False
    activation: str = "fused"

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        return self.tensor_parallel * self.data_parallel


def setup_faults(shape: Shape, setup: Setup) -> Mapping[str, str]:
    """Return what is wrong with a setup for a model of this shape: a sentence for each field that makes no sense."""
    return faults_of(SETUP_FIELDS, SETUP_RULES, {**asdict(shape), **asdict(setup)}, FORMULAS)
