"""Stream one text from an engine: each token as soon as it is drawn, and characters as soon as they are complete.

:func:`stream` is the loop of :mod:`gpuguide.inference.generate` on an :class:`~gpuguide.inference.Engine`. On a GPU the
host stays one step behind: it copies a token to the host while the device already computes the next step
(:mod:`gpuguide.inference.host_copy`).

>>> from gpuguide import models
>>> from gpuguide.inference import prepare
>>> main = models.load("main")
>>> prompt = main.tokenizer.prompt("def __init__(self")
>>> tokens = stream(engine_for(prepare(main.model), len(prompt), 4), prompt, 4, main.tokenizer.ends)
>>> "".join(detokenize(main.tokenizer, tokens))
', *args,'
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Iterator, Sequence

from gpuguide.errors import GpuguideError
from gpuguide.inference.decoder import Decoder
from gpuguide.inference.engine import Engine
from gpuguide.inference.generate import GREEDY, check_limits, check_seed
from gpuguide.inference.host_copy import Clock, HostCopy
from gpuguide.logits import check_settings
from gpuguide.models.tokenizer import Tokenizer
from gpuguide.sampling.reference import SamplingSettings


def sampling_settings(
    temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> SamplingSettings:
    """Check the settings of sampling and return them; by default greedy decoding.

    Parameters
    ----------
    temperature, top_k, top_p, min_p
        As in :func:`gpuguide.logits.adjust`; with a temperature of zero the others change nothing.

    Raises
    ------
    GpuguideError
        If one is out of its range.
    """
    try:
        check_settings(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    except ValueError as error:
        raise GpuguideError(str(error)) from error
    return SamplingSettings(temperature, top_k, top_p, min_p)


def engine_for(decoder: Decoder, prompt: int, new_tokens: int, settings: SamplingSettings = GREEDY) -> Engine:
    """Return an engine for one text.

    Parameters
    ----------
    decoder : Decoder
        Model from :func:`gpuguide.inference.prepare`.
    prompt, new_tokens : int
        Tokens of the prompt, and new tokens at most.
    settings : SamplingSettings
        Temperature, top-k, top-p and min-p; greedy decoding by default.

    Raises
    ------
    GpuguideError
        If prompt and new tokens do not fit into the model's context.
    """
    check_limits(prompt, new_tokens, decoder.shape.context, "the model's context")
    return Engine(decoder, 1, prompt + max(new_tokens, 1), settings)


def stream(
    engine: Engine, prompt: Sequence[int], new_tokens: int, stop: Collection[int] = (), seed: int = 0
) -> Iterator[int]:
    """Continue a prompt in the first row of an engine, and yield each new token as it reaches the host.

    Close the iterator, or stop asking it for tokens, to cancel: nothing more is computed, except the step that a GPU
    has begun. The engine generates one such text at a time; a new one takes the row from the one before.

    Parameters
    ----------
    engine : Engine
        For example :func:`engine_for`.
    prompt : sequence of int
        Tokens to continue, at least one.
    new_tokens : int
        Limit on the number of new tokens; with 0 there are none.
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
        the engine, or the seed is out of range.
    """
    engine.check_prompt(prompt)
    check_limits(len(prompt), new_tokens, engine.capacity)
    check_seed(seed)
    return _stream(engine, prompt, new_tokens, stop, seed) if new_tokens else iter(())


def _stream(engine: Engine, prompt: Sequence[int], new_tokens: int, stop: Collection[int], seed: int) -> Iterator[int]:
    run_ahead = engine.decoder.device.type == "cuda"
    clock = Clock()
    current = HostCopy(engine.start([prompt], [seed])[:1], clock)
    for left in range(new_tokens - 1, -1, -1):
        following = HostCopy(engine.step(1)[:1], clock) if left and run_ahead else None
        (token,) = current.wait()
        if token in stop:
            return
        yield token
        if left:
            current = following or HostCopy(engine.step(1)[:1], clock)


def detokenize(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text of tokens piece by piece; bytes of an incomplete character wait for the next token.

    All pieces together are what :meth:`Tokenizer.decode <gpuguide.models.tokenizer.Tokenizer.decode>` returns, with a
    replacement character where the bytes are no UTF-8.

    Raises
    ------
    GpuguideError
        If a number is no token.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in tokens:
        if piece := decoder.decode(tokenizer.decode_bytes([token])):
            yield piece
    if rest := decoder.decode(b"", final=True):
        yield rest
