"""Between the host's memory and a GPU's: pageable, pinned, through a ring of pinned buffers, and both ways at once.

The copy engine of a GPU reads host memory by its physical address, so that memory must stay where it is: it must be
pinned (page-locked). From pageable memory the driver first copies into a pinned buffer of its own, with one core, and
the link waits. A ring lets all cores do that, while the engine fetches what was filled before::

    cores   fill A   fill B   fill C   fill D   fill A
    engine           fetch A  fetch B  fetch C  fetch D

On the way back the engine fills and the cores empty. The slower of the two sets the pace. On a CPU the same code runs
without pinned memory and without streams, so that what it does can be tried anywhere.

Sources: CUDA C++ Best Practices Guide, "Pinned memory" and "Asynchronous and overlapping transfers"; CUDA Runtime API,
"API synchronization behavior".
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

__all__ = ["BUFFERS", "DIRECTIONS", "PIECE", "WAYS", "Ring", "Route", "checksum", "piece_of", "route"]

KIB, MIB = 2**10, 2**20
PIECE = 8 * MIB
"""Bytes of a pinned buffer of a ring, at most"""
LEAST_PIECE = 256 * KIB
"""Smaller pieces cost more calls for each byte than their overlap is worth"""
BUFFERS = 4
"""In a ring. With two, the cores and the engine would wait for each other whenever one of them is late."""
WAYS = ("pageable", "pinned", "staged")
"""How bytes may cross: as the driver copies them, from pinned memory, or through a :class:`Ring`"""
DIRECTIONS = ("h2d", "d2h", "both")
"""Host to device, device to host, and the two at once"""
CHECKED_AT_ONCE = 2**21
"""Words of a checksum that are weighted together"""
ODD = 0x9E3779B97F4A7C15 - 2**64
"""2⁶⁴ divided by the golden ratio, as a signed number: its multiples are spread over all bits"""


def as_bytes(values: torch.Tensor) -> torch.Tensor:
    """Return the memory of a contiguous tensor as ``uint8`` of one dimension, without a copy.

    Raises
    ------
    ValueError
        If it is not contiguous.
    """
    if not values.is_contiguous():
        raise ValueError(f"expected a contiguous tensor, got strides {values.stride()}; call .contiguous() first")
    return values.reshape(-1).view(torch.uint8)


def checksum(values: torch.Tensor) -> int:
    """Return a sum of a tensor's bytes that depends on where each of them is, computed where the tensor lies.

    Each word of eight bytes is multiplied with an odd number of its own, and all are added modulo 2⁶⁴. An odd factor
    can be undone, so that a change of any one word changes the sum. Every processor gives the same number.

    Parameters
    ----------
    values : torch.Tensor
        Contiguous, of any shape and type.
    """
    data = as_bytes(values)
    whole = len(data) // 8 * 8
    head = data[:whole] if data.data_ptr() % 8 == 0 else data[:whole].clone()  # words begin at multiples of eight
    tail = data.new_zeros(8)
    tail[: len(data) - whole] = data[whole:]
    total = torch.tensor(len(data), dtype=torch.int64, device=data.device)
    begin = 0
    for words in (*head.view(torch.int64).split(CHECKED_AT_ONCE), tail.view(torch.int64)):
        places = torch.arange(begin, begin + len(words), dtype=torch.int64, device=data.device)
        total += (words * (places * ODD).bitwise_or_(1)).sum()
        begin += len(words)
    return int(total) % 2**64


def piece_of(size: int, largest: int = PIECE) -> int:
    """Return into how large pieces a copy of ``size`` bytes is cut, so that filling and fetching can overlap.

    >>> [piece_of(size) // KIB for size in (4 * KIB, MIB, 3 * MIB, 64 * MIB)]
    [256, 256, 512, 8192]
    """
    wanted = LEAST_PIECE
    while wanted * 8 <= size and wanted < largest:
        wanted *= 2
    return min(wanted, largest)


class Ring:
    """Pinned buffers in turn, and the stream on which a GPU's copy engine empties or fills them.

    Any host memory may be copied, pinned or not. Copies of one ring follow one another; another thread waits.

    Parameters
    ----------
    device : str or torch.device
        ``cuda``, or ``cpu`` for the same steps without a GPU.
    piece : int
        Bytes of a buffer.
    buffers : int
        How many there are, two or more.

    Raises
    ------
    ValueError
        If a buffer would hold nothing, or there are fewer than two.
    """

    def __init__(self, device: str | torch.device = "cuda", piece: int = PIECE, buffers: int = BUFFERS) -> None:
        if piece < 1 or buffers < 2:
            raise ValueError(f"a ring needs two buffers of a byte or more, got {buffers} of {piece} bytes")
        self.device = torch.device(device)
        on_gpu = self.device.type == "cuda"
        self.stream = torch.cuda.Stream(self.device) if on_gpu else None
        self.buffers = [torch.empty(piece, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(buffers)]
        self.passed = [torch.cuda.Event() for _ in self.buffers] if on_gpu else []
        self.piece = piece
        self.in_use = threading.Lock()

    def to_device(self, source: torch.Tensor, destination: torch.Tensor | None = None) -> torch.Tensor:
        """Copy a tensor from the host to the ring's device, and return the copy once it is there.

        Parameters
        ----------
        source : torch.Tensor
            Contiguous, in the host's memory.
        destination : torch.Tensor, optional
            On the device, of the same shape and type; a new one otherwise.

        Raises
        ------
        ValueError
            If the two differ in shape, type or place from what they should be.
        """
        if destination is None:
            destination = torch.empty_like(source, device=self.device, memory_format=torch.contiguous_format)
        _alike(source, destination)
        self.carry([as_bytes(source)], [as_bytes(destination)])
        return destination

    def to_host(self, source: torch.Tensor, destination: torch.Tensor | None = None) -> torch.Tensor:
        """Copy a tensor from the ring's device to pageable memory of the host, as :meth:`to_device` the other way."""
        if destination is None:
            destination = torch.empty_like(source, device="cpu", memory_format=torch.contiguous_format)
        _alike(source, destination)
        self._run(self.draining(as_bytes(source), as_bytes(destination)))
        return destination

    def carry(self, sources: Sequence[torch.Tensor], destinations: Sequence[torch.Tensor]) -> None:
        """Copy many buffers of bytes to the device one behind the other, and return when all are there.

        Parameters
        ----------
        sources : sequence of torch.Tensor
            ``uint8``, one-dimensional, in the host's memory.
        destinations : sequence of torch.Tensor
            ``uint8`` on the device, one for each source and at least as long.
        """
        self._run(itertools.chain.from_iterable(map(self.filling, sources, destinations)))

    def exchange(
        self, back: Ring, down: tuple[torch.Tensor, torch.Tensor], up: tuple[torch.Tensor, torch.Tensor]
    ) -> None:
        """Copy to the device through this ring and to the host through another, in turn, so that both ways are busy.

        Parameters
        ----------
        back : Ring
            Another ring of the same device.
        down, up : pair of torch.Tensor
            Source and destination, contiguous: from the host to the device, and from the device to the host.
        """
        steps = itertools.zip_longest(
            self.filling(*map(as_bytes, down)),
            back.draining(*map(as_bytes, up)),
        )
        with back.in_use:
            back.wait_for_caller()
            self._run(steps)
            back.finish()

    def filling(self, source: torch.Tensor, destination: torch.Tensor) -> Iterator[None]:
        """Fill one buffer after another, start the fetch of each, and yield after every piece."""
        piece = piece_of(len(source), self.piece)
        for turn, begin in zip(itertools.cycle(range(len(self.buffers))), range(0, len(source), piece), strict=False):
            part = source[begin : begin + piece]
            buffer = self.buffers[turn][: len(part)]
            self._wait(turn)
            buffer.copy_(part)  # PyTorch divides it among the cores
            self._engine(turn, buffer, destination[begin : begin + len(part)])
            yield

    def draining(self, source: torch.Tensor, destination: torch.Tensor) -> Iterator[None]:
        """Have one buffer after another filled by the device, and empty each; hand back after every piece."""
        piece = piece_of(len(source), self.piece)
        begins = range(0, len(source), piece)
        for place in range(len(begins) + len(self.buffers) - 1):
            if place < len(begins):
                begin, turn = begins[place], place % len(self.buffers)
                part = source[begin : begin + piece]
                self._engine(turn, part, self.buffers[turn][: len(part)])
            late = place - len(self.buffers) + 1
            if 0 <= late < len(begins):
                turn = late % len(self.buffers)
                to = destination[begins[late] : begins[late] + piece]
                self._wait(turn)
                to.copy_(self.buffers[turn][: len(to)])
            yield

    def wait_for_caller(self) -> None:
        """Let the ring's stream wait for what the caller's stream still does with the memory on the device."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    def finish(self) -> None:
        """Wait until everything that the ring began has been copied."""
        if self.stream is not None:
            self.stream.synchronize()

    def _run(self, steps: Iterator[object]) -> None:
        with self.in_use:
            self.wait_for_caller()
            for _ in steps:
                pass
            self.finish()

    def _wait(self, turn: int) -> None:
        """Wait until the engine is done with a buffer; one that it never touched is free."""
        if self.passed:
            self.passed[turn].synchronize()

    def _engine(self, turn: int, source: torch.Tensor, destination: torch.Tensor) -> None:
        """Have the copy engine move a piece, and note when it has."""
        with torch.cuda.stream(self.stream):
            destination.copy_(source, non_blocking=True)
        if self.stream is not None:
            self.passed[turn].record(self.stream)


def _alike(source: torch.Tensor, destination: torch.Tensor) -> None:
    """Check that a copy can be byte for byte."""
    if source.shape != destination.shape or source.dtype != destination.dtype:
        raise ValueError(
            f"expected a destination like the source, {tuple(source.shape)} of {source.dtype}, "
            f"got {tuple(destination.shape)} of {destination.dtype}"
        )


@dataclass(frozen=True)
class Route:
    """A copy of random bytes that is ready to be made, again and again."""

    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]
    """Source and destination of each direction, ``uint8`` of one dimension"""
    start: Callable[[], None]
    """Makes the copies, and may return before they are there"""
    device: torch.device

    @property
    def bytes(self) -> int:
        """Return the bytes that cross the link in one call, all directions together."""
        return sum(source.nbytes for source, _ in self.pairs)

    def __call__(self) -> None:
        """Copy, and return when everything is there."""
        self.start()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def arrives_whole(self) -> bool:
        """Overwrite the destinations, copy, and return whether every checksum is that of its source."""
        for _, destination in self.pairs:
            destination.zero_()
        self()
        return all(checksum(source) == checksum(destination) for source, destination in self.pairs)


def route(way: str, direction: str, size: int, device: str | torch.device = "cuda") -> Route:
    """Return the copy of ``size`` bytes each way between the host's memory and a device, with its memory in place.

    Parameters
    ----------
    way : str
        One of :data:`WAYS`.
    direction : str
        One of :data:`DIRECTIONS`. ``both`` copies ``size`` bytes each way at the same time.
    size : int
        Bytes, one or more.
    device : str or torch.device
        ``cuda``, or ``cpu``, where both ends are host memory and nothing is pinned.

    Raises
    ------
    ValueError
        If way or direction is no such name, or the size is below one.
    """
    if way not in WAYS or direction not in DIRECTIONS or size < 1:
        raise ValueError(
            f"expected a way of {WAYS}, a direction of {DIRECTIONS} and a size of 1 byte or more, "
            f"got {way!r}, {direction!r} and {size}"
        )
    place = torch.device(device)
    ends: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    if direction != "d2h":
        host = _random(size, "cpu", pinned=way == "pinned" and place.type == "cuda")
        ends["h2d"] = host, torch.zeros(size, dtype=torch.uint8, device=place)
    if direction != "h2d":
        host = _random(size, "cpu", pinned=way == "pinned" and place.type == "cuda")
        ends["d2h"] = _random(size, place), host.zero_()
    return Route(list(ends.values()), _starter(way, ends, place), place)


def _starter(way: str, ends: dict[str, tuple[torch.Tensor, torch.Tensor]], device: torch.device) -> Callable[[], None]:
    """Return what begins the copies."""
    if way == "staged":
        rings = {name: Ring(device) for name in ends}
        if len(ends) == 2:
            return lambda: rings["h2d"].exchange(rings["d2h"], ends["h2d"], ends["d2h"])
        if "h2d" in ends:
            return lambda: void(rings["h2d"].to_device(*ends["h2d"]))
        return lambda: void(rings["d2h"].to_host(*ends["d2h"]))
    streams = [torch.cuda.Stream(device) if device.type == "cuda" and len(ends) == 2 else None for _ in ends]

    def start() -> None:
        for stream in streams:
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream(device))
        if way == "pageable" and len(ends) == 2:
            _copy_in_threads(streams, list(ends.values()))
            return
        for stream, (source, destination) in zip(streams, ends.values(), strict=True):
            with torch.cuda.stream(stream):
                destination.copy_(source, non_blocking=way == "pinned")

    return start


def _copy_in_threads(
    streams: Sequence[torch.cuda.Stream | None], pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """Copy each pair in a thread of its own, for a copy of pageable memory keeps the thread that calls it."""

    def copy(stream: torch.cuda.Stream | None, source: torch.Tensor, destination: torch.Tensor) -> None:
        with torch.cuda.stream(stream):
            destination.copy_(source)

    threads = [threading.Thread(target=copy, args=(stream, *pair)) for stream, pair in zip(streams, pairs, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def void(value: object) -> None:
    """Take a value and return none."""


def _random(size: int, device: str | torch.device, *, pinned: bool = False) -> torch.Tensor:
    """Return random bytes; the memory is written once, so that the system has really given it."""
    data = torch.empty(size, dtype=torch.uint8, device=device, pin_memory=pinned)
    block = torch.randint(0, 256, (min(size, 16 * MIB),), dtype=torch.uint8, device=device)
    for part in data.split(16 * MIB):
        part.copy_(block[: len(part)])
    return data
