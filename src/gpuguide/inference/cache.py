"""The KV cache: keys and values of every token so far, in pages.

A page holds :data:`PAGE` tokens of one sequence, for all heads of one layer. A table says which pages a sequence has,
in order, so a sequence can grow page by page, two can share the pages of a common beginning, and what one leaves
another takes, without a byte being moved. With one run of pages for each sequence, reserved once, it is a static
cache.

Page 0 belongs to nobody. Where a sequence has no page, its table says 0, and what is written there is never read.

References
----------
W. Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023, section 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpuguide.errors import GpuguideError
from gpuguide.inference.decoder import Decoder

PAGE = 64
"""Tokens of a page"""
NOBODY = 0
"""The page that belongs to no sequence"""


@dataclass
class Cache:
    """Keys and values, and where each sequence has its own."""

    keys: torch.Tensor
    """``(layers, pages, kv_heads, PAGE, head_dim)``"""
    values: torch.Tensor
    """As ``keys``"""
    table: torch.Tensor
    """``(rows, pages of a row)``, int32: the pages of each sequence in order, ``NOBODY`` where it has none"""

    @property
    def capacity(self) -> int:
        """Tokens that one sequence can have at most."""
        return self.table.shape[1] * PAGE

    @property
    def rows(self) -> int:
        """Sequences."""
        return self.table.shape[0]

    def tensors(self) -> list[torch.Tensor]:
        """Return its memory, all of which a captured graph must find where it was."""
        return [self.keys, self.values, self.table]

    def write(
        self, layer: int, rows: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store keys and values.

        Parameters
        ----------
        layer : int
            Which layer's they are.
        rows : torch.Tensor
            ``(batch,)``: whose.
        positions : torch.Tensor
            ``(batch, seq)``: of which token. Where a position is below zero, nothing is kept.
        keys, values : torch.Tensor
            ``(batch, kv_heads, seq, head_dim)``
        """
        kept = positions >= 0
        places = positions.clamp(min=0)
        pages = torch.where(kept, self.table[rows[:, None], places // PAGE].long(), NOBODY)
        self.keys[layer, pages, :, places % PAGE] = keys.transpose(1, 2).to(self.keys.dtype)
        self.values[layer, pages, :, places % PAGE] = values.transpose(1, 2).to(self.values.dtype)

    def read(self, layer: int, rows: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first ``length`` keys and values of some rows, each ``(batch, kv_heads, length, head_dim)``."""
        pages = self.table[rows, : -(-length // PAGE)].long()

        def gather(kept: torch.Tensor) -> torch.Tensor:
            found = kept[layer][pages].transpose(1, 2)  # (batch, kv_heads, pages, PAGE, head_dim)
            return found.flatten(2, 3)[:, :, :length]

        return gather(self.keys), gather(self.values)


def pages_for(tokens: int) -> int:
    """Return how many pages hold some tokens."""
    return -(-tokens // PAGE)


def empty_cache(decoder: Decoder, rows: int, capacity: int, pages: int) -> Cache:
    """Return a cache whose pages no sequence has yet.

    Parameters
    ----------
    decoder : Decoder
        Whose keys and values it will hold, in the same format and place.
    rows : int
        Sequences at a time.
    capacity : int
        Tokens that one of them can have.
    pages : int
        Pages for all of them together, beside the one that belongs to nobody.

    Raises
    ------
    GpuguideError
        If a number is below 1.
    """
    for name, given in (("rows", rows), ("capacity", capacity), ("pages", pages)):
        if given < 1:
            raise GpuguideError(f"A cache with {name} = {given} holds nothing; give at least 1.")
    shape = decoder.shape
    size = (shape.layers, 1 + pages, shape.kv_heads, PAGE, shape.head_dim)
    keys, values = (torch.zeros(size, dtype=decoder.dtype, device=decoder.device) for _ in range(2))
    table = torch.full((rows, pages_for(capacity)), NOBODY, dtype=torch.int32, device=decoder.device)
    return Cache(keys, values, table)


def static_cache(decoder: Decoder, rows: int, capacity: int) -> Cache:
    """Return a cache whose rows all have pages for ``capacity`` tokens already. Errors as :func:`empty_cache`."""
    cache = empty_cache(decoder, rows, capacity, max(rows, 1) * pages_for(max(capacity, 1)))
    cache.table.copy_(1 + torch.arange(cache.table.numel(), device=decoder.device).view(cache.table.shape))
    return cache
