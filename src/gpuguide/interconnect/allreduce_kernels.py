"""The kernel of the all-reduce with one flag round: data and flag travel in one word, so there is no second wait.

A rank's receiving buffer holds words of eight bytes: four bytes of a message, and beside them the number of the call
that sent them, its *epoch*. A processor writes eight aligned bytes at once, so whoever finds the epoch it waits for has
the data too. Neither a barrier before nor a fence between data and flag is needed; NCCL calls this protocol LL.

Nor is a barrier needed at the end. The buffer has two halves, for odd and for even epochs. A rank that writes epoch
``e + 2`` has finished ``e + 1``, for which it needed every other rank's data of ``e + 1``; and a rank sends those only
after it has finished ``e``, because its calls follow one another on a stream. So nobody still reads what is
overwritten.

Each program counts its own calls, in memory, for the arguments of a kernel are fixed once a graph has captured it. A
program's words always lie at the same place, whatever the size of a message, and all ranks make the same calls, so the
counts of all ranks agree.

Sources: NCCL, ``src/device/prims_ll.h``; PTX ISA, "Memory consistency model" and "Cache operators".
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["WORDS", "add_up", "launch", "one_shot", "send"]

WORDS = 512
"""Words of a message that one program sends and receives: 2 KiB"""
WARPS = 4


@triton.jit
def _as_word(values, PER_WORD: tl.constexpr):
    """Return the bits of one fp32, or of two neighbours of 16 bits, as the low half of a word."""
    if PER_WORD == 1:
        return values.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF
    else:
        low, high = tl.split(values.to(tl.int16, bitcast=True).reshape(values.shape[0] // 2, 2))
        return (low.to(tl.int64) & 0xFFFF) | ((high.to(tl.int64) & 0xFFFF) << 16)


@triton.jit
def _as_floats(word, DTYPE: tl.constexpr, PER_WORD: tl.constexpr):
    """Return the numbers in the low halves of words, in fp32 and in order."""
    if PER_WORD == 1:
        return word.to(tl.int32).to(tl.float32, bitcast=True)
    else:
        low = word.to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
        high = (word >> 16).to(tl.int16).to(DTYPE, bitcast=True).to(tl.float32)
        return tl.join(low, high).reshape(word.shape[0] * 2)


@triton.jit
def _half(epoch, capacity, WORLD: tl.constexpr):
    """Return where the half of the buffer begins that an epoch uses, in words."""
    return (epoch & 1).to(tl.int64) * capacity * WORLD


@triton.jit
def send(
    own, buffers, epoch, words, capacity,
    RANK: tl.constexpr, WORLD: tl.constexpr, PER_WORD: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Write this program's part of a message, with the epoch beside it, into every other rank's buffer."""
    word = _as_word(own, PER_WORD) | (epoch.to(tl.int64) << 32)
    place = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    mine = _half(epoch, capacity, WORLD) + RANK * capacity
    for step in tl.static_range(1, WORLD):
        peer = tl.load(buffers + (RANK + step) % WORLD).to(tl.pointer_type(tl.int64))  # each rank begins elsewhere
        # On the GPU a store that writes through is visible to the whole system and may not be moved.
        tl.store(tl.multiple_of(peer, 16) + mine + place, word, mask=place < words, cache_modifier=".wt")


@triton.jit
def add_up(
    own, received, epoch, words, capacity, DTYPE: tl.constexpr,
    RANK: tl.constexpr, WORLD: tl.constexpr, PER_WORD: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Wait for every other rank's part, and add all up in fp32 in the order of ranks, which is the same everywhere."""
    place = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    inside = place < words
    half = _half(epoch, capacity, WORLD)
    total = tl.zeros([WORDS * PER_WORD], tl.float32)
    for rank in tl.static_range(WORLD):
        if rank == RANK:
            total += own.to(tl.float32)
        else:
            slot = received + half + rank * capacity + place
            word = tl.load(slot, mask=inside, other=0, volatile=True)
            while tl.max((((word >> 32).to(tl.int32) != epoch) & inside).to(tl.int32), axis=0) != 0:
                word = tl.load(slot, mask=inside, other=0, volatile=True)
            total += _as_floats(word, DTYPE, PER_WORD)
    return total


@triton.jit
def one_shot(
    values, out, received, buffers, epochs, elements, words, capacity,
    RANK: tl.constexpr, WORLD: tl.constexpr, PER_WORD: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """Send, wait and add up, and count the call.

    ``received`` is this rank's buffer of (2, WORLD, capacity) words, ``buffers`` the addresses of every rank's, and
    ``epochs`` the number of calls of each program so far.
    """
    counter = epochs + tl.program_id(0)
    epoch = tl.load(counter) + 1
    at = tl.program_id(0) * WORDS * PER_WORD + tl.arange(0, WORDS * PER_WORD)
    own = tl.load(values + at, mask=at < elements, other=0.0)
    send(own, buffers, epoch, words, capacity, RANK, WORLD, PER_WORD, WORDS)
    total = add_up(own, received, epoch, words, capacity, values.dtype.element_ty, RANK, WORLD, PER_WORD, WORDS)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=at < elements)
    tl.store(counter, epoch)


def launch(
    values: torch.Tensor,
    out: torch.Tensor,
    received: torch.Tensor,
    buffers: torch.Tensor,
    epochs: torch.Tensor,
    rank: int,
    world_size: int,
    capacity: int,
) -> None:
    """Add up one message over all ranks.

    Parameters
    ----------
    values, out : torch.Tensor
        Contiguous, of 16 or 32 bits an element, at most ``4 · capacity`` bytes.
    received : torch.Tensor
        (2 · world_size · capacity,), ``int64``: this rank's buffer, which the others write; zero at first.
    buffers : torch.Tensor
        (world_size,), ``int64``: the address of every rank's buffer, as this rank sees it.
    epochs : torch.Tensor
        (capacity / WORDS,), ``int32``: zero at first.
    rank, world_size : int
        Who this is, and of how many.
    capacity : int
        Words that the longest message has; a multiple of :data:`WORDS`.
    """
    per_word = 4 // values.element_size()
    words = triton.cdiv(values.numel(), per_word)
    one_shot[(triton.cdiv(words, WORDS),)](
        values, out, received, buffers, epochs, values.numel(), words, capacity,
        RANK=rank, WORLD=world_size, PER_WORD=per_word, WORDS=WORDS, num_warps=WARPS,
    )  # fmt: skip
