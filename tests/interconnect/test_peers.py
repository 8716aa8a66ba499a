from __future__ import annotations

from types import SimpleNamespace

import interpreted
import pytest
import torch
from interpreted import needs_triton

from gpuguide.interconnect import peers
from gpuguide.interconnect.peers import CARRIERS, PEER_DIRECTIONS, pairs, peer_route, require_peers

SIZES = [1, 3, 4, 4096, 2**20 + 5]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.parametrize("direction", PEER_DIRECTIONS)
@pytest.mark.parametrize("size", SIZES)
def test_every_byte_arrives_by_the_engines_path(size: int, direction: str) -> None:
    made = peer_route("copy-engine", direction, size, "cpu", "cpu")
    assert made.arrives_whole()
    assert made.bytes == size * (2 if direction == "both" else 1)


def by_kernel(device: str, size: int) -> None:
    """Copy with the kernel within one device, or in the interpreter."""
    assert all(peer_route("kernel", "both", size, device, device, pull=pull).arrives_whole() for pull in (True, False))


@needs_triton
@pytest.mark.parametrize("size", SIZES)
def test_every_byte_arrives_by_the_kernel(size: int) -> None:
    interpreted.run(__file__, f"by_kernel('cpu', {size})")


@pytest.mark.gpu
@two_gpus
@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("direction", PEER_DIRECTIONS)
@pytest.mark.parametrize("size", [*SIZES, 2**28 + 7])
def test_every_byte_arrives_between_two_gpus(carrier: str, direction: str, size: int) -> None:
    for pull in (False, True) if carrier == "kernel" else (False,):
        assert peer_route(carrier, direction, size, pull=pull).arrives_whole()
    if carrier == "copy-engine":
        assert peer_route(carrier, direction, size, parts=3).arrives_whole()


@pytest.mark.gpu
@two_gpus
def test_a_copy_that_the_driver_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    route = peer_route("copy-engine", "one", 8)
    monkeypatch.setattr(peers, "_driver", lambda: SimpleNamespace(cuMemcpyAsync=lambda *given: 719))
    with pytest.raises(RuntimeError, match="refused a copy of 8 bytes between GPUs: CUresult 719"):
        route()


def test_every_pair_goes_both_ways() -> None:
    assert pairs(1) == []
    assert len(set(pairs(8))) == 8 * 7
    assert all((there, here) in pairs(8) for here, there in pairs(8))


def test_gpus_that_are_not_there_or_cannot_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda here, there: (here, there) != (1, 0))
    with pytest.raises(RuntimeError, match="GPU 1 cannot reach the memory of GPU 0"):
        require_peers(["cuda:0", "cuda:1"])
    with pytest.raises(RuntimeError, match="needs two of them, got 1"):
        require_peers(["cuda:0", "cuda:0"])
    with pytest.raises(RuntimeError, match="needs GPU 2, and PyTorch sees 2"):
        require_peers(["cuda:0", "cuda:2"])
    with pytest.raises(ValueError, match="got 'engine', 'one', 8 and 1"):
        peer_route("engine", "one", 8, "cpu", "cpu")
