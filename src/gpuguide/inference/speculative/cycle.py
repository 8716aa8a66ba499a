"""Speculative decoding: somebody drafts a few tokens ahead, and the target model verifies all of them in one pass.

A decode step reads all weights for one token. Reading them for five tokens takes hardly longer, but the five have to
be known. So they are guessed: by a small model, or from the text (:mod:`gpuguide.inference.speculative.drafting`). The
target model then says at every place what it would have done there. Guesses are accepted up to the first one that
fails, and for that place the target's pass has the right token already. So a cycle gives at least one token, and ``k +
1`` if all ``k`` guesses hold.

The text does not depend on the guesses. Greedy decoding gives the target's own tokens; sampling draws from the target's
own distribution, by the rule in :func:`gpuguide.inference.speculative.acceptance.accept`.

Keys and values of rejected tokens stay in the cache, behind the length that counts. Nothing reads them there, and the
next cycle writes over them: to roll back is to set a length.

References
----------
Y. Leviathan, M. Kalman, Y. Matias, "Fast Inference from Transformers via Speculative Decoding", 2023, sections 2.2 and
2.3, https://arxiv.org/abs/2211.17192.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from gpuguide.errors import GpuguideError
from gpuguide.inference.decoder import Decoder
from gpuguide.inference.engine import Engine
from gpuguide.inference.generate import GREEDY, LONGEST_TEXT
from gpuguide.inference.graph import Captured
from gpuguide.inference.speculative.acceptance import accept_logits, agree
from gpuguide.inference.speculative.drafting import Drafter, Forward, LookupDrafter, ModelDrafter, PromptLookup
from gpuguide.logits import check_settings
from gpuguide.sampling.reference import SamplingSettings, random_words
from gpuguide.triton_support import supports_triton

if TYPE_CHECKING:
    from gpuguide.inference.speculative.greedy import GreedyCycle

ACCEPT, REPLACE = 1, 2
"""Random numbers of a position that decide whether its guess is accepted, and what comes if not; draws take the 0th"""


class Speculator:
    """Rows of text being written by one model with the help of a draft.

    A cycle drafts ``k`` tokens, verifies them, accepts and rolls back. Rows accept different numbers of tokens and go
    on at different places. All of it happens on the device, in one CUDA graph on a GPU, and nothing waits for the host.
    Seed and prompt alone determine a text, whatever is written beside it.

    Parameters
    ----------
    target : Decoder
        The model whose text it is.
    draft : Decoder or PromptLookup
        A smaller model with the same tokens, or how to draft from the text itself.
    rows : int
        Texts at a time.
    capacity : int
        Tokens that a text can have, prompt included. Both models must know ``k`` positions more, for guesses.
    k : int
        Tokens that are drafted in a cycle.
    settings : SamplingSettings
        How tokens are drawn, for the target and for the draft; by default the most likely one is taken.

    Raises
    ------
    GpuguideError
        If ``k`` or a size is too small, the models differ in vocabulary or device, or know too few positions.
    ValueError
        If a setting is out of its range.
    """

    def __init__(
        self,
        target: Decoder,
        draft: Decoder | PromptLookup,
        *,
        rows: int,
        capacity: int,
        k: int = 4,
        settings: SamplingSettings = GREEDY,
    ) -> None:
        _check_models(target, draft, capacity, k)
        check_settings(**asdict(settings))
        self.k, self.capacity, self.settings = k, capacity, settings
        self.target = Engine(target, rows, capacity + k, settings)
        device = target.device
        self.texts, self.lengths = self.target.texts, self.target.lengths
        self.drafter: Drafter = (
            LookupDrafter(draft, self.texts.shape[1], k, device)
            if isinstance(draft, PromptLookup)
            else ModelDrafter(draft, rows, capacity + k, k, settings)
        )
        self.ends = torch.zeros(rows, dtype=torch.int64, device=device)
        """Position of each text's last token; a row whose last token stands there, or later, goes no further"""
        self.outcomes = torch.zeros(rows, k + 2, dtype=torch.int64, device=device)
        """Number of cycles that gave each row 0, 1, …, ``k + 1`` tokens: none where the text was complete"""
        self._uniforms = torch.zeros(rows, 2 * self.texts.shape[1], dtype=torch.float64, device=device)
        self._beside = torch.arange(-1, k + 2, device=device)
        self._tests_and_draw = torch.tensor([*range(1, k + 1), self.texts.shape[1]], device=device)
        self._verify = Forward(target, self.target.cache, rows, k + 1)
        self._greedy = self._greedy_cycle()
        self._spans: list[tuple[int, int]] = []
        self._captured: Captured | None = None

    def start(self, prompts: Sequence[Sequence[int]], count: int, seeds: Sequence[int] | None = None) -> None:
        """Begin a text in each of the first rows, and write the first new token.

        Parameters
        ----------
        prompts : sequence of sequences of int
            They may differ in length.
        count : int
            New tokens wanted of each.
        seeds : sequence of int, optional
            One for each text; by default 0, 1, 2, …

        Raises
        ------
        GpuguideError
            If ``count`` is below 1, a prompt is empty or with ``count`` tokens exceeds the capacity, or there are more
            prompts than rows.
        """
        self._check_prompts(prompts, count)
        given = list(range(len(prompts))) if seeds is None else list(seeds)
        self.target.start(prompts, given)
        self.drafter.start(prompts)
        self._spans = [(len(prompt), len(prompt) + count) for prompt in prompts]
        with torch.inference_mode():
            self.outcomes.zero_()
            self.ends.zero_()
            self.ends[: len(prompts)] = torch.tensor([end - 1 for _, end in self._spans], device=self.ends.device)
            if self.settings.temperature:
                self._uniforms[: len(prompts)] = self._random_numbers(torch.tensor(given, device=self.ends.device))
            if self._greedy is not None:
                self._greedy.begin()

    def cycle(self) -> torch.Tensor:
        """Draft, verify, accept, roll back.

        Returns
        -------
        torch.Tensor
            ``(rows,)``, int64, on the device: the tokens that each row has gained, 0 where its text was complete. The
            last cycle of a text may give more than were wanted. The next cycle overwrites it.
        """
        with torch.inference_mode():
            if self._captured is None:
                self._captured = self._capture()
            return self._captured(self._state())

    def write(
        self, prompts: Sequence[Sequence[int]], count: int, seeds: Sequence[int] | None = None
    ) -> list[list[int]]:
        """Write ``count`` tokens after each prompt, and return them. Parameters and errors as :meth:`start`.

        The host looks at the device only where texts could be complete: it first runs as many cycles as are needed if
        all guesses hold, then as many as the longest rest needs, and so on.
        """
        self.start(prompts, count, seeds)
        left = count - 1
        while left > 0:
            for _ in range(-(-left // (self.k + 1))):
                self.cycle()
            left = int((self.ends - self.lengths)[: len(prompts)].amax())
        return self.read_new_tokens()

    def read_new_tokens(self) -> list[list[int]]:
        """Return the new tokens of each text, as far as it is written; this waits for the device."""
        lengths = self.lengths.tolist()
        texts = self.texts.tolist()
        return [texts[row][start : min(end, lengths[row] + 1)] for row, (start, end) in enumerate(self._spans)]

    def tokens_per_cycle(self) -> float:
        """Return the mean number of tokens that a cycle gave to a text not yet complete; this waits for the device."""
        cycles = self.outcomes[:, 1:].sum(dim=0)
        gained = cycles * torch.arange(1, self.k + 2, device=cycles.device)
        return float(gained.sum() / cycles.sum())

    def acceptance(self) -> float:
        """Return the share of accepted tokens among those up to the first rejected one; this waits for the device."""
        cycles = self.outcomes[:, 1:].sum(dim=0)
        accepted = (cycles * torch.arange(self.k + 1, device=cycles.device)).sum()
        return float(accepted / (accepted + cycles[:-1].sum()))

    # --- a cycle -----------------------------------------------------------------------------------------

    def _cycle(self) -> torch.Tensor:
        complete = self.lengths >= self.ends
        # A complete text goes nowhere: what is computed for it lands behind all places that a text can have.
        last = self.lengths.masked_fill(complete, self.capacity - 1)[:, None]
        places = last + self._beside
        drafted, draft_logits = self.drafter.propose(self.texts, places, self.target.seeds)
        given = torch.cat([self.texts.gather(1, last), drafted], dim=1)
        logits = self._verify(given, places[:, 1:-1])
        if self.settings.temperature:
            uniforms = self._uniforms.gather(1, last + self._tests_and_draw)
            count, tokens = accept_logits(logits, draft_logits, drafted, uniforms, self.settings)
        else:
            count, tokens = None, logits.argmax(dim=-1)
        if supports_triton(self.texts):
            from gpuguide.inference.speculative import kernels

            return kernels.advance(count, tokens, drafted, self.lengths, self.ends, self.texts,
                                              self.outcomes, self.capacity)  # fmt: skip
        gained = (agree(tokens, drafted) if count is None else count) + 1
        gained = gained.masked_fill(complete, 0)
        self.texts.scatter_(1, places[:, 2:], tokens)
        self.lengths.add_(gained)
        self.outcomes.scatter_add_(1, gained[:, None], torch.ones_like(gained[:, None]))
        return gained

    def _random_numbers(self, seeds: torch.Tensor) -> torch.Tensor:
        """Return all uniform numbers that texts can need, ``(len(seeds), 2 * width)``.

        At place ``i`` stands what decides whether position ``i`` accepts its guess, at ``width + i`` what draws the
        last token of a cycle that begins with position ``i`` as its last. A position may be drafted and tested in
        several cycles. Only one of them decides it, and the others' outcome, behind a rejected token, is never seen: so
        the same numbers can serve them all, and still each token has its own.
        """
        width = self.texts.shape[1]
        places = seeds[:, None] * LONGEST_TEXT + torch.arange(width, device=seeds.device)
        which = torch.tensor([[ACCEPT], [REPLACE]], device=seeds.device)
        words = random_words(places[:, None], torch.zeros_like(which), which)
        return ((words.double() + 0.5) * 2.0**-32).flatten(1)

    def _state(self) -> list[torch.Tensor]:
        engine = self.target
        return [self.lengths, self.texts, self.ends, self.outcomes, engine.seeds, self._uniforms,
                *engine.cache.tensors(), *self.drafter.state()]  # fmt: skip

    def _capture(self) -> Captured:
        changed = [self.lengths, self.outcomes]
        kept = [tensor.clone() for tensor in changed]

        def restore() -> None:
            for tensor, as_it_was in zip(changed, kept, strict=True):
                tensor.copy_(as_it_was)
            if self._greedy is not None:
                self._greedy.begin()

        return Captured(self._cycle if self._greedy is None else self._greedy, self._state(), restore)

    def _greedy_cycle(self) -> GreedyCycle | None:
        """Return a cycle of few kernels, where no logits are needed: a model drafts, and the best token is taken."""
        if self.settings.temperature or not isinstance(self.drafter, ModelDrafter):
            return None
        read_two, read_one, verify = self.drafter.read_two.step, self.drafter.read_one.step, self._verify.step
        if read_two is None or read_one is None or verify is None:
            return None
        from gpuguide.inference.speculative.greedy import GreedyCycle

        return GreedyCycle(read_two, read_one, verify, self.lengths, self.ends, self.texts, self.outcomes,
                           self.capacity)  # fmt: skip

    def _check_prompts(self, prompts: Sequence[Sequence[int]], count: int) -> None:
        if count < 1:
            raise GpuguideError(f"{count} new tokens are asked for; ask for at least 1.")
        for prompt in prompts:
            if len(prompt) + count > self.capacity:
                raise GpuguideError(
                    f"A prompt of {len(prompt)} tokens and {count} more do not fit into a capacity of {self.capacity}; "
                    f"give the last {max(self.capacity - count, 0)} tokens of the prompt, or ask for fewer."
                )


def _check_models(target: Decoder, draft: Decoder | PromptLookup, capacity: int, k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise GpuguideError(f"k is {k!r}; at least 1 token must be drafted in a cycle.")
    if capacity < 2:
        raise GpuguideError(f"A capacity of {capacity} has no room for a prompt and a token; give at least 2.")
    models = {"target": target} if isinstance(draft, PromptLookup) else {"target": target, "draft": draft}
    for name, model in models.items():
        if capacity + k > model.shape.context:
            raise GpuguideError(
                f"A text of {capacity} tokens and {k} guesses behind it take {capacity + k} positions; the {name} "
                f"knows {model.shape.context}; give a capacity of at most {model.shape.context - k}."
            )
    if isinstance(draft, PromptLookup):
        return
    if draft.shape.vocab != target.shape.vocab:
        raise GpuguideError(
            f"The draft knows {draft.shape.vocab} tokens and the target {target.shape.vocab}; "
            "a draft must have the target's tokenizer."
        )
    if draft.device != target.device:
        raise GpuguideError(f"The draft is on {draft.device} and the target on {target.device}; put both on one.")
