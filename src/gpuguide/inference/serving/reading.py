"""Which pieces of prompts are read before a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuguide.inference.serving.requests import Text


@dataclass(frozen=True)
class Group:
    """Pieces of prompts that are read together: they begin at the same position."""

    texts: list[Text]
    """Those whose prompts end here come first"""
    pieces: list[Sequence[int]]
    """The next tokens of the prompt of each"""
    start: int
    """Their position"""
    ending: int
    """How many prompts end here"""

    @property
    def cost(self) -> int:
        """Tokens that are computed, with those that fill up shorter pieces."""
        return len(self.pieces) * max(map(len, self.pieces))


def plan(reading: Sequence[Text], budget: int, most: int | None = None) -> list[Group]:
    """Choose what to read, in the order of the texts, and move them on.

    Parameters
    ----------
    reading : sequence of Text
        Whose prompts are being read.
    budget : int
        Tokens that may be computed.
    most : int, optional
        Groups that there may be; by default any number.

    Returns
    -------
    list of Group
        A text is in one of them at most.
    """
    groups: list[Group] = []
    left = list(reading)
    while left and budget > 0 and len(groups) != most:
        group = _next_group(left, budget)
        groups.append(group)
        budget -= group.cost
        left = [text for text in left if text not in group.texts]
    return groups


def _next_group(reading: Sequence[Text], budget: int) -> Group:
    """Choose a piece of the first prompt, and of others that are as far as it is."""
    start, longest = reading[0].read, min(reading[0].left_to_read, budget)
    texts = [reading[0]]
    for text in reading[1:]:
        if (len(texts) + 1) * longest > budget:
            break
        # Of what is computed, less than half only fills up.
        if text.read == start and 2 * text.left_to_read > longest:
            texts.append(text)
    texts.sort(key=lambda text: text.left_to_read > longest)
    ending = sum(text.left_to_read <= longest for text in texts)
    pieces = [text.request.prompt[start : start + longest] for text in texts]
    for text, piece in zip(texts, pieces, strict=True):
        text.read += len(piece)
    return Group(texts, pieces, start, ending)
