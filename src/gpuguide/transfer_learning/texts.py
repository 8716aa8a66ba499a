"""A language model that answers a question about a text: by its next token, with a new head, or with a soft prompt.

All read one position of each text, where the question ends. A model has the parts of GPT-2, by the names that they have
in :class:`gpuguide.models.gpt2.GPT2`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn


class NextToken(nn.Module):
    """A model whose next token is the answer: no new parameter, and every method of training fits.

    Parameters
    ----------
    model : nn.Module
        A language model with the parts of GPT-2.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, tokens: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return the scores of all tokens.

        Parameters
        ----------
        tokens : torch.Tensor
            ``(texts, seq)``, int64, padded on the right.
        last : torch.Tensor
            ``(texts,)``, int64: the position of each text that is read.

        Returns
        -------
        torch.Tensor
            ``(texts, vocab_size)``

        Raises
        ------
        ValueError
            If the texts are longer than the model's context.
        """
        return self.model.head(read_hidden_state(self.model, self.model.token_embedding(tokens), last))


class NewHead(nn.Module):
    """A model with a new head, one row for each kind of answer, in place of its own.

    Parameters
    ----------
    model : nn.Module
        A language model with the parts of GPT-2. Its own head is not used.
    kinds : int
        How many answers there are.
    """

    def __init__(self, model: nn.Module, kinds: int) -> None:
        super().__init__()
        self.model: Any = model
        width = model.get_submodule("final_norm").get_parameter("weight").numel()
        self.fc = nn.Linear(width, kinds)

    def features(self, tokens: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return what the head reads, ``(texts, hidden)``. Parameters and errors as of :class:`NextToken`."""
        return read_hidden_state(self.model, self.model.token_embedding(tokens), last)

    def forward(self, tokens: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return the scores of the kinds, ``(texts, kinds)``. Parameters and errors as of :class:`NextToken`."""
        return self.fc(self.features(tokens, last))


class SoftPrompt(nn.Module):
    """A frozen model that reads trained vectors before each text, as if they were the embeddings of tokens.

    Parameters
    ----------
    model : nn.Module
        A language model with the parts of GPT-2; it is frozen.
    length : int
        How many vectors. They begin as the embeddings of drawn tokens.

    Raises
    ------
    ValueError
        If there is none, or they leave no room in the context.

    Notes
    -----
    Source: Lester et al., "The Power of Scale for Parameter-Efficient Prompt Tuning", 2021, section 2.
    """

    def __init__(self, model: nn.Module, length: int) -> None:
        super().__init__()
        self.model: Any = model.requires_grad_(False)
        parts: Any = model
        if not 1 <= length < parts.config.context:
            most = parts.config.context - 1
            raise ValueError(f"a soft prompt of {length} vectors is asked for; from 1 to {most} are possible")
        embeddings: torch.Tensor = parts.token_embedding.weight
        drawn = torch.randint(len(embeddings), (length,)).to(embeddings.device)
        self.vectors = nn.Parameter(embeddings[drawn].clone())

    def forward(self, tokens: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """Return the scores of all tokens, ``(texts, vocab_size)``. Parameters and errors as of :class:`NextToken`."""
        before = self.vectors.expand(len(tokens), -1, -1)
        embedded = torch.cat([before, self.model.token_embedding(tokens)], dim=1)
        return self.model.head(read_hidden_state(self.model, embedded, last + len(self.vectors)))


def read_hidden_state(model: Any, embedded: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """Return the hidden state at one position of each text, after the final norm.

    Parameters
    ----------
    model : nn.Module
        A language model with the parts of GPT-2.
    embedded : torch.Tensor
        ``(texts, seq, hidden)``: vectors of the tokens, without their positions.
    last : torch.Tensor
        ``(texts,)``, int64. What comes after it changes nothing, since attention is causal.

    Returns
    -------
    torch.Tensor
        ``(texts, hidden)``

    Raises
    ------
    ValueError
        If there are more positions than the model knows.
    """
    length = embedded.shape[1]
    if length > model.config.context:
        raise ValueError(f"the texts have {length} positions, and the model knows {model.config.context}")
    hidden = model.dropout(embedded + model.position_embedding.weight[:length])
    for block in model.blocks:
        hidden = block(hidden)
    at_last: torch.Tensor = model.final_norm(hidden.take_along_dim(last[:, None, None], dim=1)[:, 0])
    return at_last


def prepend_examples(examples: Iterable[tuple[Sequence[int], int]], question: Sequence[int]) -> list[int]:
    """Return a prompt with solved examples before a question: in-context learning, which trains nothing.

    Parameters
    ----------
    examples : iterable of (sequence of int, int)
        The tokens of each example and that of its answer.
    question : sequence of int
        The tokens of what is asked.

    Notes
    -----
    Source: Brown et al., "Language Models are Few-Shot Learners", 2020, section 2.
    """
    prompt: list[int] = []
    for tokens, answer in examples:
        prompt += [*tokens, answer]
    return [*prompt, *question]
