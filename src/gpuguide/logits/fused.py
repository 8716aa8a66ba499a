"""Triton kernels that read long rows once: softmax, and log-sum-exp.

A row of a large vocabulary does not fit one multiprocessor, so a row is cut into pieces and each program takes one of
them. It finds the largest logit of its piece and the sum of the powers below it; from these two numbers of every piece
follows the sum of the whole row.

The log-sum-exp is put together by the program of the row that finishes last. The softmax needs the sum in every
program, while the logits still lie in its registers: each waits for the others of its row, and then writes. A logit is
thus read once and a probability written once, however long the row is. What programs tell each other is one word of 64
bits, the largest logit and the sum together. A word is there or it is not, so nothing else has to be counted or
ordered: a program looks at the words of its row until none is zero.

Waiting is safe because programs take their pieces in the order in which they start. All pieces before a program's own
have been started, so the earliest row that is not finished has all its programs running, or will have them as soon as
a program of an earlier row ends. The programs of one row must fit the GPU at the same time: a multiprocessor holds
four pieces of 32 KiB. Rows of more pieces than a GPU has multiprocessors are refused. Triton's interpreter
runs one program after the other: there a row must be one piece.

How fast this is depends on how much of all rows is under way, since a piece waits about as long as it moves bytes. A
thread holds 256 bytes of a row and needs some forty registers for everything else, so its registers hold more of the
row than if it had half as many bytes. Registers are capped where one program more fits a multiprocessor.

Source of sums below a running maximum: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018,
https://arxiv.org/abs/1805.02867.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

PIECE_BYTES = 32768
"""Bytes of a row that one program processes, enough of which are in flight to keep the memory busy"""
WARP_BYTES = 8192
"""Bytes of a piece for each warp: 256 bytes a thread"""
SOFTMAX_REGISTERS = 112
"""Registers of a thread. With 128 or fewer, four programs of 128 threads share a multiprocessor's 65,536."""
SUM_REGISTERS = 96
"""Registers of a thread of the log-sum-exp, which needs fewer: five programs"""
SMALLEST_BLOCK = 1024
FEWEST_SLOTS = 32
"""Fewest slots: a warp loads as many words at once, so fewer would not be faster"""
LOG2_E = tl.constexpr(1.4426950408889634)
CAN_HIDE = tl.constexpr(torch.version.hip is None and not triton.knobs.runtime.interpret)
"""Whether the instructions of :func:`reconvert_to_fp32` and :func:`pause` exist"""


@triton.jit
def reconvert_to_fp32(x):
    """Convert ``x`` to fp32 in such a way that the compiler does not reuse an earlier conversion.

    It would keep the converted numbers in registers from their first use to their last, where they take twice the space
    of a 16-bit dtype. An opaque move makes it convert again, so that twice as much of a row is in flight.
    """
    if CAN_HIDE:
        if x.dtype.primitive_bitwidth == 16:
            x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)
        else:
            x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=1)
    return x.to(tl.float32)


@triton.jit
def next_piece(words, pieces, SLOTS: tl.constexpr):
    """Return the row and the piece that a program processes: the first that no other program has taken."""
    number = tl.program_id(0).to(tl.int64)  # an offset may exceed 32 bits
    if SLOTS > 1:
        number = tl.atomic_add(words, 1, sem="relaxed")
    return number // pieces, (number % pieces).to(tl.int32)


@triton.jit
def exp_shifted(x, highest):
    """Return ``exp(x - highest)``, as a power of 2, for which there is an instruction."""
    return tl.exp2((x - highest) * LOG2_E)


@triton.jit
def max_and_sum(x):
    """Return the maximum of a piece (zero if that is infinite) and the sum of the exponentials below it."""
    highest = tl.max(x.to(tl.float32), 0)
    highest = tl.where(tl.abs(highest) == float("inf"), 0.0, highest)
    return highest, tl.sum(exp_shifted(reconvert_to_fp32(x), highest), 0)


@triton.jit
def combine_pieces(highest, total):
    """Return maximum and sum of a row from those of its pieces, ``(slots,)``. The sum of an empty slot is zero."""
    row_total = tl.max(tl.where(total == 0, -float("inf"), highest), 0)  # a piece of -inf alone does not count
    rescaled = tl.where((total == 0) | (total == float("inf")), total, total * exp_shifted(highest, row_total))
    return row_total, tl.sum(rescaled, 0)


@triton.jit
def pack_word(highest, total):
    """Pack two fp32 numbers into one 64-bit word, which is never zero."""
    highest = tl.where(total == 0, -float("inf"), highest)
    upper = highest.to(tl.int32, bitcast=True).to(tl.int64) << 32
    return upper | (total.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def unpack_words(words):
    """Unpack the two numbers of each word."""
    highest = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return highest, (words & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def pause():
    """Sleep 200 ns: immediate polling would keep the cache busy, which other programs need."""
    if CAN_HIDE:
        tl.inline_asm_elementwise(
            "nanosleep.u32 200; mov.u32 $0, 0;", "=r,r", [tl.program_id(0)], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def exchange_words(word, words, piece, pieces, SLOTS: tl.constexpr):
    """Publish a word to the other programs of a row, wait for theirs, and return all, ``(SLOTS,)``; empty slots hold 1.

    A word that is still zero has not been published yet.
    """
    tl.atomic_xchg(words + piece, word, sem="relaxed")
    slot = tl.arange(0, SLOTS)
    gathered = tl.load(words + slot, mask=slot < pieces, other=1, volatile=True)
    while tl.min((gathered != 0).to(tl.int32), 0) == 0:
        pause()
        gathered = tl.load(words + slot, mask=slot < pieces, other=1, volatile=True)
    return gathered


@triton.jit
def reduce_over_row(highest, total, words, row, piece, pieces, SLOTS: tl.constexpr):
    """Return maximum and sum of the whole row, from those of this program's piece and the other programs' pieces."""
    if SLOTS > 1:
        gathered = exchange_words(pack_word(highest, total), words + 1 + row * pieces, piece, pieces, SLOTS)
        highests, totals = unpack_words(gathered)
        highest, total = combine_pieces(highests, tl.where(tl.arange(0, SLOTS) < pieces, totals, 0.0))
    return highest, total


@triton.jit
def softmax_kernel(
    logits,  # (rows, vocab)
    probabilities,  # (rows, vocab), contiguous
    words,  # (1 + rows * pieces,), int64, zero: programs so far, then maximum and sum of each piece
    row_stride,
    vocab_size,
    length,  # of a piece
    pieces,
    SLOTS: tl.constexpr,  # a power of two, ``pieces`` or more
    BLOCK: tl.constexpr,  # a power of two, ``length`` or more
):
    """Compute the probabilities of one piece of one row."""
    row, piece = next_piece(words, pieces, SLOTS)
    lane = tl.arange(0, BLOCK)
    inside = (lane < length) & (piece * length + lane < vocab_size)
    here = piece * length + lane
    x = tl.load(logits + row * row_stride + here, mask=inside, other=-float("inf"), eviction_policy="evict_first")
    highest, total = max_and_sum(x)
    highest, total = reduce_over_row(highest, total, words, row, piece, pieces, SLOTS)
    total = tl.where(total == float("inf"), float("nan"), total)  # a logit was +inf: no distribution
    p = exp_shifted(reconvert_to_fp32(x), highest) * (1 / total)
    tl.store(probabilities + row * vocab_size + here, p, mask=inside, eviction_policy="evict_first")


@triton.jit
def log_sum_exp_kernel(
    logits,  # (rows, vocab)
    results,  # (rows,), fp32
    partials,  # (rows, 2, pieces), fp32
    finished_pieces,  # (rows,), int32, zero
    row_stride,
    vocab_size,
    length,
    pieces,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Reduce one piece of one row; the last program of a row combines the pieces."""
    row = (tl.program_id(0) // pieces).to(tl.int64)
    piece = tl.program_id(0) % pieces
    lane = tl.arange(0, BLOCK)
    inside = (lane < length) & (piece * length + lane < vocab_size)
    logits += row * row_stride + piece * length
    x = tl.load(logits + lane, mask=inside, other=-float("inf"), eviction_policy="evict_first")
    highest, total = max_and_sum(x)
    partials += row * 2 * pieces
    tl.store(partials + piece, highest)
    tl.store(partials + pieces + piece, total)
    if tl.atomic_add(finished_pieces + row, 1, sem="acq_rel") == pieces - 1:
        slot = tl.arange(0, SLOTS)  # other multiprocessors wrote these, so these loads bypass the L1 cache
        highests = tl.load(partials + slot, mask=slot < pieces, other=-float("inf"), cache_modifier=".cg")
        totals = tl.load(partials + pieces + slot, mask=slot < pieces, other=0.0, cache_modifier=".cg")
        highest, total = combine_pieces(highests, totals)
        tl.store(results + row, highest + tl.log(total))


def launch_softmax(logits: torch.Tensor, piece_bytes: int = PIECE_BYTES) -> torch.Tensor:
    """Return the probabilities of each row. On a GPU; see :func:`gpuguide.logits.fused_softmax`."""
    rows = as_rows(logits)
    probabilities = torch.empty_like(rows, memory_format=torch.contiguous_format)
    split = RowSplit.from_size(rows.shape[1], rows.element_size(), piece_bytes)
    split.check_occupancy(logits.device)
    softmax_kernel[(len(rows) * split.pieces,)](
        rows,
        probabilities,
        split.allocate_words(len(rows), logits.device),
        rows.stride(0),
        rows.shape[1],
        **split.kernel_arguments(),
        **register_limit(SOFTMAX_REGISTERS),
    )
    return probabilities.view(logits.shape)


def launch_log_sum_exp(logits: torch.Tensor, piece_bytes: int = PIECE_BYTES) -> torch.Tensor:
    """Return the log-sum-exp of each row in fp32. On a GPU; see :func:`gpuguide.logits.fused_log_sum_exp`."""
    rows = as_rows(logits)
    results = torch.empty(len(rows), dtype=torch.float32, device=logits.device)
    split = RowSplit.from_size(rows.shape[1], rows.element_size(), piece_bytes)
    log_sum_exp_kernel[(len(rows) * split.pieces,)](
        rows,
        results,
        split.allocate_partials(len(rows), logits.device),
        torch.zeros(len(rows), dtype=torch.int32, device=logits.device),
        rows.stride(0),
        rows.shape[1],
        **split.kernel_arguments(),
        **register_limit(SUM_REGISTERS),
    )
    return results.view(logits.shape[:-1])


def register_limit(registers: int) -> dict[str, int]:
    """Return the option that caps the registers of a thread, for compilers that have it."""
    return {} if torch.version.hip else {"maxnreg": registers}


def as_rows(logits: torch.Tensor) -> torch.Tensor:
    """Return logits as ``(rows, vocab)`` with contiguous rows."""
    rows = logits.reshape(-1, logits.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


@dataclass(frozen=True)
class RowSplit:
    """Split of a row into pieces, all but the last of the same length."""

    length: int
    pieces: int
    block: int
    warps: int

    @classmethod
    def from_size(
        cls, columns: int, element_size: int, piece_bytes: int = PIECE_BYTES, warp_bytes: int = WARP_BYTES
    ) -> RowSplit:
        """Return the split of rows of ``columns`` elements into pieces of at most ``piece_bytes``."""
        pieces = triton.cdiv(columns * element_size, piece_bytes)
        length = 64 * triton.cdiv(triton.cdiv(columns, pieces), 64)  # pieces start at addresses that allow wide loads
        block = max(SMALLEST_BLOCK, triton.next_power_of_2(length))
        return cls(length, triton.cdiv(columns, length), block, max(1, min(32, block * element_size // warp_bytes)))

    @property
    def slots(self) -> int:
        """Slots for the pieces, a power of two; one if a row is one piece."""
        return 1 if self.pieces == 1 else max(FEWEST_SLOTS, int(triton.next_power_of_2(self.pieces)))

    def kernel_arguments(self) -> dict[str, int]:
        """Return the kernel arguments that describe the split."""
        return {
            "length": self.length,
            "pieces": self.pieces,
            "SLOTS": self.slots,
            "BLOCK": self.block,
            "num_warps": self.warps,
        }

    def check_occupancy(self, device: torch.device) -> None:
        """Raise a :class:`ValueError` if the programs of a row might not run at the same time, a deadlock."""
        if device.type == "cuda" and self.pieces > torch.cuda.get_device_properties(device).multi_processor_count:
            raise ValueError(
                f"A row of {self.pieces} pieces needs as many multiprocessors, and this GPU has fewer: "
                "use torch.softmax or torch.nn.functional.cross_entropy for rows so long."
            )

    def allocate_words(self, rows: int, device: torch.device) -> torch.Tensor:
        """Return zeros for the exchange between programs: a counter of started programs, and a word for each piece."""
        return torch.zeros(1 + rows * self.pieces, dtype=torch.int64, device=device)

    def allocate_partials(self, rows: int, device: torch.device) -> torch.Tensor:
        """Return an uninitialised buffer for the maximum and the sum of each piece."""
        return torch.empty(rows, 2, self.pieces, dtype=torch.float32, device=device)
