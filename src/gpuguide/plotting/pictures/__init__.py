"""Drawings for the pages, each one call: what moves or happens, in one module a subject.

Their numbers come from the records of the reference GPU and from its data sheet; lengths and widths are to scale where
the caption says so.
"""

from __future__ import annotations

from gpuguide.plotting.pictures.attention import causal_tiles
from gpuguide.plotting.pictures.frames import (
    frame_to_the_gpu,
    group_by_in_a_table,
    join_in_two_steps,
    radix_sort_passes,
    ring_of_buffers,
)
from gpuguide.plotting.pictures.machine import memories_of_a_gpu, stream_and_queue

__all__ = [
    "causal_tiles",
    "frame_to_the_gpu",
    "group_by_in_a_table",
    "join_in_two_steps",
    "memories_of_a_gpu",
    "radix_sort_passes",
    "ring_of_buffers",
    "stream_and_queue",
]
