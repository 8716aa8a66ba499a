"""The reference in fp32 for generated tokens and for logits.

Weights that are numbers of 16 bits, or of 8 or 4, are turned into fp32 a layer at a time, and everything is computed
in it, all positions at once, without a cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch

from gpuguide.attention.reference import naive_attention
from gpuguide.inference import Decoder, plain
from gpuguide.inference.decoder import Layer, Linear, Norm

ACCEPTED_GAP = 0.1
"""Largest accepted gap between the logit of a generated token and the highest, in standard deviations of all logits.
With random weights many tokens are nearly as likely, so rounding decides which of them is written: in bf16 we found
gaps of up to 0.03, and of 0.37 where all values of attention were wrong by a tenth."""


def logits(decoder: Decoder, tokens: torch.Tensor, last: int) -> torch.Tensor:
    """Return the logits after the last positions of texts.

    Parameters
    ----------
    decoder : Decoder
        The model, whatever its weights are kept in.
    tokens : torch.Tensor
        ``(batch, seq)``, int64
    last : int
        Positions.

    Returns
    -------
    torch.Tensor
        ``(batch, last, vocab_size)``, fp32
    """
    widened = dataclasses.replace(
        decoder,
        token_embedding=decoder.token_embedding.float(),
        position_embedding=None if decoder.position_embedding is None else decoder.position_embedding.float(),
        layers=_OneAtATime(decoder.layers),
    )
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
    with torch.inference_mode():
        hidden = plain.transform(widened, tokens, positions, lambda _, q, k, v: naive_attention(q, k, v, causal=True))
        return plain.linear(plain.normalize(hidden[:, -last:], _norm(decoder.final_norm)), _linear(decoder.head))


def gaps(decoder: Decoder, texts: torch.Tensor, prompt: int) -> torch.Tensor:
    """Return how far the logit of each token after the prompts is below the highest there, in standard deviations.

    Parameters
    ----------
    decoder, texts
        As in :func:`logits`.
    prompt : int
        Tokens of each text that were given.

    Returns
    -------
    torch.Tensor
        ``(batch, seq - prompt)``: 0 where the most likely token was written.
    """
    written = texts[:, prompt:]
    found = logits(decoder, texts[:, :-1], written.shape[1])
    chosen = found.gather(-1, written.unsqueeze(-1)).squeeze(-1)
    return (found.amax(-1) - chosen) / found.std(-1)


def check_texts(decoder: Decoder, texts: torch.Tensor, prompt: int, accepted: float = ACCEPTED_GAP) -> None:
    """Check that the first and the last of several texts go on with tokens that are the most likely ones, or nearly."""
    ends = texts[sorted({0, len(texts) - 1})]
    worst = float(gaps(decoder, ends, prompt).max())
    assert worst <= accepted, f"a token is {worst:.2g} standard deviations below the best, and {accepted} is accepted"


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the error of a tensor as a ratio of norms."""
    return float(torch.linalg.vector_norm(found.float() - wanted) / torch.linalg.vector_norm(wanted))


class _OneAtATime(list[Layer]):
    """Layers that are turned into fp32 when it is their turn, so that there is memory for one only."""

    def __iter__(self) -> Iterator[Layer]:
        for layer in super().__iter__():
            yield Layer(
                attention_norm=_norm(layer.attention_norm),
                query_key_value=_linear(layer.query_key_value),
                out=_linear(layer.out),
                feed_forward_norm=_norm(layer.feed_forward_norm),
                up=_linear(layer.up),
                down=_linear(layer.down),
            )


def _linear(linear: Linear) -> Linear:
    weight = linear.weight
    exact = weight.float() if isinstance(weight, torch.Tensor) else weight.dequantize(torch.float32)
    return Linear(exact, None if linear.bias is None else linear.bias.float())


def _norm(norm: Norm) -> Norm:
    return Norm(norm.weight.float(), None if norm.bias is None else norm.bias.float(), norm.epsilon)
