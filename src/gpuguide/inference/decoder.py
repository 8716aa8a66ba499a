"""A model's weights as the decode loop wants them: the same few parts for every architecture.

A decoder-only model is a list of equal layers between an embedding and a head. What differs between GPT-2 and Llama is
in the data: a norm has a bias or not, positions are a table of vectors or rotations, heads of queries share one of keys
or not, the feed-forward part has a gate or not.

Two things are laid out anew. Rotations turn pairs of numbers of a query or key, and ``transformers`` pairs number ``i``
with ``i + head_dim / 2``. Here the two are neighbours, and so are each gate and what it gates: then a kernel that has
one of a pair has the other too. Queries and keys are reordered alike, so their products stay what they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gpuguide import triton_support
from gpuguide.costs import memory
from gpuguide.errors import GpuguideError
from gpuguide.inference.cost.parts import Storage
from gpuguide.quantization import Int4, Int8, quantize_int4, quantize_int8

if TYPE_CHECKING:
    from gpuguide.models.gpt2 import GPT2
    from gpuguide.models.llama import Llama

WEIGHTS = ("plain", "int8", "int4")
"""Storage formats of the layers' matrices; the head and the embeddings stay in the model's format"""


@dataclass
class Norm:
    """A norm before a matmul: with a bias it subtracts the mean (LayerNorm), without it does not (RMSNorm)."""

    weight: torch.Tensor
    """``(hidden,)``"""
    bias: torch.Tensor | None
    epsilon: float


@dataclass
class Linear:
    """A linear layer: a matrix, ``(outputs, inputs)``, and a bias, ``(outputs,)``."""

    weight: torch.Tensor | Int8 | Int4
    bias: torch.Tensor | None = None


@dataclass
class Layer:
    """One layer."""

    attention_norm: Norm
    query_key_value: Linear
    """Outputs: all queries, then all keys, then all values, each head by head"""
    out: Linear
    feed_forward_norm: Norm
    up: Linear
    """Outputs: ``inner``, or ``2 * inner`` as pairs of a gate and what it gates"""
    down: Linear

    @property
    def matrices(self) -> tuple[torch.Tensor | Int8 | Int4, ...]:
        """Weights of its four matmuls, which can be quantised."""
        return self.query_key_value.weight, self.out.weight, self.up.weight, self.down.weight


@dataclass
class Decoder:
    """A model, ready to write."""

    shape: memory.Shape
    token_embedding: torch.Tensor
    """``(vocab_size, hidden)``"""
    position_embedding: torch.Tensor | None
    """``(context, hidden)``, or ``None`` where positions are rotations"""
    rotations: torch.Tensor | None
    """``(context, head_dim / 2, 2)`` in fp32: cosine and sine of the angle of each pair, or ``None``"""
    layers: list[Layer]
    final_norm: Norm
    head: Linear

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.token_embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The format of what is not quantised."""
        return self.token_embedding.dtype

    def storage(self) -> Storage:
        """Return how weights and cache are kept: with :attr:`shape`, what :mod:`gpuguide.inference.cost` counts with.

        The bytes of a weight in the matrices are the mean of all; those of quantised ones include scales and padding.
        The cache is taken to be in the model's own format, as :func:`gpuguide.inference.static_cache` makes it.
        """
        kept = sum(matrix.nbytes for layer in self.layers for matrix in layer.matrices)
        numbers = self.shape.layers * memory.local(self.shape, 1).matrices
        return Storage(kept / numbers, self.dtype.itemsize, self.dtype.itemsize)

    def suits_kernels(self) -> bool:
        """Return whether :mod:`gpuguide.inference.fused` takes this model; elsewhere PyTorch computes it.

        Its kernels compute in fp32 at most, and their heads have a power of two numbers.
        """
        return triton_support.supports_triton(self.token_embedding) and self.shape.head_dim.bit_count() == 1


def prepare(
    model: GPT2 | Llama,
    *,
    weights: str = "plain",
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    group: int = 128,
) -> Decoder:
    """Lay out a model's weights for writing. Those whose format, place and order stay are shared, not copied.

    Parameters
    ----------
    model : GPT2 or Llama
        From :mod:`gpuguide.models`.
    weights : str
        ``plain``, or ``int8`` or ``int4`` for the matrices of the layers.
    dtype : torch.dtype, optional
        Of all other weights, and of what is computed; by default the model's own.
    device : optional
        Where to; by default where the model is.
    group : int
        Inputs that share a scale, with ``int4``.

    Raises
    ------
    GpuguideError
        If the architecture, the kind of weights or the device is unknown, the device is not there, a weight is too
        large for the format, or the matrices cannot be quantised: one is not finite, or the group is none of
        :data:`~gpuguide.quantization.GROUPS`.
    """
    from gpuguide.models.gpt2 import GPT2
    from gpuguide.models.llama import Llama

    if weights not in WEIGHTS:
        raise GpuguideError(f"Weights are {weights!r}; known: {', '.join(WEIGHTS)}.")
    if not isinstance(model, GPT2 | Llama):
        raise GpuguideError(f"A {type(model).__name__} cannot be prepared; the architectures are GPT2 and Llama.")
    first = next(model.parameters())
    keep = _Keep(weights, dtype or first.dtype, _place(device or first.device), group)
    with torch.no_grad():
        return _decode_gpt2(model, keep) if isinstance(model, GPT2) else _decode_llama(model, keep)


def _place(device: torch.device | str) -> torch.device:
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise GpuguideError(f"PyTorch knows no device {str(device)!r}; give cpu or cuda.") from error
    if place.type == "cuda" and (place.index or 0) >= (seen := torch.cuda.device_count()):
        raise GpuguideError(
            f"The device {place} is not there: PyTorch sees {seen} CUDA GPUs. 'gpuguide doctor' says what is missing."
        )
    return place


@dataclass(frozen=True)
class _Keep:
    """Storage format and device of the weights."""

    weights: str
    dtype: torch.dtype
    device: torch.device
    group: int

    def tensor(self, weight: torch.Tensor) -> torch.Tensor:
        _check_range(weight, self.dtype)
        return weight.detach().to(self.device, self.dtype)

    def matrix(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        kept_bias = None if bias is None else self.tensor(bias)
        if self.weights == "plain":
            return Linear(self.tensor(weight).contiguous(), kept_bias)
        moved = weight.detach().to(self.device)
        try:
            return Linear(
                quantize_int8(moved) if self.weights == "int8" else quantize_int4(moved, self.group), kept_bias
            )
        except ValueError as error:
            raise GpuguideError(f"The model cannot be kept in {self.weights}. {error}") from error


def _check_range(weight: torch.Tensor, dtype: torch.dtype) -> None:
    """Raise if a weight would become infinite: with one, all that a model writes is its token 0."""
    if weight.is_meta or torch.finfo(dtype).max >= torch.finfo(weight.dtype).max:
        return
    lowest, highest = (float(end) for end in weight.detach().aminmax())
    farthest = max(lowest, highest, key=abs)
    if torch.finfo(dtype).max < abs(farthest) < float("inf"):
        fitting = torch.bfloat16 if dtype == torch.float16 else weight.dtype
        raise GpuguideError(f"A weight of {farthest:.3g} is too large for {dtype}; prepare the model in {fitting}.")


def _decode_gpt2(model: GPT2, keep: _Keep) -> Decoder:
    config = model.config
    blocks: Any = model.blocks
    shape = memory.Shape(
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.heads,
        head_dim=config.head_dim,
        intermediate=4 * config.hidden,
        vocab=config.vocab_size,
        context=config.context,
        gated=False,
        tied=_is_tied(model),
        learned_positions=True,
        bias="all",
        layer_norm=True,
    )

    def norm(module: torch.nn.LayerNorm) -> Norm:
        return Norm(keep.tensor(module.weight), keep.tensor(module.bias), module.eps)

    layers = [
        Layer(
            attention_norm=norm(block.attention_norm),
            query_key_value=keep.matrix(block.attention.query_key_value.weight, block.attention.query_key_value.bias),
            out=keep.matrix(block.attention.out.weight, block.attention.out.bias),
            feed_forward_norm=norm(block.feed_forward_norm),
            up=keep.matrix(block.feed_forward.up.weight, block.feed_forward.up.bias),
            down=keep.matrix(block.feed_forward.down.weight, block.feed_forward.down.bias),
        )
        for block in blocks
    ]
    embedding = keep.tensor(model.token_embedding.weight)
    positions = keep.tensor(model.position_embedding.weight)
    head = Linear(embedding if shape.tied else keep.tensor(model.head.weight))
    return Decoder(shape, embedding, positions, None, layers, norm(model.final_norm), head)


def _decode_llama(model: Llama, keep: _Keep) -> Decoder:
    config = model.config
    blocks: Any = model.blocks
    shape = memory.Shape(
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate=config.inner,
        vocab=config.vocab_size,
        context=config.context,
        tied=_is_tied(model),
    )

    def norm(module: Any) -> Norm:
        return Norm(keep.tensor(module.weight), None, config.norm_epsilon)

    layers = []
    for block in blocks:
        attention, forward = block.attention, block.feed_forward
        sizes = [shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.kv_heads * shape.head_dim]
        queries, keys, values = attention.query_key_value.weight.split(sizes)
        turned = torch.cat([neighbours(queries, shape.heads), neighbours(keys, shape.kv_heads), values])
        layers.append(
            Layer(
                attention_norm=norm(block.attention_norm),
                query_key_value=keep.matrix(turned),
                out=keep.matrix(attention.out.weight),
                feed_forward_norm=norm(block.feed_forward_norm),
                up=keep.matrix(neighbours(forward.gate_up.weight, 1)),
                down=keep.matrix(forward.down.weight),
            )
        )
    embedding = keep.tensor(model.token_embedding.weight)
    head = Linear(embedding if shape.tied else keep.tensor(model.head.weight))
    angles = torch.arange(config.context).float()[:, None] * model.frequencies().float().cpu()
    rotations = torch.stack([angles.cos(), angles.sin()], dim=-1).to(keep.device)
    return Decoder(shape, embedding, None, rotations, layers, norm(model.final_norm), head)


def _is_tied(model: GPT2 | Llama) -> bool:
    """Return whether the head is the embedding: not so in a copy whose head alone was quantised."""
    return model.head.weight is model.token_embedding.weight


def neighbours(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the outputs of each head so that the two of a pair, ``i`` and ``i + head_dim / 2``, are neighbours.

    >>> neighbours(torch.arange(8).view(8, 1), 2).flatten().tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    outputs, inputs = weight.shape
    pairs = weight.view(heads, 2, outputs // heads // 2, inputs)
    return pairs.transpose(1, 2).reshape(outputs, inputs)
