"""Drawings for the pages, each one call: what moves or happens, in one module a subject.

Their numbers come from the records of the reference GPU and from its data sheet; lengths and widths are to scale where
the caption says so.
"""

from __future__ import annotations

from gpuguide.plotting.pictures.attention import causal_tiles
from gpuguide.plotting.pictures.losses import (
    gradient_of_the_loss,
    loss_in_chunks,
    memory_of_a_loss,
    surprise_of_a_token,
    targets_shifted_by_one,
)
from gpuguide.plotting.pictures.machine import memories_of_a_gpu, stream_and_queue

__all__ = [
    "causal_tiles",
    "gradient_of_the_loss",
    "loss_in_chunks",
    "memories_of_a_gpu",
    "memory_of_a_loss",
    "stream_and_queue",
    "surprise_of_a_token",
    "targets_shifted_by_one",
]
