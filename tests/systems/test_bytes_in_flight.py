"""The kernel that has a known number of bytes under way: which pieces it reads, here one thread after another."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpuguide.systems import bytes_in_flight
from gpuguide.systems.bytes_in_flight import PIECE, SCATTER, WORD, Flight


def interpreted(loads: int) -> Any:
    """Return what stands in for the compiled kernel: the same loop in Python, thread after thread."""

    def launch(grid: tuple[int, int, int], block: tuple[int, int, int], arguments: list[Any]) -> None:
        words, sums, pieces, mask = arguments
        threads = grid[0] * block[0]
        assert threads == len(sums)
        chunks = words.view(-1, 4).tolist()
        for thread in range(threads):
            own, piece, total, bits = thread % 32, thread // 32, 0, 0
            while piece < pieces:
                for n in range(loads):
                    read = chunks[own + 32 * ((piece + n * (threads // 32)) * SCATTER % 2**32 & mask)]
                    total += sum(read)
                    bits |= read[0] | read[1] | read[2] | read[3]
                piece += loads * (threads // 32) + (bits >> 31)
            sums[thread] = (total + 2**31) % 2**32 - 2**31

    return launch


def some_words(pieces: int) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(2**31 - 1, (pieces * PIECE // WORD,), dtype=torch.int32)


@pytest.mark.parametrize(("in_flight", "loads"), [(512, 1), (2048, 1), (8192, 1), (2048, 4), (8192, 4)])
def test_every_piece_is_read_once(in_flight: int, loads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytes_in_flight, "kernel", interpreted)
    flight = Flight.set_up(some_words(32), in_flight, loads)
    assert len(flight.sums) * 16 * loads == in_flight
    flight()
    assert flight.is_complete()
    flight.words[5] ^= 1
    assert not flight.is_complete()


def test_a_small_flight_reads_a_part_scattered_over_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bytes_in_flight, "ROUNDS", 4)
    monkeypatch.setattr(bytes_in_flight, "kernel", interpreted)
    flight = Flight.set_up(some_words(64), 1024, 1)
    assert flight.bytes_read == 4 * 1024
    order = flight.order().tolist()
    assert len(set(order)) == 8
    assert max(order) > 48
    flight()
    assert flight.is_complete()


def test_the_whole_array_is_visited_once_and_neighbours_in_time_lie_apart() -> None:
    order = Flight.set_up(some_words(2**12), 2**20, 1).order()
    assert sorted(order.tolist()) == list(range(2**12))
    assert int(order.diff().abs().min()) > 1000


def test_what_is_compiled_has_its_number_of_loads_and_none_may_be_moved() -> None:
    assert bytes_in_flight.source_of(4).startswith("#define LOADS 4\n#define SCATTER 2654435761u\n")
    assert bytes_in_flight.SOURCE.count("asm volatile") == bytes_in_flight.SOURCE.count("asm") == 1
