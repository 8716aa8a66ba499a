"""Drawings for the pages, each one call: what moves or happens, in one module a subject.

Their numbers come from the records of the reference GPU and from its data sheet; lengths and widths are to scale where
the caption says so.
"""

from __future__ import annotations

from gpuguide.plotting.pictures.attention import causal_tiles
from gpuguide.plotting.pictures.machine import memories_of_a_gpu, stream_and_queue
from gpuguide.plotting.pictures.memories import bytes_under_way, memories_of_a_gpu, wait_for_a_word
from gpuguide.plotting.pictures.metrics import step_and_its_data, what_utilisation_counts

__all__ = [
    "bytes_under_way",
    "causal_tiles",
    "memories_of_a_gpu",
    "step_and_its_data",
    "stream_and_queue",
    "wait_for_a_word",
    "what_utilisation_counts",
]
