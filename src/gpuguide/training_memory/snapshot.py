"""Memory snapshots of PyTorch, read safely from files of ``torch.cuda.memory._dump_snapshot`` and replayed.

A snapshot is a pickle of lists, dictionaries, strings and numbers. It holds the segments that the allocator has now,
and the history of allocations and frees. A pickle may name any function of any module and have it called. This reader
refuses all names, so that a file from a stranger can be read.

The history is replayed backwards from the segments, so that it need not begin with the first allocation. Sizes are
those that were requested, and memory counts until its stream no longer uses it, as in
``torch.cuda.memory_stats()["requested_bytes.all.peak"]``.

Source: PyTorch 2.11, ``torch/cuda/memory.py`` and ``torch/csrc/cuda/Module.cpp``.
"""

from __future__ import annotations

import bz2
import gc
import gzip
import lzma
import pickle
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from gpuguide.errors import GpuguideError

HOW_TO_RECORD = """\
import torch
torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
...  # two or three training steps
torch.cuda.memory._dump_snapshot("snapshot.pickle")"""
"""The lines that record a snapshot with its history"""
OPENERS: Mapping[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"BZh": bz2.open,
}
"""How files that begin like this are decompressed"""
REPORTED_EVERY = 2**26
"""Bytes between two reports of how far a file is read"""
DEFAULT_POOL = (0, 0)
BEGINNING = -1
"""The moment before the first event"""

Frame = Mapping[str, Any]
"""``filename``, ``line`` and ``name`` of a function"""


# --- the file ----------------------------------------------------------------------------------------------------


class _PlainUnpickler(pickle.Unpickler):
    """Builds containers, texts and numbers, and refuses every class and function."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise GpuguideError(
            f"The file names {module}.{name}, and a snapshot names no class or function. It was not read further, and "
            "nothing in it was run. Give a file of torch.cuda.memory._dump_snapshot."
        )

    def persistent_load(self, key: Any) -> NoReturn:
        raise GpuguideError("The file refers to objects outside of it, as files of torch.save do; it is no snapshot.")


class _CountedFile:
    """A file that counts and reports the bytes read from it."""

    def __init__(self, file: IO[bytes], report: Callable[[int], object] | None) -> None:
        self.file, self.report, self.count = file, report, 0

    def read(self, size: int = -1) -> bytes:
        return self._counted(self.file.read(size))

    def readline(self) -> bytes:
        return self._counted(self.file.readline())

    def _counted(self, data: bytes) -> bytes:
        before, self.count = self.count, self.count + len(data)
        if self.report and before // REPORTED_EVERY < self.count // REPORTED_EVERY:
            self.report(self.count)
        return data


def read_snapshot(path: Path, report: Callable[[int], object] | None = None) -> Mapping[str, Any]:
    """Return the content of a file of ``_dump_snapshot``, which may be compressed with gzip, xz or bzip2.

    Parameters
    ----------
    path : Path
        File, which is read as a stream.
    report : callable, optional
        Called with the bytes read so far, decompressed, every 64 MiB.

    Raises
    ------
    GpuguideError
        If there is no such file, it is no snapshot, is cut short, or names a class.
    """
    try:
        with path.open("rb") as raw:
            start = raw.read(16)
        opener = next((opener for magic, opener in OPENERS.items() if start.startswith(magic)), _open_plain)
        with opener(path) as file:
            start = file.read(16)
            _refuse_others(path, start)
            file.seek(0)
            content = _load(path, _CountedFile(file, report))
    except FileNotFoundError as error:
        raise GpuguideError(f"There is no file {path}. Give a file of torch.cuda.memory._dump_snapshot.") from error
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise GpuguideError(f"Cannot read {path}: {error}.") from error
    if not isinstance(content, dict) or not {"segments", "device_traces"} <= content.keys():
        raise GpuguideError(f"{path} is a pickle, but no memory snapshot. Record one with:\n{HOW_TO_RECORD}")
    return content


def _open_plain(path: Path) -> IO[bytes]:
    return path.open("rb")


def _refuse_others(path: Path, start: bytes) -> None:
    if not start:
        raise GpuguideError(f"{path} is empty.")
    if start.lstrip()[:1] in (b"{", b"["):
        raise GpuguideError(f"{path} is JSON. Give the pickle that torch.cuda.memory._dump_snapshot wrote.")
    if start.startswith(b"PK"):
        raise GpuguideError(f"{path} is a zip, as torch.save and torch.profiler write it; unpack it first.")
    if start[:1] != b"\x80":
        raise GpuguideError(f"{path} is no pickle. Give a file of torch.cuda.memory._dump_snapshot.")


def _load(path: Path, file: _CountedFile) -> Any:
    collects = gc.isenabled()
    gc.disable()  # millions of dictionaries are made, and none becomes garbage
    try:
        return _PlainUnpickler(file).load()
    except GpuguideError:
        raise
    except EOFError as error:
        raise GpuguideError(f"{path} is cut short: it ends after {file.count} bytes. Copy it again.") from error
    except Exception as error:
        cut = "truncated" in str(error)
        what = "is cut short" if cut else "is damaged"
        raise GpuguideError(f"{path} {what}: {error}, after {file.count} bytes. Copy it again.") from error
    finally:
        if collects:
            gc.enable()


# --- the history -------------------------------------------------------------------------------------------------


@dataclass
class Allocation:
    """Memory from its request until the work of its stream that uses it is finished."""

    address: int
    size: int
    """Bytes that were requested"""
    start: int
    """Index of its event, or :data:`BEGINNING` if it is older than the history"""
    end: int | None = None
    """Index of the event that freed it, or ``None`` if it exists at the end"""
    frames: Sequence[Frame] = ()
    """Functions that requested it, the innermost first"""
    end_frames: Sequence[Frame] = ()
    """Functions that freed it"""
    pool: tuple[int, int] = DEFAULT_POOL

    def is_alive(self, moment: int) -> bool:
        """Return whether it exists after an event."""
        return self.start <= moment and (self.end is None or self.end > moment)


@dataclass(frozen=True)
class MemoryRequest:
    """A request that failed."""

    moment: int
    size: int
    free: int
    """Bytes that the device had left"""
    frames: Sequence[Frame]


@dataclass(frozen=True)
class History:
    """Allocations and frees of one device."""

    device: int
    allocations: Sequence[Allocation]
    totals: Sequence[int]
    """Bytes in use after each event"""
    reserved: Sequence[int]
    """Bytes of all segments after each event"""
    requests: Sequence[MemoryRequest]
    events: Sequence[Mapping[str, Any]]
    segments: Sequence[Mapping[str, Any]]
    before: int
    """Bytes in use before the first event"""
    reserved_before: int
    """Bytes of all segments before the first event"""
    wrapped: bool
    """Whether older events were dropped"""

    @property
    def peak(self) -> int:
        """Index of the first event after which the most bytes are in use, or :data:`BEGINNING`."""
        highest = max(range(len(self.totals)), key=self.totals.__getitem__)
        total, is_allocation = self.totals[highest], self.events[highest]["action"] == "alloc"
        is_before = self.before > total or (self.before == total > 0 and not is_allocation)
        return BEGINNING if is_before else highest

    def total_at(self, moment: int) -> int:
        """Return the bytes in use after an event."""
        return self.before if moment == BEGINNING else self.totals[moment]

    def reserved_at(self, moment: int) -> int:
        """Return the bytes of all segments after an event."""
        return self.reserved_before if moment == BEGINNING else self.reserved[moment]

    def alive(self, moment: int) -> list[Allocation]:
        """Return the allocations that exist after an event."""
        return [allocation for allocation in self.allocations if allocation.is_alive(moment)]

    def holes(self, moment: int) -> list[int]:
        """Return the sizes of the holes in segments after an event, the largest first, without private pools."""
        segments = _segments_at(self, moment)
        used = sorted((each.address, _rounded(each.size)) for each in self.alive(moment) if each.pool == DEFAULT_POOL)
        holes = []
        for start, size in segments.items():
            at, end = start, start + size
            for address, length in used[bisect_left(used, (start, 0)) : bisect_left(used, (end, 0))]:
                holes.append(address - at)
                at = max(at, address + length)
            holes.append(end - at)
        return sorted((hole for hole in holes if hole > 0), reverse=True)


def is_private(segment: Mapping[str, Any]) -> bool:
    """Return whether a segment belongs to the pool of a CUDA graph, or to another private pool."""
    return tuple(segment.get("segment_pool_id", DEFAULT_POOL)) != DEFAULT_POOL


def _rounded(size: int) -> int:
    """Return a size as the allocator rounds it, to a multiple of 512 bytes."""
    return -(-size // 512) * 512


def devices(snapshot: Mapping[str, Any]) -> list[int]:
    """Return the devices that have allocations or a history."""
    with_segments = {segment["device"] for segment in snapshot["segments"]}
    return sorted(with_segments | {number for number, trace in enumerate(snapshot["device_traces"]) if trace})


def replay(snapshot: Mapping[str, Any], device: int | None = None) -> History:
    """Return the history of a device.

    Parameters
    ----------
    snapshot : mapping
        As :func:`read_snapshot` gives it.
    device : int, optional
        The device, if there are several.

    Raises
    ------
    GpuguideError
        If there is no history, or none of this device, several devices and none is named, or an entry is damaged.
    """
    known = devices(snapshot)
    if device is None:
        if len(known) > 1:
            raise GpuguideError(f"The snapshot has the devices {', '.join(map(str, known))}; choose one with --device.")
        device = known[0] if known else 0
    traces = snapshot["device_traces"]
    trace = traces[device] if 0 <= device < len(traces) else []
    if not trace:
        others = f" Devices with one: {', '.join(map(str, known))}." if known and device not in known else ""
        raise GpuguideError(
            f"The snapshot has no history of device {device}.{others} Record one with:\n{HOW_TO_RECORD}"
        )
    try:
        return _replay(snapshot, device, trace)
    except (KeyError, TypeError, AttributeError) as error:
        raise GpuguideError(f"The snapshot is damaged: {type(error).__name__}: {error}.") from error


def _replay(snapshot: Mapping[str, Any], device: int, trace: Sequence[Mapping[str, Any]]) -> History:
    segments = [segment for segment in snapshot["segments"] if segment["device"] == device]
    pools = {segment["address"]: tuple(segment.get("segment_pool_id", DEFAULT_POOL)) for segment in segments}
    alive: dict[int, Allocation] = {}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            at = block.get("address", address)
            if block["state"] in ("active_allocated", "active_awaiting_free", "active_pending_free"):
                size = block.get("requested_size", block["size"])
                alive[at] = Allocation(at, size, -1, None, block.get("frames", ()), (), pools[segment["address"]])
            address = at + block["size"]
    allocations = list(alive.values())
    now = sum(allocation.size for allocation in allocations)
    reserved_now = sum(segment["total_size"] for segment in segments)
    totals, reserved, requests = [0] * len(trace), [0] * len(trace), []
    known_frames = {id(allocation) for allocation in allocations if allocation.frames}
    for number in range(len(trace) - 1, -1, -1):  # backwards: what an event did is undone
        event = trace[number]
        action, size = event["action"], event["size"]
        totals[number], reserved[number] = now, reserved_now
        if action == "alloc":
            allocation = alive.pop(event["addr"], None)
            if allocation is None:  # freed by an event that was not recorded
                continue
            allocation.start, allocation.frames = number, event.get("frames", ())
            now -= allocation.size
        elif action == "free_completed":
            earlier = Allocation(event["addr"], size, -1, number, (), event.get("frames", ()))
            allocations.append(earlier)
            alive[event["addr"]], now = earlier, now + size
        elif action == "free_requested" and event["addr"] in alive and not alive[event["addr"]].end_frames:
            alive[event["addr"]].end_frames = event.get("frames", ())
        elif action in ("segment_alloc", "segment_map"):
            reserved_now -= size
        elif action in ("segment_free", "segment_unmap"):
            reserved_now += size
        elif action == "oom":
            requests.append(MemoryRequest(number, size, event.get("device_free", 0), event.get("frames", ())))
    wrapped = any(allocation.start < 0 and id(allocation) in known_frames for allocation in allocations)
    allocations.sort(key=lambda allocation: (allocation.start, allocation.address))
    return History(device, allocations, totals, reserved, requests[::-1], trace, segments, now, reserved_now, wrapped)


def _segments_at(history: History, moment: int) -> dict[int, int]:
    """Return the addresses and sizes of the segments after an event, without private pools."""
    private = {segment["address"] for segment in history.segments if is_private(segment)}
    segments = {segment["address"]: segment["total_size"] for segment in history.segments}
    for event in reversed(history.events[moment + 1 :]):
        address, size = event.get("addr"), event["size"]
        if event["action"] == "segment_alloc":
            segments.pop(address, None)
        elif event["action"] == "segment_free":
            segments[address] = size
        elif event["action"] in ("segment_map", "segment_unmap"):  # an expandable segment grows piece by piece
            for start in [each for each in segments if each <= address <= each + segments[each]]:
                segments[start] += size if event["action"] == "segment_unmap" else -size
    return {start: size for start, size in segments.items() if start not in private and size > 0}
