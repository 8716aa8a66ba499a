"""Bandwidth and latency of each memory of a GPU: what shared memory, the caches and the large memory give.

The kernels are CUDA C, compiled when they are needed, because neither shared memory nor the choice of a cache can be
had from PyTorch. Their loads are volatile assembly, which no compiler moves out of a loop or drops.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from gpuguide.errors import GpuguideError
from gpuguide.hardware import datasheet
from gpuguide.hardware.device import Device
from gpuguide.measure import timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, powers_of_two
from gpuguide.measure.records import Rate

KIB, MIB, GIB = 2**10, 2**20, 2**30
READ = 8 * GIB
"""Bytes that one call reads, from a small working set again and again"""
THREADS = 1024
"""Threads of a block. There is one block a multiprocessor, with a part of the working set of its own."""
CHUNK = 16
"""Bytes that a thread loads at once"""
LINE = 128
"""Bytes between the addresses of a chain: a line of the caches"""
WORD, ADDRESS = 4, 8
"""Bytes of a random word, and of a link of a chain"""
FEW_HOPS, MANY_HOPS = 2**14, 2**16
FAR = 512 * KIB
"""Working sets from here on fit into no L1 cache. A hop takes long, and fewer are needed."""
SHARED_MEMORY = {
    (7, 0): 96, (7, 2): 96, (7, 5): 64, (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99,
    (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227, (12, 0): 99, (12, 1): 99,
}  # fmt: skip
"""KiB of shared memory that a block may have, by compute capability (CUDA C++ Programming Guide, technical
specifications)"""
LEAST_SHARED_MEMORY = 48
"""What every GPU gives, for those that are not in the table"""
LOADS = {"l1": "ld.global.ca", "l2": "ld.global.cg", "shared": "ld.shared"}
"""The instruction of each contender: ``ca`` caches at all levels, ``cg`` in the L2 cache only"""

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


def source_of(contender: str) -> str:
    """Return the kernels' CUDA C with the loads of one contender."""
    shared = "#define SHARED\n" if contender == "shared" else ""
    return f'#define INSTRUCTION "{LOADS[contender]}"\n{shared}{SOURCE}'


@functools.cache
def kernel(name: str, contender: str) -> Any:
    """Compile a kernel with the loads of one contender.

    Raises
    ------
    GpuguideError
        If this PyTorch cannot compile CUDA C, or finds no CUDA toolkit.
    """
    compile_kernel = getattr(torch.cuda, "_compile_kernel", None)
    if compile_kernel is None:
        raise GpuguideError(f"PyTorch {torch.__version__} cannot compile CUDA C; install 2.9 or newer.")
    try:
        return compile_kernel(source_of(contender), name)
    except OSError as error:
        raise GpuguideError(
            "The kernels of this benchmark are CUDA C, and PyTorch finds no CUDA toolkit to compile them; "
            "install one, or set CUDA_HOME to where it is."
        ) from error


def multiprocessors(device: Device) -> int:
    """Return how many streaming multiprocessors a GPU has."""
    if device.backend == "fake":
        return int(datasheet.get(device.name).figures["sms"].value)
    return int(torch.cuda.get_device_properties(device.torch_device).multi_processor_count)


def shared_memory(device: Device) -> int:
    """Return the bytes of shared memory that a block may have."""
    return KIB * SHARED_MEMORY.get(device.capability or (0, 0), LEAST_SHARED_MEMORY)


def working_set(keys: Keys) -> int:
    """Return the bytes that are read."""
    return int(keys["working_set"])


def random_words(size: int, device: Device) -> torch.Tensor:
    """Return ``size`` bytes of random numbers, as ``int32``."""
    return torch.randint(2**31 - 1, (size // WORD,), dtype=torch.int32, device=device.torch_device)


# --- bandwidth -------------------------------------------------------------------------------------------


def read_work(contender: str, device: Device, keys: Keys) -> Work:
    """Let all multiprocessors read, each its own part of the working set, again and again."""
    if device.backend == "fake":
        return Work(calls=[lambda: None])
    blocks = multiprocessors(device)
    count = working_set(keys) // (CHUNK * blocks)
    part = CHUNK * count
    repeats = max(1, READ // (part * blocks))
    words = random_words(part * blocks, device)
    sums = torch.empty(blocks * THREADS, dtype=torch.int32, device=device.torch_device)
    read = kernel("read_again", contender)
    in_shared = part if contender == "shared" else 0
    if in_shared:
        read.set_shared_memory_config(in_shared)

    def call() -> None:
        read((blocks, 1, 1), (THREADS, 1, 1), [words, sums, count, repeats], in_shared)

    def check() -> None:
        call()
        found, wanted = int(sums.sum()) % 2**32, repeats * int(words.sum()) % 2**32
        assert found == wanted, f"the words that were read add up to {found}, and not to {wanted}"

    rates = {"bandwidth": Rate("B/s", repeats * part * blocks)}
    return Work([call], check, rates, timing="graph", footprint=part * blocks)


def too_large_for_shared_memory(part: int, device: Device) -> str | None:
    """Say no to what one block cannot hold in shared memory."""
    available = shared_memory(device)
    if part <= available:
        return None
    return f"a block would hold {part / KIB:.0f} KiB, and its shared memory has {available / KIB:.0f} KiB"


def read_cases(device: Device) -> Sequence[Keys]:
    """Return working sets of all sizes, with half-steps around the L2 cache; on a CPU none."""
    if not device.is_gpu:
        return []
    steps = powers_of_two(MIB, 4 * GIB)
    between = [size * 3 // 2 for size in steps if device.l2 / 8 <= size <= 2 * device.l2]
    return [{"working_set": size} for size in sorted([*steps, *between])]


def reader(contender: str) -> Contender:
    """Return the contender that reads with one instruction."""

    def leaves_out(device: Device, keys: Keys) -> str | None:
        return too_large_for_shared_memory(working_set(keys) // multiprocessors(device), device)

    def build(device: Device, keys: Keys) -> Work:
        return read_work(contender, device, keys)

    return Contender(build, ON_GPU, leaves_out) if contender == "shared" else Contender(build, ON_GPU)


ON_GPU = frozenset({"gpu"})

MEMORY_HIERARCHY = Benchmark(
    name="memory-hierarchy",
    title="Read bandwidth by working set and memory",
    question="How fast can all multiprocessors together read from shared memory, from each cache and from memory?",
    contenders={name: reader(name) for name in LOADS},
    cases=read_cases,
    memory=lambda keys: 2 * working_set(keys) + 64 * MIB,
    budget=0.1,
    settle=0.03,
)


# --- latency ---------------------------------------------------------------------------------------------


def follow_work(contender: str, device: Device, keys: Keys) -> Work:
    """Let one thread follow a chain that visits every line of the working set in random order; time one hop.

    A call goes on where the last one stopped, so that a chain longer than a call is not read from its beginning
    again, where a cache would hold it.
    """
    if device.backend == "fake":
        return Work(calls=[lambda: None])
    size = working_set(keys)
    lines, hops = size // LINE, MANY_HOPS if size < FAR else FEW_HOPS
    order = torch.randperm(lines, device=device.torch_device)
    chain = torch.zeros(size // ADDRESS, dtype=torch.int64, device=device.torch_device)
    chain[order * (LINE // ADDRESS)] = order.roll(-1) * LINE + chain.data_ptr()
    first, last = int(order[0]) * LINE, int(order[hops % lines]) * LINE
    position = torch.zeros(1, dtype=torch.int32, device=device.torch_device)
    sums = torch.empty(THREADS, dtype=torch.int32, device=device.torch_device)
    step = kernel("follow", contender)
    in_shared = size if contender == "shared" else 0
    near = size // ADDRESS if size < FAR else 0
    if in_shared:
        step.set_shared_memory_config(in_shared)

    def call() -> None:
        step((1, 1, 1), (THREADS, 1, 1), [chain, position, sums, near, hops], in_shared)

    def check() -> None:
        position.fill_(first)
        call()
        found = int(position)
        assert found == last, f"after {hops} hops the chain is at {found}, and not at {last}"

    timing.warm_up(call, torch.cuda.synchronize)
    replay = timing.cuda_graph([call], timing.GRAPH_SECONDS)

    def sample() -> float:
        chain.sum()  # what fits into the L2 cache is there, whatever ran before
        return replay() / hops

    return Work([call], check, footprint=size, sample=sample)


def follower(contender: str) -> Contender:
    """Return the contender that follows the chain with one instruction."""

    def leaves_out(device: Device, keys: Keys) -> str | None:
        return too_large_for_shared_memory(working_set(keys), device)

    def build(device: Device, keys: Keys) -> Work:
        return follow_work(contender, device, keys)

    return Contender(build, ON_GPU, leaves_out) if contender == "shared" else Contender(build, ON_GPU)


MEMORY_LATENCY = Benchmark(
    name="memory-latency",
    title="Latency of a load by working set and memory",
    question="How long does one thread wait for a word from shared memory, from each cache and from memory?",
    contenders={name: follower(name) for name in LOADS},
    cases=lambda device: [{"working_set": size} for size in powers_of_two(16 * KIB, GIB)] if device.is_gpu else [],
    memory=lambda keys: 2 * working_set(keys) + 32 * (working_set(keys) // LINE),
    budget=0.1,
    settle=0.03,
)
