"""What attention costs: arithmetic, exponentials, bytes and memory, stored whole and a tile at a time.

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
    Pass,
    moved,
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
    Problem,
    pairs,
    problem,
    problem_of,
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

__all__ = [
    "EXPONENTIALS_PER_CLOCK",
    "Floor",
    "Pass",
    "Problem",
    "backward_floor",
    "backward_flops",
    "balanced_head_dim",
    "compulsory_backward_bytes",
    "compulsory_bytes",
    "exponential_rate",
    "exponentials",
    "forward_floor",
    "forward_flops",
    "intensity",
    "io_bound",
    "largest_block",
    "moved",
    "naive_backward",
    "naive_floor",
    "naive_forward",
    "naive_kept_bytes",
    "pairs",
    "problem",
    "problem_of",
    "score_passes",
    "tile_bytes",
    "tiled_backward",
    "tiled_forward",
    "tiled_forward_for_sram",
    "tiled_kept_bytes",
]
