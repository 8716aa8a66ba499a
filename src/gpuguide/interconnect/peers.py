"""From one GPU's memory to another's, by the copy engine and by a kernel, one way and both ways at once.

Two GPUs are peers where one can read and write the other's memory by itself: over NVLink, or over PCI Express below a
common switch or bridge. The copy engine is a unit of its own beside the multiprocessors, so computing goes on while it
copies. A kernel does the same with loads and stores, which takes multiprocessors, and can compute on the way; that is
what fast collectives are made of. It may push (read here, write there) or pull (read there, write here). A store needs
no answer, while a load waits for one.

PyTorch's own copy between GPUs waits for the current streams of *both*, and both wait for it. Such a wait between two
GPUs takes longer than a small copy, so the copies here are asked for on one stream, as the driver lets one: whoever
calls sees to it that nobody uses the other end meanwhile.

Sources: CUDA C++ Programming Guide, "Peer-to-Peer Memory Access"; CUDA Driver API, ``cuMemcpyAsync``; NVIDIA
nvbandwidth, for copying by engine and by kernel; PyTorch, ``aten/src/ATen/native/cuda/Copy.cu``.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
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
    source: torch.Tensor, destination: torch.Tensor, streams: Sequence[torch.cuda.Stream | None] = (None,)
) -> None:
    """Copy bytes between GPUs with copy engines, in as many parts as streams are given.

    Nothing is waited for but what the streams did before, so nobody may use either end on another stream meanwhile.

    Parameters
    ----------
    source, destination : torch.Tensor
        ``uint8``, one-dimensional, of one length, on two devices.
    streams : sequence of torch.cuda.Stream, optional
        For each part a stream of either GPU; None stands for the current one of the source's.

    Raises
    ------
    RuntimeError
        If the driver refuses the copy.
    """
    if not source.is_cuda:
        destination.copy_(source)
        return
    length = -(-len(source) // len(streams))
    for stream, part, to in zip(streams, source.split(length), destination.split(length), strict=False):
        with torch.cuda.device(source.device), torch.cuda.stream(stream):
            on = torch.cuda.current_stream()
            status = _driver().cuMemcpyAsync(to.data_ptr(), part.data_ptr(), part.nbytes, on.cuda_stream)
        if status:
            raise RuntimeError(f"the CUDA driver refused a copy of {part.nbytes} bytes between GPUs: CUresult {status}")


@functools.cache
def _driver() -> ctypes.CDLL:
    """Return the library of CUDA's driver, which PyTorch has loaded already."""
    library = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    library.cuMemcpyAsync.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    return library


def copy_by_kernel(source: torch.Tensor, destination: torch.Tensor, *, pull: bool = False) -> None:
    """Copy bytes between GPUs with a kernel on the source's GPU, which pushes, or on the destination's, which pulls.

    It runs on that GPU's current stream. Bytes that fill no word of four are copied by the engine.

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
    runs_on = destination.device if pull else source.device
    if whole:
        peer_kernels.copy_words(source[:whole].view(torch.int32), destination[:whole].view(torch.int32), runs_on)
    if whole < len(source):
        stream = torch.cuda.current_stream(runs_on) if runs_on.type == "cuda" else None
        copy_by_engine(source[whole:], destination[whole:], [stream])


@dataclass(frozen=True)
class PeerRoute:
    """A copy of random bytes between two GPUs that is ready to be made, again and again.

    The call begins on the current stream of the first GPU and joins it again, so that events on that stream, or a
    graph that captures it, see all of it.
    """

    ways: Sequence[tuple[torch.Tensor, torch.Tensor]]
    """Source and destination of each direction"""
    start: Callable[[int], None]
    """Begins so many copies each way, one after the other"""

    @property
    def bytes(self) -> int:
        """Return the bytes that cross in one call, both directions together."""
        return sum(source.nbytes for source, _ in self.ways)

    def __call__(self, times: int = 1) -> None:
        """Begin a copy each way, or several one after the other; the current stream of the first GPU waits for them.

        Where both directions are under way, the two GPUs wait for each other before the first copy and after the last
        one only.
        """
        self.start(times)

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
    # Whoever moves bytes does it on streams of its own GPU; the first GPU's first one is its current stream.
    movers = [to if carrier == "kernel" and pull else source for source, to in ends]
    lanes = [
        [None if (mover == here and part == 0) or not on_gpus else torch.cuda.Stream(mover) for part in range(parts)]
        for mover in movers
    ]

    def start(times: int) -> None:
        with _fork(here, [stream for lane in lanes for stream in lane if stream is not None]):
            for _ in range(times):
                for way, lane in zip(ways, lanes, strict=True):
                    _carry(carrier, *way, lane, pull)

    return PeerRoute(ways, start)


def _carry(
    carrier: str,
    source: torch.Tensor,
    destination: torch.Tensor,
    streams: Sequence[torch.cuda.Stream | None],
    pull: bool,
) -> None:
    """Make one direction's copy."""
    if carrier == "copy-engine":
        copy_by_engine(source, destination, streams)
        return
    with torch.cuda.stream(streams[0]):
        copy_by_kernel(source, destination, pull=pull)


@contextmanager
def _fork(device: torch.device, streams: Sequence[torch.cuda.Stream]) -> Iterator[None]:
    """Let streams begin after the current one of a GPU, and that one go on after all of them."""
    if not streams:
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
