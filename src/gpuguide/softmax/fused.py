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
a program of an earlier row ends. It needs room for the programs of one row at the same time: a multiprocessor has
room for four pieces of 32 KiB. Rows of more pieces than a GPU has multiprocessors are refused. Triton's interpreter
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
"""Of a row that one program takes. Enough of these are under way on a multiprocessor to keep its memory busy."""
WARP_BYTES = 8192
"""Of a piece for each warp: 256 bytes a thread"""
SOFTMAX_REGISTERS = 128
"""Of a thread. With as many, four programs of 128 threads share the 65,536 registers of a multiprocessor."""
SUM_REGISTERS = 96
"""The same for a log-sum-exp, which needs fewer: five programs"""
SMALLEST_BLOCK = 1024
FEWEST_SLOTS = 32
"""A warp looks at as many words at once, so that a kernel for fewer pieces would not be faster"""
LOG2_E = tl.constexpr(1.4426950408889634)
CAN_HIDE = tl.constexpr(torch.version.hip is None and not triton.knobs.runtime.interpret)
"""Whether the instruction of :func:`converted_anew` exists"""


@triton.jit
def converted_anew(x):
    """Return ``x`` in fp32, without the compiler knowing that it has these numbers already.

    It would keep the converted numbers in registers from their first use to their last, in twice the room of a 16-bit
    format. A move that it cannot see through makes it convert again, and twice as much of a row is under way.
    """
    if CAN_HIDE:
        if x.dtype.primitive_bitwidth == 16:
            x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=2)
        else:
            x = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x], dtype=x.dtype, is_pure=False, pack=1)
    return x.to(tl.float32)


@triton.jit
def next_piece(words, pieces, SLOTS: tl.constexpr):
    """Return the row and the piece of it that a program takes: the first one that no other has taken."""
    number = tl.program_id(0).to(tl.int64)  # an offset may exceed 32 bits
    if SLOTS > 1:
        number = tl.atomic_add(words, 1, sem="relaxed")
    return number // pieces, (number % pieces).to(tl.int32)


@triton.jit
def power(x, highest):
    """Return ``exp(x - highest)``. A power of two is an instruction, a power of e is not."""
    return tl.exp2((x - highest) * LOG2_E)


@triton.jit
def highest_and_sum(x):
    """Return the highest logit of a piece (zero if that is infinite) and the sum of the powers below it."""
    highest = tl.max(x.to(tl.float32), 0)
    highest = tl.where(tl.abs(highest) == float("inf"), 0.0, highest)
    return highest, tl.sum(power(converted_anew(x), highest), 0)


@triton.jit
def of_whole_row(highest, total):
    """Return highest and sum of a row from those of its pieces, ``(slots,)``. Without a piece, a slot's sum is zero."""
    of_row = tl.max(tl.where(total == 0, -float("inf"), highest), 0)  # a piece that holds -inf alone has no say
    share = tl.where((total == 0) | (total == float("inf")), total, total * power(highest, of_row))
    return of_row, tl.sum(share, 0)


@triton.jit
def in_one_word(highest, total):
    """Return two numbers in fp32 as one word, which is not zero."""
    highest = tl.where(total == 0, -float("inf"), highest)
    upper = highest.to(tl.int32, bitcast=True).to(tl.int64) << 32
    return upper | (total.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def out_of_words(words):
    """Return the two numbers of each word."""
    highest = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return highest, (words & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def exchanged(word, words, piece, pieces, SLOTS: tl.constexpr):
    """Give the other programs of a row a word, wait for theirs, and return all: ``(SLOTS,)``, ones where no piece is.

    A word that is still zero is not there yet.
    """
    tl.atomic_xchg(words + piece, word, sem="relaxed")
    slot = tl.arange(0, SLOTS)
    found = tl.load(words + slot, mask=slot < pieces, other=1, volatile=True)
    while tl.min((found != 0).to(tl.int32), 0) == 0:
        found = tl.load(words + slot, mask=slot < pieces, other=1, volatile=True)
    return found


@triton.jit
def shared_with_row(highest, total, words, row, piece, pieces, SLOTS: tl.constexpr):
    """Return highest and sum of the whole row, of which each program knows those of its own piece."""
    if SLOTS > 1:
        found = exchanged(in_one_word(highest, total), words + 1 + row * pieces, piece, pieces, SLOTS)
        highests, totals = out_of_words(found)
        highest, total = of_whole_row(highests, tl.where(tl.arange(0, SLOTS) < pieces, totals, 0.0))
    return highest, total


@triton.jit
def softmax_kernel(
    logits,  # (rows, vocab)
    probabilities,  # (rows, vocab), contiguous
    words,  # (1 + rows * pieces,), int64, zero: programs so far, then highest and sum of each piece
    row_stride,
    vocab_size,
    length,  # of a piece
    pieces,
    SLOTS: tl.constexpr,  # a power of two, ``pieces`` or more
    BLOCK: tl.constexpr,  # a power of two, ``length`` or more
):
    """Take one piece of one row."""
    row, piece = next_piece(words, pieces, SLOTS)
    lane = tl.arange(0, BLOCK)
    inside = (lane < length) & (piece * length + lane < vocab_size)
    here = piece * length + lane
    x = tl.load(logits + row * row_stride + here, mask=inside, other=-float("inf"), eviction_policy="evict_first")
    highest, total = highest_and_sum(x)
    highest, total = shared_with_row(highest, total, words, row, piece, pieces, SLOTS)
    total = tl.where(total == float("inf"), float("nan"), total)  # a logit was +inf: no distribution
    powers = power(converted_anew(x), highest) * (1 / total)
    tl.store(probabilities + row * vocab_size + here, powers, mask=inside, eviction_policy="evict_first")


@triton.jit
def log_sum_exp_kernel(
    logits,  # (rows, vocab)
    results,  # (rows,), fp32
    numbers,  # (rows, 2, pieces), fp32
    arrived,  # (rows,), int32, zero
    row_stride,
    vocab_size,
    length,
    pieces,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Take one piece of one row; the last program of a row puts its sum together."""
    row = (tl.program_id(0) // pieces).to(tl.int64)
    piece = tl.program_id(0) % pieces
    lane = tl.arange(0, BLOCK)
    inside = (lane < length) & (piece * length + lane < vocab_size)
    logits += row * row_stride + piece * length
    x = tl.load(logits + lane, mask=inside, other=-float("inf"), eviction_policy="evict_first")
    highest, total = highest_and_sum(x)
    numbers += row * 2 * pieces
    tl.store(numbers + piece, highest)
    tl.store(numbers + pieces + piece, total)
    if tl.atomic_add(arrived + row, 1, sem="acq_rel") == pieces - 1:
        slot = tl.arange(0, SLOTS)  # other multiprocessors wrote these, so they are read past the own one's cache
        highests = tl.load(numbers + slot, mask=slot < pieces, other=-float("inf"), cache_modifier=".cg")
        totals = tl.load(numbers + pieces + slot, mask=slot < pieces, other=0.0, cache_modifier=".cg")
        highest, total = of_whole_row(highests, totals)
        tl.store(results + row, highest + tl.log(total))


def softmax(logits: torch.Tensor, piece_bytes: int = PIECE_BYTES) -> torch.Tensor:
    """Return the probabilities of each row. On a GPU; see :func:`gpuguide.softmax.softmax`."""
    rows = as_rows(logits)
    probabilities = torch.empty_like(rows, memory_format=torch.contiguous_format)
    cut = Cut.of(rows.shape[1], rows.element_size(), piece_bytes)
    cut.check_room(logits.device)
    softmax_kernel[(len(rows) * cut.pieces,)](
        rows,
        probabilities,
        cut.words(len(rows), logits.device),
        rows.stride(0),
        rows.shape[1],
        **cut.arguments(),
        **at_most(SOFTMAX_REGISTERS),
    )
    return probabilities.view(logits.shape)


def log_sum_exp(logits: torch.Tensor, piece_bytes: int = PIECE_BYTES) -> torch.Tensor:
    """Return the log-sum-exp of each row in fp32. On a GPU; see :func:`gpuguide.softmax.log_sum_exp`."""
    rows = as_rows(logits)
    results = torch.empty(len(rows), dtype=torch.float32, device=logits.device)
    cut = Cut.of(rows.shape[1], rows.element_size(), piece_bytes)
    log_sum_exp_kernel[(len(rows) * cut.pieces,)](
        rows,
        results,
        cut.numbers(len(rows), logits.device),
        torch.zeros(len(rows), dtype=torch.int32, device=logits.device),
        rows.stride(0),
        rows.shape[1],
        **cut.arguments(),
        **at_most(SUM_REGISTERS),
    )
    return results.view(logits.shape[:-1])


def at_most(registers: int) -> dict[str, int]:
    """Return the option that caps the registers of a thread, for compilers that have it."""
    return {} if torch.version.hip else {"maxnreg": registers}


def as_rows(logits: torch.Tensor) -> torch.Tensor:
    """Return logits as ``(rows, vocab)`` with the logits of a row side by side in memory."""
    rows = logits.reshape(-1, logits.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


@dataclass(frozen=True)
class Cut:
    """How a row is cut into pieces, all but the last of the same length."""

    length: int
    pieces: int
    block: int
    warps: int

    @classmethod
    def of(cls, columns: int, element_size: int, piece_bytes: int = PIECE_BYTES, warp_bytes: int = WARP_BYTES) -> Cut:
        """Return the cut of rows of ``columns`` elements into pieces of at most ``piece_bytes``."""
        pieces = triton.cdiv(columns * element_size, piece_bytes)
        length = 64 * triton.cdiv(triton.cdiv(columns, pieces), 64)  # pieces begin where wide loads may
        block = max(SMALLEST_BLOCK, triton.next_power_of_2(length))
        return cls(length, triton.cdiv(columns, length), block, max(1, min(32, block * element_size // warp_bytes)))

    @property
    def slots(self) -> int:
        """Room for the pieces, a power of two; one if a row is one piece."""
        return 1 if self.pieces == 1 else max(FEWEST_SLOTS, int(triton.next_power_of_2(self.pieces)))

    def arguments(self) -> dict[str, int]:
        """Return what a kernel is told of the cut."""
        return {
            "length": self.length,
            "pieces": self.pieces,
            "SLOTS": self.slots,
            "BLOCK": self.block,
            "num_warps": self.warps,
        }

    def check_room(self, device: torch.device) -> None:
        """Raise a :class:`ValueError` if the programs of a row might not run at the same time, and wait for ever."""
        if device.type == "cuda" and self.pieces > torch.cuda.get_device_properties(device).multi_processor_count:
            raise ValueError(
                f"A row of {self.pieces} pieces needs as many multiprocessors, and this GPU has fewer: "
                "use torch.softmax or torch.nn.functional.cross_entropy for rows so long."
            )

    def words(self, rows: int, device: torch.device) -> torch.Tensor:
        """Return room for what programs tell each other: how many have started, and a word of each piece."""
        return torch.zeros(1 + rows * self.pieces, dtype=torch.int64, device=device)

    def numbers(self, rows: int, device: torch.device) -> torch.Tensor:
        """Return room for the highest logit and the sum of each piece."""
        return torch.empty(rows, 2, self.pieces, dtype=torch.float32, device=device)
