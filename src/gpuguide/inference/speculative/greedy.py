"""A cycle of greedy decoding with a model as the draft, in few kernels.

Small models are read so fast that launches take most of the time: two or three microseconds each, on whatever there is
to do. So nothing is launched here that another kernel can do on the side. What embeds a step's tokens first takes the
guess from the step before, and what ends a cycle prepares the next. A step
of :mod:`gpuguide.inference.fused` knows its best tokens, so no logits are looked at again; and the tokens and positions
of all steps lie in memory reserved beforehand, where each kernel puts what a later one reads.

:class:`gpuguide.inference.speculative.Speculator` has the same in plain PyTorch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from gpuguide.inference.fused import DecodeStep
from gpuguide.inference.fused.step import LOWEST
from gpuguide.inference.speculative import kernels


class GreedyCycle:
    """Drafts, verifies, accepts and rolls back, of all rows at a time, when it is called.

    Parameters
    ----------
    read_two, read_one : DecodeStep
        Of the draft: two tokens of each row, side by side, and one.
    verify : DecodeStep
        Of the target: ``k + 1`` tokens of each row, side by side.
    lengths, ends, texts, outcomes : torch.Tensor
        As :class:`gpuguide.inference.speculative.Speculator` has them; all but ``ends`` are written.
    capacity : int
        Tokens of a text at most.
    """

    def __init__(
        self,
        read_two: DecodeStep,
        read_one: DecodeStep,
        verify: DecodeStep,
        lengths: torch.Tensor,
        ends: torch.Tensor,
        texts: torch.Tensor,
        outcomes: torch.Tensor,
        capacity: int,
    ) -> None:
        self.read_two, self.read_one, self.verify = read_two, read_one, verify
        self.lengths, self.ends, self.texts, self.outcomes = lengths, ends, texts, outcomes
        self.capacity = capacity
        self.rows = rows = len(lengths)
        self.k = k = verify.count // rows - 1

        def room(*size: int) -> torch.Tensor:
            return torch.zeros(size, dtype=torch.int64, device=lengths.device)

        self.last_two, self.last_two_places = room(rows, 2), room(rows, 2)
        """The first step's tokens and positions: the draft's cache may lack the one before the last"""
        self.draft_places = room(k, rows)
        """The positions of each step of the draft"""
        self.given, self.given_places = room(rows, k + 1), room(rows, k + 1)
        """The verification's tokens, the last one and those that are drafted, and their positions"""
        self.gained = room(rows)

    def begin(self) -> None:
        """Write what the first cycle of a text reads; every later one is prepared by the one before."""
        kernels.begin_kernel[(self.rows,)](
            self.lengths, self.ends, self.texts, *self._inputs(), self.texts.shape[1], self.capacity, **self._sizes(),
            num_warps=1,
        )  # fmt: skip

    def __call__(self) -> torch.Tensor:
        """Run a cycle, and return how many tokens each row has gained, ``(rows,)``: the same memory every time."""
        self.read_two(self.last_two.flatten(), self.last_two_places.flatten())
        last = self.read_two
        for number in range(1, self.k):
            self._embed_guess(last, self.given[:, number], self.draft_places[number], self.read_one)
            self.read_one.run_layers(self.draft_places[number])
            last = self.read_one
        self._embed_guess(last, self.given, self.given_places, self.verify)
        self.verify.run_layers(self.given_places.flatten())
        self._move_on()
        return self.gained

    def _embed_guess(self, guesser: DecodeStep, given: torch.Tensor, places: torch.Tensor, step: DecodeStep) -> None:
        """Take a guess from a step, and embed what the next one reads: it alone, or after all before it."""
        decoder = step.decoder
        positions, width = decoder.position_embedding, decoder.shape.hidden
        kernels.embed_guess_kernel[(self.rows, step.count // self.rows)](
            guesser.best, given, places, decoder.token_embedding, places if positions is None else positions,
            step.hidden, self.k + 1, SEQ=guesser.count // self.rows, COUNT=step.count // self.rows, LOWEST_ORDER=LOWEST,
            WIDTH=width, BLOCK=min(1024, triton.next_power_of_2(width)), POSITIONS=positions is not None,
            **_build_launch_options(guesser, 4),
        )  # fmt: skip

    def _move_on(self) -> None:
        """Accept, roll back, and prepare the next cycle: keys and values behind the new length do not count."""
        kernels.move_on_kernel[(self.rows,)](
            self.verify.best, self.lengths, self.ends, self.texts, self.outcomes, self.gained, *self._inputs(),
            self.texts.shape[1], self.capacity, **self._sizes(), LOWEST_ORDER=LOWEST,
            **_build_launch_options(self.verify, 1),
        )  # fmt: skip

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        return self.last_two, self.last_two_places, self.draft_places, self.given, self.given_places

    def _sizes(self) -> dict[str, Any]:
        return {"K": self.k, "PLACES": triton.next_power_of_2(self.k + 1)}


def _build_launch_options(step: DecodeStep, warps: int) -> dict[str, Any]:
    """Return how to launch a small kernel after a step: while it still runs, if the step's own kernels are."""
    pdl = {"launch_pdl": True} if step.overlap else {}
    return {"PDL": step.overlap, "num_warps": warps, **pdl}
