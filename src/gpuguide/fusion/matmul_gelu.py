"""A linear layer with bias and GELU as the epilogue of its matmul, in Triton.

The sums of a tile are in registers when the matmul has finished with it. There bias and GELU cost no memory traffic,
whereas a kernel of their own would read and write the whole output once more. Training needs the input of GELU for the
backward pass, which ``keep_input`` stores as well.

Tiles go in the order of :mod:`gpuguide.precision.matmul`. An epilogue takes time in which tensor cores idle, unless a
multiprocessor has another program whose matmul goes on meanwhile. So small tiles, two programs of which share a
multiprocessor, compete with large ones.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from gpuguide.triton_support.context import device_of
from gpuguide.triton_support.tiles import (
    ALIGNED,
    MatmulTiling,
    count_multiprocessors,
    describe_tiles,
    is_misaligned,
    tile_position,
)

TILING = MatmulTiling(columns=128, stages=3, warps=4, persistent=False)
"""Tiles of which two programs share a multiprocessor"""
SMALL = MatmulTiling(rows=64, columns=128, stages=4, warps=4, persistent=False)
"""Tiles for few tokens, where large ones would leave multiprocessors idle"""
HAS_TANH = tl.constexpr(torch.version.hip is None and not triton.knobs.runtime.interpret)


@triton.jit
def fast_gelu(x):
    """Return GELU in its tanh form, by the one instruction that approximates tanh with an error of 2^-11.

    An exponential and a division would occupy the special function unit twice as long.
    """
    u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    if HAS_TANH:
        t = tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [u], dtype=tl.float32, is_pure=True, pack=1)
    else:
        t = 2 * tl.sigmoid(2 * u) - 1
    return 0.5 * x * (1 + t)


@triton.jit
def compute_tile(
    tile, x, weight, bias_ptr, out, kept, rows, columns, inner,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the output; arguments as in :func:`linear_gelu_kernel`."""
    down, across = tile_position(tile, tl.cdiv(rows, ROWS), tl.cdiv(columns, COLUMNS), GROUP)
    row, column = down * ROWS, across * COLUMNS
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for at in range(0, inner, INNER):  # beyond the ends of a matrix the copy engine brings zeros
        total = tl.dot(x.load([row, at]), weight.load([column, at]).T, total)
    lane = column + tl.arange(0, COLUMNS)
    total += tl.load(bias_ptr + lane, mask=lane < columns, other=0.0).to(tl.float32)[None, :]
    if KEEP:
        kept.store([row, column], total.to(kept.dtype))
    out.store([row, column], fast_gelu(total).to(out.dtype))


@triton.jit
def linear_gelu_kernel(
    x,  # descriptor of (rows, inner)
    weight,  # descriptor of (columns, inner)
    bias_ptr,  # (columns,)
    out,  # descriptor of (rows, columns), written
    kept,  # descriptor of (rows, columns), written with KEEP: the input of GELU
    rows,
    columns,
    inner,
    programs,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    GROUP: tl.constexpr,
    KEEP: tl.constexpr,
    PERSISTENT: tl.constexpr,
):
    """Compute every ``programs``-th tile of the output, or, unless ``PERSISTENT``, one tile."""
    if PERSISTENT:
        tiles = tl.cdiv(rows, ROWS) * tl.cdiv(columns, COLUMNS)
        for tile in tl.range(tl.program_id(0), tiles, programs, flatten=True):
            compute_tile(
                tile, x, weight, bias_ptr, out, kept, rows, columns, inner, ROWS, COLUMNS, INNER, GROUP, KEEP
            )  # fmt: skip
    else:
        compute_tile(
            tl.program_id(0), x, weight, bias_ptr, out, kept, rows, columns, inner, ROWS, COLUMNS, INNER, GROUP, KEEP
        )  # fmt: skip


def launch(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, keep_input: bool, tiling: MatmulTiling | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return GELU of the linear layer, and the input of GELU (empty without ``keep_input``).

    See :func:`gpuguide.fusion.linear_gelu`; ``x`` is ``(rows, inner)`` here.
    """
    (rows, inner), columns = x.shape, weight.shape[0]
    tiling = tiling or choose(rows, columns, count_multiprocessors(x))
    inner_block = tiling.inner // x.element_size()
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    kept = torch.empty_like(out) if keep_input else out.new_empty(0)
    tiles = triton.cdiv(rows, tiling.rows) * triton.cdiv(columns, tiling.columns)
    programs = min(tiles, count_multiprocessors(x)) if tiling.persistent else tiles
    written = describe_tiles(out, tiling.rows, tiling.columns)
    with device_of(x):
        linear_gelu_kernel[(programs,)](
            describe_tiles(x, tiling.rows, inner_block),
            describe_tiles(weight, tiling.columns, inner_block),
            bias.contiguous(),
            written,
            describe_tiles(kept, tiling.rows, tiling.columns) if keep_input else written,
            rows,
            columns,
            inner,
            programs,
            ROWS=tiling.rows,
            COLUMNS=tiling.columns,
            INNER=inner_block,
            GROUP=tiling.group,
            KEEP=keep_input,
            PERSISTENT=tiling.persistent,
            num_warps=tiling.warps,
            num_stages=tiling.stages,
        )
    return out, kept


def choose(rows: int, columns: int, multiprocessors: int) -> MatmulTiling:
    """Return large tiles if there are enough for all multiprocessors, else small ones."""
    tiles = triton.cdiv(rows, TILING.rows) * triton.cdiv(columns, TILING.columns)
    return TILING if tiles >= multiprocessors else SMALL


def supports(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether the kernel can take these: 16 bits, on Hopper or newer, with rows that the copy engine reads."""
    return (
        x.dtype in (torch.bfloat16, torch.float16)
        and torch.cuda.get_device_capability(x.device)[0] >= 9
        and has_readable_rows(x)
        and has_readable_rows(weight)
        and weight.shape[0] * x.element_size() % ALIGNED == 0
    )


def has_readable_rows(matrix: torch.Tensor) -> bool:
    """Return whether the copy engine can read a matrix: some rows, which are aligned and do not overlap."""
    return matrix.numel() > 0 and not is_misaligned(matrix) and matrix.stride(0) >= matrix.shape[1]
