"""A model set up to write: its weights, a cache, and a step that is captured once and replayed for every token.

Everything that a step needs is on the device: the last token of each row, how many are in the cache, who is writing,
the seeds. So a step neither waits for the host nor reports to it; it leaves its tokens in :attr:`Engine.texts`,
which can be looked at later. On a GPU the step runs the kernels of :mod:`gpuguide.inference.fused` in a CUDA graph,
elsewhere :mod:`gpuguide.inference.plain`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gpuguide.errors import GpuguideError
from gpuguide.inference import plain
from gpuguide.inference.cache import Cache, static_cache
from gpuguide.inference.decoder import Decoder
from gpuguide.inference.generate import GREEDY, LONGEST_TEXT, PREFILL_CHUNK, check_limits, check_prompt
from gpuguide.inference.graph import Captured
from gpuguide.inference.prefill import Prefill
from gpuguide.sampling import NO_TOKEN, sample_token
from gpuguide.sampling.reference import SamplingSettings


class Engine:
    """Rows of text being written by one model.

    Parameters
    ----------
    decoder : Decoder
        From :func:`gpuguide.inference.prepare`.
    rows : int
        Texts at a time.
    capacity : int
        Tokens that a text can have, prompt included.
    settings : SamplingSettings
        How tokens are drawn, for all rows; by default the most likely one is taken.
    cache : Cache, optional
        By default a static one.

    Raises
    ------
    GpuguideError
        If the capacity is more than the model's context, or the cache is on another device or too small.
    """

    def __init__(
        self,
        decoder: Decoder,
        rows: int,
        capacity: int,
        settings: SamplingSettings = GREEDY,
        cache: Cache | None = None,
    ) -> None:
        if capacity > decoder.shape.context:
            raise GpuguideError(
                f"A text of {capacity} tokens is longer than the model's context of {decoder.shape.context}."
            )
        self.decoder = decoder
        self.cache = static_cache(decoder, rows, capacity) if cache is None else cache
        _check_cache(self.cache, decoder, rows, capacity)
        self.rows = rows
        self.capacity = capacity
        self.settings = settings
        device = decoder.device
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        """The last token of each row, whose key and value are not in the cache yet"""
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        """Tokens of each row in the cache"""
        self.writing = torch.zeros(rows, dtype=torch.bool, device=device)
        """Rows that have a text; the others are computed and go nowhere"""
        self.seeds = torch.zeros(rows, dtype=torch.int64, device=device)
        self.texts = torch.zeros(rows, capacity + 1, dtype=torch.int64, device=device)
        """The tokens of each row by position, prompt included"""
        self._prefill = Prefill(decoder, self.cache)
        self._steps: dict[int, Captured] = {}

    # --- a text begins ---------------------------------------------------------------------------------

    def start(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None = None) -> torch.Tensor:
        """Begin a text in each of the first rows, and return their first new tokens, ``(len(prompts),)``.

        Prompts may differ in length. They are read :data:`PREFILL_CHUNK` tokens at a time, all rows together.

        Raises
        ------
        GpuguideError
            If a prompt is empty or too long, or there are more of them than rows.
        """
        if not 1 <= len(prompts) <= self.rows:
            raise GpuguideError(f"{len(prompts)} prompts were given; this engine has rows for 1 to {self.rows}.")
        if seeds is not None and len(seeds) != len(prompts):
            raise GpuguideError(f"{len(seeds)} seeds were given for {len(prompts)} prompts; give one for each.")
        for prompt in prompts:
            self.check_prompt(prompt)
        rows = torch.arange(len(prompts), device=self.decoder.device)
        logits = [torch.empty(0)] * len(prompts)
        for first in range(0, max(map(len, prompts)), PREFILL_CHUNK):
            left = [row for row, prompt in enumerate(prompts) if len(prompt) > first]
            found = self.read([prompts[row][first : first + PREFILL_CHUNK] for row in left], rows[left], first)
            for place, row in enumerate(left):
                logits[row] = found[place]
        self.writing.zero_()
        given = range(len(prompts)) if seeds is None else seeds
        return self.begin(rows, [len(prompt) for prompt in prompts], torch.stack(logits), given)

    def read(self, pieces: Sequence[Sequence[int]], rows: torch.Tensor, start: int) -> torch.Tensor:
        """Read pieces of prompts that begin at the same position, and return the logits after each.

        Parameters
        ----------
        pieces : sequence of sequences of int
            The next tokens of each prompt, at least one.
        rows : torch.Tensor
            ``(len(pieces),)``: the rows they are for.
        start : int
            Their position: how many tokens of each the cache holds.

        Returns
        -------
        torch.Tensor
            ``(len(pieces), vocab_size)``
        """
        longest = max(map(len, pieces))
        filled = [[*piece, *[0] * (longest - len(piece))] for piece in pieces]
        device = self.decoder.device
        pinned = device.type == "cuda"  # a copy from other memory may wait for the step before it
        tokens = torch.tensor(filled, dtype=torch.int64, pin_memory=pinned).to(device, non_blocking=True)
        counts = torch.tensor([len(piece) for piece in pieces], pin_memory=pinned).to(device, non_blocking=True)
        with torch.inference_mode():
            self.texts[rows, start : start + longest] = tokens
            return self._prefill(tokens, rows, start, counts)

    def begin(
        self,
        rows: torch.Tensor,
        lengths: Sequence[int] | torch.Tensor,
        logits: torch.Tensor,
        seeds: Sequence[int] | torch.Tensor,
    ) -> torch.Tensor:
        """Draw the first new token of rows whose prompts have been read; afterwards :meth:`step` continues them.

        Parameters
        ----------
        rows : torch.Tensor
            ``(count,)``
        lengths : sequence of int, or torch.Tensor
            Tokens of each prompt. Numbers are copied to the device, which the host waits for; a tensor there is not.
        logits : torch.Tensor
            ``(count, vocab_size)``: those after the prompts.
        seeds : sequence of int, or torch.Tensor
            One for each text. Seed and prompt alone determine a text, whatever is written beside it.

        Returns
        -------
        torch.Tensor
            ``(count,)``
        """
        with torch.inference_mode():
            self.lengths[rows] = torch.as_tensor(lengths, device=rows.device)
            self.seeds[rows] = torch.as_tensor(seeds, device=rows.device)
            self.writing[rows] = True
            first = self.choose(logits, rows)
            self.tokens[rows] = first
            self.texts[rows, self.lengths[rows]] = first
        return first

    def end(self, row: int) -> None:
        """Take a row's text away: nothing more is written there, and the row is free."""
        self.writing[row] = False
        self.lengths[row] = 0
        self.tokens[row] = 0

    # --- and goes on -----------------------------------------------------------------------------------

    def step(self, rows: int | None = None) -> torch.Tensor:
        """Write one more token in each of the first rows, by default in all.

        It does not look whether there is room: a text may have ``capacity`` tokens.

        Returns
        -------
        torch.Tensor
            ``(rows,)``, on the device: the new tokens; the next step overwrites them.
        """
        count = self.rows if rows is None else rows
        if not 1 <= count <= self.rows:
            raise GpuguideError(f"A step of {count} rows was asked for; this engine has 1 to {self.rows}.")
        with torch.inference_mode():
            if count not in self._steps:
                self._steps[count] = self._capture_step(count)
            return self._steps[count](self._state())

    def choose(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Choose a token for each of some rows from its logits, ``(count, vocab_size)`` to ``(count,)``.

        A draw depends on the row's seed and on how many tokens it has, and on nothing else in the batch. A row without
        a text, whose logits may be anything, gets token 0.
        """
        tokens = self.draw(logits, self.seeds[rows], self.lengths[rows])
        return torch.where(tokens == NO_TOKEN, 0, tokens)

    def draw(self, logits: torch.Tensor, seeds: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Draw a token for each row, ``(count,)``, given its seed and its text's length; ``NO_TOKEN`` for no logits."""
        settings = self.settings
        return sample_token(logits, seeds * LONGEST_TEXT + places, temperature=settings.temperature,
                            top_k=settings.top_k, top_p=settings.top_p, min_p=settings.min_p)  # fmt: skip

    def _state(self) -> list[torch.Tensor]:
        return [self.tokens, self.lengths, self.writing, self.seeds, self.texts, *self.cache.tensors()]

    def _capture_step(self, count: int) -> Captured:
        changed = [self.tokens, self.lengths]
        kept = [tensor.clone() for tensor in changed]

        def restore() -> None:
            for tensor, as_it_was in zip(changed, kept, strict=True):
                tensor.copy_(as_it_was)

        return Captured(self._fused_step(count) if self.decoder.suits_kernels() else self._plain_step(count),
                        self._state(), restore)  # fmt: skip

    def _plain_step(self, count: int) -> Callable[[], torch.Tensor]:
        every = torch.arange(count, device=self.decoder.device)
        tokens, lengths, writing = self.tokens[:count], self.lengths[:count], self.writing[:count]

        def step() -> torch.Tensor:
            logits = plain.decode(self.decoder, self.cache, tokens[:, None], every, lengths)[:, 0]
            lengths.add_(writing)
            tokens.copy_(self.choose(logits, every))
            self.texts[every, lengths] = tokens
            lengths.clamp_(max=self.capacity - 1)  # a full text goes nowhere
            return tokens

        return step

    def _fused_step(self, count: int) -> Callable[[], torch.Tensor]:
        from gpuguide.inference import fused

        every = torch.arange(count, device=self.decoder.device)
        tokens, lengths, writing = self.tokens[:count], self.lengths[:count], self.writing[:count]
        forward = fused.DecodeStep(self.decoder, self.cache, every)
        greedy = self.settings.temperature == 0

        def step() -> torch.Tensor:
            logits = forward(tokens, lengths)
            drawn = None if greedy else self.draw(logits, self.seeds[:count], lengths + writing)
            fused.advance(forward, drawn, tokens, lengths, writing, self.texts)
            return tokens

        return step

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise a :class:`GpuguideError` if a prompt is empty, too long, or holds what is no token."""
        check_prompt(prompt, self.decoder.shape.vocab)
        check_limits(len(prompt), 0, self.capacity)


def _check_cache(cache: Cache, decoder: Decoder, rows: int, capacity: int) -> None:
    if cache.keys.device != decoder.device:
        raise GpuguideError(f"The cache is on {cache.keys.device} and the model on {decoder.device}; put both on one.")
    if cache.keys.dtype != decoder.dtype:
        raise GpuguideError(f"The cache holds {cache.keys.dtype} and the model computes in {decoder.dtype}.")
    if cache.rows < rows or cache.capacity < capacity:
        raise GpuguideError(
            f"The cache has {cache.rows} rows of {cache.capacity} tokens; {rows} rows of {capacity} are asked for."
        )
