"""Drawings for the pages, each one call: what moves or happens, in one module a subject.

Their numbers come from the records of the reference GPU and from its data sheet; lengths and widths are to scale where
the caption says so.
"""

from __future__ import annotations

from gpuguide.plotting.pictures.attention import causal_tiles
from gpuguide.plotting.pictures.choosing import kernel_lanes, mask_tiles
from gpuguide.plotting.pictures.machine import memories_of_a_gpu, stream_and_queue

__all__ = ["causal_tiles", "kernel_lanes", "mask_tiles", "memories_of_a_gpu", "stream_and_queue"]
