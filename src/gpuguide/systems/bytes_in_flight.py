"""Bandwidth of a GPU's memory against the number of bytes in flight.

One kernel. Warps read pieces of a large array in scattered order, and no thread asks for more before what it asked for
has arrived. So the bytes that are under way at once are known: they are the threads times what each loads at a time.

It is CUDA C for the reasons that :mod:`gpuguide.systems.memory_hierarchy` gives.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from gpuguide.triton_support import cuda_c

WARP = 32
CHUNK = 16
"""Bytes that a thread loads at once"""
PIECE = WARP * CHUNK
"""Bytes that a warp loads at once: four whole lines of the caches"""
WORD = 4
THREADS = 128
"""Threads of a block, at most: as many blocks as fit a multiprocessor then fill it with threads, on every GPU"""
SCATTER = 2654435761
"""Odd, so that multiplying by it, modulo a power of two, visits every piece once; and far from any small fraction of
2^32, so that pieces read one after the other lie far apart (D. Knuth, "The Art of Computer Programming", vol. 3, 6.4)
"""
ROUNDS = 2**12
"""Number of loads of every thread, unless the array is read before"""

SOURCE = r"""
__device__ __forceinline__ uint4 load(const uint4* place) {
    uint4 chunk;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w) : "l"(place));
    return chunk;
}

// Every thread has LOADS loads under way. No word has its highest bit set, so the shifted bit is zero; but nobody knows
// that before the words are there, and the next loads have to wait for them.
extern "C" __global__ void __launch_bounds__(128, LOADS == 1 ? 16 : 8)
read_scattered(const uint4* chunks, unsigned* sums, unsigned pieces, unsigned mask) {
    const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    const unsigned warps = gridDim.x * blockDim.x / 32;
    const uint4* own = chunks + threadIdx.x % 32;
    unsigned sum = 0;
    unsigned piece = thread / 32;
    while (piece < pieces) {
        uint4 read[LOADS];
#pragma unroll
        for (int n = 0; n < LOADS; ++n) read[n] = load(own + 32 * (size_t)((piece + n * warps) * SCATTER & mask));
        unsigned bits = 0;
#pragma unroll
        for (int n = 0; n < LOADS; ++n) {
            sum += read[n].x + read[n].y + read[n].z + read[n].w;
            bits |= read[n].x | read[n].y | read[n].z | read[n].w;
        }
        piece += LOADS * warps + (bits >> 31);
    }
    sums[thread] = sum;
}
"""


def source_of(loads: int) -> str:
    """Return the kernel's CUDA C for threads that have so many loads under way."""
    return f"#define LOADS {loads}\n#define SCATTER {SCATTER}u\n{SOURCE}"


@functools.cache
def kernel(loads: int) -> Any:
    """Compile the kernel for threads that have so many loads under way.

    Raises
    ------
    GpuguideError
        If this PyTorch cannot compile CUDA C, or finds no CUDA toolkit.
    """
    return cuda_c.compile_kernel(
        source_of(loads),
        "read_scattered",
        "The kernel that reads with a known number of bytes under way is CUDA C, and PyTorch finds no CUDA toolkit to "
        "compile it; install one, or set CUDA_HOME to where it is.",
    )


@dataclass(frozen=True)
class Flight:
    """Some threads read an array, or the beginning of it, with a known number of bytes under way."""

    words: torch.Tensor
    """``int32`` of shape ``(words,)``, none negative; a power of two of :data:`PIECE`\\ s"""
    sums: torch.Tensor
    """``int32`` of shape ``(threads,)``: what each read, added up modulo 2^32"""
    in_flight: int
    """Bytes that all threads together have asked for at a time"""
    loads: int
    """Number of loads that a thread has in flight, of :data:`CHUNK` bytes each"""

    @classmethod
    def set_up(cls, words: torch.Tensor, in_flight: int, loads: int) -> Flight:
        """Set one up.

        Parameters
        ----------
        words : torch.Tensor
            ``int32``, random, none negative.
        in_flight : int
            Bytes, a power of two, from :data:`PIECE` times ``loads``.
        loads : int
            Of each thread: 1 or 4.
        """
        threads = in_flight // (CHUNK * loads)
        return cls(words, torch.zeros(threads, dtype=torch.int32, device=words.device), in_flight, loads)

    @property
    def bytes_read(self) -> int:
        """Bytes that one call reads."""
        return min(self.words.nbytes, ROUNDS * self.in_flight)

    def order(self) -> torch.Tensor:
        """Return the pieces that one call reads, ``int64`` of shape ``(bytes_read / PIECE,)``."""
        pieces = torch.arange(self.bytes_read // PIECE, device=self.words.device)
        return pieces * SCATTER % (self.words.nbytes // PIECE)

    def __call__(self) -> None:
        """Read."""
        threads = len(self.sums)
        block = min(THREADS, threads)
        arguments = [self.words, self.sums, self.bytes_read // PIECE, self.words.nbytes // PIECE - 1]
        kernel(self.loads)((threads // block, 1, 1), (block, 1, 1), arguments)

    def is_complete(self) -> bool:
        """Return whether the last call read every piece that it should, once."""
        wanted = int(self.words.view(-1, PIECE // WORD)[self.order()].sum())
        return int(self.sums.sum()) % 2**32 == wanted % 2**32
