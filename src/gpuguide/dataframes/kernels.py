"""A group-by for keys that are known to be 0, 1, … K - 1: an array in the place of a hash table.

cuDF finds each key's place in a hash table, because keys may be anything. Where keys count from 0, a key *is* the
place. What remains is one pass over the rows: 4 bytes of key and 8 of value are read, and K sums are written. At 3 TB/s
and 100 million rows the floor of that is 0.4 ms.

The difficulty is that many threads add to one sum. Each block of threads therefore adds into sums of its own in shared
memory, and only then into the result. Every group has several copies of its sum there, and neighbouring threads take
different ones::

    group      0 0 0 0 1 1 1 1 2 2 2 2 ...
    copy       0 1 2 3 0 1 2 3 0 1 2 3 ...        thread t of a block adds into copy t % copies

This matters because shared memory has no addition of fp64: the compiler writes a loop that reads the sum, adds, and
swaps the new sum in if nobody was faster. Threads of a warp that meet in a sum go round that loop again, each a turn.
Different copies lie in different banks as well, so that a warp's accesses wait less for each other.

A filter costs nothing in such a pass, because a row is dropped after it was read anyway; two calls would write the rows
that are left and read them again.

The kernel is CUDA C, because Triton has no atomic additions in shared memory.

Sources: CUDA C++ Programming Guide, "Atomic functions" and "Shared memory"; the machine code that the compiler makes of
``atomicAdd`` for compute capability 9.0, a loop around ``ATOMS.CAST.SPIN.64``; for cuDF's way, rapidsai/cudf,
``cpp/src/groupby/hash``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from gpuguide.triton_support import cuda_c

THREADS = 1024
"""Of a block. A block has a multiprocessor for itself, and with it all of its shared memory."""
ROWS_AT_ONCE = 4
"""Of a thread, whose numbers are on their way from memory together"""
MOST_COPIES = 32
"""Of a group's sum in a block: one for each thread of a warp"""
PARTIAL = 8 + 4
"""Bytes of a group in one copy: a sum and a count"""
BLOCKS_WITHOUT_COPIES = 2
"""On a multiprocessor, where no copy fits and blocks need no shared memory"""
LEAST_SHARED_MEMORY = 48 * 2**10
MOST_ROWS = 2**31 - 1
KEYS = {torch.int32: "int", torch.int64: "long long"}
VALUES = {torch.float32: "float", torch.float64: "double"}
"""The types that the kernel takes, and what C calls them"""

SOURCE = r"""
__device__ __forceinline__ bool is_group(KEY key, int groups) { return key >= 0 && key < groups; }

// A row counts if its value does, and its key is one of the groups. NaN compares false and never counts.
__device__ __forceinline__ bool counts_in(KEY key, double value, int groups, double threshold) {
    return KEEP && is_group(key, groups);
}

// Every block adds its rows into `copies` partial sums of each group in shared memory, then these into the result.
extern "C" __global__ void __launch_bounds__(THREADS)
group_by(const KEY* __restrict__ keys, const VALUE* __restrict__ values, double* sums, unsigned long long* counts,
         unsigned long long* outside, int rows, int groups, int copies, double threshold) {
    extern __shared__ double partial_sums[];
    unsigned* partial_counts = (unsigned*)(partial_sums + copies * groups);
    for (int i = threadIdx.x; i < copies * groups; i += blockDim.x) {
        partial_sums[i] = 0.0;
        partial_counts[i] = 0;
    }
    __syncthreads();

    const int mine = threadIdx.x % copies;
    unsigned strangers = 0;
    const unsigned end = rows;  // unsigned, because the last step may go beyond 2^31
    const unsigned step = gridDim.x * blockDim.x;
    for (unsigned first = blockIdx.x * blockDim.x + threadIdx.x; first < end; first += ROWS_AT_ONCE * step) {
        KEY key[ROWS_AT_ONCE];
        double value[ROWS_AT_ONCE];
        for (int i = 0; i < ROWS_AT_ONCE; ++i) {  // all are asked for before the first is waited for
            const unsigned row = first + i * step;
            key[i] = row < end ? keys[row] : -1;
            value[i] = row < end ? (double)values[row] : 0.0;
        }
        for (int i = 0; i < ROWS_AT_ONCE; ++i) {
            strangers += first + i * step < end && !is_group(key[i], groups);
            if (!counts_in(key[i], value[i], groups, threshold)) continue;
            const int place = (int)key[i] * copies + mine;
            atomicAdd(&partial_sums[place], value[i]);
            atomicAdd(&partial_counts[place], 1u);
        }
    }
    if (strangers) atomicAdd(outside, (unsigned long long)strangers);
    __syncthreads();

    for (int group = threadIdx.x; group < groups; group += blockDim.x) {
        double sum = 0.0;
        unsigned long long count = 0;
        for (int copy = 0; copy < copies; ++copy) {
            sum += partial_sums[group * copies + copy];
            count += partial_counts[group * copies + copy];
        }
        if (count == 0) continue;
        atomicAdd(&sums[group], sum);
        atomicAdd(&counts[group], count);
    }
}

// The same for more groups than shared memory holds: every row is added into the result, which the L2 cache holds.
extern "C" __global__ void __launch_bounds__(THREADS)
group_by_directly(const KEY* __restrict__ keys, const VALUE* __restrict__ values, double* sums,
                  unsigned long long* counts, unsigned long long* outside, int rows, int groups, double threshold) {
    const unsigned end = rows;
    const unsigned step = gridDim.x * blockDim.x;
    unsigned strangers = 0;
    for (unsigned row = blockIdx.x * blockDim.x + threadIdx.x; row < end; row += step) {
        const KEY key = keys[row];
        const double value = values[row];
        strangers += !is_group(key, groups);
        if (!counts_in(key, value, groups, threshold)) continue;
        atomicAdd(&sums[key], value);
        atomicAdd(&counts[key], 1ull);
    }
    if (strangers) atomicAdd(outside, (unsigned long long)strangers);
}
"""


@dataclass(frozen=True)
class GroupTotals:
    """What a group-by found, a number for each group."""

    sum: torch.Tensor
    """``(groups,)``, float64; 0 for a group without values"""
    count: torch.Tensor
    """``(groups,)``, int64"""
    outside: torch.Tensor
    """``()``, int64: rows whose key is none of the groups, whatever their value"""

    @property
    def mean(self) -> torch.Tensor:
        """The mean of each group's values, NaN without any."""
        return self.sum / self.count


def plain_group_by(keys: torch.Tensor, values: torch.Tensor, groups: int, above: float | None = None) -> GroupTotals:
    """Return what :func:`dense_group_by` does, with PyTorch's functions, on any device."""
    known = (keys >= 0) & (keys < groups)
    kept = known & ~values.isnan()
    if above is not None:
        kept &= values > above
    keys, values = keys[kept], values[kept].double()
    sums = torch.bincount(keys, values, minlength=groups).double()  # of no rows it would be int64
    return GroupTotals(sums, torch.bincount(keys, minlength=groups), (~known).sum())


def dense_group_by(
    keys: torch.Tensor, values: torch.Tensor, groups: int, above: float | None = None, *, check: bool = True
) -> GroupTotals:
    """Return the sum and count of each key's values, of all or of those above a threshold.

    On a GPU our kernel does it in one pass; on a CPU PyTorch does. The order of additions differs from run to run, and
    with it the last digits.

    Parameters
    ----------
    keys : torch.Tensor
        ``(rows,)``, int32 or int64, from 0 to ``groups - 1``.
    values : torch.Tensor
        ``(rows,)``, fp32 or float64, on the same device. They are added in float64. NaN is a missing value.
    groups : int
        How many keys there are.
    above : float, optional
        Only values greater than this count.
    check : bool
        Whether to refuse other keys, for which the host waits until the GPU is done. Without the check rows with such
        keys belong to no group; how many there are stands in ``outside`` of the result, and nothing is waited for.

    Returns
    -------
    GroupTotals
        On the same device.

    Raises
    ------
    ValueError
        If shapes, types or devices do not fit, there is no group, there are 2³¹ rows or more, or a key is none of the
        groups and that is checked.
    """
    _check(keys, values, groups)
    on_gpu = keys.is_cuda and len(keys) > 0
    totals = (_group_by_on_gpu if on_gpu else plain_group_by)(keys, values, groups, above)
    if check and (strangers := int(totals.outside)):
        raise ValueError(
            f"{strangers:,} of {len(keys):,} keys are not from 0 to {groups - 1}. Raise groups, or leave such rows out "
            "with check=False."
        )
    return totals


def _group_by_on_gpu(keys: torch.Tensor, values: torch.Tensor, groups: int, above: float | None) -> GroupTotals:
    with torch.cuda.device_of(keys):
        sums = torch.zeros(groups, dtype=torch.float64, device=keys.device)
        counts = torch.zeros(groups + 1, dtype=torch.int64, device=keys.device)  # the last one of no group
        shared, multiprocessors = _limits(keys.device.index or 0)
        copies = copies_that_fit(groups, shared)
        name = "group_by" if copies else "group_by_directly"
        run = kernel(name, keys.dtype, values.dtype, above is not None)
        columns = [keys.contiguous(), values.contiguous(), sums, counts, counts[groups:]]
        sizes = [len(keys), groups, *([copies] if copies else []), float(above or 0.0)]
        most_blocks = multiprocessors * (1 if copies else BLOCKS_WITHOUT_COPIES)
        blocks = min(most_blocks, -(-len(keys) // THREADS))
        run((blocks, 1, 1), (THREADS, 1, 1), [*columns, *sizes], copies * groups * PARTIAL)
    return GroupTotals(sums, counts[:groups], counts[groups])


def _check(keys: torch.Tensor, values: torch.Tensor, groups: int) -> None:
    if keys.ndim != 1 or keys.shape != values.shape:
        shapes = f"{tuple(keys.shape)} and {tuple(values.shape)}"
        raise ValueError(f"Keys and values have the shapes {shapes}; both must be (rows,).")
    if keys.dtype not in KEYS or values.dtype not in VALUES:
        raise ValueError(
            f"Keys are {keys.dtype} and values {values.dtype}; keys must be int32 or int64, values float32 or float64."
        )
    if keys.device != values.device:
        raise ValueError(f"Keys are on {keys.device} and values on {values.device}; both must be on one device.")
    if groups < 1:
        raise ValueError(f"There are {groups} groups; at least 1 is needed.")
    if len(keys) > MOST_ROWS:
        raise ValueError(f"There are {len(keys):,} rows; at most {MOST_ROWS:,} can be grouped at once.")


def copies_that_fit(groups: int, shared: int) -> int:
    """Return how many copies of the sums a block holds, 0 if not one fits.

    It is a power of two, so that the threads of a warp spread evenly over the banks of shared memory.

    Parameters
    ----------
    groups : int
        Sums in a copy.
    shared : int
        Bytes of shared memory that a block may have.

    Examples
    --------
    >>> [copies_that_fit(groups, 232448) for groups in (10, 1000, 10_000, 100_000)]
    [32, 16, 1, 0]
    """
    fitting = min(MOST_COPIES, shared // (groups * PARTIAL))
    return 1 << fitting.bit_length() - 1 if fitting else 0


@functools.cache
def _limits(device: int) -> tuple[int, int]:
    """Return the bytes of shared memory that a block may have, and how many multiprocessors there are."""
    properties = torch.cuda.get_device_properties(device)
    shared = getattr(properties, "shared_memory_per_block_optin", LEAST_SHARED_MEMORY)
    return int(shared), int(properties.multi_processor_count)


def source_of(keys: torch.dtype, values: torch.dtype, is_filtered: bool) -> str:
    """Return the kernels' CUDA C for some types, with or without the filter."""
    keep = "value > threshold" if is_filtered else "value == value"
    defined = {
        "KEY": KEYS[keys],
        "VALUE": VALUES[values],
        "KEEP": f"({keep})",
        "THREADS": THREADS,
        "ROWS_AT_ONCE": ROWS_AT_ONCE,
    }
    return "".join(f"#define {name} {meaning}\n" for name, meaning in defined.items()) + SOURCE


@functools.cache
def kernel(name: str, keys: torch.dtype, values: torch.dtype, is_filtered: bool) -> Any:
    """Compile a kernel.

    Raises
    ------
    GpuguideError
        If this PyTorch cannot compile CUDA C, or finds no CUDA toolkit.
    """
    compiled = cuda_c.compile_kernel(
        source_of(keys, values, is_filtered),
        name,
        "The group-by's kernel is CUDA C, and PyTorch finds no CUDA toolkit to compile it; install one, set "
        "CUDA_HOME to where it is, or call plain_group_by.",
    )
    compiled.set_shared_memory_config(_limits(torch.cuda.current_device())[0])
    return compiled
