"""Prefill chunks: the parts of prompts that are processed before a decode step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuguide.inference.serving.requests import Text


@dataclass(frozen=True)
class ChunkGroup:
    """Chunks of several prompts that are prefilled together, because they begin at the same position."""

    texts: list[Text]
    """Requests of the chunks; those whose prompts end here come first"""
    pieces: list[Sequence[int]]
    """Next tokens of each prompt"""
    start: int
    """Position of the first token of each"""
    ending: int
    """Number of prompts that end here"""

    @property
    def cost(self) -> int:
        """Tokens that are computed, padding included."""
        return len(self.pieces) * max(map(len, self.pieces))


def plan_chunks(reading: Sequence[Text], budget: int, most: int | None = None) -> list[ChunkGroup]:
    """Choose the chunks to prefill, in the order of the requests, and advance their ``read`` counts.

    Parameters
    ----------
    reading : sequence of Text
        Requests in prefill.
    budget : int
        Tokens that may be computed (the chunked-prefill token budget).
    most : int, optional
        Limit on the groups; by default none.

    Returns
    -------
    list of ChunkGroup
        Groups, each request in one of them at most.
    """
    groups: list[ChunkGroup] = []
    left = list(reading)
    while left and budget > 0 and len(groups) != most:
        group = _next_group(left, budget)
        groups.append(group)
        budget -= group.cost
        left = [text for text in left if text not in group.texts]
    return groups


def _next_group(reading: Sequence[Text], budget: int) -> ChunkGroup:
    """Choose a chunk of the first prompt, and of others that are at the same position."""
    start, longest = reading[0].read, min(reading[0].left_to_read, budget)
    texts = [reading[0]]
    for text in reading[1:]:
        if (len(texts) + 1) * longest > budget:
            break
        # Less than half of what is computed is padding.
        if text.read == start and 2 * text.left_to_read > longest:
            texts.append(text)
    texts.sort(key=lambda text: text.left_to_read > longest)
    ending = sum(text.left_to_read <= longest for text in texts)
    pieces = [text.request.prompt[start : start + longest] for text in texts]
    for text, piece in zip(texts, pieces, strict=True):
        text.read += len(piece)
    return ChunkGroup(texts, pieces, start, ending)
