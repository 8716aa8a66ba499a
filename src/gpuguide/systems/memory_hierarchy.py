"""The memories of a GPU, read one at a time: shared memory, the L1 and L2 caches, and the large memory behind them.

Two kernels. In one all multiprocessors read their parts of a working set again and again, which gives the bandwidth
of whatever holds it. In the other a single thread follows a chain of addresses, which gives the latency.

They are CUDA C, compiled when they are needed, because neither shared memory nor the choice of a cache can be had
from PyTorch. Their loads are volatile assembly, which no compiler moves out of a loop or drops.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from gpuguide.triton_support import cuda_c

KIB = 2**10
THREADS = 1024
"""Threads of a block. There is one block a multiprocessor, with a part of the working set of its own."""
CHUNK = 16
"""Bytes that a thread loads at once"""
LINE = 128
"""Bytes between the addresses of a chain: a line of the caches"""
WORD, ADDRESS = 4, 8
"""Bytes of a random word, and of a link of a chain"""
SHARED_MEMORY = {
    (7, 0): 96, (7, 2): 96, (7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99,
    (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227, (12, 0): 99, (12, 1): 99,
}  # fmt: skip
"""KiB of shared memory that a block may have, by compute capability (CUDA C++ Programming Guide, technical
specifications)"""
LEAST_SHARED_MEMORY = 48
"""Bytes that every GPU gives, for those that are not in the table"""
LOADS = {"l1": "ld.global.ca", "l2": "ld.global.cg", "shared": "ld.shared"}
"""The instruction that reads from each memory: ``ca`` caches at all levels, ``cg`` in the L2 cache only"""

SOURCE = r"""
__device__ __forceinline__ uint4 load(size_t address) {
    uint4 chunk;
    asm volatile(INSTRUCTION ".v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(chunk.x), "=r"(chunk.y), "=r"(chunk.z), "=r"(chunk.w) : "l"(address));
    return chunk;
}

__device__ __forceinline__ size_t load_address(size_t address) {
    size_t next;
    asm volatile(INSTRUCTION ".u64 %0, [%1];" : "=l"(next) : "l"(address));
    return next;
}

__device__ __forceinline__ unsigned total(uint4 chunk) {
    return chunk.x + chunk.y + chunk.z + chunk.w;
}

// Every block reads its own `count` chunks, `repeats` times. Four loads of a thread are under way at once.
extern "C" __global__ void __launch_bounds__(1024)
read_again(const uint4* chunks, unsigned* sums, int count, int repeats) {
    const int step = blockDim.x;
    chunks += (size_t)blockIdx.x * count;
#ifdef SHARED
    extern __shared__ uint4 copied[];
    for (int i = threadIdx.x; i < count; i += step) copied[i] = chunks[i];
    __syncthreads();
    const size_t begin = __cvta_generic_to_shared(copied);
#else
    const size_t begin = __cvta_generic_to_global(chunks);
#endif
    unsigned sum = 0;
    for (int repeat = 0; repeat < repeats; ++repeat) {
        int i = threadIdx.x;
        for (; i + 3 * step < count; i += 4 * step) {
            uint4 a = load(begin + 16 * (size_t)i);
            uint4 b = load(begin + 16 * (size_t)(i + step));
            uint4 c = load(begin + 16 * (size_t)(i + 2 * step));
            uint4 d = load(begin + 16 * (size_t)(i + 3 * step));
            sum += total(a) + total(b) + total(c) + total(d);
        }
        for (; i < count; i += step) sum += total(load(begin + 16 * (size_t)i));
    }
    sums[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// One thread follows a chain: every word of it that is read is the address of the next. Before, the whole block reads
// the first `near` words, so that they are in the L1 cache, or copies them to shared memory, where addresses differ.
extern "C" __global__ void __launch_bounds__(1024)
follow(const size_t* chain, unsigned* position, unsigned* sums, int near, int hops) {
    const size_t there = __cvta_generic_to_global(chain);
#ifdef SHARED
    extern __shared__ size_t moved[];
    const size_t begin = __cvta_generic_to_shared(moved);
    for (int i = threadIdx.x; i < near; i += blockDim.x) moved[i] = chain[i] - there + begin;
#else
    const size_t begin = there;
    unsigned sum = 0;
    for (int i = threadIdx.x; i < near; i += blockDim.x) sum += (unsigned)load_address(begin + sizeof(size_t) * i);
    sums[threadIdx.x] = sum;
#endif
    __syncthreads();
    if (threadIdx.x != 0) return;
    size_t address = begin + *position;
    for (int hop = 0; hop < hops; ++hop) address = load_address(address);
    *position = (unsigned)(address - begin);
}
"""


def source_of(memory: str) -> str:
    """Return the kernels' CUDA C with the loads for one memory."""
    shared = "#define SHARED\n" if memory == "shared" else ""
    return f'#define INSTRUCTION "{LOADS[memory]}"\n{shared}{SOURCE}'


@functools.cache
def kernel(name: str, memory: str) -> Any:
    """Compile a kernel with the loads for one memory.

    Raises
    ------
    GpuguideError
        If this PyTorch cannot compile CUDA C, or finds no CUDA toolkit.
    """
    compiled = cuda_c.compile_kernel(
        source_of(memory),
        name,
        "The kernels that read a GPU's memories are CUDA C, and PyTorch finds no CUDA toolkit to compile them; "
        "install one, or set CUDA_HOME to where it is.",
    )
    if memory == "shared":
        compiled.set_shared_memory_config(shared_memory(torch.cuda.get_device_capability()))
    return compiled


def shared_memory(capability: tuple[int, int]) -> int:
    """Return the bytes of shared memory that a block may have on a GPU of a compute capability.

    >>> shared_memory((9, 0))
    232448
    """
    return KIB * SHARED_MEMORY.get(capability, LEAST_SHARED_MEMORY)


@dataclass(frozen=True)
class Reading:
    """All multiprocessors read random words, each its own part, again and again."""

    words: torch.Tensor
    """``int32``, on a GPU"""
    sums: torch.Tensor
    """Sums of what each thread read, modulo 2^32"""
    blocks: int
    repeats: int
    memory: str
    """``l1``, ``l2`` or ``shared``: where each part is looked for first"""

    @classmethod
    def set_up(cls, working_set: int, least: int, blocks: int, memory: str, device: str) -> Reading:
        """Set one up.

        Parameters
        ----------
        working_set : int
            Bytes, divided among the blocks and rounded down to whole chunks.
        least : int
            Bytes to read in all, roughly: the working set is read as often as that takes, and once at least.
        blocks : int
            One for each multiprocessor.
        memory : str
            ``l1``, ``l2`` or ``shared``.
        device : str
            The CUDA device.
        """
        size = working_set // (CHUNK * blocks) * CHUNK * blocks
        words = torch.randint(2**31 - 1, (size // WORD,), dtype=torch.int32, device=device)
        sums = torch.empty(blocks * THREADS, dtype=torch.int32, device=device)
        return cls(words, sums, blocks, max(1, least // size), memory)

    @property
    def part(self) -> int:
        """Bytes that one block reads again and again."""
        return self.words.nbytes // self.blocks

    @property
    def bytes_read(self) -> int:
        """Bytes that one call reads."""
        return self.words.nbytes * self.repeats

    def __call__(self) -> None:
        """Read."""
        read = kernel("read_again", self.memory)
        in_shared = self.part if self.memory == "shared" else 0
        arguments = [self.words, self.sums, self.part // CHUNK, self.repeats]
        read((self.blocks, 1, 1), (THREADS, 1, 1), arguments, in_shared)

    def is_complete(self) -> bool:
        """Return whether the last call read every word as often as it should."""
        return int(self.sums.sum()) % 2**32 == self.repeats * int(self.words.sum()) % 2**32


@dataclass(frozen=True)
class Chain:
    """One thread follows addresses that visit every line of a working set in random order, and then begin anew.

    A call goes on where the last one stopped, so that a chain longer than a call is not read from its beginning
    again, where a cache would hold it.
    """

    links: torch.Tensor
    """``int64``: each line begins with the address of the next"""
    order: torch.Tensor
    """The lines as they are visited"""
    position: torch.Tensor
    """The bytes from the first link to the one where the next call begins"""
    sums: torch.Tensor
    hops: int
    is_near: bool
    """True if the chain may fit into an L1 cache, which is then filled at the beginning of every call"""
    memory: str

    @classmethod
    def draw(cls, working_set: int, hops: int, memory: str, device: str, *, is_near: bool) -> Chain:
        """Draw one. ``working_set`` is in bytes, and below 2 GiB."""
        order = torch.randperm(working_set // LINE, device=device)
        links = torch.zeros(working_set // ADDRESS, dtype=torch.int64, device=device)
        links[order * (LINE // ADDRESS)] = order.roll(-1) * LINE + links.data_ptr()
        position = torch.zeros(1, dtype=torch.int32, device=device)
        sums = torch.empty(THREADS, dtype=torch.int32, device=device)
        return cls(links, order, position, sums, hops, is_near, memory)

    def __call__(self) -> None:
        """Follow the chain for some hops."""
        follow = kernel("follow", self.memory)
        in_shared = self.links.nbytes if self.memory == "shared" else 0
        near = len(self.links) if self.is_near else 0
        follow((1, 1, 1), (THREADS, 1, 1), [self.links, self.position, self.sums, near, self.hops], in_shared)

    def leads_where_it_should(self) -> bool:
        """Follow the chain from its first line, and return whether it arrives at the right one."""
        self.position.copy_(self.order[:1] * LINE)
        self()
        return int(self.position) == int(self.order[self.hops % len(self.order)]) * LINE
