"""The shape of a model: what of it decides about its memory, and how many numbers each part holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from gpuguide.costs.fields import faults_of, raise_first
from gpuguide.costs.memory.model import FORMULAS, SHAPE_FIELDS, SHAPE_RULES, choices

BIASES = choices("bias")


@dataclass(frozen=True)
class Shape:
    """What of a model decides about its memory.

    Parameters
    ----------
    layers, hidden, heads, kv_heads, head_dim : int
        Layers, length of a hidden state, attention heads, heads of keys and values, and the length of each.
    intermediate : int
        Inner width of the feed-forward part.
    vocab, context : int
        Tokens that the model knows, and the longest sequence.
    gated : bool
        Whether the feed-forward part has three matrices (as in Llama) or two (as in GPT-2).
    tied : bool
        Whether the head is the token embedding.
    learned_positions : bool
        Whether there is a vector for each position.
    bias : str
        One of :data:`BIASES`: which linear layers have one.
    layer_norm : bool
        Whether norms are LayerNorm, with a bias, or RMSNorm, without.
    norms : int
        Norms a layer: 2, or 4 where each part has one before and one after it.
    qk_norm : bool
        Whether queries and keys are normalised.
    experts, experts_used : int
        Feed-forward parts that a layer has, and how many of them a token goes through: more than one in a mixture of
        experts, whose ``intermediate`` is the width of one.

    Raises
    ------
    GpuguideError
        If a value makes no sense.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    gated: bool = True
    tied: bool = False
    learned_positions: bool = False
    bias: str = "none"
    layer_norm: bool = False
    norms: int = 2
    qk_norm: bool = False
    experts: int = 1
    experts_used: int = 1

    def __post_init__(self) -> None:
        raise_first(shape_faults(self))

    @property
    def queries(self) -> int:
        """Length of all queries of a token."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Length of all keys of a token; the values are as long."""
        return self.kv_heads * self.head_dim

    @classmethod
    def defaults(cls) -> dict[str, bool | int | str]:
        """Return the fields that may be left out, and what they are then."""
        return {field.name: field.default for field in fields(cls) if isinstance(field.default, bool | int | str)}

    def parameters(self) -> int:
        """Return the number of parameters, a tied head counted once.

        >>> Shape(12, 768, 12, 12, 64, 3072, 50257, 1024, gated=False, tied=True, learned_positions=True, bias="all",
        ...       layer_norm=True).parameters()
        124439808
        """
        return round(local(self, 1).total)


def shape_faults(shape: Shape) -> Mapping[str, str]:
    """Return what is wrong with a shape: a sentence for each field that makes no sense."""
    return faults_of(SHAPE_FIELDS, SHAPE_RULES, asdict(shape), FORMULAS)


@dataclass(frozen=True)
class Local:
    """What one of several tensor-parallel GPUs holds of a model, as counts of numbers."""

    queries: float
    """Length of the queries of a token here"""
    keys: float
    """Length of the keys of a token here; heads that are fewer than the GPUs are repeated"""
    matrices: float
    """Numbers in the matrices of a layer"""
    layer: float
    """Numbers in a layer: its matrices, biases and norms"""
    norm: float
    """Numbers in a norm"""
    head: float
    """Numbers in the head; as many are in the token embedding, which may be the same"""
    total: float
    """Numbers in all"""


def local(shape: Shape, parts: int) -> Local:
    """Return what one of ``parts`` GPUs that share each matrix holds."""
    values = FORMULAS.values({**asdict(shape), "tensor_parallel": parts})
    return Local(**{name: values[name] for name in Local.__dataclass_fields__})
