"""One text for one reader: each token as soon as it is written, and characters as soon as they are whole.

On a GPU the host stays one step behind: it reads a token while the device writes the next one, as a server does
(:mod:`gpuguide.inference.serving.transfer`). On a processor there is nobody to run ahead.

>>> from gpuguide import models
>>> from gpuguide.inference import prepare
>>> main = models.load("main")
>>> prompt = main.tokenizer.prompt("def __init__(self")
>>> tokens = stream(engine_for(prepare(main.model), len(prompt), 4), prompt, 4, main.tokenizer.ends)
>>> "".join(pieces_of_text(main.tokenizer, tokens))
', *args,'
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Iterable, Iterator, Sequence

import torch

from gpuguide.errors import GpuguideError
from gpuguide.inference.cache import pages_for
from gpuguide.inference.decoder import Decoder
from gpuguide.inference.engine import GREEDY, Engine
from gpuguide.inference.serving.requests import Request, check_fits
from gpuguide.inference.serving.transfer import Clock, Delivery
from gpuguide.logits import check_settings
from gpuguide.models.tokenizer import Tokenizer
from gpuguide.sampling.reference import SamplingSettings


def settings(temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> SamplingSettings:
    """Return how tokens are to be drawn, by default the most likely one each time.

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
    """Return an engine with room for one text.

    Parameters
    ----------
    decoder : Decoder
        From :func:`gpuguide.inference.prepare`.
    prompt, new_tokens : int
        Tokens of the prompt, and how many to write at most.
    settings : SamplingSettings
        How tokens are drawn; by default the most likely one is taken.

    Raises
    ------
    GpuguideError
        If the text is longer than the model's context.
    """
    context = decoder.shape.context
    if prompt >= context:
        raise GpuguideError(
            f"A prompt of {prompt} tokens leaves no room in the model's context of {context}; "
            f"give its last {context - 1} tokens or fewer."
        )
    if prompt + new_tokens > context:
        raise GpuguideError(
            f"A prompt of {prompt} tokens and {new_tokens} more do not fit into the model's context of {context}; "
            f"ask for {context - prompt} or fewer."
        )
    return Engine(decoder, 1, prompt + max(new_tokens, 1), settings)


def stream(
    engine: Engine, prompt: Sequence[int], new_tokens: int, stop: Collection[int] = (), seed: int = 0
) -> Iterator[int]:
    """Write a text in the first row of an engine, and yield each token as it arrives.

    To cancel it, close the iterator or stop asking: then nothing more is written, except by the step under way on a
    GPU. The engine writes one such text at a time; a new one takes the row from the one before.

    Parameters
    ----------
    engine : Engine
        For example :func:`engine_for`.
    prompt : sequence of int
        At least one token.
    new_tokens : int
        How many tokens to write at most; with 0 there are none.
    stop : collection of int
        Tokens that end the text and are not yielded. In the prompt they have no effect.
    seed : int
        With the prompt it decides what is drawn.

    Yields
    ------
    int
        The new tokens.

    Raises
    ------
    GpuguideError
        At the call: if the prompt is empty or holds what is no token, the text does not fit into the engine, or the
        seed is out of range.
    """
    request = Request(prompt, new_tokens, frozenset(stop), seed=seed)
    engine.check_prompt(prompt)
    check_fits(request, engine.capacity, pages_for(engine.capacity))
    return _written(engine, request) if new_tokens else iter(())


def _written(engine: Engine, request: Request) -> Iterator[int]:
    run_ahead = engine.decoder.device.type == "cuda"
    clock = Clock()

    def deliver(tokens: torch.Tensor) -> Delivery:
        return Delivery(tokens[:1], (), (0,), clock)

    coming = deliver(engine.start([request.prompt], [request.seed]))
    for left in range(request.new_tokens - 1, -1, -1):
        following = deliver(engine.step(1)) if left and run_ahead else None
        (token,) = coming.tokens()
        if token in request.stop:
            return
        yield token
        if left:
            coming = following or deliver(engine.step(1))


def pieces_of_text(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """Yield the text of tokens piece by piece; bytes that are no whole character yet wait for the next token.

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
