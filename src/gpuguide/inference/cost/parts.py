"""Operations and bytes of one forward pass of a model, part by part.

A pass takes some new tokens of each of several sequences. Prefill takes all tokens of a prompt at once, a decode step
one token of each sequence, and the verification of a draft the tokens that were guessed. The weights are read once for
all of them; the cache is read for each sequence by itself.

What is counted: matmuls, and the weights and cache that they must read. What is not: softmax, norms and activation
functions as arithmetic, and what one operation writes for the next to read. All of it is small beside the weights while
few tokens pass at once, and beside the arithmetic when many do.

>>> from gpuguide.costs import presets
>>> shape = presets.shape("gpt2")
>>> [(part.name, round(part.moved / 1e6, 1)) for part in decode_step(shape, batch=1, context=1023)]
[('embedding', 0.0), ('linear layers', 170.1), ('attention', 37.7), ('head', 77.2)]

References
----------
J. Kaplan et al., "Scaling Laws for Neural Language Models", 2020, section 2.1: operations of a token.
W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023: the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuguide.costs.limits import CACHES, WEIGHTS
from gpuguide.costs.memory import ELEMENT_SIZE, Shape, local
from gpuguide.errors import GpuguideError, unknown


@dataclass(frozen=True)
class Storage:
    """Bytes a number, by what it is for; 16 bits everywhere by default."""

    matrix: float = 2.0
    """In the linear layers of the blocks, which are what is quantised"""
    rest: float = 2.0
    """In embedding, head, norms and biases"""
    cache: float = 2.0
    """In keys and values"""


BF16 = Storage()


@dataclass(frozen=True)
class Part:
    """One part of a pass: of all layers together, where each has one."""

    name: str
    flops: float
    moved: float
    """Bytes"""


def make_storage(weights: str = "bf16", cache: str = "bf16") -> Storage:
    """Return how a model is stored, by the names of the formats.

    Parameters
    ----------
    weights : str
        ``bf16``, ``fp32``, ``fp8``, ``int8`` or ``int4``, the last with a 16-bit scale for every 128 weights. Of the
        narrow ones only the linear layers of the blocks have any; the rest is kept in 16 bits.
    cache : str
        ``bf16``, ``fp32`` or ``fp8``.

    Raises
    ------
    GpuguideError
        If there is no such format.
    """
    if weights not in WEIGHTS:
        raise unknown("format of weights", weights, WEIGHTS)
    if cache not in CACHES:
        raise unknown("format of a cache", cache, CACHES)
    return Storage(ELEMENT_SIZE[weights], 4.0 if weights == "fp32" else 2.0, ELEMENT_SIZE[cache])


def quantized_size(bits: int, group: int, scale_bits: int = 16) -> float:
    """Return the bytes of a weight of ``bits`` bits when each ``group`` of weights shares one scale.

    >>> quantized_size(4, 128), quantized_size(4, 32)
    (0.515625, 0.5625)
    """
    _check_at_least(1, bits=bits, group=group)
    return (bits + scale_bits / group) / 8


# --- bytes -----------------------------------------------------------------------------------------------


def linear_bytes(shape: Shape, storage: Storage = BF16, rows: int = 1) -> float:
    """Return the bytes that the blocks read of their own weights: matrices, biases and norms.

    Of a mixture of experts the matrices of those are read that ``rows`` tokens reach, when tokens are spread evenly and
    by chance.
    """
    one = local(shape, 1)
    matrices = one.matrices - (shape.experts - _experts_reached(shape, rows)) * _expert(shape)
    return shape.layers * (matrices * storage.matrix + (one.layer - one.matrices) * storage.rest)


def head_bytes(shape: Shape, storage: Storage = BF16) -> float:
    """Return the bytes of the head and of the norm before it, whether or not the head is the embedding as well."""
    one = local(shape, 1)
    return (one.head + one.norm) * storage.rest


def weight_bytes_read(shape: Shape, storage: Storage = BF16, rows: int = 1) -> float:
    """Return the bytes of weights that a pass of ``rows`` tokens reads.

    That is every weight but the embedding, of which a row is read for each token. Tables of positions are left out.
    """
    return linear_bytes(shape, storage, rows) + head_bytes(shape, storage) + rows * shape.hidden * storage.rest


def weight_bytes_held(shape: Shape, storage: Storage = BF16) -> float:
    """Return the bytes that all weights take in memory."""
    one = local(shape, 1)
    matrices = shape.layers * one.matrices
    return matrices * storage.matrix + (one.total - matrices) * storage.rest


def cache_bytes_per_token(shape: Shape, storage: Storage = BF16) -> float:
    """Return the bytes that a token leaves in the KV cache: a key and a value for each layer and head of keys.

    >>> from gpuguide.costs import presets
    >>> cache_bytes_per_token(presets.shape("llama-3.1-8b"))
    131072.0
    """
    return 2 * shape.layers * shape.keys * storage.cache


# --- floating-point operations ---------------------------------------------------------------------------


def linear_flops(shape: Shape) -> float:
    """Return the operations of a token in the linear layers of all blocks: two for each weight that it meets."""
    matrices = local(shape, 1).matrices - (shape.experts - shape.experts_used) * _expert(shape)
    router = shape.hidden * shape.experts if shape.experts > 1 else 0
    return 2 * shape.layers * (matrices + router)


def attention_flops(shape: Shape, context: int, tokens: int = 1) -> float:
    """Return the operations of attention for ``tokens`` new tokens of a sequence with ``context`` tokens in the cache.

    A token attends to those in the cache, the new ones before it, and itself: with each one, two dot products as long
    as a head in every head and layer.
    """
    return 4 * shape.layers * shape.queries * _pairs(context, tokens)


def head_flops(shape: Shape) -> float:
    """Return the operations of the logits of one position."""
    return 2 * local(shape, 1).head


def decode_flops(shape: Shape, context: int) -> float:
    """Return the operations of writing one token with ``context`` tokens in the cache."""
    return linear_flops(shape) + attention_flops(shape, context) + head_flops(shape)


def prefill_flops(shape: Shape, tokens: int, scored: int = 1) -> float:
    """Return the operations of reading a prompt of so many tokens, of which the last ``scored`` get logits."""
    return tokens * linear_flops(shape) + attention_flops(shape, 0, tokens) + scored * head_flops(shape)


# --- passes ----------------------------------------------------------------------------------------------


def one_pass(
    shape: Shape, contexts: Sequence[int], tokens: int = 1, scored: int = 1, storage: Storage = BF16
) -> list[Part]:
    """Return the parts of a pass over several sequences.

    Parameters
    ----------
    shape : Shape
        The model.
    contexts : sequence of int
        Tokens in the cache, of each sequence. They may differ.
    tokens : int
        New tokens of each sequence.
    scored : int
        Positions of each sequence that get logits: the last ones.
    storage : Storage
        How weights and cache are stored. Matmuls are in 16 bits whatever it is, or in 32.

    Raises
    ------
    GpuguideError
        If there is no sequence, a number is too small, or the model knows fewer positions.
    """
    _check(shape, contexts, tokens, scored)
    rows, before = len(contexts) * tokens, sum(contexts)
    return [
        Part("embedding", 0, rows * shape.hidden * storage.rest),
        Part("linear layers", rows * linear_flops(shape), linear_bytes(shape, storage, rows)),
        Part(
            "attention",
            attention_flops(shape, before, tokens) + (len(contexts) - 1) * attention_flops(shape, 0, tokens),
            (before + rows) * cache_bytes_per_token(shape, storage),
        ),
        Part("head", len(contexts) * scored * head_flops(shape), head_bytes(shape, storage)),
    ]


def decode_step(shape: Shape, batch: int, context: int, storage: Storage = BF16) -> list[Part]:
    """Return the parts of a step that writes one token of each of ``batch`` sequences. Errors as :func:`one_pass`."""
    return one_pass(shape, [context] * batch, storage=storage)


def prefill(shape: Shape, tokens: int, batch: int = 1, storage: Storage = BF16) -> list[Part]:
    """Return the parts of a pass that reads ``batch`` prompts of so many tokens. Errors as :func:`one_pass`."""
    return one_pass(shape, [0] * batch, tokens, storage=storage)


def verification(shape: Shape, batch: int, context: int, drafted: int, storage: Storage = BF16) -> list[Part]:
    """Return the parts of a pass that checks ``drafted`` tokens of each sequence. Errors as :func:`one_pass`.

    It reads the last written token and the drafted ones, and needs the logits after each.
    """
    return one_pass(shape, [context] * batch, drafted + 1, drafted + 1, storage)


def bytes_moved(parts: Sequence[Part]) -> float:
    """Return the bytes of several parts together."""
    return sum(part.moved for part in parts)


def flops(parts: Sequence[Part]) -> float:
    """Return the operations of several parts together."""
    return sum(part.flops for part in parts)


def _pairs(context: int, tokens: int) -> int:
    """Return how many pairs of a new token and one that it reads there are."""
    return tokens * context + tokens * (tokens + 1) // 2


def _expert(shape: Shape) -> int:
    """Return how many numbers the matrices of one expert hold."""
    return (3 if shape.gated else 2) * shape.hidden * shape.intermediate


def _experts_reached(shape: Shape, rows: int) -> float:
    """Return how many experts so many tokens are expected to reach."""
    missed: float = (1 - shape.experts_used / shape.experts) ** rows
    return shape.experts * (1 - missed)


def _check(shape: Shape, contexts: Sequence[int], tokens: int, scored: int) -> None:
    if not contexts:
        raise GpuguideError("There are no sequences; a pass takes at least one.")
    _check_at_least(0, context=min(contexts))
    _check_at_least(1, tokens=tokens)
    if not 0 <= scored <= tokens:
        raise GpuguideError(f"scored is {scored}; of {tokens} new tokens, 0 to {tokens} can get logits.")
    longest = max(contexts) + tokens
    if longest > shape.context:
        raise GpuguideError(f"A sequence has {longest} tokens after the pass; the model knows {shape.context}.")


def _check_at_least(least: int, **given: float) -> None:
    for name, value in given.items():
        if value < least:
            raise GpuguideError(f"{name} is {value}; it must be at least {least}.")
