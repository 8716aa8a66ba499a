"""Sample generations before and after training: the model continues prompts or the beginnings of held-out examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuguide.finetuning.data.splits import TokenizedExample
from gpuguide.models.generation import generate
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama
from gpuguide.models.tokenizer import Tokenizer, prompt_with_special

NEW_TOKENS = 48
"""Maximum number of generated tokens"""
COUNT = 3
"""Number of held-out examples that are continued, unless prompts are passed"""


@dataclass(frozen=True)
class PromptExample:
    """A prompt, and the text that follows it in the data."""

    tokens: tuple[int, ...]
    """Token ids of the prompt"""
    prompt: str
    expected: str | None
    """Text that follows in the data; ``None`` for a prompt that a person wrote"""


@dataclass(frozen=True)
class SampleGeneration:
    """Texts that the model generates for one prompt."""

    example: PromptExample
    before: str
    """Text before training"""
    after: str | None = None
    """Text after training; ``None`` while the run goes on"""


def choose_prompts(
    prompts: Sequence[str], held_out: Sequence[TokenizedExample], tokenizer: Tokenizer, count: int = COUNT
) -> list[PromptExample]:
    """Return the prompts that a person wrote, or else the beginnings of held-out examples, spread over them."""
    if prompts:
        return [PromptExample(tuple(prompt_with_special(tokenizer, prompt)), prompt, None) for prompt in prompts]
    count = min(count, len(held_out))
    return [_beginning(held_out[index * len(held_out) // count], tokenizer) for index in range(count)]


def generate_text(model: GPT2 | Llama, tokenizer: Tokenizer, example: PromptExample) -> str:
    """Return the greedy continuation of a prompt, up to the end of the text."""
    prompt = example.tokens[-(model.config.context - 1) :]
    count = min(NEW_TOKENS, model.config.context - len(prompt))
    model.eval()
    return tokenizer.decode(_truncate_at_end(generate(model, prompt, count), tokenizer))


def _beginning(example: TokenizedExample, tokenizer: Tokenizer) -> PromptExample:
    tokens, opening = example.tokens.tolist(), tokenizer.opening
    prompt, rest = tokens[: example.prompt_length], tokens[example.prompt_length :]
    visible = prompt[len(opening) :] if tuple(prompt[: len(opening)]) == opening else prompt
    expected = tokenizer.decode(_truncate_at_end(rest, tokenizer)[:NEW_TOKENS])
    return PromptExample(tuple(prompt), tokenizer.decode(visible), expected)


def _truncate_at_end(tokens: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    ends = [index for index, token in enumerate(tokens) if token in tokenizer.ends]
    return list(tokens[: ends[0]]) if ends else list(tokens)
