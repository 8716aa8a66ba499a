from __future__ import annotations

import pytest
import torch

from gpuguide.interconnect.copies import DIRECTIONS, WAYS, Ring, checksum, route

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SIZES = [1, 7, 4096, 3 * 2**20 + 5, 70 * 2**20 + 3]
"""Bytes: the larger two take several pieces, and go round the ring; none but 4096 divides into words"""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES)
def test_every_byte_arrives(way: str, direction: str, size: int, device: str) -> None:
    made = route(way, direction, size, device)
    for _ in range(2):
        assert made.arrives_whole()
    assert made.bytes == size * (2 if direction == "both" else 1)


@pytest.mark.parametrize("piece", [1, 3, 64, 1000])
def test_a_ring_keeps_shape_and_type_there_and_back(piece: int) -> None:
    values = torch.randn(13, 5, dtype=torch.float64)
    ring = Ring("cpu", piece=piece, buffers=2)
    there = ring.to_device(values)
    back = ring.to_host(there)
    assert torch.equal(back, values)
    assert back.data_ptr() != there.data_ptr() != values.data_ptr()
    assert ring.to_device(values[:0]).shape == (0, 5)


def test_a_ring_carries_many_buffers_into_longer_ones() -> None:
    sources = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in (0, 1, 9, 10, 25)]
    destinations = [torch.zeros(len(source) + 3, dtype=torch.uint8) for source in sources]
    Ring("cpu", piece=10, buffers=2).carry(sources, destinations)
    for source, destination in zip(sources, destinations, strict=True):
        assert torch.equal(destination, torch.cat([source, torch.zeros(3, dtype=torch.uint8)]))


def test_a_checksum_finds_what_changed_moved_or_is_missing() -> None:
    values = torch.randint(0, 256, (1003,), dtype=torch.uint8)
    swapped, changed = values.clone(), values.clone()
    swapped[:8], swapped[800:808] = values[800:808], values[:8]
    changed[1002] ^= 1
    sums = [checksum(each) for each in (values, swapped, changed, values[:1002], values[1:])]
    assert len(set(sums)) == len(sums)
    assert checksum(values.clone()) == sums[0]
    assert checksum(torch.zeros(8)) != checksum(torch.zeros(9))


def test_what_cannot_be_copied_is_named() -> None:
    ring = Ring("cpu", piece=8)
    with pytest.raises(ValueError, match="expected a destination like the source"):
        ring.to_device(torch.zeros(4), torch.zeros(5))
    with pytest.raises(ValueError, match=r"call \.contiguous"):
        ring.to_device(torch.zeros(4, 4).t())
    with pytest.raises(ValueError, match="two buffers of a byte or more, got 1 of 8"):
        Ring("cpu", piece=8, buffers=1)
    with pytest.raises(ValueError, match="'pinnd', 'h2d' and 4"):
        route("pinnd", "h2d", 4, "cpu")
