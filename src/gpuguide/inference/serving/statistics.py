"""Statistics of a scheduler's run: its steps, and the request in each slot."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuguide.inference.serving.requests import Text

FREE, READING, WRITING, ENDED = range(4)
"""State of a slot: free, waiting for prompts, generating, or held by a text that has ended"""


@dataclass(eq=False)
class Step:
    """One turn of the scheduler's loop."""

    rows: int
    """Rows that were computed; 0 if only prompts were read"""
    writing: int
    """Texts that got a token"""
    read: int
    """Tokens of prompts that were computed before it, with those that fill up shorter pieces"""
    seconds: float | None = None
    """From the end of the step before to the end of this one; ``None`` until that is known"""


@dataclass(frozen=True)
class ServingSummary:
    """A run in numbers. Times are medians in seconds, ``None`` where there is none."""

    requests: int
    steps: int
    """Steps that generated tokens; a step of prefill alone is not counted"""
    tokens: int
    """Written and delivered, without stop tokens and what was thrown away"""
    prompt_tokens: int
    """Read, without those that were shared"""
    shared_tokens: int
    """Prompt tokens that were found in the cache"""
    occupancy: float
    """Share of computed rows whose token belongs to a text"""
    waiting_time: float | None
    time_to_first_token: float | None
    time_between_tokens: float | None


def summarise(texts: Iterable[Text], steps: Iterable[Step]) -> ServingSummary:
    """Return a run in numbers.

    Parameters
    ----------
    texts : iterable of Text
        All of them, as the scheduler's ``texts.values()``.
    steps : iterable of Step
        The scheduler's ``steps``.
    """
    texts, wrote = list(texts), [step for step in steps if step.rows]
    rows = sum(step.rows for step in wrote)
    return ServingSummary(
        requests=len(texts),
        steps=len(wrote),
        tokens=sum(len(text.tokens) for text in texts),
        prompt_tokens=sum(text.read - text.shared for text in texts),
        shared_tokens=sum(text.shared for text in texts),
        occupancy=sum(step.writing for step in wrote) / rows if rows else 0.0,
        waiting_time=_median(text.waiting_time for text in texts),
        time_to_first_token=_median(text.time_to_first_token for text in texts),
        time_between_tokens=_median(time for text in texts for time in text.times_between_tokens),
    )


def occupancy(texts: Iterable[Text], steps: Sequence[Step], slots: int) -> NDArray[np.int8]:
    """Return what happened in each slot at each step.

    Parameters
    ----------
    texts, steps
        As in :func:`summarise`.
    slots : int
        The rows of the engine.

    Returns
    -------
    numpy.ndarray
        int8, ``(slots, steps)``: ``FREE``, ``READING``, ``WRITING`` or ``ENDED``.
    """
    happened = np.full((slots, len(steps)), FREE, dtype=np.int8)
    for text in texts:
        if text.slot is None:
            continue
        ends = len(steps)
        left = ends if text.left_at is None else text.left_at
        ended = left if text.ended_at is None else text.ended_at
        began = ended if text.began_at is None else text.began_at
        happened[text.slot, text.entered_at : began] = READING
        happened[text.slot, began:ended] = WRITING
        happened[text.slot, ended:left] = ENDED
    only_read = [step.rows == 0 for step in steps]  # a static batch in which some have begun waits for the others
    happened[:, only_read] = np.where(happened[:, only_read] == WRITING, READING, happened[:, only_read])
    return happened


def _median(times: Iterable[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return statistics.median(known) if known else None
