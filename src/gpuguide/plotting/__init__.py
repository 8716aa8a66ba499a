"""Figures from records, in the site's light and dark schemes, and as PNG everywhere else; results as tables.

>>> from gpuguide import plotting
>>> def draw(figure, theme):
...     ax = figure.subplots()
...     plotting.curves(ax, "copy-size", x="working_set", metric="bandwidth")
...     plotting.log_axis(ax.xaxis, "B", "working set")
...     plotting.linear_axis(ax.yaxis, "B/s", "bandwidth")
>>> plotting.show(draw, alt="…", caption="…")  # doctest: +SKIP

matplotlib is imported when the first figure is drawn, not before.
"""

from __future__ import annotations

from gpuguide.plotting.axes import linear_axis, log_axis
from gpuguide.plotting.figure import Figure, published_and_mine, show, stamp
from gpuguide.plotting.interactive import roofline_to_try, sampling_to_try
from gpuguide.plotting.marks import bars, ceiling, curves, device_label, legend, name_devices, roofline, stroke
from gpuguide.plotting.palette import DARK, LIGHT, Theme, colour, label
from gpuguide.plotting.pictures import (
    adapter_beside_weights,
    bits_by_magnitude,
    bytes_under_way,
    causal_tiles,
    chain_and_one_read,
    cut_and_draw,
    cycle_of_guesses,
    formats_to_scale,
    frame_to_the_gpu,
    from_text_to_token,
    gradient_of_the_loss,
    group_by_in_a_table,
    join_in_two_steps,
    kernel_lanes,
    kernels_of_a_step,
    layer_on_two_gpus,
    links_to_scale,
    loss_in_chunks,
    mask_tiles,
    memories_of_a_gpu,
    memory_of_a_loss,
    offloaded_layers_over_time,
    online_softmax,
    overlapped_schedule,
    parts_that_are_trained,
    prefill_and_decode,
    race_of_the_tokens,
    radix_sort_passes,
    ring_of_buffers,
    ring_over_time,
    shared_pages,
    slots_over_time,
    softmax_on_a_line,
    step_and_its_data,
    stream_and_queue,
    surprise_of_a_token,
    targets_shifted_by_one,
    tile_traffic,
    two_kernels,
    wait_for_a_word,
    way_of_a_byte,
    ways_to_the_network,
    weights_in_two_orders,
    what_utilisation_counts,
)
from gpuguide.plotting.renditions import is_narrow
from gpuguide.plotting.tables import show_table
from gpuguide.plotting.traces import PANELS, Panel, trace, trace_panel

__all__ = [
    "DARK",
    "LIGHT",
    "PANELS",
    "Figure",
    "Panel",
    "Theme",
    "adapter_beside_weights",
    "bars",
    "bits_by_magnitude",
    "bytes_under_way",
    "causal_tiles",
    "ceiling",
    "chain_and_one_read",
    "colour",
    "curves",
    "cut_and_draw",
    "cycle_of_guesses",
    "device_label",
    "formats_to_scale",
    "frame_to_the_gpu",
    "from_text_to_token",
    "gradient_of_the_loss",
    "group_by_in_a_table",
    "is_narrow",
    "join_in_two_steps",
    "kernel_lanes",
    "kernels_of_a_step",
    "label",
    "layer_on_two_gpus",
    "legend",
    "linear_axis",
    "links_to_scale",
    "log_axis",
    "loss_in_chunks",
    "mask_tiles",
    "memories_of_a_gpu",
    "memory_of_a_loss",
    "name_devices",
    "offloaded_layers_over_time",
    "online_softmax",
    "overlapped_schedule",
    "parts_that_are_trained",
    "prefill_and_decode",
    "published_and_mine",
    "race_of_the_tokens",
    "radix_sort_passes",
    "ring_of_buffers",
    "ring_over_time",
    "roofline",
    "roofline_to_try",
    "sampling_to_try",
    "shared_pages",
    "show",
    "show_table",
    "slots_over_time",
    "softmax_on_a_line",
    "stamp",
    "step_and_its_data",
    "stream_and_queue",
    "stroke",
    "surprise_of_a_token",
    "targets_shifted_by_one",
    "tile_traffic",
    "trace",
    "trace_panel",
    "two_kernels",
    "wait_for_a_word",
    "way_of_a_byte",
    "ways_to_the_network",
    "weights_in_two_orders",
    "what_utilisation_counts",
]
