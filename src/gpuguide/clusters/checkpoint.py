"""Checkpoints that training does not wait for, and that no failure leaves half written.

A save has two parts: the state is copied to the memory of the host, and from there written to a file. Training has to
wait for neither. The copy runs on a stream of its own while the next forward and backward pass only read the weights;
the optimizer, which changes them, waits until it is done. The file is written by other threads::

    GPU      step 100 | forward, backward | optimizer | forward, backward | ...
    copy               ██████████████████▏^ waits for the copy
    threads               ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ checksums, file, rename

On a CPU the same code copies at once, without streams, so that everything else can be tried anywhere.

References
----------
A. Eisenman et al., "Check-N-Run: a Checkpointing System for Training Deep Learning Recommendation Models", NSDI 2022,
section 4: a snapshot in the host's memory, written while training goes on.
J. Mohan, A. Phanishayee, V. Chidambaram, "CheckFreq: Frequent, Fine-Grained DNN Checkpointing", FAST 2021, section 4:
a copy that overlaps with the next forward and backward pass, and must end before the weights are updated.
"""

from __future__ import annotations

import io
import itertools
import operator
import os
import re
import shutil
import struct
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from gpuguide.errors import GpuguideError, unknown
from gpuguide.files import replace_atomically

__all__ = ["LoadedState", "PinnedCheckpoint"]

MIB = 2**20
PIECE = 64 * MIB
"""Bytes of a pinned buffer. It is copied, checked and written as a whole, while others are on their way."""
ALIGNMENT = 64
"""Every tensor begins at a multiple of so many bytes, so that its bytes can be used in place after loading"""
WRITERS = 4
"""Threads that compute checksums and write: with one, the checksum alone would be slower than a fast disk"""
END = struct.Struct("<QI4s")
"""Last bytes of a file: length of the description in front of them, its CRC-32, and :data:`MARK`"""
MARK = b"gpuC"
NAME = re.compile(r"step-(?P<step>\d+)\.rank-(?P<rank>\d+)-of-(?P<world_size>\d+)\.checkpoint")


class LoadedState(NamedTuple):
    """A state that was saved, and when."""

    step: int
    state: Any
    """As it was passed to :meth:`PinnedCheckpoint.save`, with all tensors in the memory of the host"""


class PinnedCheckpoint:
    """The checkpoints of one process of a training run, in a folder that all processes share.

    A checkpoint of a step counts once the files of all ranks are there. The last ``keep`` such checkpoints stay.

    Parameters
    ----------
    folder : Path
        Made if it does not exist.
    rank, world_size : int
        Which process this is, of how many.
    keep : int
        Checkpoints that stay, one or more.

    Raises
    ------
    GpuguideError
        If rank, world size or the number of checkpoints to keep makes no sense.

    Examples
    --------
    >>> import tempfile
    >>> checkpoint = PinnedCheckpoint(Path(tempfile.mkdtemp()))
    >>> future = checkpoint.save({"weight": torch.ones(3)}, step=100)
    >>> checkpoint.load()
    LoadedState(step=100, state={'weight': tensor([1., 1., 1.])})
    """

    def __init__(self, folder: Path, *, rank: int = 0, world_size: int = 1, keep: int = 2) -> None:
        if not 0 <= rank < world_size or keep < 1:
            raise GpuguideError(
                f"There is no checkpoint for rank {rank} of {world_size} with keep={keep}: a rank is below the world "
                "size, and 1 or more checkpoints stay."
            )
        self.folder, self.rank, self.world_size, self.keep = folder, rank, world_size, keep
        self._staging = _Staging()
        self._background = ThreadPoolExecutor(1, "checkpoint")
        self._writers = ThreadPoolExecutor(WRITERS, "checkpoint-writer")
        self._save: _Save | None = None

    def save(self, state: Any, step: int) -> Future[None]:
        """Begin to save a state, and return before it is copied or written.

        On a GPU, nothing may change the tensors until :meth:`wait_for_copy`; :meth:`guard` lets an optimizer wait.

        Parameters
        ----------
        state : mapping
            Tensors, numbers and texts in mappings, lists and tuples: what ``torch.load(weights_only=True)`` accepts.
            Each entry of the outermost mapping is a part that :meth:`wait_for_copy` can wait for by its name.
        step : int
            Number of the step, 0 or more. A checkpoint of the same step is replaced.

        Returns
        -------
        Future
            Done once the file is complete. The next save, :meth:`wait` and :meth:`load` raise what it raises.

        Raises
        ------
        GpuguideError
            If the previous checkpoint could not be written, the disk has too little space for this one, or a tensor
            cannot be saved: it is sparse, has gaps in memory, or is on another GPU than the others.

        Warns
        -----
        UserWarning
            If the previous checkpoint is still being written, so that training has to wait.
        """
        self._wait_for_previous(step)
        skeleton = self._staging.arrange(state)
        self._check_space(self._staging.bytes)
        self._staging.start_copies()
        self._save = _Save(step, time.monotonic(), self._background.submit(self._write_step, step, skeleton))
        return self._save.written

    def guard(self, optimizer: torch.optim.Optimizer) -> None:
        """Let each step of an optimizer wait, on the GPU, until the state is copied."""
        optimizer.register_step_pre_hook(lambda *_: self.wait_for_copy())

    def wait_for_copy(self, *parts: str) -> None:
        """Let the current stream wait until parts of the state are copied, by default all; the host does not wait.

        Call it before something changes the state, such as the running averages of a batch norm in a forward pass.

        Raises
        ------
        GpuguideError
            If the state that was saved has no such part.
        """
        self._staging.wait_for_copy(parts)

    def wait(self) -> None:
        """Wait until the last checkpoint is in its file. Errors as in :meth:`save`."""
        if self._save is not None:
            wait_for_futures([self._save.written])
            written, self._save = self._save.written, None
            written.result()

    def load(self, step: int | None = None) -> LoadedState | None:
        """Return the checkpoint of a step, by default the last one, or ``None`` if there is none yet.

        Raises
        ------
        GpuguideError
            If the file is cut short or damaged, the checkpoint belongs to another number of processes, or there is
            none of that step.
        """
        self.wait()
        steps = self.steps()
        if step is None and not steps:
            self._refuse_other_world_size()
            return None
        if step is not None and step not in steps:
            there = ", ".join(map(str, steps)) or "none"
            raise GpuguideError(f"{self.folder} has no complete checkpoint of step {step}; it has: {there}.")
        chosen = steps[-1] if step is None else step
        try:
            return LoadedState(chosen, _read_file(self._path(chosen), self._writers))
        except _DamagedFileError as error:
            earlier = [each for each in steps if each < chosen]
            remedy = f"Load step {earlier[-1]}, the one before." if earlier else "There is no earlier one."
            raise GpuguideError(f"{self._path(chosen)} {error}. {remedy}") from error
        except OSError as error:
            raise GpuguideError(f"{self._path(chosen)} cannot be read ({error.strerror}).") from error

    def steps(self) -> list[int]:
        """Return the steps whose files are there for all ranks of this world size, in order."""
        ranks: dict[int, set[int]] = {}
        for step, rank, world_size in self._files():
            if world_size == self.world_size:
                ranks.setdefault(step, set()).add(rank)
        return sorted(step for step, there in ranks.items() if len(there) == self.world_size)

    def close(self) -> None:
        """Wait for the last checkpoint, and end the threads. Errors as in :meth:`save`."""
        try:
            self.wait()
        finally:
            self._background.shutdown()
            self._writers.shutdown()

    def _wait_for_previous(self, step: int) -> None:
        """Wait until the buffers are free, and say so if that takes long."""
        save = self._save
        if save is None or save.written.done():
            self.wait()
            return
        begun = time.monotonic()
        self.wait()
        now = time.monotonic()
        warnings.warn(
            f"Training waits {now - begun:.2g} s to save step {step}: the checkpoint of step {save.step} took "
            f"{now - save.begun:.2g} s, and the next save came after {begun - save.begun:.2g} s. Save less often, or "
            "write to a faster file system.",
            stacklevel=3,
        )

    def _check_space(self, size: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if free < size:
            raise self._cannot_write(f"the file system has {free / 1e9:.3g} GB left, and it takes {size / 1e9:.3g} GB")

    def _write_step(self, step: int, skeleton: Any) -> None:
        """Write the file under a temporary name, rename it, and remove what is no longer needed."""
        try:
            for left_over in self.folder.glob(f".*.rank-{self.rank}-of-{self.world_size}-*.tmp"):
                left_over.unlink()  # of a process that was killed
            with replace_atomically(self._path(step)) as temporary, temporary.open("r+b") as file:
                _write_file(file.fileno(), self._staging, skeleton, self._writers)
            _sync_folder(self.folder)
        except OSError as error:
            raise self._cannot_write(error.strerror or str(error)) from error
        self._remove_old()

    def _cannot_write(self, why: str) -> GpuguideError:
        steps = self.steps()
        last = f"the last checkpoint is that of step {steps[-1]}" if steps else "there is no checkpoint yet"
        return GpuguideError(f"No checkpoint can be written to {self.folder} ({why}); {last}. Free some space.")

    def _remove_old(self) -> None:
        """Remove this rank's files from before the last checkpoints that all ranks have."""
        kept = self.steps()[-self.keep :]
        for step, rank, world_size in list(self._files()):
            if kept and step < kept[0] and (rank, world_size) == (self.rank, self.world_size):
                self._path(step).unlink(missing_ok=True)

    def _refuse_other_world_size(self) -> None:
        others = sorted({world_size for _, _, world_size in self._files()} - {self.world_size})
        if others:
            raise GpuguideError(
                f"The checkpoints in {self.folder} are those of {others[-1]} processes, and this run has "
                f"{self.world_size}. Start {others[-1]} processes. For runs whose number changes, save with "
                "torch.distributed.checkpoint, which reshards."
            )

    def _files(self) -> Iterator[tuple[int, int, int]]:
        """Yield step, rank and world size of each file."""
        for path in self.folder.glob("*.checkpoint"):
            if found := NAME.fullmatch(path.name):
                yield int(found["step"]), int(found["rank"]), int(found["world_size"])

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:09d}.rank-{self.rank}-of-{self.world_size}.checkpoint"


@dataclass(frozen=True)
class _Save:
    """A save that was begun."""

    step: int
    begun: float
    written: Future[None]


# --- the copy to the host --------------------------------------------------------------------------------


class _Staging:
    """Buffers in the host's memory, and the copies that fill them with a state, one buffer after another."""

    def __init__(self) -> None:
        self.buffers: list[torch.Tensor] = []
        self.bytes = 0
        self._copies: list[_Copy] = []
        self._keys: list[_Key] = []
        self._skeletons: list[torch.Tensor] = []
        """For each tensor of the state, in order, one with its shape and strides and no data"""
        self._last_buffer: dict[str, int] = {}
        """For each part of the state, the buffer in which it ends"""
        self._stream: torch.cuda.Stream | None = None
        self._filled: list[torch.cuda.Event] = []
        """For each buffer, when all of it is there; empty on a CPU"""

    def arrange(self, state: Any) -> Any:
        """Find a place for every tensor, and return the state with tensors that have a shape but no data."""
        tensors = list(_tensors(state))
        # Compared one by one: to keep hundreds of keys could set off Python's garbage collector in every save.
        if len(tensors) != len(self._keys) or any(map(operator.ne, map(_key, tensors), self._keys)):
            self._place(state, tensors)
        skeletons = iter(self._skeletons)
        return _replace(state, lambda _: next(skeletons))

    def start_copies(self) -> None:
        """Fill all buffers: on a CPU at once, on a GPU behind what is under way."""
        if self._stream is not None:
            # -- the state is final once the current stream has come to here
            self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            for buffer, copies in itertools.groupby(self._copies, operator.attrgetter("buffer")):
                for copy in copies:
                    copy.target.copy_(copy.source, non_blocking=True)
                if self._stream is not None:
                    self._filled[buffer].record(self._stream)

    def wait_for_copy(self, parts: Sequence[str]) -> None:
        """Let the current stream wait for parts of the state, all of them if none is named."""
        for name in parts:
            if self._keys and name not in self._last_buffer:
                raise unknown("part of the state", name, self._last_buffer)
        if self._stream is not None:
            last = max((self._last_buffer[name] for name in parts), default=len(self._filled) - 1)
            torch.cuda.current_stream(self._stream.device).wait_event(self._filled[last])

    @property
    def count(self) -> int:
        """Buffers that the state fills."""
        return -(-self.bytes // PIECE)

    def read(self, buffer: int) -> memoryview:
        """Return the bytes of a buffer once they are there."""
        if self._filled:
            self._filled[buffer].synchronize()
        return _memory(self.buffers[buffer])[: self.bytes - buffer * PIECE]

    def _place(self, state: Any, tensors: list[torch.Tensor]) -> None:
        """Give every tensor its place in the buffers, and allocate those that are missing."""
        keys = [_key(tensor) for tensor in tensors]
        places, self.bytes = _place_tensors(tensors)
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        if len(devices) > 1:
            named = ", ".join(sorted(map(str, devices)))
            raise GpuguideError(f"The state has tensors on {named}; save those of each GPU in a process of its own.")
        self._allocate(next(iter(devices), None))
        known = dict(zip(keys, tensors, strict=True))
        empty = {key: torch.empty_like(tensor.detach(), device="meta") for key, tensor in known.items()}
        self._skeletons = [empty[key] for key in keys]
        self._copies = [copy for key, begin in places.items() for copy in self._cut(_bytes(known[key]), begin)]
        ends = {key: begin + known[key].nbytes for key, begin in places.items()}
        parts = state.items() if isinstance(state, Mapping) else ()
        self._last_buffer = {
            str(name): (max((ends[_key(tensor)] for tensor in _tensors(part)), default=1) - 1) // PIECE
            for name, part in parts
        }
        self._keys = keys  # only now, so that a state that was refused is refused again

    def _allocate(self, device: torch.device | None) -> None:
        """Allocate what is missing. Pinning takes longer than a copy, so buffers stay for all saves of a run."""
        while len(self.buffers) < self.count:
            self.buffers.append(torch.empty(PIECE, dtype=torch.uint8, pin_memory=device is not None))
        self._stream = None if device is None else torch.cuda.Stream(device)
        self._filled = [] if device is None else [torch.cuda.Event(blocking=True) for _ in range(self.count)]

    def _cut(self, source: torch.Tensor, begin: int) -> Iterator[_Copy]:
        """Yield the copies of a tensor's bytes: several where it goes over the end of a buffer."""
        while len(source):
            buffer, offset = divmod(begin, PIECE)
            target = self.buffers[buffer][offset : offset + len(source)]
            yield _Copy(source[: len(target)], target, buffer)
            source, begin = source[len(target) :], begin + len(target)


class _Copy(NamedTuple):
    source: torch.Tensor
    target: torch.Tensor
    buffer: int


_Key = tuple[object, ...]


def _key(tensor: torch.Tensor) -> _Key:
    """Return what tells a tensor from others. Two that share their memory, as tied weights do, are the same."""
    if tensor.layout != torch.strided:
        raise GpuguideError(f"A tensor has the layout {tensor.layout}, which has no strides; call .to_dense() first.")
    where = id(tensor) if tensor.is_meta else tensor.data_ptr()
    return where, tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a nested state, in order."""
    if isinstance(state, torch.Tensor):
        yield state
    elif isinstance(state, Mapping):
        yield from itertools.chain.from_iterable(map(_tensors, state.values()))
    elif isinstance(state, list | tuple):
        yield from itertools.chain.from_iterable(map(_tensors, state))


def _replace(state: Any, replacement: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a nested state of plain mappings, lists and tuples, with other tensors."""
    if isinstance(state, torch.Tensor):
        return replacement(state)
    if isinstance(state, Mapping):
        return {name: _replace(value, replacement) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)([_replace(value, replacement) for value in state])
    return state


def _place_tensors(tensors: Iterable[torch.Tensor]) -> tuple[dict[_Key, int], int]:
    """Return where each tensor begins, the first at 0, and the bytes of all."""
    places, end = dict[_Key, int](), 0
    for tensor in tensors:
        if _key(tensor) not in places:
            begin = -(-end // ALIGNMENT) * ALIGNMENT
            places[_key(tensor)], end = begin, begin + tensor.nbytes
    return places, end


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor in the order in which they lie in memory, without a copy."""
    ordered = tensor.detach().permute(_memory_order(tensor))
    if not ordered.is_contiguous():
        raise GpuguideError(
            f"A tensor of shape {tuple(tensor.shape)} with strides {tensor.stride()} has gaps in memory; call "
            ".contiguous() first."
        )
    return ordered.reshape(-1).view(torch.uint8)


def _memory(content: torch.Tensor) -> memoryview:
    """Return the memory of bytes on the host, without a copy."""
    return memoryview(content.numpy())  # type: ignore[arg-type]


def _memory_order(tensor: torch.Tensor) -> list[int]:
    """Return the dimensions of a tensor, the one with the largest stride first: (0, 2, 3, 1) for channels last."""
    return sorted(range(tensor.ndim), key=lambda dimension: tensor.stride()[dimension], reverse=True)


# --- the file --------------------------------------------------------------------------------------------
#
# The buffers, one behind the other; a description (the state without data, and a checksum of each buffer); and END.


class _DamagedFileError(Exception):
    """What is wrong with a file, as the end of a sentence."""


def _write_file(file: int, staging: _Staging, skeleton: Any, pool: Executor) -> None:
    """Write a state to an open file, several buffers at a time."""

    def write_buffer(buffer: int) -> int:
        content = staging.read(buffer)  # waits until it is full
        _write_at(file, content, buffer * PIECE)
        return zlib.crc32(content)

    checksums = list(pool.map(write_buffer, range(staging.count)))
    # -- what is in the buffers, and the mark that says that the file is complete
    description = {"state": skeleton, "bytes": staging.bytes, "checksums": checksums}
    text = _pickled(description)
    end = END.pack(len(text), zlib.crc32(text), MARK)
    _write_at(file, memoryview(text + end), staging.bytes)


def _pickled(description: dict[str, Any]) -> bytes:
    """Return what ``torch.save`` writes."""
    target = io.BytesIO()
    torch.save(description, target)
    return target.getvalue()


def _write_at(file: int, content: memoryview, offset: int) -> None:
    while content:
        written = os.pwrite(file, content, offset)
        content, offset = content[written:], offset + written


def _read_file(path: Path, pool: Executor) -> Any:
    """Return the state in a file, once all of its checksums are right."""
    with path.open("rb") as file:
        description = _read_description(file)
        size, checksums = description["bytes"], description["checksums"]
        content = torch.empty(size, dtype=torch.uint8)

        def is_whole(buffer: int) -> bool:
            part = _memory(content)[buffer * PIECE : (buffer + 1) * PIECE]
            _read_at(file.fileno(), part, buffer * PIECE)
            return zlib.crc32(part) == checksums[buffer]

        if not all(pool.map(is_whole, range(len(checksums)))):
            raise _DamagedFileError("is damaged: a checksum is another one than when it was written")
    places, _ = _place_tensors(_tensors(description["state"]))

    def fill(skeleton: torch.Tensor) -> torch.Tensor:
        """Return a view of the content with the shape and the strides of a tensor."""
        begin, order = places[_key(skeleton)], _memory_order(skeleton)
        flat = content[begin : begin + skeleton.nbytes].view(skeleton.dtype)
        ordered = flat.view([skeleton.shape[dimension] for dimension in order])
        return ordered.permute([order.index(dimension) for dimension in range(skeleton.ndim)])

    return _replace(description["state"], fill)


def _read_description(file: BinaryIO) -> dict[str, Any]:
    """Return the description at the end of a file."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - END.size))
    end = file.read()
    length, checksum, mark = END.unpack(end) if len(end) == END.size else (0, 0, b"")
    if mark != MARK or length + END.size > size:
        raise _DamagedFileError(f"is cut short: it ends after {size} bytes without the mark of a checkpoint's end")
    file.seek(size - END.size - length)
    text = file.read(length)
    if zlib.crc32(text) != checksum:
        raise _DamagedFileError("is damaged: the checksum of its description is another one than when it was written")
    found: dict[str, Any] = torch.load(io.BytesIO(text), weights_only=True)
    return found


def _read_at(file: int, part: memoryview, offset: int) -> None:
    while part:
        read = os.preadv(file, [part], offset)
        if not read:
            raise _DamagedFileError(f"is cut short: it ends after {offset} bytes")
        part, offset = part[read:], offset + read


def _sync_folder(folder: Path) -> None:
    """Have the file system write the folder itself, so that the new name outlives a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
