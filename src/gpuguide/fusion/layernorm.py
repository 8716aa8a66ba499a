"""Residual addition and layer normalisation in one kernel, forward and backward, in Triton.

With ``s = x + residual`` the result is ``y = (s - mean) * rstd * weight + bias``. A row lies in registers from its load
to its store, so the forward pass moves four arrays of the size of ``x``: ``x`` and ``residual`` in, ``s`` and ``y``
out. The backward pass moves four too: ``dy``, ``ds`` and ``s`` in, ``dx`` out. The mean is subtracted before squares
are taken, since the square of a large mean would cancel the variance.

The gradients of weight and bias are sums over all rows. Each program of the backward kernel takes every
``programs``-th row and keeps its own sums in registers; a second kernel adds up the sums of all programs. While a
program computes with one row, the next ones are on their way to shared memory.

A row wider than :data:`WIDEST_FUSED` leaves no registers for such sums. There one kernel makes ``dx`` from rows, and
another one the sums from columns, which reads ``dy`` and ``s`` once more: six arrays instead of four.

Sources: J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", 2016, https://arxiv.org/abs/1607.06450; Triton,
tutorial 05, "Layer Normalization", for partial sums of the weight's gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from gpuguide.triton_support.context import device_of
from gpuguide.triton_support.tiles import count_multiprocessors

WIDEST_FUSED = 8192
"""Widest row whose backward pass is one kernel: a thread holds its part of two sums in registers"""
SUM_COLUMNS = 16
SUM_ROWS = 64
"""Columns and rows that the kernel which adds up partial sums reads at a time"""
COLUMN_BLOCK = 64
ROW_BLOCK = 32
"""Columns and rows of a tile of :func:`weight_sums_kernel`"""


@dataclass(frozen=True)
class Schedule:
    """Shape of the programs that process rows."""

    warps: int
    rows: int = 1
    """Rows that a program of the forward kernel holds at a time"""
    per_multiprocessor: int = 1
    """Programs of the backward kernel for each multiprocessor"""
    stages: int = 1
    """Rows that are in registers or on their way to a program of the backward kernel at a time"""


FORWARD = {
    1024: Schedule(warps=4, rows=2),
    2048: Schedule(warps=4),
    4096: Schedule(warps=16, rows=2),
    8192: Schedule(warps=16),
}
"""Schedule of the forward kernel by the width of a row, rounded up to a power of two"""
BACKWARD = {
    1024: Schedule(warps=2, per_multiprocessor=6, stages=3),
    2048: Schedule(warps=4, per_multiprocessor=4, stages=3),
    4096: Schedule(warps=8, per_multiprocessor=2, stages=3),
    8192: Schedule(warps=16, per_multiprocessor=1, stages=3),
}
"""The same of the backward kernel"""
WIDE = Schedule(warps=16)
"""Schedule of rows that are wider than those"""


def choose(schedules: dict[int, Schedule], columns: int) -> Schedule:
    """Return the schedule for rows of ``columns`` elements."""
    block = max(min(schedules), triton.next_power_of_2(columns))
    return schedules.get(block, WIDE)


@triton.jit
def add_pairs(a, b, c, d):
    """Add two pairs of numbers: both sums of a row are taken in one reduction, with half the barriers of two."""
    return a + c, b + d


@triton.jit
def add_layer_norm_kernel(
    x_ptr,  # (rows, columns)
    residual_ptr,  # (rows, columns)
    weight_ptr,  # (columns,)
    bias_ptr,  # (columns,)
    s_ptr,  # (rows, columns), written: x + residual
    y_ptr,  # (rows, columns), written
    mean_ptr,  # (rows,) fp32, written
    rstd_ptr,  # (rows,) fp32, written: 1 / standard deviation
    rows,
    columns,
    epsilon,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Normalise ``ROWS`` rows of the sum of ``x`` and ``residual``."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    offsets = row[:, None].to(tl.int64) * columns + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    x = tl.load(x_ptr + offsets, mask=inside, other=0.0, eviction_policy="evict_first")
    residual = tl.load(residual_ptr + offsets, mask=inside, other=0.0, eviction_policy="evict_first")
    w = tl.load(weight_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    b = tl.load(bias_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
    # -- s, rounded as it is stored, since the backward pass and the next block see the stored one
    s = (x.to(tl.float32) + residual.to(tl.float32)).to(s_ptr.dtype.element_ty)
    tl.store(s_ptr + offsets, s, mask=inside)
    s = s.to(tl.float32)
    # -- the mean, and then the variance of what is left
    mean = tl.sum(s, 1) / columns
    centered = tl.where(inside, s - mean[:, None], 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centered * centered, 1) / columns + epsilon)
    y = centered * rstd[:, None] * w[None, :] + b[None, :]
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=inside)
    tl.store(mean_ptr + row, mean, mask=row < rows)
    tl.store(rstd_ptr + row, rstd, mask=row < rows)


@triton.jit
def add_layer_norm_backward_kernel(
    dy_ptr,  # (rows, columns)
    ds_ptr,  # (rows, columns), read with HAS_DS: the gradient that reaches s directly
    s_ptr,  # (rows, columns)
    weight_ptr,  # (columns,)
    mean_ptr,  # (rows,) fp32
    rstd_ptr,  # (rows,) fp32
    dx_ptr,  # (rows, columns), written: the gradient of x, and of residual
    sums_ptr,  # (2, programs, columns) fp32, written with SUMS: of dw and of db
    rows,
    columns,
    BLOCK: tl.constexpr,
    HAS_DS: tl.constexpr,
    SUMS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute every ``programs``-th row of ``dx``, and what these rows add to the gradients of weight and bias."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    w = tl.load(weight_ptr + column, mask=inside, other=0.0)
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(program, rows, programs, num_stages=STAGES):
        start = tl.cast(row, tl.int64) * columns
        dy = tl.load(dy_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(s_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
        mean, rstd = tl.load(mean_ptr + row), tl.load(rstd_ptr + row)
        x_hat = tl.where(inside, (s - mean) * rstd, 0.0)
        if SUMS:
            dw += dy * x_hat
            db += dy
        # -- dx is g less its mean and its part along x_hat, which normalising removes
        g = dy * w.to(tl.float32)
        total, along = tl.reduce((g, g * x_hat), 0, add_pairs)
        dx = (g - total / columns - x_hat * (along / columns)) * rstd
        if HAS_DS:
            dx += tl.load(ds_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + start + column, dx.to(dx_ptr.dtype.element_ty), mask=inside)
    if SUMS:
        dw_sums = sums_ptr + program.to(tl.int64) * columns + column
        tl.store(dw_sums, dw, mask=inside)
        tl.store(dw_sums + programs.to(tl.int64) * columns, db, mask=inside)


@triton.jit
def weight_sums_kernel(
    dy_ptr,  # (rows, columns)
    s_ptr,  # (rows, columns)
    mean_ptr,  # (rows,) fp32
    rstd_ptr,  # (rows,) fp32
    sums_ptr,  # (2, programs, columns) fp32, written: of dw and of db
    rows,
    columns,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Add up ``dy * x_hat`` and ``dy`` of some columns, over every ``programs``-th block of rows."""
    program, programs = tl.program_id(1), tl.num_programs(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    dw = tl.zeros((ROWS, COLUMNS), tl.float32)
    db = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(program * ROWS, rows, programs * ROWS):
        row = first + tl.arange(0, ROWS)
        offsets = row[:, None].to(tl.int64) * columns + column[None, :]
        both = (row[:, None] < rows) & inside[None, :]
        dy = tl.load(dy_ptr + offsets, mask=both, other=0.0).to(tl.float32)
        s = tl.load(s_ptr + offsets, mask=both, other=0.0).to(tl.float32)
        mean = tl.load(mean_ptr + row, mask=row < rows, other=0.0)
        rstd = tl.load(rstd_ptr + row, mask=row < rows, other=0.0)
        dw += dy * (s - mean[:, None]) * rstd[:, None]
        db += dy
    dw_sums = sums_ptr + program.to(tl.int64) * columns + column
    tl.store(dw_sums, tl.sum(dw, 0), mask=inside)
    tl.store(dw_sums + programs.to(tl.int64) * columns, tl.sum(db, 0), mask=inside)


@triton.jit
def add_sums_kernel(
    sums_ptr,  # (2, parts, columns) fp32
    dw_ptr,  # (columns,), written
    db_ptr,  # (columns,), written
    parts,
    columns,
    PARTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Add up the sums of all programs: of dw in the first row of the grid, of db in the second."""
    which = tl.program_id(1)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < columns
    total = tl.zeros((PARTS, COLUMNS), tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        offsets = (which * parts + part)[:, None].to(tl.int64) * columns + column[None, :]
        total += tl.load(sums_ptr + offsets, mask=(part[:, None] < parts) & inside[None, :], other=0.0)
    result = tl.sum(total, 0)
    if which == 0:
        tl.store(dw_ptr + column, result.to(dw_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(db_ptr + column, result.to(db_ptr.dtype.element_ty), mask=inside)


def launch_forward(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    epsilon: float,
    schedule: Schedule | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return y, s, and the mean and reciprocal standard deviation of each row; see :func:`add_layer_norm`."""
    columns = x.shape[-1]
    rows = x.numel() // columns
    schedule = schedule or choose(FORWARD, columns)
    y, s = torch.empty_like(x), torch.empty_like(x)
    mean, rstd = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    with device_of(x):
        add_layer_norm_kernel[(triton.cdiv(rows, schedule.rows),)](
            x,
            residual,
            weight,
            bias,
            s,
            y,
            mean,
            rstd,
            rows,
            columns,
            epsilon,
            BLOCK=triton.next_power_of_2(columns),
            ROWS=schedule.rows,
            num_warps=schedule.warps,
        )
    return y, s, mean, rstd


def launch_backward(
    dy: torch.Tensor,
    ds: torch.Tensor | None,
    s: torch.Tensor,
    weight: torch.Tensor,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    schedule: Schedule | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of x (and of the residual), weight and bias; all tensors contiguous."""
    columns = s.shape[-1]
    rows = s.numel() // columns
    schedule = schedule or choose(BACKWARD, columns)
    fused = columns <= WIDEST_FUSED
    multiprocessors = count_multiprocessors(s)
    programs = min(rows, multiprocessors * schedule.per_multiprocessor) if fused else rows
    down = (
        programs
        if fused
        else min(triton.cdiv(rows, ROW_BLOCK), triton.cdiv(16 * multiprocessors, columns // COLUMN_BLOCK))
    )
    dx = torch.empty_like(s)
    dw, db = torch.empty_like(weight), torch.empty_like(weight)
    sums = torch.empty(2, down, columns, dtype=torch.float32, device=s.device)
    with device_of(s):
        add_layer_norm_backward_kernel[(programs,)](
            dy,
            s if ds is None else ds,
            s,
            weight,
            mean,
            rstd,
            dx,
            sums,
            rows,
            columns,
            BLOCK=triton.next_power_of_2(columns),
            HAS_DS=ds is not None,
            SUMS=fused,
            STAGES=schedule.stages,
            num_warps=schedule.warps,
        )
        if not fused:
            weight_sums_kernel[(triton.cdiv(columns, COLUMN_BLOCK), down)](
                dy, s, mean, rstd, sums, rows, columns, ROWS=ROW_BLOCK, COLUMNS=COLUMN_BLOCK, num_warps=4
            )
        add_sums_kernel[(triton.cdiv(columns, SUM_COLUMNS), 2)](
            sums, dw, db, down, columns, PARTS=SUM_ROWS, COLUMNS=SUM_COLUMNS, num_warps=4
        )
    return dx, dw, db
