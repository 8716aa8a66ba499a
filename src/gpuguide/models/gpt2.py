"""GPT-2 in one file: token numbers go in, logits come out.

The shapes, the order of the operations and the initial values are those of GPT-2, so the weights of a GPT-2
checkpoint fit (:mod:`gpuguide.models.checkpoint` reads them) and give the same logits as
``transformers.GPT2LMHeadModel``.

References
----------
A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from gpuguide.errors import GpuguideError


@dataclass(frozen=True)
class GPT2Config:
    """The shape of a model.

    Parameters
    ----------
    vocab_size : int
        Tokens that the model knows.
    context : int
        Positions that it knows: the longest sequence.
    layers, heads, hidden : int
        Blocks, attention heads in each, and the length of the vector that stands for a token.
    dropout : float
        Share of activations set to zero in training. Nothing is dropped in ``eval`` mode.
    norm_epsilon : float
        What the norms add to a variance.

    Raises
    ------
    GpuguideError
        If a size is not positive, or the heads do not divide the hidden size.
    """

    vocab_size: int = 50257
    context: int = 1024
    layers: int = 12
    heads: int = 12
    hidden: int = 768
    dropout: float = 0.0
    norm_epsilon: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "layers", "heads", "hidden"):
            if getattr(self, name) < 1:
                raise GpuguideError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.hidden % self.heads:
            raise GpuguideError(f"{self.heads} heads do not divide a hidden size of {self.hidden}.")

    @property
    def head_dim(self) -> int:
        """Length of a query, key or value in one head."""
        return self.hidden // self.heads


class GPT2Attention(nn.Module):
    """Causal self-attention: each position reads from itself and those before it."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.query_key_value = nn.Linear(config.hidden, 3 * config.hidden)
        self.out = nn.Linear(config.hidden, config.hidden)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Mix the positions: ``(batch, seq, hidden)`` to the same shape."""
        batch, seq, width = hidden.shape
        split = self.query_key_value(hidden).view(batch, seq, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (batch, heads, seq, head_dim)
        dropped = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropped)
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, width))


class GPT2FeedForward(nn.Module):
    """Two layers, the inner one four times as wide, applied to every position alike."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden, 4 * config.hidden)
        self.down = nn.Linear(4 * config.hidden, config.hidden)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Transform each position: ``(batch, seq, hidden)`` to the same shape."""
        return self.down(functional.gelu(self.up(hidden), approximate="tanh"))


class GPT2Block(nn.Module):
    """One layer: attention, then the feed-forward part, each adding to what it read."""

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden, eps=config.norm_epsilon)
        self.attention = GPT2Attention(config)
        self.feed_forward_norm = nn.LayerNorm(config.hidden, eps=config.norm_epsilon)
        self.feed_forward = GPT2FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the hidden states after this layer: ``(batch, seq, hidden)`` to the same shape."""
        hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden)))
        return hidden + self.dropout(self.feed_forward(self.feed_forward_norm(hidden)))


class GPT2(nn.Module):
    """The whole model. Its head is tied: it multiplies by the token embedding.

    Calling it gives the logits, ``(batch, seq, vocab_size)``, in the format of the weights: those at a position are
    the scores of the token after it.
    """

    def __init__(self, config: GPT2Config) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden)
        self.position_embedding = nn.Embedding(config.context, config.hidden)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(GPT2Block(config) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(config.hidden, eps=config.norm_epsilon)
        self.head = nn.Linear(config.hidden, config.vocab_size, bias=False)
        self.head.weight = self.token_embedding.weight
        self.apply(self._initialise)

    def _initialise(self, module: nn.Module) -> None:
        """Draw first weights as GPT-2 does: smaller where a layer adds to the residual stream, the more layers do."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, GPT2Block):  # called after it was called for the parts of the block
            for added in (module.attention.out, module.feed_forward.down):
                nn.init.normal_(added.weight, std=0.02 / math.sqrt(2 * self.config.layers))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the token that follows each position.

        Parameters
        ----------
        tokens : torch.Tensor
            ``(batch, seq)``, integers below ``vocab_size``; at least one and at most ``context`` positions.

        Returns
        -------
        torch.Tensor
            ``(batch, seq, vocab_size)``

        Raises
        ------
        GpuguideError
            If the shape does not fit.
        """
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.final_norm(hidden))

    def hidden_states(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        """Return the residual stream after the embedding and after each block, each ``(batch, seq, hidden)``.

        The final norm and the head turn the last of them into the logits. Parameters and errors as in
        :meth:`forward`.
        """
        stream = [self.embed(tokens)]
        for block in self.blocks:
            stream.append(block(stream[-1]))
        return stream

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return what the first block reads, ``(batch, seq, hidden)``: a vector for the token and one for its place.

        Parameters and errors as in :meth:`forward`.
        """
        if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= self.config.context:
            raise GpuguideError(
                f"The model takes tokens of the shape (batch, seq) with 1 to {self.config.context} positions; "
                f"given {tuple(tokens.shape)}."
            )
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))

    def parameter_count(self) -> int:
        """Return the number of parameters, the tied one counted once."""
        return sum(parameter.numel() for parameter in self.parameters())
