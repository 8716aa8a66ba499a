"""The shape of a model: what of it decides about its memory, and how many numbers each part holds."""

from __future__ import annotations

from dataclasses import dataclass

from gpuguide.costs.memory.faults import LARGEST, check_choice, check_whole, raise_first

BIASES = ("none", "qkv", "all")


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

    def parameters(self) -> int:
        """Return the number of parameters, a tied head counted once.

        >>> Shape(12, 768, 12, 12, 64, 3072, 50257, 1024, gated=False, tied=True, learned_positions=True, bias="all",
        ...       layer_norm=True).parameters()
        124439808
        """
        whole = Local(self, 1)
        return round(whole.total)


def shape_faults(shape: Shape) -> dict[str, str]:
    """Return what is wrong with a shape: a sentence for each field that makes no sense."""
    faults: dict[str, str] = {}
    for name in ("layers", "heads", "kv_heads"):
        check_whole(faults, name, getattr(shape, name), LARGEST["count"])
    for name in ("hidden", "head_dim", "intermediate", "vocab", "context"):
        check_whole(faults, name, getattr(shape, name), LARGEST["size"])
    check_choice(faults, "bias", shape.bias, BIASES)
    if shape.norms not in (2, 4):
        faults["norms"] = f"norms is {shape.norms}; a layer has 2 or 4."
    if not faults and shape.heads % shape.kv_heads:
        faults["kv_heads"] = f"kv_heads is {shape.kv_heads}; it must divide the {shape.heads} heads."
    return faults


@dataclass(frozen=True)
class Local:
    """The parameters of a model that one of ``parts`` tensor-parallel GPUs holds, as counts of numbers."""

    shape: Shape
    parts: int

    @property
    def keys(self) -> float:
        """Length of the keys of a token here. Heads that are fewer than the GPUs are repeated."""
        return max(1.0, self.shape.kv_heads / self.parts) * self.shape.head_dim

    @property
    def queries(self) -> float:
        """Length of the queries of a token here."""
        return self.shape.queries / self.parts

    @property
    def inner(self) -> float:
        """Width of the feed-forward part here."""
        return self.shape.intermediate / self.parts

    @property
    def vocab(self) -> float:
        """Tokens whose vectors and scores are here."""
        return self.shape.vocab / self.parts

    @property
    def feed_forward(self) -> float:
        """Numbers in the matrices of a feed-forward part."""
        return (3 if self.shape.gated else 2) * self.shape.hidden * self.inner

    @property
    def matrices(self) -> float:
        """Numbers in the matrices of a layer."""
        return self.shape.hidden * (2 * self.queries + 2 * self.keys) + self.feed_forward

    @property
    def layer(self) -> float:
        """Numbers in a layer: its matrices, biases and norms."""
        shape = self.shape
        biases = 0.0
        if shape.bias != "none":
            biases += self.queries + 2 * self.keys
        if shape.bias == "all":
            biases += (2 if shape.gated else 1) * self.inner + 2 * shape.hidden
        norms = shape.norms * self.norm + (2 * shape.head_dim if shape.qk_norm else 0)
        return self.matrices + biases + norms

    @property
    def norm(self) -> float:
        """Numbers in a norm."""
        return self.shape.hidden * (2 if self.shape.layer_norm else 1)

    @property
    def head(self) -> float:
        """Numbers in the head; as many are in the token embedding, which may be the same."""
        return self.vocab * self.shape.hidden

    @property
    def ends(self) -> float:
        """Numbers outside the layers."""
        shape = self.shape
        positions = shape.context * shape.hidden if shape.learned_positions else 0
        return self.head * (1 if shape.tied else 2) + positions + self.norm

    @property
    def total(self) -> float:
        """Numbers in all."""
        return self.shape.layers * self.layer + self.ends
