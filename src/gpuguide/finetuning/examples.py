"""What a model writes before and after: the beginnings of held-out samples, continued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuguide.finetuning.preparing import Piece
from gpuguide.models.generation import generate
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama
from gpuguide.models.tokenizer import Tokenizer, prompt_with_special

WRITTEN = 48
"""Tokens that a model writes"""
COUNT = 3
"""Held-out samples that are continued, unless prompts are given"""


@dataclass(frozen=True)
class Example:
    """A prompt and how it goes on."""

    tokens: tuple[int, ...]
    prompt: str
    expected: str | None
    """What really follows, where that is known"""


def of_pieces(pieces: Sequence[Piece], tokenizer: Tokenizer, count: int = COUNT) -> list[Example]:
    """Return examples from held-out pieces, spread over them."""
    chosen = [pieces[place * len(pieces) // min(count, len(pieces))] for place in range(min(count, len(pieces)))]
    found = []
    for piece in chosen:
        tokens = piece.tokens.tolist()
        prompt, rest = tokens[: piece.prompt], tokens[piece.prompt :]
        shown = (
            prompt[len(tokenizer.opening) :] if tuple(prompt[: len(tokenizer.opening)]) == tokenizer.opening else prompt
        )
        found.append(
            Example(tuple(prompt), tokenizer.decode(shown), tokenizer.decode(_until_end(rest, tokenizer)[:WRITTEN]))
        )
    return found


def of_prompts(prompts: Sequence[str], tokenizer: Tokenizer) -> list[Example]:
    """Return examples from prompts that a person wrote."""
    return [Example(tuple(prompt_with_special(tokenizer, prompt)), prompt, None) for prompt in prompts]


def continued(model: GPT2 | Llama, tokenizer: Tokenizer, example: Example) -> str:
    """Return what the model writes after a prompt, the most likely token each time, up to the end of the text."""
    room = model.config.context - 1
    prompt = example.tokens[-room:]
    count = min(WRITTEN, model.config.context - len(prompt))
    model.eval()
    return tokenizer.decode(_until_end(generate(model, prompt, count), tokenizer))


def _until_end(tokens: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    ends = [place for place, token in enumerate(tokens) if token in tokenizer.ends]
    return list(tokens[: ends[0]]) if ends else list(tokens)
