"""The group-by of PyTorch against NumPy, and the kernels' own text run by threads of the processor."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.dataframes import kernels
from gpuguide.errors import GpuguideError

TYPES = [(keys, values) for keys in kernels.KEYS for values in kernels.VALUES]


def drawn(
    rows: int, groups: int, keys: torch.dtype, values: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random rows, some of them of no group and some without a value."""
    random = torch.Generator().manual_seed(seed)
    chosen = torch.randint(-1, groups + 1, (rows,), generator=random).to(keys)
    drawn = torch.rand(rows, generator=random, dtype=torch.float64).to(values)
    return chosen, torch.where(torch.rand(rows, generator=random) < 0.1, float("nan"), drawn)


def by_numpy(
    keys: torch.Tensor, values: torch.Tensor, groups: int, above: float | None
) -> tuple[np.ndarray, np.ndarray]:
    sums, counts = np.zeros(groups), np.zeros(groups, dtype=np.int64)
    numbers = values.double().numpy()
    kept = ~np.isnan(numbers) if above is None else numbers > above
    kept &= (keys.numpy() >= 0) & (keys.numpy() < groups)
    np.add.at(sums, keys.numpy()[kept], numbers[kept])
    np.add.at(counts, keys.numpy()[kept], 1)
    return sums, counts


@pytest.mark.parametrize(("keys", "values"), TYPES)
@pytest.mark.parametrize("above", [None, 0.5, -1.0, 2.0])
@pytest.mark.parametrize(("rows", "groups"), [(0, 3), (1, 1), (1000, 7), (50, 1000)])
def test_on_a_cpu(keys: torch.dtype, values: torch.dtype, above: float | None, rows: int, groups: int) -> None:
    columns = drawn(rows, groups, keys, values)
    found = kernels.dense_group_by(*columns, groups, above, check=False)
    sums, counts = by_numpy(*columns, groups, above)
    np.testing.assert_allclose(found.sum.numpy(), sums, rtol=1e-12)
    assert found.count.tolist() == counts.tolist()
    assert (found.sum.dtype, found.count.dtype, found.sum.shape) == (torch.float64, torch.int64, (groups,))
    assert int(found.outside) == strangers_in(columns[0], groups)


def strangers_in(keys: torch.Tensor, groups: int) -> int:
    return sum(not 0 <= key < groups for key in keys.tolist())


def test_a_key_that_is_no_group_is_refused_unless_one_says_otherwise() -> None:
    keys, values = torch.tensor([0, 7, -1, 1, 2]), torch.ones(5)
    with pytest.raises(ValueError, match=r"^3 of 5 keys are not from 0 to 1\. Raise groups, or leave such rows out"):
        kernels.dense_group_by(keys, values, 2)
    with pytest.raises(ValueError, match="2 of 5 keys"):  # also if its value would not count
        kernels.dense_group_by(keys, values, 3, above=5.0)
    found = kernels.dense_group_by(keys, values, 2, check=False)
    assert (found.count.tolist(), int(found.outside)) == ([1, 1], 3)
    assert kernels.dense_group_by(keys + 1, values, 9).count.sum() == 5


def test_the_mean_of_nothing_is_nan() -> None:
    found = kernels.dense_group_by(torch.tensor([0, 0, 2]), torch.tensor([1.0, 2.0, 4.0]), 3)
    assert found.mean.tolist()[::2] == [1.5, 4.0]
    assert found.mean[1].isnan()


@pytest.mark.parametrize(
    ("keys", "values", "groups", "message"),
    [
        (torch.zeros(3, dtype=torch.int32), torch.zeros(4), 1, r"shapes \(3,\) and \(4,\); both must be \(rows,\)"),
        (torch.zeros(3, 1, dtype=torch.int32), torch.zeros(3, 1), 1, "both must be"),
        (torch.zeros(3), torch.zeros(3), 1, "Keys are torch.float32 .* keys must be int32 or int64"),
        (torch.zeros(3, dtype=torch.int32), torch.zeros(3).half(), 1, "values torch.float16"),
        (torch.zeros(3, dtype=torch.int32), torch.zeros(3, device="meta"), 1, "values on meta"),
        (torch.zeros(3, dtype=torch.int32), torch.zeros(3), 0, "There are 0 groups"),
        (torch.zeros(1, dtype=torch.int32).expand(2**31), torch.zeros(1).expand(2**31), 1, "at most 2,147,483,647"),
    ],
)
def test_what_cannot_be_grouped_is_told(keys: torch.Tensor, values: torch.Tensor, groups: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.dense_group_by(keys, values, groups)


@pytest.mark.parametrize("shared", [48 * 1024, 99 * 1024, 163 * 1024, 227 * 1024])
@given(groups=st.integers(1, 40_000))
def test_copies_fit_into_shared_memory(shared: int, groups: int) -> None:
    copies = kernels.copies_that_fit(groups, shared)
    size = copies * groups * kernels.PARTIAL
    assert copies in (0, 1, 2, 4, 8, 16, 32)
    assert size <= shared
    assert copies == kernels.MOST_COPIES or max(1, 2 * copies) * groups * kernels.PARTIAL > shared


def test_a_pytorch_that_cannot_compile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cuda, "_compile_kernel", raising=False)
    with pytest.raises(GpuguideError, match=r"has no torch\.cuda\._compile_kernel.*install one from 2\.9 to 2\.13\.$"):
        kernels.kernel("group_by", torch.int32, torch.float64, False)


def test_without_a_toolkit_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(kernel_source: str, kernel_name: str) -> None:
        raise OSError("CUDA_HOME environment variable is not set.")

    monkeypatch.setattr(torch.cuda, "_compile_kernel", fails, raising=False)
    with pytest.raises(GpuguideError, match="or call plain_group_by"):
        kernels.kernel("group_by", torch.int32, torch.float64, False)


# --- the kernels' text, as C++ ----------------------------------------------------------------------------

CUDA_AS_CPP = r"""
#include <atomic>
#include <barrier>
#include <cstddef>
#include <thread>
#include <vector>
#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(threads)
struct Place { unsigned x; };
static thread_local Place threadIdx;
static Place blockIdx, blockDim, gridDim;
static std::barrier<>* all_threads;
static void __syncthreads() { all_threads->arrive_and_wait(); }
template <typename T> T atomicAdd(T* where, T what) { return std::atomic_ref<T>(*where).fetch_add(what); }
double partial_sums[1 << 16];
"""
LAUNCH = r"""
template <typename F> void on_all_threads(int blocks, int threads, F kernel) {
    std::barrier<> barrier(threads);
    all_threads = &barrier;
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < (unsigned)blocks; ++blockIdx.x) {
        std::vector<std::thread> running;
        for (int i = 0; i < threads; ++i) running.emplace_back([=] { threadIdx.x = i; kernel(); });
        for (auto& thread : running) thread.join();
    }
}
extern "C" void launch(const KEY* keys, const VALUE* values, double* sums, unsigned long long* counts,
                       unsigned long long* outside, int rows, int groups, int copies, double threshold, int blocks,
                       int threads) {
    on_all_threads(blocks, threads, [=] {
        if (copies) group_by(keys, values, sums, counts, outside, rows, groups, copies, threshold);
        else group_by_directly(keys, values, sums, counts, outside, rows, groups, threshold);
    });
}
"""
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="no g++ here to compile the kernels' text as C++"
)


@needs_compiler
@pytest.mark.parametrize("is_filtered", [False, True])
@pytest.mark.parametrize(("keys", "values"), [TYPES[0], TYPES[3]])
def test_the_kernels_text(keys: torch.dtype, values: torch.dtype, is_filtered: bool, tmp_path: Path) -> None:
    """Threads of the processor stand for the GPU's; 70 of them are more than two warps."""
    source = tmp_path / "kernels.cpp"
    source.write_text(CUDA_AS_CPP + kernels.source_of(keys, values, is_filtered) + LAUNCH)
    library = tmp_path / "kernels.so"
    command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread", str(source), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    launch = ctypes.CDLL(str(library)).launch
    above = 0.5 if is_filtered else None
    for rows, groups, copies, blocks in [
        (0, 5, 2, 1),
        (1, 1, 1, 2),
        (997, 11, 3, 2),
        (600, 100, 1, 3),
        (997, 11, 0, 2),
        (1400, 3, 32, 3),
        (280, 7, 16, 1),
    ]:
        columns = drawn(rows, groups, keys, values, seed=rows)
        sums, counts = torch.zeros(groups, dtype=torch.float64), torch.zeros(groups, dtype=torch.int64)
        outside = torch.zeros((), dtype=torch.int64)
        pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (*columns, sums, counts, outside)]
        launch(*pointers, rows, groups, copies, ctypes.c_double(above or 0.0), blocks, 70)
        right_sums, right_counts = by_numpy(*columns, groups, above)
        np.testing.assert_allclose(sums.numpy(), right_sums, rtol=1e-12)
        assert counts.tolist() == right_counts.tolist()
        assert int(outside) == strangers_in(columns[0], groups)


def test_what_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the GPU: which kernel, over how many blocks, with how much shared memory."""
    launched: list[tuple[object, ...]] = []

    def kernel(name: str, keys: torch.dtype, values: torch.dtype, is_filtered: bool) -> object:
        return lambda *arguments: launched.append((name, is_filtered, *arguments))

    class OnGpu(torch.Tensor):
        is_cuda = True

    monkeypatch.setattr(kernels, "kernel", kernel)
    monkeypatch.setattr(kernels, "_limits", lambda device: (232448, 132))
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: torch.no_grad())
    columns = (torch.zeros(5000, dtype=torch.int32).as_subclass(OnGpu), torch.zeros(5000).as_subclass(OnGpu))
    kernels.dense_group_by(*columns, 1000, check=False)
    kernels.dense_group_by(*columns, 100_000, above=0.25, check=False)
    first, second = launched
    assert (first[:4], first[5]) == (("group_by", False, (5, 1, 1), (1024, 1, 1)), 16 * 1000 * 12)
    assert first[4][5:] == [5000, 1000, 16, 0.0]  # type: ignore[index]
    assert (second[:4], second[5]) == (("group_by_directly", True, (5, 1, 1), (1024, 1, 1)), 0)
    assert second[4][5:] == [5000, 100_000, 0.25]  # type: ignore[index]


def test_a_multiprocessor_gets_one_block_that_takes_its_shared_memory_or_several_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grids: list[object] = []

    class OnGpu(torch.Tensor):
        is_cuda = True

    monkeypatch.setattr(kernels, "kernel", lambda *types: lambda grid, *others: grids.append(grid))
    monkeypatch.setattr(kernels, "_limits", lambda device: (232448, 3))
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: torch.no_grad())
    columns = (torch.zeros(50_000, dtype=torch.int32).as_subclass(OnGpu), torch.zeros(50_000).as_subclass(OnGpu))
    for groups in (1, 19_000, 20_000):
        kernels.dense_group_by(*columns, groups, check=False)
    assert grids == [(3, 1, 1), (3, 1, 1), (6, 1, 1)]


# --- on a GPU ---------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(("keys", "values"), TYPES)
@pytest.mark.parametrize("above", [None, 0.5])
@pytest.mark.parametrize(
    ("rows", "groups"), [(1, 1), (1023, 3), (10**6 + 7, 1000), (10**6, 15_000), (10**6, 50_000), (2 * 10**6, 1)]
)
def test_on_a_gpu(keys: torch.dtype, values: torch.dtype, above: float | None, rows: int, groups: int) -> None:
    columns = drawn(rows, groups, keys, values)
    found = kernels.dense_group_by(*(column.cuda() for column in columns), groups, above, check=False)
    right = kernels.plain_group_by(*columns, groups, above)
    torch.testing.assert_close(found.sum.cpu(), right.sum, rtol=1e-12, atol=0)
    assert found.count.tolist() == right.count.tolist()
    assert int(found.outside) == int(right.outside) == strangers_in(columns[0], groups)


@pytest.mark.gpu
def test_the_gpus_host_waits_for_the_check_only() -> None:
    columns = (torch.zeros(1000, dtype=torch.int32, device="cuda"), torch.ones(1000, device="cuda"))
    kernels.dense_group_by(*columns, 1)  # compiles the kernel
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = kernels.dense_group_by(*columns, 1, check=False)
        with pytest.raises(RuntimeError, match="synchroniz"):
            kernels.dense_group_by(*columns, 1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found.count.tolist() == [1000]


@given(rows=st.integers(0, 100), groups=st.integers(1, 20), above=st.none() | st.floats(-1, 2))
def test_any_rows_and_groups(rows: int, groups: int, above: float | None) -> None:
    columns = drawn(rows, groups, torch.int64, torch.float64, seed=rows)
    found = kernels.plain_group_by(*columns, groups, above)
    sums, counts = by_numpy(*columns, groups, above)
    np.testing.assert_allclose(found.sum.numpy(), sums, rtol=1e-12)
    assert found.count.tolist() == counts.tolist()
