"""Generate text for one user: prefill the prompt, then decode one token after another.

This is the whole loop, in plain PyTorch and on any device. :mod:`~gpuguide.inference.plain` has the layers that
:func:`prefill` and :func:`decode_one_token` push tokens through, and :mod:`~gpuguide.inference.cache` the KV cache. On
a GPU, where launching each kernel from Python takes longer than the arithmetic, :mod:`~gpuguide.inference.streaming`
runs the same loop on an :class:`~gpuguide.inference.Engine`, which replays each step as a CUDA graph.

>>> from gpuguide import models
>>> from gpuguide.inference import prepare
>>> main = models.load("main")
>>> tokens = generate(prepare(main.model), main.tokenizer.prompt("def __init__(self"), 4, stop=main.tokenizer.ends)
>>> main.tokenizer.decode(list(tokens))
', *args,'
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch

from gpuguide.errors import GpuguideError
from gpuguide.inference import plain
from gpuguide.inference.cache import Cache, static_cache
from gpuguide.inference.decoder import Decoder
from gpuguide.sampling import NO_TOKEN, sample_token
from gpuguide.sampling.reference import SamplingSettings

GREEDY = SamplingSettings(temperature=0.0)
"""Settings of greedy decoding: always the most likely token"""
LONGEST_TEXT = 2**20
"""Positions for which a seed has draws of its own; the next seed's draws follow them"""
HIGHEST_SEED = 2**63 // LONGEST_TEXT - 1
"""Largest seed: seeds are multiplied by ``LONGEST_TEXT`` in 64 bits"""
PREFILL_CHUNK = 512
"""Tokens of a prompt that prefill computes at a time"""


def generate(
    decoder: Decoder,
    prompt: Sequence[int],
    new_tokens: int,
    settings: SamplingSettings = GREEDY,
    *,
    stop: Collection[int] = (),
    seed: int = 0,
) -> Iterator[int]:
    """Continue a prompt, and yield each new token as soon as it is drawn.

    Close the iterator, or stop asking it for tokens, to cancel: nothing is computed ahead.

    Parameters
    ----------
    decoder : Decoder
        Model from :func:`gpuguide.inference.prepare`.
    prompt : sequence of int
        Tokens to continue, at least one.
    new_tokens : int
        Limit on the number of new tokens; with 0 there are none.
    settings : SamplingSettings
        Temperature, top-k, top-p and min-p; greedy decoding by default.
    stop : collection of int
        Tokens that end the text and are not yielded. In the prompt they have no effect.
    seed : int
        Seed of the draws. Prompt, settings and seed together determine the text.

    Yields
    ------
    int
        The new tokens.

    Raises
    ------
    GpuguideError
        At the call: if the prompt is empty or holds a number that is no token, prompt and new tokens do not fit into
        the model's context, or the seed is out of range.
    """
    check_prompt(prompt, decoder.shape.vocab)
    check_limits(len(prompt), new_tokens, decoder.shape.context, "the model's context")
    check_seed(seed)
    return _generate(decoder, prompt, new_tokens, settings, stop, seed) if new_tokens else iter(())


@torch.inference_mode()
def _generate(
    decoder: Decoder,
    prompt: Sequence[int],
    new_tokens: int,
    settings: SamplingSettings,
    stop: Collection[int],
    seed: int,
) -> Iterator[int]:
    end = len(prompt) + new_tokens
    cache = static_cache(decoder, rows=1, capacity=end)
    logits = prefill(decoder, cache, prompt)
    for position in range(len(prompt), end):
        token = sample(logits, settings, seed, position)
        if token in stop:
            return
        yield token
        if position + 1 < end:
            logits = decode_one_token(decoder, cache, token, position)


def prefill(decoder: Decoder, cache: Cache, prompt: Sequence[int]) -> torch.Tensor:
    """Put the keys and values of a prompt into the cache, and return the logits after its last token, ``(1, vocab)``.

    All tokens of a chunk go through the model together, so each weight that is read serves hundreds of tokens: prefill
    is compute-bound.
    """
    row = torch.zeros(1, dtype=torch.int64, device=decoder.device)
    for start in range(0, len(prompt), PREFILL_CHUNK):
        chunk = torch.tensor([prompt[start : start + PREFILL_CHUNK]], device=decoder.device)  # (1, seq)
        logits = plain.prefill(decoder, cache, chunk, row, start)
    return logits


def decode_one_token(decoder: Decoder, cache: Cache, token: int, position: int) -> torch.Tensor:
    """Put the key and value of one token into the cache, and return the logits after it, ``(1, vocab)``.

    All weights and the cache are read for this one token: decoding is memory-bound.
    """
    row, tokens, lengths = torch.tensor([[0], [token], [position]], device=decoder.device)
    return plain.decode(decoder, cache, tokens[:, None], row, lengths)[:, -1]


def sample(logits: torch.Tensor, settings: SamplingSettings, seed: int, position: int) -> int:
    """Draw the token at a position from its logits, ``(1, vocab)``; 0 if the logits are no distribution."""
    token = int(
        sample_token(
            logits,
            torch.tensor([seed * LONGEST_TEXT + position], device=logits.device),
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
        )
    )
    return 0 if token == NO_TOKEN else token


# --- checks of the arguments -----------------------------------------------------------------------------


def check_prompt(prompt: Sequence[int], vocab: int) -> None:
    """Raise a :class:`GpuguideError` if a prompt is empty or holds a number that is no token of the vocabulary."""
    if not prompt:
        raise GpuguideError("The prompt has no tokens. For an empty text, give the tokenizer's end_of_text.")
    if not 0 <= min(prompt) <= max(prompt) < vocab:
        raise GpuguideError(f"The prompt holds a token that is not below {vocab}: {min(prompt)} to {max(prompt)}.")


def check_limits(prompt: int, new_tokens: int, capacity: int, room: str = "the capacity") -> None:
    """Raise a :class:`GpuguideError` if prompt and new tokens do not fit.

    Parameters
    ----------
    prompt, new_tokens : int
        Tokens of the prompt, and new tokens at most.
    capacity : int
        Tokens that prompt and new tokens may have together.
    room : str
        Words of the error for what has this capacity.
    """
    if new_tokens < 0:
        raise GpuguideError(f"{new_tokens} new tokens cannot be generated; ask for 0 or more.")
    if prompt >= capacity:
        raise GpuguideError(
            f"A prompt of {prompt} tokens leaves no space in {room} of {capacity}; "
            f"give its last {capacity - 1} tokens or fewer."
        )
    if prompt + new_tokens > capacity:
        raise GpuguideError(
            f"A prompt of {prompt} tokens and {new_tokens} new ones do not fit into {room} of {capacity}; "
            f"ask for {capacity - prompt} or fewer."
        )


def check_seed(seed: int) -> None:
    """Raise a :class:`GpuguideError` if a seed is out of range."""
    if not 0 <= seed <= HIGHEST_SEED:
        raise GpuguideError(f"The seed is {seed}; give one from 0 to {HIGHEST_SEED}.")
