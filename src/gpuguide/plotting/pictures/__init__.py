"""Drawings for the pages, each one call: what moves or happens, in one module a subject.

Their numbers come from the records of the reference GPU and from its data sheet; lengths and widths are to scale where
the caption says so.
"""

from __future__ import annotations

from gpuguide.plotting.pictures.attention import causal_tiles
from gpuguide.plotting.pictures.machine import memories_of_a_gpu, stream_and_queue
from gpuguide.plotting.pictures.sampling import chain_and_one_read, cut_and_draw, race_of_the_tokens, two_kernels

__all__ = [
    "causal_tiles",
    "chain_and_one_read",
    "cut_and_draw",
    "memories_of_a_gpu",
    "race_of_the_tokens",
    "stream_and_queue",
    "two_kernels",
]
