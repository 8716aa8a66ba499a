"""A Triton kernel for the softmax of few long rows: the programs of a row form a thread-block cluster.

The softmax of :mod:`gpuguide.logits.fused` lets the programs of a row tell each other their sums through words in
memory, which another launch has to set to zero first, and which they read until all are there. The programs of a
cluster run at the same time, on neighbouring multiprocessors, and write into each other's shared memory. So one launch
is enough, no word goes through the L2 cache, nothing is counted, and nobody can wait in vain. In exchange, a cluster
starts only where there is room for all of it. With many rows, an H200 was faster without.

A program holds a piece of its row in registers. Where they have room for it, they hold the exponentials in fp32 rather
than the logits, so that each is computed once.

Wide loads and stores need addresses that are multiples of 16 bytes. If rows have an odd length, like the 50,257 tokens
of GPT-2, nearly all begin in between. A program then loads from the last such address before its row, and leaves out
what belongs to the row before. The few probabilities at both ends of a row, which share their 16 bytes with another
row, are written one by one.

Clusters exist on GPUs of compute capability 9.0 and up. This kernel was measured on one of 9.0 (Hopper) and is used
on these alone, since others may not start clusters of 16 programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from gpuguide.logits.fused import CAN_HIDE, PIECE_BYTES, as_rows, exp_shifted, reconvert_to_fp32

HOPPER = 9
"""Major compute capability of the GPUs that use clusters here"""
PIECES = 8
"""Programs of a cluster, the most that every GPU with clusters can start"""
MOST_PIECES = 16
"""Programs of a cluster for rows that would give each of eight more than 32 KiB"""
WARPS = 4
PROGRAMS_AT_ONCE = 4
"""Programs that a multiprocessor runs at a time, or more"""
FEWEST_MULTIPROCESSORS = 64
"""A smaller slice of a GPU (MIG) may have no room for a cluster of 16 programs"""
KEPT = 64
"""Most elements of a thread whose exponentials are kept in registers"""
REGISTERS = 128
"""Most registers of a thread, so that four programs of 128 threads share a multiprocessor's 65,536"""
KEPT_REGISTERS = 96
"""Most registers of a thread that keeps exponentials of rows that begin at multiples of 16 bytes: five programs"""
VECTOR_BYTES = 16


@triton.jit
def announce_start():
    """Tell the cluster that this program has started: nobody may write into its shared memory before."""
    if CAN_HIDE:
        tl.inline_asm_elementwise(
            "barrier.cluster.arrive.aligned; mov.u32 $0, 0;", "=r,r", [tl.program_id(0)], tl.int32, False, 1
        )


@triton.jit
def exchange_in_cluster(highest, total, PIECES: tl.constexpr):
    """Return maximum and sum of all pieces, ``(PIECES, PIECES)``, one row for each program, from ``(PIECES,)``.

    Each lane of a warp writes the two numbers of this program's piece into the shared memory of one program. The first
    wait is for the others' :func:`announce_start`, the second for their numbers.
    """
    if CAN_HIDE:
        words = tl.inline_asm_elementwise(
            """{
            .shared .align 8 .b64 words[16];
            .reg .b32 lane, programs, rank, there;
            .reg .pred writes;
            barrier.cluster.wait.aligned;
            mov.u32 lane, %laneid;
            mov.u32 programs, %cluster_nctarank;
            mov.u32 rank, %cluster_ctarank;
            setp.lt.u32 writes, lane, programs;
            mov.u32 $0, words;
            mad.lo.u32 there, rank, 8, $0;
            @writes mapa.shared::cluster.u32 there, there, lane;
            @writes st.shared::cluster.v2.f32 [there], {$1, $2};
            barrier.cluster.arrive.aligned;
            barrier.cluster.wait.aligned;
            }""",
            "=&r,f,f",
            [highest, total],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
        highests, totals = tl.inline_asm_elementwise(
            "ld.shared.v2.f32 {$0, $1}, [$2];",
            "=f,=f,r",
            [words[:, None] + 8 * tl.arange(0, PIECES)[None, :]],
            dtype=(tl.float32, tl.float32),
            is_pure=False,
            pack=1,
        )
    else:  # the interpreter's one program is the whole cluster
        highests = tl.broadcast_to(highest[None, :], PIECES, PIECES)
        totals = tl.broadcast_to(total[None, :], PIECES, PIECES)
    return highests, totals


@triton.jit
def max_sum_and_powers(x):
    """Return of each piece the maximum (zero if infinite), and the sum of the exponentials below it, and these."""
    highest = tl.max(x.to(tl.float32), 1)
    highest = tl.where(tl.abs(highest) == float("inf"), 0.0, highest)
    powers = exp_shifted(reconvert_to_fp32(x), highest[:, None])
    return highest, tl.sum(powers, 1), powers


@triton.jit
def combine_pieces(highest, total):
    """Return maximum and sum of a row from those of its pieces. The sum of an empty piece is zero."""
    of_row = tl.max(tl.where(total == 0, -float("inf"), highest), 1)  # a piece of -inf alone does not count
    shares = total * exp_shifted(highest, of_row[:, None])
    return of_row, tl.sum(tl.where((total == 0) | (total == float("inf")), total, shares), 1)


@triton.jit
def load_row(logits, before, vocab_size, length, PIECES: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """Return a row's pieces, their offsets, and whether a wide store may write them: all of its elements are the row's.

    The row begins ``before`` elements after ``logits``, which it does not unless ``VECTOR`` is more than 1.
    """
    lane = tl.arange(0, BLOCK)[None, :]
    here = tl.arange(0, PIECES)[:, None] * length + lane
    if VECTOR == 1:
        inside = (lane < length) & (here < vocab_size)
        x = tl.load(logits + here, mask=inside, other=-float("inf"), eviction_policy="evict_first")
    else:
        column = here // VECTOR * VECTOR - before  # of the first of 16 bytes, so that the masks are the same for all
        some = (lane < length) & (column < vocab_size)
        inside = (lane < length) & (column >= 0) & (column <= vocab_size - VECTOR)
        x = tl.load(logits + here, mask=some, other=-float("inf"), eviction_policy="evict_first")
        nothing = tl.full((1, 1), -float("inf"), tl.float32).to(x.dtype)
        x = tl.where((here >= before) & (here - before < vocab_size), x, nothing)
    return x, here, inside


@triton.jit
def edges_of_row(before, vocab_size, PIECES: tl.constexpr, VECTOR: tl.constexpr):
    """Return columns at both ends of a row, and whether they share their 16 bytes with another row.

    Only the first program has any.
    """
    number = tl.arange(0, 2 * VECTOR)[None, :] + tl.zeros((PIECES, 1), tl.int32)
    column = tl.where(number < VECTOR, number, vocab_size + VECTOR - 1 - number)
    count = tl.where(number < VECTOR, VECTOR - before, before + vocab_size) % VECTOR
    shared = (number % VECTOR < count) & (column >= 0) & (column < vocab_size)
    return column, shared & (tl.arange(0, PIECES)[:, None] == 0)


@triton.jit
def softmax_cluster_kernel(
    logits,  # (rows, vocab)
    probabilities,  # (rows, vocab), contiguous
    row_stride,
    vocab_size,
    length,  # of a piece
    PIECES: tl.constexpr,  # of a row, one for each program of the cluster
    BLOCK: tl.constexpr,  # a power of two, ``length`` or more
    VECTOR: tl.constexpr,  # 1, or the elements of 16 bytes: contiguous rows that begin between multiples of 16 bytes
    KEEP: tl.constexpr,  # whether the registers hold exponentials, and not logits
):
    """Compute the probabilities of one row."""
    announce_start()
    row = tl.program_id(0).to(tl.int64)
    before = (row * row_stride % VECTOR).to(tl.int32)
    logits += row * row_stride // VECTOR * VECTOR
    probabilities += row * vocab_size // VECTOR * VECTOR
    x, here, inside = load_row(logits, before, vocab_size, length, PIECES, BLOCK, VECTOR)
    if VECTOR > 1:
        edge, shared = edges_of_row(before, vocab_size, PIECES, VECTOR)
        y = tl.load(logits + before + edge, mask=shared, other=-float("inf"))
    own_highest, own_total, powers = max_sum_and_powers(x)
    highests, totals = exchange_in_cluster(own_highest, own_total, PIECES)
    highest, total = combine_pieces(highests, totals)
    total = tl.where(total == float("inf"), float("nan"), total)  # a logit was +inf: no distribution
    scale = 1 / total
    if KEEP:
        p = powers * (tl.where(own_total == 0, 0.0, exp_shifted(own_highest, highest)) * scale)[:, None]
    else:
        p = exp_shifted(reconvert_to_fp32(x), highest[:, None]) * scale[:, None]
    tl.store(probabilities + here, p, mask=inside, eviction_policy="evict_first")
    if VECTOR > 1:
        p = exp_shifted(y.to(tl.float32), highest[:, None]) * scale[:, None]
        tl.store(probabilities + before + edge, p, mask=shared)


def launch_softmax(logits: torch.Tensor, split: ClusterSplit) -> torch.Tensor:
    """Return the probabilities of each row. On a GPU; see :func:`gpuguide.logits.fused_softmax`."""
    rows = as_rows(logits)
    probabilities = torch.empty_like(rows, memory_format=torch.contiguous_format)
    softmax_cluster_kernel[(len(rows),)](
        rows,
        probabilities,
        rows.stride(0),
        rows.shape[1],
        split.length,
        VECTOR=vector_elements(rows),
        **split.kernel_arguments(),
    )
    return probabilities.view(logits.shape)


def vector_elements(rows: torch.Tensor) -> int:
    """Return the elements of 16 bytes if rows begin between multiples of 16 bytes, alike in logits and probabilities.

    Otherwise 1: if all rows begin and end at such multiples, the compiler knows that by itself.
    """
    elements = VECTOR_BYTES // rows.element_size()
    contiguous = len(rows) == 1 or rows.stride(0) == rows.shape[1]
    odd = contiguous and rows.shape[1] % elements and rows.data_ptr() % VECTOR_BYTES == 0
    return elements if odd else 1


@dataclass(frozen=True)
class ClusterSplit:
    """Split of a row into the pieces of a cluster, all but the last of the same length."""

    length: int
    pieces: int
    block: int
    warps: int
    aligned: bool
    """Whether contiguous rows begin at multiples of 16 bytes, if the first does"""

    @classmethod
    def from_size(cls, columns: int, element_size: int, pieces: int | None = None, warps: int = WARPS) -> ClusterSplit:
        """Return the split of rows of ``columns`` elements: into eight pieces, or 16 if a piece would exceed 32 KiB."""
        if pieces is None:
            eight = cls.from_size(columns, element_size, PIECES)
            pieces = PIECES if eight.block * element_size <= PIECE_BYTES else MOST_PIECES
        before = 0 if columns % VECTOR_BYTES == 0 else VECTOR_BYTES  # a row may begin after a multiple of 16 bytes
        length = 64 * triton.cdiv(before + columns, 64 * pieces)
        block = int(triton.next_power_of_2(length))
        return cls(length, pieces, block, warps, columns * element_size % VECTOR_BYTES == 0)

    @classmethod
    def for_few_rows(cls, logits: torch.Tensor) -> ClusterSplit | None:
        """Return the split if a cluster is faster: few rows on Hopper, too long for one program but not for 16.

        On an H200 with 64 rows, clusters were faster that all found room at once, and also those that filled the GPU
        twice if no thread of theirs was idle. They were slower with pieces of 64 KiB, with many idle threads and a GPU
        filled twice, and with 4,096 rows.
        """
        gpu = torch.cuda.get_device_properties(logits.device)
        if torch.version.hip or gpu.major != HOPPER or gpu.multi_processor_count < FEWEST_MULTIPROCESSORS:
            return None
        columns, element_size = logits.shape[-1], logits.element_size()
        split = cls.from_size(columns, element_size)
        if columns * element_size <= PIECE_BYTES or split.block * element_size > PIECE_BYTES:
            return None
        if columns % (VECTOR_BYTES // element_size) and element_size > 2:
            return None  # not measured
        idle = split.block - split.length
        rounds = 2 if idle == 0 else 1 if 4 * idle <= split.block else 0
        at_once = PROGRAMS_AT_ONCE * gpu.multi_processor_count
        return split if logits.numel() // columns * split.pieces <= rounds * at_once else None

    def kernel_arguments(self) -> dict[str, Any]:
        """Return the kernel arguments and launch options that describe the split, without the length."""
        keep = self.block <= 32 * self.warps * KEPT
        registers = KEPT_REGISTERS if keep and self.aligned else REGISTERS
        options = {"num_warps": self.warps, "num_ctas": self.pieces, "maxnreg": registers}
        return {"PIECES": self.pieces, "BLOCK": self.block, "KEEP": keep, **options}
