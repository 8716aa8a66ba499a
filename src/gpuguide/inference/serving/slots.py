"""The engine's rows and pages: who has them, and what the device is told about it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpuguide.inference.cache import NOBODY
from gpuguide.inference.engine import Engine
from gpuguide.inference.host_copy import copy_to_device
from gpuguide.inference.pages import Pages
from gpuguide.inference.serving.requests import Text


@dataclass(frozen=True)
class Batch:
    """Batch of one step. It is immutable, because tokens on their way to the host refer to it."""

    texts: Sequence[Text] = ()
    """Slots that get a token"""
    places: Sequence[int] = ()
    """Their rows"""
    rows: int = 0
    """Rows that are computed, the first ones"""


class Slots:
    """The rows of an engine and the pages of its cache, for texts that come and go.

    Parameters
    ----------
    engine : Engine
        Whatever its rows hold is given up.
    share : bool
        Whether prompts with the same beginning share its pages.
    """

    def __init__(self, engine: Engine, share: bool) -> None:
        self.engine = engine
        self.pages = Pages(engine.cache.keys.shape[1] - 1, share)
        self.buckets = buckets(engine.rows)
        self.texts: list[Text | None] = [None] * engine.rows
        """Who has each slot"""
        self._free = list(range(engine.rows))
        self._changed = set(self._free)  # rows of which the device does not know yet whose they are

    @property
    def next_free(self) -> int | None:
        """The lowest free slot, which the next text gets: the fewer rows are in use, the shorter is a step."""
        return self._free[0] if self._free else None

    @property
    def empty(self) -> bool:
        """Whether nobody has a slot."""
        return len(self._free) == len(self.texts)

    def enter(self, text: Text, wait: bool) -> bool:
        """Give a text the lowest free slot and its pages, if there are enough; ``wait`` as in :meth:`Pages.reserve`."""
        text.reservation = self.pages.reserve(text.request.prompt, text.request.cache_tokens(), wait)
        if text.reservation is None:
            return False
        text.slot = heapq.heappop(self._free)
        text.read = text.shared = text.reservation.shared
        self.texts[text.slot] = text
        self._changed.add(text.slot)
        return True

    def have_read(self, texts: Sequence[Text]) -> None:
        """Let the pages be shared that these texts have filled."""
        for text in texts:
            assert text.reservation is not None
            self.pages.read(text.reservation, text.read)

    def holders(self) -> list[Text]:
        """Return who has a slot."""
        return [text for text in self.texts if text is not None]

    def leave(self, text: Text) -> None:
        """Take a text's slot and pages back."""
        assert text.slot is not None
        assert text.reservation is not None
        self.pages.release(text.reservation)
        self.texts[text.slot] = None
        self._changed.add(text.slot)
        heapq.heappush(self._free, text.slot)

    def batch(self, writing: Sequence[Text], in_use: Sequence[Text]) -> Batch:
        """Return the step for texts that are being written, over all rows up to the last one in use."""
        places = [text.slot for text in writing if text.slot is not None]
        last = max((text.slot for text in in_use if text.slot is not None), default=-1)
        return Batch(writing, places, next((rows for rows in self.buckets if rows > last >= 0), 0))

    def tell_device(self, first: Sequence[Text] = ()) -> torch.Tensor:
        """Tell the device who has which row now, in one copy; it does not write in these rows until a text begins.

        A row whose prompt is being read is computed in every step, like one that is free. What a step leaves behind
        there goes where the next piece of the prompt will be, or to the page that is nobody's.

        Parameters
        ----------
        first : sequence of Text
            Texts whose prompts are read now.

        Returns
        -------
        torch.Tensor
            ``(3, rows)``, int64, on the device: the rows that it was told about, with the tokens in the cache and the
            seed of each. Those of ``first`` come first, in their order.
        """
        rows = [text.slot for text in first if text.slot is not None]
        rows += sorted(self._changed.difference(rows))
        self._changed.clear()
        if not rows:
            return torch.empty(3, 0, dtype=torch.int64)
        engine = self.engine
        told = copy_to_device([self._state(row) for row in rows], engine.decoder.device).T.contiguous()
        index = told[0]
        engine.lengths[index] = told[1]
        engine.writing[index] = False
        engine.cache.table[index] = told[3:].T.to(engine.cache.table.dtype)
        return told[:3]

    def _state(self, row: int) -> list[int]:
        """Return what the device must know of a row: itself, its tokens in the cache, its seed, its pages."""
        width = self.engine.cache.table.shape[1]
        text = self.texts[row]
        if text is None:
            return [row, 0, 0, *[NOBODY] * width]
        assert text.reservation is not None
        pages = text.reservation.pages
        return [row, text.read, text.request.seed, *pages, *[NOBODY] * (width - len(pages))]


def buckets(rows: int) -> list[int]:
    """Return the numbers of rows that a step can have: each has a CUDA graph of its own.

    >>> buckets(48)
    [1, 2, 4, 8, 16, 32, 48]
    """
    return [*(2**power for power in range((rows - 1).bit_length())), rows]
