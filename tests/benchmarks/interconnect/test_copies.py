"""Benchmarks of copies: between host and GPU, and between GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import interpreted
import pytest
import torch
from interpreted import needs_triton

from gpuguide.benchmarks.interconnect import peers, routes
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner, timing
from gpuguide.measure.benchmark import Benchmark, Work, too_large

CPU, H200 = devices.cpu(), devices.fake("h200")
HOST, PEERS = declarations.get("host-device-copy"), declarations.get("peer-copy")
KIB, MIB, GIB = 2**10, 2**20, 2**30
SIZE = 300 * KIB + 5
"""More than a piece of a ring, and bytes that fill no word"""


def test_bytes_of_both_directions_count_together() -> None:
    assert {name: routes.count_directions(name) for name in ("h2d", "one", "both")} == {"h2d": 1, "one": 1, "both": 2}
    work = PEERS.contenders["copy-engine"].build(CPU, {"size": MIB, "direction": "both"})
    assert work.rates["bandwidth"].per_call == 2 * MIB


@pytest.mark.parametrize("benchmark", [HOST, PEERS], ids=lambda benchmark: benchmark.name)
def test_declared_memory_covers_both_ways_of_all_contenders(benchmark: Benchmark) -> None:
    for keys in benchmark.cases(H200):
        ways = 2 if keys["direction"] == "both" else 1
        assert benchmark.memory(keys) >= len(benchmark.contenders) * ways * int(keys["size"])
        assert not too_large(benchmark, keys, H200)
    assert too_large(HOST, {"size": 2 * GIB, "direction": "both"}, replace(H200, memory=8 * 10**9))


@pytest.mark.parametrize("direction", ["h2d", "d2h", "both"])
@pytest.mark.parametrize("way", list(HOST.contenders))
def test_a_copy_of_the_host_is_checked_and_timed(way: str, direction: str) -> None:
    work = HOST.contenders[way].build(CPU, {"size": SIZE, "direction": direction})
    right_then_wrong(work)
    assert timing.wall_clock(work.calls[0])() > 0
    assert work.timing == "wall"


@pytest.mark.parametrize("direction", ["one", "both"])
def test_a_copy_between_gpus_is_checked(direction: str) -> None:
    right_then_wrong(PEERS.contenders["copy-engine"].build(CPU, {"size": SIZE, "direction": direction}))


def by_kernel(direction: str) -> None:
    """Check the kernel's copy in the interpreter."""
    right_then_wrong(PEERS.contenders["kernel"].build(CPU, {"size": 4 * KIB, "direction": direction}))


@needs_triton
@pytest.mark.parametrize("direction", ["one", "both"])
def test_a_copy_by_the_kernel_is_checked(direction: str) -> None:
    interpreted.run(__file__, f"by_kernel({direction!r})")


def right_then_wrong(work: Work) -> None:
    """Check a copy, and the same one when its last byte is another one."""
    route: Any = work.calls[0]
    assert work.check
    work.check()
    start, (_, destination) = route.start, (route.pairs if hasattr(route, "pairs") else route.ways)[-1]

    def but_one(*times: int) -> None:
        start(*times)
        destination[-1] ^= 1

    object.__setattr__(route, "start", but_one)
    with pytest.raises(AssertionError, match="what"):
        work.check()


def test_ends_of_a_copy_between_gpus() -> None:
    assert peers.ends(replace(H200, backend="cuda")) == ("cuda:0", "cuda:1")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("direction", ["one", "both"])
@pytest.mark.parametrize("carrier", list(PEERS.contenders))
def test_a_graph_captures_a_copy_between_gpus(carrier: str, direction: str) -> None:
    device = devices.several(devices.current(), 2)
    work = PEERS.contenders[carrier].build(device, {"size": MIB, "direction": direction})
    assert work.check
    work.check()
    route: Any = work.calls[0]
    sample = runner.case.sampler(work, device)
    assert sample is work.sample
    for _, destination in route.ways:
        destination.zero_()
        torch.cuda.synchronize(destination.device)
    assert sample() > 0
    torch.cuda.synchronize("cuda:1")
    assert all(torch.equal(source.cpu(), destination.cpu()) for source, destination in route.ways)
