from __future__ import annotations

from dataclasses import replace

import pytest

from gpuguide.benchmarks import memory_hierarchy as benchmarks
from gpuguide.hardware import datasheet
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure.benchmark import too_large
from gpuguide.systems import memory_hierarchy

KIB, MIB, GIB = 2**10, 2**20, 2**30
BANDWIDTH = declarations.get("memory-hierarchy")
LATENCY = declarations.get("memory-latency")
FLIGHT = declarations.get("bytes-in-flight")
ALL = pytest.mark.parametrize("benchmark", [BANDWIDTH, LATENCY, FLIGHT], ids=["bandwidth", "latency", "flight"])
BOTH = pytest.mark.parametrize("benchmark", [BANDWIDTH, LATENCY], ids=["bandwidth", "latency"])


def sizes(benchmark: declarations.Benchmark, gpu: str) -> list[int]:
    return [int(keys["working_set"]) for keys in benchmark.cases(devices.fake(gpu))]


def test_working_sets_grow_to_far_beyond_the_caches_with_half_steps_around_the_l2() -> None:
    h100 = sizes(BANDWIDTH, "h100-sxm")
    assert h100 == sorted(set(h100))
    assert [size // MIB for size in h100] == [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 2048, 4096]
    assert sizes(LATENCY, "h100-sxm") == [2**power for power in range(14, 31)]
    assert 3 * MIB in sizes(BANDWIDTH, "t4")  # its L2 cache has 4 MB
    assert 96 * MIB not in sizes(BANDWIDTH, "t4")


@ALL
def test_a_processor_is_not_asked(benchmark: declarations.Benchmark) -> None:
    assert benchmark.cases(devices.cpu()) == []


@BOTH
@pytest.mark.parametrize("gigabytes", [8, 16, 80])
def test_only_the_largest_do_not_fit_a_small_gpu(benchmark: declarations.Benchmark, gigabytes: int) -> None:
    device = replace(devices.fake("h100-sxm"), memory=gigabytes * 10**9)
    skipped = [keys for keys in benchmark.cases(device) if too_large(benchmark, keys, device)]
    assert [keys["working_set"] for keys in skipped] == ([4 * GIB] if benchmark is BANDWIDTH and gigabytes == 8 else [])


@pytest.mark.parametrize("gpu", list(datasheet.load()))
def test_every_gpu_has_multiprocessors_and_shared_memory(gpu: str) -> None:
    device = devices.fake(gpu)
    assert 1 <= device.multiprocessors <= 300
    assert 48 * KIB <= memory_hierarchy.shared_memory(device.capability or (0, 0)) <= 228 * KIB


@pytest.mark.parametrize(
    ("benchmark", "gpu", "largest", "reason"),
    [
        (BANDWIDTH, "h100-sxm", 24 * MIB, "a block would hold 248 KiB, and its shared memory has 227 KiB"),
        (LATENCY, "h100-sxm", 128 * KIB, "a block would hold 256 KiB, and its shared memory has 227 KiB"),
        (LATENCY, "t4", 64 * KIB, "a block would hold 128 KiB, and its shared memory has 64 KiB"),
    ],
)
def test_shared_memory_is_left_out_where_it_ends(
    benchmark: declarations.Benchmark, gpu: str, largest: int, reason: str
) -> None:
    device = devices.fake(gpu)
    reasons = {
        int(keys["working_set"]): benchmark.contenders["shared"].skip_reason(device, keys)
        for keys in benchmark.cases(device)
    }
    assert max(size for size, why in reasons.items() if why is None) == largest
    assert next(why for size, why in reasons.items() if size > largest) == reason
    for name in ("l1", "l2"):
        assert not any(benchmark.contenders[name].skip_reason(device, keys) for keys in benchmark.cases(device))


def test_bytes_under_way_are_left_out_where_a_warp_has_more_or_the_gpu_holds_fewer_threads() -> None:
    device = devices.fake("h100-sxm")

    def left_out(contender: str, size: int) -> str | None:
        return FLIGHT.contenders[contender].skip_reason(device, {"in_flight": size})

    sizes = [int(keys["in_flight"]) for keys in FLIGHT.cases(device)]
    assert (min(sizes), max(sizes)) == (512, 8 * MIB)
    assert [size for size in sizes if left_out("one-load", size)] == [8 * MIB]
    assert [size for size in sizes if left_out("four-loads", size)] == [512, 1024]
    assert left_out("one-load", 8 * MIB) == "takes 524288 threads, and the GPU holds 270336 at once"
    assert left_out("four-loads", 1024) == "one warp has 2048 bytes under way"


# --- on a GPU --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("size", [MIB, 12 * MIB, 100 * MIB])
def test_every_word_is_read_as_often_as_said(size: int) -> None:
    """The check adds up what was read; the rate counts the same bytes."""
    device = devices.current()
    for name, contender in BANDWIDTH.contenders.items():
        keys = {"working_set": size}
        if not contender.skip_reason(device, keys):
            work = benchmarks.read_work(name, device, keys)
            assert work.check is not None
            work.check()
            assert work.rates["bandwidth"].per_call == pytest.approx(benchmarks.READ, rel=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [16 * KIB, 64 * KIB, 8 * MIB])
def test_chains_end_where_they_must(size: int) -> None:
    device = devices.current()
    for name, contender in LATENCY.contenders.items():
        keys = {"working_set": size}
        if not contender.skip_reason(device, keys):
            work = benchmarks.follow_work(name, device, keys)
            assert work.check is not None
            work.check()


@pytest.mark.gpu
@pytest.mark.parametrize("contender", ["one-load", "four-loads"])
@pytest.mark.parametrize("size", [2 * KIB, 256 * KIB, 4 * MIB])
def test_every_piece_is_read_once_however_many_are_under_way(contender: str, size: int) -> None:
    loads = {"one-load": 1, "four-loads": 4}[contender]
    work = benchmarks.flight_work(loads, devices.current(), {"in_flight": size})
    assert work.check is not None
    work.check()


@pytest.mark.gpu
def test_a_larger_memory_is_slower() -> None:
    device = devices.current()

    def latency(contender: str, size: int) -> float:
        work = benchmarks.follow_work(contender, device, {"working_set": size})
        assert work.sample is not None
        return sorted(work.sample() for _ in range(5))[2]

    near, middle, far = latency("l1", 16 * KIB), latency("l2", MIB), latency("l1", GIB)
    assert near < 0.5 * middle
    assert middle < 0.8 * far
