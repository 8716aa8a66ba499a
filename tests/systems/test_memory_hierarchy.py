"""What can be said without a GPU of the kernels that read a GPU's memories. The benchmarks' tests run them on one."""

from __future__ import annotations

import pytest
import torch

from gpuguide.errors import GpuguideError
from gpuguide.systems import memory_hierarchy


@pytest.mark.parametrize(
    ("capability", "size"), [((7, 5), 65536), ((8, 0), 166912), ((9, 0), 232448), ((99, 0), 49152)]
)
def test_shared_memory_follows_from_the_capability_and_is_the_least_where_that_is_not_known(
    capability: tuple[int, int], size: int
) -> None:
    assert memory_hierarchy.shared_memory(capability) == size


def test_a_chain_visits_every_line_once_and_begins_anew() -> None:
    torch.manual_seed(0)
    chain = memory_hierarchy.Chain.draw(64 * 128, 10, "l1", "cpu", is_near=True)
    first = chain.links.data_ptr()
    address, visited = first + int(chain.order[0]) * 128, []
    for _ in range(64):
        visited.append((address - first) // 128)
        address = int(chain.links[(address - first) // 8])
    assert visited == chain.order.tolist()
    assert sorted(visited) == list(range(64))
    assert visited != sorted(visited)
    assert address == first + visited[0] * 128


@pytest.mark.parametrize(("working_set", "repeats"), [(1000, 10), (10_000, 1), (4096, 2)])
def test_parts_are_whole_chunks_and_all_that_is_read_is_counted(working_set: int, repeats: int) -> None:
    reading = memory_hierarchy.Reading.set_up(working_set, 10_000, 3, "l2", "cpu")
    assert reading.part % 16 == 0
    assert working_set - 48 < 3 * reading.part <= working_set
    assert reading.repeats == repeats
    assert reading.bytes_read == 3 * reading.part * repeats


def test_a_word_that_is_not_read_is_noticed() -> None:
    torch.manual_seed(0)
    reading = memory_hierarchy.Reading.set_up(4096, 16384, 2, "l2", "cpu")
    for missing in (0, 1):
        total = reading.repeats * int(reading.words.sum()) - missing * int(reading.words[7])
        reading.sums.zero_()
        reading.sums[5] = (total + 2**31) % 2**32 - 2**31
        assert reading.is_complete() is (missing == 0)


def test_each_contender_loads_with_its_own_instruction() -> None:
    for name, instruction in (("l1", "ld.global.ca"), ("l2", "ld.global.cg"), ("shared", "ld.shared")):
        source = memory_hierarchy.source_of(name)
        assert f'#define INSTRUCTION "{instruction}"' in source
        assert source.startswith("#define INSTRUCTION")
        assert ("#define SHARED" in source) is (name == "shared")


def test_no_load_may_be_moved_or_dropped() -> None:
    assert memory_hierarchy.SOURCE.count("asm volatile(INSTRUCTION") == memory_hierarchy.SOURCE.count("asm") == 2


def test_a_pytorch_that_cannot_compile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cuda, "_compile_kernel", raising=False)
    with pytest.raises(GpuguideError, match=r"has no torch\.cuda\._compile_kernel.*install one from 2\.9 to 2\.13\.$"):
        memory_hierarchy.kernel("read_again", "l1")


def test_without_a_toolkit_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(kernel_source: str, kernel_name: str) -> None:
        raise OSError("CUDA_HOME environment variable is not set.")

    monkeypatch.setattr(torch.cuda, "_compile_kernel", fails, raising=False)
    with pytest.raises(GpuguideError, match="install one, or set CUDA_HOME to where it is"):
        memory_hierarchy.kernel("read_again", "l1")


@pytest.mark.parametrize("memory", ["l1", "l2", "shared"])
def test_what_is_launched_covers_the_working_set(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: dict[str, tuple[object, ...]] = {}
    monkeypatch.setattr(
        memory_hierarchy, "kernel", lambda name, memory: lambda *arguments: launched.update({name: arguments})
    )
    reading = memory_hierarchy.Reading.set_up(9600, 48000, 3, memory, "cpu")
    chain = memory_hierarchy.Chain.draw(4096, 100, memory, "cpu", is_near=True)
    reading()
    chain()
    grid, block, arguments, in_shared = launched["read_again"]
    assert (grid, block, arguments[2:]) == ((3, 1, 1), (1024, 1, 1), [3200 // 16, 5])  # type: ignore[index]
    assert in_shared == (3200 if memory == "shared" else 0)
    grid, block, arguments, in_shared = launched["follow"]
    assert (grid, block, arguments[3:]) == ((1, 1, 1), (1024, 1, 1), [4096 // 8, 100])  # type: ignore[index]
    assert in_shared == (4096 if memory == "shared" else 0)
