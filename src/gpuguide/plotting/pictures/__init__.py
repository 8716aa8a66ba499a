"""Drawings for the pages, each one call: what moves or happens, in one module a subject.

Their numbers come from the records of the reference GPU and from its data sheet; lengths and widths are to scale where
the caption says so.
"""

from __future__ import annotations

from gpuguide.plotting.pictures.attention import causal_tiles, online_softmax, overlapped_schedule, tile_traffic
from gpuguide.plotting.pictures.choosing import kernel_lanes, mask_tiles
from gpuguide.plotting.pictures.fine_tuning import (
    adapter_beside_weights,
    parts_that_are_trained,
    weights_in_two_orders,
)
from gpuguide.plotting.pictures.frames import (
    frame_to_the_gpu,
    group_by_in_a_table,
    join_in_two_steps,
    radix_sort_passes,
    ring_of_buffers,
)
from gpuguide.plotting.pictures.inference import kernels_of_a_step, prefill_and_decode
from gpuguide.plotting.pictures.interconnect import (
    layer_on_two_gpus,
    links_to_scale,
    offloaded_layers_over_time,
    ring_over_time,
    way_of_a_byte,
    ways_to_the_network,
)
from gpuguide.plotting.pictures.losses import (
    gradient_of_the_loss,
    loss_in_chunks,
    memory_of_a_loss,
    surprise_of_a_token,
    targets_shifted_by_one,
)
from gpuguide.plotting.pictures.machine import stream_and_queue
from gpuguide.plotting.pictures.memories import bytes_under_way, memories_of_a_gpu, wait_for_a_word
from gpuguide.plotting.pictures.metrics import step_and_its_data, what_utilisation_counts
from gpuguide.plotting.pictures.precision import bits_by_magnitude, formats_to_scale
from gpuguide.plotting.pictures.sampling import chain_and_one_read, cut_and_draw, race_of_the_tokens, two_kernels
from gpuguide.plotting.pictures.serving import cycle_of_guesses, shared_pages, slots_over_time
from gpuguide.plotting.pictures.tokens import from_text_to_token, softmax_on_a_line

__all__ = [
    "adapter_beside_weights",
    "bits_by_magnitude",
    "bytes_under_way",
    "causal_tiles",
    "chain_and_one_read",
    "cut_and_draw",
    "cycle_of_guesses",
    "formats_to_scale",
    "frame_to_the_gpu",
    "from_text_to_token",
    "gradient_of_the_loss",
    "group_by_in_a_table",
    "join_in_two_steps",
    "kernel_lanes",
    "kernels_of_a_step",
    "layer_on_two_gpus",
    "links_to_scale",
    "loss_in_chunks",
    "mask_tiles",
    "memories_of_a_gpu",
    "memory_of_a_loss",
    "offloaded_layers_over_time",
    "online_softmax",
    "overlapped_schedule",
    "parts_that_are_trained",
    "prefill_and_decode",
    "race_of_the_tokens",
    "radix_sort_passes",
    "ring_of_buffers",
    "ring_over_time",
    "shared_pages",
    "slots_over_time",
    "softmax_on_a_line",
    "step_and_its_data",
    "stream_and_queue",
    "surprise_of_a_token",
    "targets_shifted_by_one",
    "tile_traffic",
    "two_kernels",
    "wait_for_a_word",
    "way_of_a_byte",
    "ways_to_the_network",
    "weights_in_two_orders",
    "what_utilisation_counts",
]
