"""A decoder in plain PyTorch: prefill and decode, as they read.

Both push tokens through the same layers. They differ in how many tokens of a sequence come at once, and so in what
limits them. Prefill has all tokens of a prompt, and each matrix that is read does work for all of them. A decode step
has one token of each sequence. What a token leaves behind for those after it is its key and value in every layer: with
these in the cache nothing is ever computed twice.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from gpuguide import quantization
from gpuguide.attention import attention
from gpuguide.costs.memory import Shape
from gpuguide.inference.cache import Cache
from gpuguide.inference.decoder import Decoder, Layer, Linear, Norm

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes the number of a layer, its queries ``(batch, heads, seq, head_dim)``, new keys and values with ``kv_heads``;
returns what the queries read, in their shape"""


def prefill(decoder: Decoder, cache: Cache, tokens: torch.Tensor, rows: torch.Tensor, start: int,
            counts: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
    """Read a piece of a prompt: put its keys and values into the cache, and return logits after its last token.

    Parameters
    ----------
    decoder : Decoder
        The model.
    cache : Cache
        Holds the first ``start`` tokens of each row.
    tokens : torch.Tensor
        ``(batch, seq)``, int64. Shorter ones are filled up at the end, with anything.
    rows : torch.Tensor
        ``(batch,)``: the rows of the cache.
    start : int
        The position of the first token, the same for all.
    counts : torch.Tensor, optional
        ``(batch,)``: how many tokens are real; all, by default.

    Returns
    -------
    torch.Tensor
        ``(batch, vocab_size)``
    """
    batch, seq = tokens.shape
    places = torch.arange(seq, device=tokens.device).expand(batch, seq)
    counts = torch.full((batch,), seq, device=tokens.device) if counts is None else counts
    kept = torch.where(places < counts[:, None], start + places, -1)

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        cache.write(layer, rows, kept, k, v)
        if start:
            before = cache.read(layer, rows, start)
            k, v = torch.cat([before[0], k], dim=2), torch.cat([before[1], v], dim=2)
        return attention(q, k, v, causal=True)

    hidden = transform(decoder, tokens, start + places, attend)
    last = hidden[torch.arange(batch, device=tokens.device), counts.long() - 1]
    return linear(normalize(last, decoder.final_norm), decoder.head)


def decode(
    decoder: Decoder, cache: Cache, tokens: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Take the next tokens of each sequence, usually one, and return the logits after each of them.

    Parameters
    ----------
    decoder, cache
        As in :func:`prefill`.
    tokens : torch.Tensor
        ``(batch, seq)``, int64: the tokens after those that the cache holds. Their keys and values are added to it.
    rows : torch.Tensor
        ``(batch,)``: the rows of the cache.
    lengths : torch.Tensor
        ``(batch,)``: how many tokens of each row the cache holds; what it has beyond is not read.

    Returns
    -------
    torch.Tensor
        ``(batch, seq, vocab_size)``
    """
    positions = lengths[:, None] + torch.arange(tokens.shape[1], device=tokens.device)
    seen = torch.arange(cache.capacity, device=tokens.device) <= positions[:, :, None]  # (batch, seq, capacity)
    written = seen[:, -1, None, :, None]

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        cache.write(layer, rows, positions, k, v)
        keys, values = cache.read(layer, rows, cache.capacity)
        # What lies beyond may be anything, and zero times NaN is NaN.
        keys, values = keys.where(written, 0), values.where(written, 0)
        grouped = decoder.shape.heads != decoder.shape.kv_heads
        return functional.scaled_dot_product_attention(q, keys, values, attn_mask=seen[:, None], enable_gqa=grouped)

    hidden = transform(decoder, tokens, positions, attend)
    return linear(normalize(hidden, decoder.final_norm), decoder.head)


def transform(decoder: Decoder, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
    """Push tokens through all layers: ``(batch, seq)`` of tokens and positions to hidden states with ``hidden``."""
    hidden = decoder.token_embedding[tokens]
    if decoder.position_embedding is not None:
        hidden = hidden + decoder.position_embedding[positions.clamp(max=decoder.shape.context - 1)]
    for number, layer in enumerate(decoder.layers):
        q, k, v = project(decoder, layer, normalize(hidden, layer.attention_norm), positions)
        mixed = attend(number, q, k, v).transpose(1, 2).flatten(2)
        hidden = hidden + linear(mixed, layer.out)
        hidden = hidden + feed_forward(decoder.shape, layer, normalize(hidden, layer.feed_forward_norm))
    return hidden


def project(
    decoder: Decoder, layer: Layer, normed: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries, keys and values, each ``(batch, its heads, seq, head_dim)``, rotated where the model rotates."""
    shape = decoder.shape
    sizes = [shape.heads, shape.kv_heads, shape.kv_heads]
    heads = linear(normed, layer.query_key_value).unflatten(-1, (sum(sizes), shape.head_dim)).transpose(1, 2)
    q, k, v = heads.split(sizes, dim=1)
    if decoder.rotations is None:
        return q, k, v
    turn = decoder.rotations[positions.clamp(max=shape.context - 1)].unsqueeze(1)
    return rotate(q, turn), rotate(k, turn), v


def rotate(heads: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    """Rotate each pair of neighbours by its angle.

    Parameters
    ----------
    heads : torch.Tensor
        ``(batch, heads, seq, head_dim)``
    turn : torch.Tensor
        ``(batch, 1, seq, head_dim / 2, 2)``: cosines and sines.

    References
    ----------
    J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, section 3.4.2.
    """
    first, second = heads.float().unflatten(-1, (-1, 2)).unbind(-1)
    cosine, sine = turn.unbind(-1)
    turned = torch.stack([first * cosine - second * sine, second * cosine + first * sine], dim=-1)
    return turned.flatten(-2).to(heads.dtype)


def feed_forward(shape: Shape, layer: Layer, normed: torch.Tensor) -> torch.Tensor:
    """Transform each position by itself: ``(batch, seq, hidden)`` to the same shape."""
    inner = linear(normed, layer.up)
    if not shape.gated:
        return linear(functional.gelu(inner, approximate="tanh"), layer.down)
    gate, value = inner.unflatten(-1, (-1, 2)).unbind(-1)
    return linear(functional.silu(gate) * value, layer.down)


def normalize(hidden: torch.Tensor, norm: Norm) -> torch.Tensor:
    """Normalise the last dimension."""
    size = hidden.shape[-1:]
    if norm.bias is None:
        return functional.rms_norm(hidden, size, norm.weight, norm.epsilon)
    return functional.layer_norm(hidden, size, norm.weight, norm.bias, norm.epsilon)


def linear(values: torch.Tensor, by: Linear) -> torch.Tensor:
    """Multiply ``(..., inputs)`` by a matrix: ``(..., outputs)``."""
    if isinstance(by.weight, torch.Tensor):
        return functional.linear(values, by.weight, by.bias)
    product = quantization.linear(values, by.weight)
    return product if by.bias is None else product + by.bias
