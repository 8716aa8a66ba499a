"""From Arrow's buffers in pageable memory to columns on a GPU, through a ring of pinned buffers.

The driver copies pageable memory through pinned buffers of its own, and reaches a part of what the connection carries.
Here all cores fill a buffer together, while the GPU fetches those that were filled before::

    cores     fill A   fill B   fill C   fill D   fill A
    GPU                fetch A  fetch B  fetch C  fetch D

The slower of the two sets the pace: the cores that read the host's memory, or the connection. PyTorch divides a copy
among its threads by itself, in one call; threads of Python with buffers of their own would take turns at the
interpreter. What arrives becomes a frame without being copied again: an Arrow column and a column of cuDF are laid out
alike.

Sources: CUDA C++ Best Practices Guide, "Pinned memory" and "Asynchronous and overlapping transfers"; Arrow columnar
format, "Buffer listing for each layout"; pylibcudf's reference, ``Column`` and ``gpumemoryview``; cuDF's reference,
``DataFrame.from_pylibcudf``.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpuguide.dataframes.data import refuse_type
from gpuguide.dataframes.engines import cudf_frames
from gpuguide.dataframes.libraries import library
from gpuguide.errors import GpuguideError

MIB = 2**20
PIECE = 8 * MIB
"""Bytes of a pinned buffer. Smaller ones cost more calls for each byte, and larger ones were no faster."""
BUFFERS = 4
"""In the ring. With two, the cores and the GPU would wait for each other whenever one of them is late."""
PADDING = 64
"""Bytes that the length of a bitmap must be a multiple of for cuDF"""
DTYPES = {
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "float": torch.float32,
    "double": torch.float64,
    "bool": torch.bool,
    "date32[day]": torch.int32,
    "timestamp[s]": torch.int64,
    "timestamp[ms]": torch.int64,
    "timestamp[us]": torch.int64,
    "timestamp[ns]": torch.int64,
}
"""Arrow's names of the types of fixed width. Days and moments count from 1970."""
DAYS = ("date32[day]",)
"""Of these, the types whose unit cuDF's frames lack"""
OFFSETS = {"string": ("INT32", 4), "large_string": ("INT64", 8)}
"""Arrow's names of the types of text, and the type and the bytes of an offset"""
PYLIBCUDF = {
    "float": "FLOAT32",
    "double": "FLOAT64",
    "bool": "BOOL8",
    "date32[day]": "TIMESTAMP_DAYS",
    "timestamp[s]": "TIMESTAMP_SECONDS",
    "timestamp[ms]": "TIMESTAMP_MILLISECONDS",
    "timestamp[us]": "TIMESTAMP_MICROSECONDS",
    "timestamp[ns]": "TIMESTAMP_NANOSECONDS",
    "string": "STRING",
    "large_string": "STRING",
}
"""cuDF's names of types, where they are others"""


@dataclass(frozen=True)
class Column:
    """An Arrow column whose buffers were copied."""

    name: str
    type: str
    """Arrow's name"""
    rows: int
    null_count: int
    data: torch.Tensor
    """``uint8``: the numbers, with a byte for each bool, or all characters"""
    validity: torch.Tensor | None
    """``uint8``: a bit for each row, 1 where there is a value; ``None`` if every row has one"""
    offsets: torch.Tensor | None
    """``uint8``: where each row's characters begin; ``None`` for numbers"""

    def values(self) -> torch.Tensor:
        """Return the numbers as a tensor of their type, without a copy. Rows without a value hold anything.

        Raises
        ------
        GpuguideError
            If the column holds text.
        """
        if self.type not in DTYPES:
            raise GpuguideError(
                f"Column {self.name!r} holds {self.type}, which no tensor can; take a column of numbers."
            )
        return self.data.view(DTYPES[self.type])


class Staging:
    """A ring of buffers, and the stream on which a GPU fetches what they hold.

    On a CPU the buffers are not pinned and fetched at once; all else is the same.
    """

    def __init__(self, device: str = "cuda", piece: int = PIECE, buffers: int = BUFFERS) -> None:
        on_gpu = torch.device(device).type == "cuda"
        self.device, self.piece = device, piece
        self.stream = torch.cuda.Stream(device) if on_gpu else None
        self.buffers = [torch.empty(piece, dtype=torch.uint8, pin_memory=on_gpu) for _ in range(buffers)]
        self.fetched = [torch.cuda.Event() for _ in self.buffers] if on_gpu else []
        self.turn = 0
        self.in_use = threading.Lock()

    def copy(self, sources: Sequence[torch.Tensor], destinations: Sequence[torch.Tensor]) -> None:
        """Copy bytes from the host to the device, and return when they are there.

        Parameters
        ----------
        sources : sequence of torch.Tensor
            ``uint8``, one-dimensional, in the host's memory.
        destinations : sequence of torch.Tensor
            ``uint8`` on the device, one for each source and at least as long.
        """
        if self.stream is not None:  # the destinations may be memory that earlier work still uses
            self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with self.in_use, torch.cuda.stream(self.stream):
            for source, destination in zip(sources, destinations, strict=True):
                for begin in range(0, len(source), self.piece):
                    part = source[begin : begin + self.piece]
                    self._carry(part, destination[begin : begin + len(part)])
            if self.stream is not None:
                self.stream.synchronize()

    def _carry(self, part: torch.Tensor, destination: torch.Tensor) -> None:
        """Fill the next buffer as soon as its previous piece has been fetched, and queue the fetch of the new one."""
        if self.stream is not None:
            self.fetched[self.turn].synchronize()
        buffer = self.buffers[self.turn][: len(part)]
        buffer.copy_(part)
        destination.copy_(buffer, non_blocking=True)
        if self.stream is not None:
            self.fetched[self.turn].record(self.stream)
        self.turn = (self.turn + 1) % len(self.buffers)


@functools.cache
def staging(device: str) -> Staging:
    """Return the buffers of a device, pinned once: pinning takes longer than filling them."""
    return Staging(device)


def to_device(table: Any, device: str = "cuda", through: Staging | None = None) -> list[Column]:
    """Copy the columns of an Arrow table to a device.

    Their memory there is PyTorch's: its pool keeps what is freed, and what RMM gives cuDF comes on top. Where the two
    together do not fit, let PyTorch take from RMM before its first tensor:
    ``torch.cuda.memory.change_current_allocator(rmm.allocators.torch.rmm_torch_allocator)``.

    Parameters
    ----------
    table : pyarrow.Table
        Of types in :data:`DTYPES` and :data:`OFFSETS`. A column of several chunks is put together first, which is a
        copy more, and so are the bits of bools made bytes.
    device : str
        ``cuda`` or ``cpu``.
    through : Staging, optional
        Buffers of your own; those of the device otherwise.

    Raises
    ------
    GpuguideError
        If a column has a type that has no such layout.
    """
    sources: list[torch.Tensor] = []
    destinations: list[torch.Tensor] = []

    def plan_copy(buffer: Any, size: int, padding: int = 1) -> torch.Tensor:
        """Plan the copy of the first ``size`` bytes of a buffer, and return where they will be."""
        destination = torch.empty(-(-size // padding) * padding, dtype=torch.uint8, device=device)
        destination[size:].zero_()
        if size:
            sources.append(first_bytes(buffer, size))
            destinations.append(destination)
        return destination

    columns = []
    arrays = [_whole(chunks) for chunks in table.columns]  # whose memory is read until all has been copied
    for name, chunks, array in zip(table.column_names, table.columns, arrays, strict=True):
        kind = str(chunks.type)
        rows, buffers = len(array), array.buffers()
        validity = plan_copy(buffers[0], -(-rows // 8), PADDING) if array.null_count else None
        if kind in DTYPES:
            data, offsets = plan_copy(buffers[1], rows * DTYPES[kind].itemsize), None
        elif kind in OFFSETS:
            _, width = OFFSETS[kind]
            if rows:
                ends = first_bytes(buffers[1], (rows + 1) * width)
                characters = int(ends[-width:].view(DTYPES[f"int{8 * width}"]))
                data, offsets = plan_copy(buffers[2], characters), plan_copy(buffers[1], len(ends))
            else:
                data, offsets = plan_copy(None, 0), torch.zeros(width, dtype=torch.uint8, device=device)
        else:
            raise refuse_type(name, chunks.type, (*DTYPES, *OFFSETS), "cannot be copied like this")
        columns.append(Column(name, kind, rows, array.null_count, data, validity, offsets))
    (through or staging(device)).copy(sources, destinations)
    return columns


def first_bytes(buffer: Any, size: int) -> torch.Tensor:
    """Return the beginning of an Arrow buffer as a tensor that shares its memory, and must only be read.

    PyTorch has no tensors that can only be read, and would warn of memory that must not be written.
    """
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(buffer.address), dtype=torch.uint8)


def _whole(chunks: Any) -> Any:
    """Return a column's array in one piece that begins where its buffers begin."""
    arrow = library("pyarrow")
    if arrow.types.is_boolean(chunks.type):
        chunks = chunks.cast(arrow.uint8())  # cuDF has a byte for each, and Arrow a bit
    array = chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()
    if isinstance(array, arrow.ChunkedArray):  # of no chunks, or too large for one array
        array = arrow.concat_arrays(array.chunks) if array.num_chunks else arrow.array([], chunks.type)
    return arrow.concat_arrays([array, array.slice(0, 0)]) if array.offset else array


def to_cudf(columns: Sequence[Column]) -> Any:
    """Return columns on a GPU as cuDF's frame, which holds on to them and copies nothing but days.

    Days become seconds, as in cuDF's own copy: pandas' interface knows no type of days.
    """
    cudf, plc = library("cudf"), library("pylibcudf")

    def wrap(column: Column) -> Any:
        children = []
        if column.offsets is not None:
            kind, _ = OFFSETS[column.type]
            offsets = plc.DataType(getattr(plc.TypeId, kind))
            children = [plc.Column(offsets, column.rows + 1, plc.gpumemoryview(column.offsets), None, 0, 0, [])]
        kind = plc.DataType(getattr(plc.TypeId, PYLIBCUDF.get(column.type, column.type.upper())))
        validity = None if column.validity is None else plc.gpumemoryview(column.validity)
        data = plc.gpumemoryview(column.data)
        whole = plc.Column(kind, column.rows, data, validity, column.null_count, 0, children)
        if column.type in DAYS:
            return plc.unary.cast(whole, plc.DataType(plc.TypeId.TIMESTAMP_SECONDS))
        return whole

    table = plc.Table([wrap(column) for column in columns])
    return cudf.DataFrame.from_pylibcudf(table, {"columns": [column.name for column in columns]})


def load(table: Any) -> Any:
    """Copy an Arrow table to the GPU and return it as cuDF's frame, as :meth:`CuDF.load` does in cuDF's way.

    The frame lies in PyTorch's memory and not in RMM's; see :func:`to_device`.

    Raises
    ------
    GpuguideError
        If the frame does not fit, or a column has a type that cannot be copied like this.
    """
    free, _ = torch.cuda.mem_get_info()
    cudf_frames.check_fits(table.nbytes, table.num_rows, free)
    if table.num_rows == 0:
        return library("cudf").DataFrame.from_arrow(table)
    return to_cudf(to_device(table))
