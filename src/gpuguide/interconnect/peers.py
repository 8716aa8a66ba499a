"""From one GPU's memory to another's, by the copy engine and by a kernel, one way and both ways at once.

Two GPUs are peers where one can read and write the other's memory by itself: over NVLink, or over PCI Express below a
common switch or bridge. The copy engine is a unit of its own beside the multiprocessors, so computing goes on while it
copies. A kernel does the same with loads and stores, which takes multiprocessors, and can compute on the way; that is
what fast collectives are made of. It may push (read here, write there) or pull (read there, write here). A store needs
no answer, while a load waits for one.

PyTorch's own copy between GPUs waits for the current streams of *both*. Copies in both directions therefore need
streams of their own, or one waits for the other.

Sources: CUDA C++ Programming Guide, "Peer-to-Peer Memory Access"; NVIDIA nvbandwidth, for copying by engine and by
kernel; PyTorch, ``aten/src/ATen/native/cuda/Copy.cu``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from gpuguide.interconnect.copies import as_bytes, checksum

__all__ = [
    "CARRIERS",
    "PEER_DIRECTIONS",
    "PeerRoute",
    "copy_by_engine",
    "copy_by_kernel",
    "pairs",
    "peer_route",
    "require_peers",
]

CARRIERS = ("copy-engine", "kernel")
"""What may move bytes between two GPUs: the copy engine, as PyTorch asks it to, or a kernel"""
PEER_DIRECTIONS = ("one", "both")
"""From the first GPU to the second, or both ways at once"""
WORD = 4
"""Bytes that a lane of the kernel moves at a time; four neighbours become one access of 16"""
MIB = 2**20


def pairs(count: int) -> list[tuple[int, int]]:
    """Return every ordered pair of ``count`` GPUs.

    >>> pairs(3)
    [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    """
    return list(itertools.permutations(range(count), 2))


def require_peers(devices: Sequence[torch.device | str]) -> None:
    """Check that every device can reach every other one's memory.

    Raises
    ------
    RuntimeError
        If there are fewer than two GPUs, one of them does not exist, or two cannot reach each other.
    """
    found = torch.cuda.device_count()
    indices = [torch.device(device).index or 0 for device in devices]
    if len(set(indices)) < 2:
        raise RuntimeError(f"a copy between GPUs needs two of them, got {len(set(indices))}")
    if max(indices) >= found:
        raise RuntimeError(f"a copy between GPUs needs GPU {max(indices)}, and PyTorch sees {found} of them")
    for here, there in itertools.permutations(indices, 2):
        if not torch.cuda.can_device_access_peer(here, there):
            raise RuntimeError(
                f"GPU {here} cannot reach the memory of GPU {there}, so that bytes would go through the host; "
                "'nvidia-smi topo -p2p rw' says why, often a virtual machine or the IOMMU between them"
            )


def copy_by_engine(
    source: torch.Tensor, destination: torch.Tensor, streams: Sequence[Sequence[torch.cuda.Stream]] = ()
) -> None:
    """Copy bytes between GPUs with copy engines, in as many parts as streams are given.

    Parameters
    ----------
    source, destination : torch.Tensor
        ``uint8``, one-dimensional, of one length, on two devices.
    streams : sequence of sequences of torch.cuda.Stream, optional
        For each part a stream of the source's device and one of the destination's. Without any, the current streams
        and one part.
    """
    if not streams:
        destination.copy_(source, non_blocking=True)
        return
    length = -(-len(source) // len(streams))
    parts = zip(source.split(length), destination.split(length), strict=True)
    for (here, there), (part, to) in zip(streams, parts, strict=False):
        with torch.cuda.stream(there), torch.cuda.stream(here):
            to.copy_(part, non_blocking=True)


def copy_by_kernel(source: torch.Tensor, destination: torch.Tensor, *, pull: bool = False) -> None:
    """Copy bytes between GPUs with a kernel on the source's GPU, which pushes, or on the destination's, which pulls.

    Bytes that fill no word of four are copied by the engine.

    Parameters
    ----------
    source, destination : torch.Tensor
        ``uint8``, one-dimensional, of one length. Where they are on two GPUs, these must have access to each other,
        which :func:`peer_route` sees to; within one device the kernel is an ordinary copy.
    pull : bool
        Read the other GPU's memory instead of writing it.
    """
    from gpuguide.interconnect import peer_kernels

    whole = len(source) // WORD * WORD
    if source.data_ptr() % WORD or destination.data_ptr() % WORD:
        whole = 0
    if whole:
        words, to = source[:whole].view(torch.int32), destination[:whole].view(torch.int32)
        runs_on = to.device if pull else words.device
        peer_kernels.copy_words(words, to, runs_on)
    if whole < len(source):
        destination[whole:].copy_(source[whole:], non_blocking=True)


@dataclass(frozen=True)
class PeerRoute:
    """A copy of random bytes between two GPUs that is ready to be made, again and again.

    The call begins on the current stream of the first GPU and joins it again, so that events on that stream, or a
    graph that captures it, see all of it.
    """

    ways: Sequence[tuple[torch.Tensor, torch.Tensor]]
    """Source and destination of each direction"""
    start: Callable[[], None]

    @property
    def bytes(self) -> int:
        """Return the bytes that cross in one call, both directions together."""
        return sum(source.nbytes for source, _ in self.ways)

    def __call__(self) -> None:
        """Begin the copies; the current stream of the first GPU waits for them."""
        self.start()

    def arrives_whole(self) -> bool:
        """Overwrite the destinations, copy, and return whether every checksum is that of its source."""
        for _, destination in self.ways:
            destination.zero_()
        _settle(self.ways)
        self()
        _settle(self.ways)
        return all(checksum(source) == checksum(destination) for source, destination in self.ways)


def peer_route(
    carrier: str,
    direction: str,
    size: int,
    first: str | torch.device = "cuda:0",
    second: str | torch.device = "cuda:1",
    *,
    pull: bool = False,
    parts: int = 1,
) -> PeerRoute:
    """Return the copy of ``size`` bytes each way between two GPUs, with its memory and streams in place.

    Parameters
    ----------
    carrier : str
        One of :data:`CARRIERS`.
    direction : str
        ``one``: from the first to the second; ``both``: ``size`` bytes each way at the same time.
    size : int
        Bytes, one or more.
    first, second : str or torch.device
        Two GPUs. For tests, two times ``cpu``.
    pull : bool
        Have the kernel read and not write over the link.
    parts : int
        Into how many parts, each on streams of its own, the copy engine's copy is cut.

    Raises
    ------
    ValueError
        If carrier or direction is no such name, or a number is below one.
    RuntimeError
        If the two cannot reach each other.
    """
    if carrier not in CARRIERS or direction not in PEER_DIRECTIONS or min(size, parts) < 1:
        raise ValueError(
            f"expected a carrier of {CARRIERS}, a direction of {PEER_DIRECTIONS}, and size and parts of 1 or more, "
            f"got {carrier!r}, {direction!r}, {size} and {parts}"
        )
    here, there = torch.device(first), torch.device(second)
    on_gpus = here.type == "cuda"
    if on_gpus:
        require_peers([here, there])
        _open(here, there)
    ends = [(here, there), (there, here)][: 1 + (direction == "both")]
    ways = [(_random(size, source), torch.zeros(size, dtype=torch.uint8, device=to)) for source, to in ends]
    _settle(ways)
    lanes: list[list[tuple[torch.cuda.Stream, torch.cuda.Stream]]] = [[] for _ in ends]
    if on_gpus:
        lanes = [[(torch.cuda.Stream(source), torch.cuda.Stream(to)) for _ in range(parts)] for source, to in ends]

    def start() -> None:
        with _fork(here if on_gpus else None, [stream for lane in lanes for pair in lane for stream in pair]):
            for way, lane in zip(ways, lanes, strict=True):
                _carry(carrier, *way, lane, pull)

    return PeerRoute(ways, start)


def _carry(
    carrier: str,
    source: torch.Tensor,
    destination: torch.Tensor,
    streams: Sequence[Sequence[torch.cuda.Stream]],
    pull: bool,
) -> None:
    """Make one direction's copy."""
    if carrier == "copy-engine":
        copy_by_engine(source, destination, streams)
    elif not streams:
        copy_by_kernel(source, destination, pull=pull)
    else:
        from_, to = streams[0]
        with torch.cuda.stream(from_), torch.cuda.stream(to):
            copy_by_kernel(source, destination, pull=pull)


@contextmanager
def _fork(device: torch.device | None, streams: Sequence[torch.cuda.Stream]) -> Iterator[None]:
    """Let streams begin after the current one of a GPU, and that one go on after all of them; else do nothing."""
    if device is None:
        yield
        return
    trunk = torch.cuda.current_stream(device)
    began = trunk.record_event()
    for stream in streams:
        stream.wait_event(began)
    yield
    for stream in streams:
        trunk.wait_event(stream.record_event())


def _open(here: torch.device, there: torch.device) -> None:
    """Give each GPU access to the other's memory, which PyTorch does at the first copy between them."""
    for source, to in ((here, there), (there, here)):
        torch.zeros(1, device=source).to(to)


def _settle(ways: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Wait for everything that the GPUs of a copy do."""
    for device in {end.device for way in ways for end in way}:
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _random(size: int, device: torch.device) -> torch.Tensor:
    """Return random bytes, drawn once for every 16 MiB."""
    block = torch.randint(0, 256, (min(size, 16 * MIB),), dtype=torch.uint8, device=device)
    data = torch.empty(size, dtype=torch.uint8, device=device)
    for part in as_bytes(data).split(16 * MIB):
        part.copy_(block[: len(part)])
    return data
