"""Drawings for the pages, each one call: what moves or happens, in one module a subject.

>>> from gpuguide.plotting import pictures
>>> pictures.sampling.cut_and_draw()  # doctest: +SKIP

Their numbers come from the records of the reference GPU and from its data sheet; lengths and widths are to scale where
the caption says so.
"""

from __future__ import annotations

from gpuguide.plotting.pictures import (
    attention,
    choosing,
    clusters,
    collectives,
    fine_tuning,
    flash_loops,
    frame_times,
    frames,
    fusion,
    gradients,
    hopper,
    inference,
    interconnect,
    loss_masks,
    loss_time,
    losses,
    machine,
    memories,
    metrics,
    mixed_precision,
    precision,
    sampling,
    serving,
    several_gpus,
    timing,
    tokens,
    training,
    training_memory,
)

__all__ = [
    "attention",
    "choosing",
    "clusters",
    "collectives",
    "fine_tuning",
    "flash_loops",
    "frame_times",
    "frames",
    "fusion",
    "gradients",
    "hopper",
    "inference",
    "interconnect",
    "loss_masks",
    "loss_time",
    "losses",
    "machine",
    "memories",
    "metrics",
    "mixed_precision",
    "precision",
    "sampling",
    "serving",
    "several_gpus",
    "timing",
    "tokens",
    "training",
    "training_memory",
]
