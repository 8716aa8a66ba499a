"""Cost model of attention: arithmetic, exponentials, bytes and memory, with scores in memory and in tiles.

The time of attention on a GPU has three floors: the products at the rate of the tensor cores, the exponentials at the
rate of the units for special functions, and the bytes at the bandwidth of the memory. Which is highest depends on the
size of a head and on whether the scores are stored.
"""

from __future__ import annotations

from gpuguide.attention.cost.floors import (
    EXPONENTIALS_PER_CLOCK,
    Floor,
    backward_floor,
    balanced_head_dim,
    exponential_rate,
    forward_floor,
    naive_floor,
)
from gpuguide.attention.cost.naive import (
    NaiveOperation,
    bytes_moved,
    naive_backward,
    naive_forward,
    naive_kept_bytes,
    score_passes,
)
from gpuguide.attention.cost.operations import (
    backward_flops,
    exponentials,
    forward_flops,
    intensity,
)
from gpuguide.attention.cost.sizes import (
    AttentionProblem,
    pairs,
    problem,
    problem_from_tensors,
)
from gpuguide.attention.cost.tiles import (
    compulsory_backward_bytes,
    compulsory_bytes,
    io_bound,
    largest_block,
    tile_bytes,
    tiled_backward,
    tiled_forward,
    tiled_forward_for_sram,
    tiled_kept_bytes,
)

__all__ = [  # noqa: RUF022 - the order of the API reference
    "EXPONENTIALS_PER_CLOCK",
    "AttentionProblem",
    "problem",
    "problem_from_tensors",
    "pairs",
    "forward_flops",
    "backward_flops",
    "exponentials",
    "intensity",
    "NaiveOperation",
    "naive_forward",
    "naive_backward",
    "score_passes",
    "bytes_moved",
    "compulsory_bytes",
    "compulsory_backward_bytes",
    "tiled_forward",
    "tiled_backward",
    "tile_bytes",
    "largest_block",
    "tiled_forward_for_sram",
    "io_bound",
    "naive_kept_bytes",
    "tiled_kept_bytes",
    "Floor",
    "exponential_rate",
    "forward_floor",
    "backward_floor",
    "naive_floor",
    "balanced_head_dim",
]
