"""Who drafts in speculative decoding: a small model, or the text itself.

Whoever drafts may propose anything. What the target model does not like it rejects, so a bad draft costs time and never
changes the text (:mod:`gpuguide.inference.speculative`).

Both kinds work on the device alone. They are told where each text ends and read the texts where they lie, so the host
need not know how long any of them is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from gpuguide.errors import GpuguideError
from gpuguide.inference import plain
from gpuguide.inference.cache import Cache
from gpuguide.inference.decoder import Decoder
from gpuguide.inference.engine import Engine
from gpuguide.inference.generate import LONGEST_TEXT
from gpuguide.sampling import sample_token
from gpuguide.sampling.reference import SamplingSettings

if TYPE_CHECKING:
    from gpuguide.inference.fused import DecodeStep


class Drafter(Protocol):
    """Proposes the next tokens of some rows of text."""

    def start(self, prompts: Sequence[Sequence[int]]) -> None:
        """Read prompts, where that is needed to continue them."""

    def propose(
        self, texts: torch.Tensor, places: torch.Tensor, seeds: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Propose the next tokens of each row.

        Parameters
        ----------
        texts : torch.Tensor
            ``(rows, width)``, int64: the tokens by position. What stands behind a text's last token is not part of it.
        places : torch.Tensor
            ``(rows, k + 3)``, int64: the positions beside the last token: the one before it, its own, the ``k + 1``
            after it.
        seeds : torch.Tensor
            ``(rows,)``, int64

        Returns
        -------
        tokens : torch.Tensor
            ``(rows, k)``, int64
        logits : torch.Tensor or None
            ``(rows, k, vocab_size)``: what they were drawn by, to be read before the next call; ``None`` if they were
            not drawn.
        """

    def state(self) -> list[torch.Tensor]:
        """Return the tensors that it keeps between calls."""


class ModelDrafter:
    """A small model that writes ahead, with a cache of its own.

    The cache may lack one token. If all proposals were accepted, the last of them has been chosen by this model and
    never read by it. So the first step of every cycle reads two tokens, the last and the one before: where the cache
    has that one already, its key and value are put there again.

    Parameters
    ----------
    decoder : Decoder
        The model.
    rows, capacity : int
        Texts at a time, and positions of each, those of the proposals included.
    k : int
        Tokens to propose.
    settings : SamplingSettings
        How they are drawn.
    """

    def __init__(self, decoder: Decoder, rows: int, capacity: int, k: int, settings: SamplingSettings) -> None:
        self.k, self.settings = k, settings
        self.engine = Engine(decoder, rows, capacity, settings)
        self.read_two = Forward(decoder, self.engine.cache, rows, 2)
        self.read_one = Forward(decoder, self.engine.cache, rows, 1)
        wide = torch.float64 if decoder.dtype == torch.float64 else torch.float32
        self._logits = torch.empty(rows, k, decoder.shape.vocab, dtype=wide, device=decoder.device)
        self._first_draw = torch.zeros((), dtype=torch.int64, device=decoder.device)

    def start(self, prompts: Sequence[Sequence[int]]) -> None:
        """Read prompts. Errors as :meth:`gpuguide.inference.Engine.start`."""
        self.engine.start(prompts)

    def propose(
        self, texts: torch.Tensor, places: torch.Tensor, seeds: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Write ``k`` tokens, one after another. Parameters and results as :meth:`Drafter.propose`."""
        greedy = self.settings.temperature == 0
        draws = None if greedy else seeds[:, None] * LONGEST_TEXT + places
        logits = self.read_two(texts.gather(1, places[:, :2]), places[:, :2])[:, 1]
        drafted: list[torch.Tensor] = []
        for number in range(self.k):
            if number:
                logits = self.read_one(drafted[-1][:, None], places[:, number + 1, None])[:, 0]
            if draws is None:
                drafted.append(logits.argmax(dim=-1))
            else:
                self._logits[:, number] = logits  # a step's logits are overwritten by the next
                drafted.append(self._draw(logits, draws[:, number + 2]))
        tokens = torch.stack(drafted, dim=1)
        return tokens, None if greedy else self._logits

    def _draw(self, logits: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
        of = self.settings
        tokens = sample_token(logits, seeds, step=self._first_draw, temperature=of.temperature, top_k=of.top_k,
                              top_p=of.top_p, min_p=of.min_p)  # fmt: skip
        return tokens.clamp_(min=0)  # a row without a text may have no distribution

    def state(self) -> list[torch.Tensor]:
        """Return its cache."""
        return self.engine.cache.tensors()


@dataclass(frozen=True)
class PromptLookup:
    """Drafting without a model: find where the text's last tokens occurred before, and propose what came then.

    Programs, and answers that quote their question, repeat themselves. The longest agreement counts, and of equally
    long ones the latest. Where nothing agrees the last token is proposed again.

    References
    ----------
    A. Saxena, "Prompt Lookup Decoding", 2023, https://github.com/apoorvumang/prompt-lookup-decoding.
    """

    longest: int = 3
    """Tokens that are compared at most, above zero"""

    def __post_init__(self) -> None:
        if self.longest < 1:
            raise GpuguideError(f"Prompt lookup with longest = {self.longest} compares nothing; give at least 1.")


class LookupDrafter:
    """A text's own earlier tokens as proposals.

    Parameters
    ----------
    lookup : PromptLookup
        How many tokens to compare.
    width : int
        Columns of the texts.
    k : int
        Tokens to propose.
    device : torch.device
        Where the texts are.
    """

    def __init__(self, lookup: PromptLookup, width: int, k: int, device: torch.device) -> None:
        self.columns = torch.arange(width, device=device)
        self.before = (self.columns[:, None] - torch.arange(lookup.longest, device=device)).clamp(min=0)
        self.ahead = torch.arange(k, device=device)

    def start(self, prompts: Sequence[Sequence[int]]) -> None:
        """Do nothing: the texts hold the prompts."""

    def propose(
        self, texts: torch.Tensor, places: torch.Tensor, seeds: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Propose what followed before. Parameters and results as :meth:`Drafter.propose`."""
        last = places[:, 1, None]
        endings = texts[:, self.before]  # (rows, width, longest): the tokens up to each place, backwards
        same = endings == endings.take_along_dim(last[:, :, None], dim=1)
        agreeing = same.cumprod(dim=2).sum(dim=2)
        score = (agreeing * len(self.columns) + self.columns).masked_fill(self.columns >= last, -1)
        found = score.argmax(dim=1, keepdim=True)
        # Between the place found and the end there may be fewer than k tokens: then they are taken again, in turn.
        return texts.gather(1, found + 1 + self.ahead % (last - found)), None

    def state(self) -> list[torch.Tensor]:
        """Return nothing: it keeps nothing."""
        return []


# --- what drafting and verifying share -----------------------------------------------------------------------


class Forward:
    """Reads the next tokens of all rows: with kernels on a GPU, elsewhere plainly.

    Parameters
    ----------
    decoder : Decoder
        The model.
    cache : Cache
        For it.
    rows, seq : int
        Texts at a time, and tokens of each.
    """

    def __init__(self, decoder: Decoder, cache: Cache, rows: int, seq: int) -> None:
        self.decoder, self.cache, self.seq = decoder, cache, seq
        self.every = torch.arange(rows, device=decoder.device)
        self.step: DecodeStep | None = None  # with kernels: all tokens of a row, row after row
        if decoder.suits_kernels():
            from gpuguide.inference import fused

            self.step = fused.DecodeStep(decoder, cache, self.every.repeat_interleave(seq))

    def __call__(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Read tokens.

        Parameters
        ----------
        tokens, places : torch.Tensor
            ``(rows, seq)``, int64: the tokens and their positions, which follow one another.

        Returns
        -------
        torch.Tensor
            ``(rows, seq, vocab_size)``: the logits, which may be the same memory in every call.
        """
        if self.step is None:
            return plain.decode(self.decoder, self.cache, tokens, self.every, places[:, 0])
        logits = self.step(tokens.flatten().contiguous(), places.flatten().contiguous())
        return logits.view(len(self.every), self.seq, -1)
