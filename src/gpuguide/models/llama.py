"""Llama in one file: token numbers go in, logits come out.

What differs from GPT-2 (:mod:`gpuguide.models.gpt2`): positions enter as a rotation of queries and keys, several query
heads may share one key and value head, the feed-forward part has a gate, norms only scale, and nothing has a bias.
The weights of Llama 2 and Llama 3 checkpoints fit (:mod:`gpuguide.models.checkpoint` reads them) and give the same
logits as ``transformers.LlamaForCausalLM``.

References
----------
H. Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023, section 2.2;
H. Touvron et al., "Llama 2: Open Foundation and Fine-Tuned Chat Models", 2023, appendix A.2.1 (grouped queries);
J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import nn
from torch.nn import functional

from gpuguide.errors import GpuguideError


@dataclass(frozen=True)
class RopeScaling:
    """RoPE scaling of Llama 3.1 and later: slower rotations, for a longer context than that of the first training.

    Parameters
    ----------
    factor : float
        What the low frequencies are divided by; at least 1.
    low_frequency_factor, high_frequency_factor : float
        A frequency that turns fewer times than the first over ``original_context`` is divided by ``factor``; one that
        turns more often than the second stays as it is; those between are interpolated.
    original_context : int
        Positions of the first training.

    Raises
    ------
    GpuguideError
        If a number is out of its range.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int

    def __post_init__(self) -> None:
        if not 1 <= self.factor < math.inf:
            raise GpuguideError(f"The rope scaling's factor is {self.factor}; it must be a number of at least 1.")
        if not 0 < self.low_frequency_factor < self.high_frequency_factor < math.inf:
            raise GpuguideError(
                f"The rope scaling's frequency factors are {self.low_frequency_factor} (low) and "
                f"{self.high_frequency_factor} (high); both must be positive, and the high one larger."
            )
        if self.original_context < 1:
            raise GpuguideError(
                f"The rope scaling's original_context is {self.original_context}; it must be at least 1."
            )


@dataclass(frozen=True)
class LlamaConfig:
    """The shape of a model.

    Parameters
    ----------
    vocab_size : int
        Tokens that the model knows.
    context : int
        Positions that it knows: the longest sequence.
    layers, heads, hidden : int
        Blocks, attention heads in each, and the length of the vector that stands for a token.
    kv_heads : int
        Heads of keys and values. Each serves ``heads / kv_heads`` query heads.
    inner : int
        Width of the feed-forward part.
    norm_epsilon : float
        What the norms add to a mean square.
    rope_base : float
        The rotary frequencies are powers of it (``rope_theta`` in checkpoints).
    rope_scaling : RopeScaling, optional
        That of Llama 3.1 and later.
    tied : bool
        Whether the head multiplies by the token embedding.

    Raises
    ------
    GpuguideError
        If a number is not positive, the heads do not divide the hidden size, the key and value heads do not divide the
        heads, or a head has an odd length, which cannot be rotated in pairs.
    """

    vocab_size: int
    context: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    inner: int
    norm_epsilon: float = 1e-5
    rope_base: float = 10000.0
    rope_scaling: RopeScaling | None = None
    tied: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context", "layers", "heads", "kv_heads", "hidden", "inner"):
            if getattr(self, name) < 1:
                raise GpuguideError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.hidden % self.heads:
            raise GpuguideError(f"{self.heads} heads do not divide a hidden size of {self.hidden}.")
        if self.heads % self.kv_heads:
            raise GpuguideError(f"{self.kv_heads} key and value heads do not divide {self.heads} heads.")
        if self.head_dim % 2:
            raise GpuguideError(f"A head of length {self.head_dim} cannot be rotated in pairs; it must be even.")
        for name in ("norm_epsilon", "rope_base"):
            if not 0 < getattr(self, name) < math.inf:
                raise GpuguideError(f"{name} is {getattr(self, name)}; it must be a positive number.")

    @property
    def head_dim(self) -> int:
        """Length of a query, key or value in one head."""
        return self.hidden // self.heads


def inverse_frequencies(config: LlamaConfig) -> torch.Tensor:
    """Return by how many radians each pair of a head's numbers turns from one position to the next.

    They are computed on the processor in fp32, in the order of operations of ``transformers``: a change in the last bit
    of a frequency moves the angle at position 100,000 by up to 0.006 radians.

    Returns
    -------
    torch.Tensor
        ``(head_dim / 2,)``, fp32
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cpu") / config.head_dim
    frequencies = 1.0 / (config.rope_base**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    share = (scaling.original_context / wavelengths - low) / (high - low)  # that stays as it is
    between = (1 - share) * frequencies / scaling.factor + share * frequencies
    scaled = torch.where(wavelengths > scaling.original_context / low, frequencies / scaling.factor, between)
    return torch.where(wavelengths < scaling.original_context / high, frequencies, scaled)


def rotate(vectors: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair of numbers, one from the first half of a head and its partner from the second, by its angle.

    Parameters
    ----------
    vectors : torch.Tensor
        Queries or keys, ``(..., seq, head_dim)``.
    cos, sin : torch.Tensor
        Of the angles, ``(seq, head_dim)``, or of a shape that broadcasts to ``vectors``; see :class:`Rotary`.

    Returns
    -------
    torch.Tensor
        The shape of ``vectors``.
    """
    first, second = vectors.chunk(2, dim=-1)
    return vectors * cos + torch.cat((-second, first), dim=-1) * sin


class Rotary(nn.Module):
    """The angles by which queries and keys are turned. It has no weights.

    ``frequencies`` is a buffer, ``(head_dim / 2,)``, that stays in fp32 whatever the model is cast to: rounded to bf16,
    they would put the angle at position 1000 off by up to two radians.
    """

    frequencies: torch.Tensor

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("frequencies", inverse_frequencies(config), persistent=False)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        """Move the frequencies with the model, but compute them anew, because ``fn`` may also cast or empty them."""
        super()._apply(fn, recurse)
        self.frequencies = inverse_frequencies(self.config).to(self.frequencies.device)
        return self

    def forward(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cosines and sines for some positions.

        Parameters
        ----------
        positions : torch.Tensor
            Integers of any shape, counted from 0.
        dtype : torch.dtype
            The format of the queries and keys. The angles are computed in fp32.

        Returns
        -------
        tuple of torch.Tensor
            Two of ``(*positions.shape, head_dim)``; the second half repeats the first.
        """
        angles = positions.unsqueeze(-1).float() * self.frequencies.to(positions.device)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(dtype), angles.sin().to(dtype)


class RMSNorm(nn.Module):
    """Divide each vector by its root mean square, then scale each number. The mean is taken in fp32."""

    def __init__(self, hidden: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Norm each position: ``(..., hidden)`` to the same shape and format."""
        exact = hidden.float()
        normed = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * normed.to(hidden.dtype)


class LlamaAttention(nn.Module):
    """Causal self-attention with grouped queries: several query heads read the same keys and values.

    The rows of ``query_key_value`` are those of all queries, then all keys, then all values, head by head.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.kv_heads = config.kv_heads
        self.head_dim = config.head_dim
        rows = (config.heads + 2 * config.kv_heads) * config.head_dim
        self.query_key_value = nn.Linear(config.hidden, rows, bias=False)
        self.out = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Mix the positions, ``(batch, seq, hidden)`` to the same shape, given cosines and sines of the angles."""
        batch, seq, width = hidden.shape
        query, key, value = self.split(self.query_key_value(hidden))
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        grouped = self.kv_heads < self.heads
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=grouped)
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, width))

    def split(self, projected: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return queries ``(batch, heads, seq, head_dim)`` and keys and values ``(batch, kv_heads, seq, head_dim)``.

        They are views of what ``query_key_value`` gives.
        """
        batch, seq, _ = projected.shape
        by_head = projected.view(batch, seq, -1, self.head_dim).transpose(1, 2)
        return by_head.split((self.heads, self.kv_heads, self.kv_heads), dim=1)


class LlamaFeedForward(nn.Module):
    """SwiGLU: a gate, through SiLU, times what it lets through, applied to every position alike.

    The rows of ``gate_up`` are those of the gate, then those of what it lets through.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.hidden, 2 * config.inner, bias=False)
        self.down = nn.Linear(config.inner, config.hidden, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Transform each position: ``(batch, seq, hidden)`` to the same shape."""
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        return self.down(functional.silu(gate) * up)


class LlamaBlock(nn.Module):
    """One layer: attention, then the feed-forward part, each adding to what it read."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden, config.norm_epsilon)
        self.attention = LlamaAttention(config)
        self.feed_forward_norm = RMSNorm(config.hidden, config.norm_epsilon)
        self.feed_forward = LlamaFeedForward(config)

    def forward(self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Return the hidden states after this layer: ``(batch, seq, hidden)`` to the same shape."""
        hidden = hidden + self.attention(self.attention_norm(hidden), cos, sin)
        return hidden + self.feed_forward(self.feed_forward_norm(hidden))


class Llama(nn.Module):
    """The whole model.

    Calling it gives the logits, ``(batch, seq, vocab_size)``, in the format of the weights: those at a position are
    the scores of the token after it.
    """

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.hidden)
        self.rotary = Rotary(config)
        self.blocks = nn.ModuleList(LlamaBlock(config) for _ in range(config.layers))
        self.final_norm = RMSNorm(config.hidden, config.norm_epsilon)
        self.head = nn.Linear(config.hidden, config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.token_embedding.weight
        self.apply(self._initialise)

    def _initialise(self, module: nn.Module) -> None:
        """Draw first weights as ``transformers`` does."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

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
        cos, sin = self.rotary(torch.arange(tokens.shape[1], device=tokens.device), hidden.dtype)
        for block in self.blocks:
            hidden = block(hidden, cos, sin)
        return self.head(self.final_norm(hidden))

    def hidden_states(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        """Return the residual stream after the embedding and after each block, each ``(batch, seq, hidden)``.

        The final norm and the head turn the last of them into the logits. Parameters and errors as in
        :meth:`forward`.
        """
        stream = [self.embed(tokens)]
        cos, sin = self.rotary(torch.arange(tokens.shape[1], device=tokens.device), stream[0].dtype)
        for block in self.blocks:
            stream.append(block(stream[-1], cos, sin))
        return stream

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return what the first block reads, ``(batch, seq, hidden)``: a vector for each token.

        Parameters and errors as in :meth:`forward`.
        """
        if tokens.ndim != 2 or not 1 <= tokens.shape[1] <= self.config.context:
            raise GpuguideError(
                f"The model takes tokens of the shape (batch, seq) with 1 to {self.config.context} positions; "
                f"given {tuple(tokens.shape)}."
            )
        return self.token_embedding(tokens)

    def frequencies(self) -> torch.Tensor:
        """Return the inverse frequencies of the rotary embedding after scaling, ``(head_dim / 2,)`` in fp32."""
        return self.rotary.frequencies

    def parameter_count(self) -> int:
        """Return the number of parameters, a tied one counted once."""
        return sum(parameter.numel() for parameter in self.parameters())
