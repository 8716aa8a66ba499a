"""Generate text without a KV cache: every token computes the whole sequence anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gpuguide.errors import GpuguideError
from gpuguide.logits import greedy
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama


def generate(
    model: GPT2 | Llama,
    prompt: Sequence[int],
    count: int,
    choose: Callable[[torch.Tensor], torch.Tensor] = greedy,
) -> list[int]:
    """Return the tokens that a model writes after a prompt.

    Parameters
    ----------
    model : GPT2 or Llama
        In ``eval`` mode.
    prompt : sequence of int
        At least one token: what :meth:`Tokenizer.prompt <gpuguide.models.tokenizer.Tokenizer.prompt>` gives for a text.
    count : int
        How many tokens to write.
    choose : callable
        Takes the logits of the next token, ``(1, vocab_size)``, and returns the token, ``(1,)``. By default the one
        with the largest logit.

    Returns
    -------
    list of int
        The new tokens, ``count`` of them.

    Raises
    ------
    GpuguideError
        If the prompt is empty, or with what is written becomes longer than the model's context.
    """
    context = model.config.context
    if not prompt:
        raise GpuguideError("The prompt has no tokens. For an empty text, give the tokenizer's end_of_text.")
    if len(prompt) + count > context:
        raise GpuguideError(
            f"A prompt of {len(prompt)} tokens and {count} more do not fit into a context of {context}. "
            f"Give the last {max(context - count, 0)} tokens of the prompt, or ask for fewer."
        )
    device = next(model.parameters()).device
    tokens = torch.tensor([list(prompt)], device=device)
    with torch.inference_mode():
        for _ in range(count):
            next_token = choose(model(tokens)[:, -1])
            tokens = torch.cat([tokens, next_token.view(1, 1)], dim=1)
    return tokens[0, len(prompt) :].tolist()
