"""The staged copy, with the device's part done by the processor: pieces, padding and layouts are the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuguide.dataframes import data, transfer
from gpuguide.dataframes.transfer import Column, Lane, Piece, Staging
from gpuguide.errors import GpuguideError

SMALL = Staging("cpu", piece=1000, threads=3)


def rebuilt(column: Column) -> pa.Array:
    """Return what was copied as an Arrow array over the copied bytes."""

    def buffer(tensor: torch.Tensor | None) -> pa.Buffer | None:
        return None if tensor is None else pa.py_buffer(tensor.numpy())

    type = pa.type_for_alias(column.type)
    buffers = [
        buffer(column.validity),
        *([buffer(column.offsets)] if column.offsets is not None else []),
        buffer(column.data),
    ]
    return pa.Array.from_buffers(type, column.rows, buffers, column.null_count)


def check(table: pa.Table, through: Staging = SMALL) -> list[Column]:
    columns = transfer.to_device(table, "cpu", through)
    for column, chunks in zip(columns, table.columns, strict=True):
        found = rebuilt(column)
        found.validate(full=True)
        assert found.to_pylist() == chunks.to_pylist()
        assert column.validity is None or len(column.validity) % 64 == 0
    return columns


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 249, 250, 251, 3001])
@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
def test_all_bytes_arrive(rows: int, nulls: float) -> None:
    check(data.frame(rows, nulls=nulls))


@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.none() | st.text("aü🌍", max_size=9), max_size=40),
    begin=st.integers(0, 20),
    piece=st.sampled_from([1, 7, 64, 1000]),
)
def test_parts_of_tables_of_several_chunks_arrive(values: list[str | None], begin: int, piece: int) -> None:
    numbers = pa.array([None if value is None else len(value) for value in values], pa.int16())
    for type in (pa.string(), pa.large_string()):
        whole = pa.table({"text": pa.array(values, type), "number": numbers})
        check(pa.concat_tables([whole, whole.slice(begin), whole]), Staging("cpu", piece=piece, threads=2))
        check(whole.slice(begin), Staging("cpu", piece=piece, threads=1))


@pytest.mark.parametrize("type", transfer.DTYPES)
def test_numbers_are_tensors_of_their_type_without_a_copy(type: str) -> None:
    values = pa.array([1, 2, 100], pa.type_for_alias(type))
    (column,) = check(pa.table({"x": values}))
    tensor = column.values()
    assert tensor.dtype == transfer.DTYPES[type]
    assert tensor.tolist() == [1, 2, 100]
    assert tensor.data_ptr() == column.data.data_ptr()


def test_text_is_no_tensor() -> None:
    (column,) = check(pa.table({"x": ["a"]}))
    with pytest.raises(GpuguideError, match="Column 'x' holds string"):
        column.values()


def test_a_type_of_another_layout_is_named() -> None:
    with pytest.raises(GpuguideError, match=r"Column 'when' has the type timestamp\[s\], .* cast it to one of int8"):
        transfer.to_device(pa.table({"when": pa.array([1], pa.timestamp("s"))}), "cpu")


def test_the_two_buffers_of_a_lane_take_turns() -> None:
    staging = Staging("cpu", piece=100, threads=1)
    (lane,) = staging.lanes
    filled = []

    class Noted(list[torch.Tensor]):
        def __getitem__(self, turn: Any) -> Any:
            filled.append(turn)
            return super().__getitem__(turn)

    lane.buffers = Noted(lane.buffers)
    source = np.arange(950, dtype=np.uint16).view(np.uint8)
    destinations = [torch.zeros(400, dtype=torch.uint8), torch.zeros(1550, dtype=torch.uint8)]
    staging.copy([source[:350], source[350:]], destinations)
    assert filled == [0, 1] * 10
    assert np.concatenate([destinations[0][:350], destinations[1]]).tolist() == source.tolist()
    assert not destinations[0][350:].any()


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_several_threads_copy_all_bytes_once(threads: int) -> None:
    source = np.random.default_rng(0).integers(0, 256, 3 * transfer.MIB + 17, dtype=np.uint8)
    staging = Staging("cpu", piece=transfer.MIB // 16, threads=threads)
    for _ in range(3):
        destination = torch.zeros(len(source) + 5, dtype=torch.uint8)
        staging.copy([source], [destination])
        assert (destination[: len(source)].numpy() == source).all()
        assert not destination[len(source) :].any()


def test_all_threads_are_at_work_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = threading.Barrier(3, timeout=60)
    carry = Lane.carry

    def after_meeting(lane: Lane, pieces: Iterator[Piece]) -> None:
        meeting.wait()  # fails unless three come
        carry(lane, pieces)

    monkeypatch.setattr(Lane, "carry", after_meeting)
    destination = torch.zeros(transfer.SMALL + 1, dtype=torch.uint8)
    Staging("cpu", threads=3).copy([np.ones(len(destination), dtype=np.uint8)], [destination])
    assert destination.all()


def test_a_small_copy_wakes_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    callers = []
    carry = Lane.carry

    def noted(lane: Lane, pieces: Iterator[Piece]) -> None:
        callers.append(threading.current_thread())
        carry(lane, pieces)

    monkeypatch.setattr(Lane, "carry", noted)
    destination = torch.zeros(transfer.SMALL, dtype=torch.uint8)
    Staging("cpu", piece=1000, threads=3).copy([np.ones(len(destination), dtype=np.uint8)], [destination])
    assert destination.all()
    assert callers == [threading.main_thread()]


def test_what_fails_in_a_thread_is_told() -> None:
    source = np.ones(2 * transfer.SMALL, dtype=np.uint8)
    with pytest.raises(RuntimeError, match="size of tensor"):
        Staging("cpu", threads=2).copy([source], [torch.zeros(len(source) - 1, dtype=torch.uint8)])


def test_the_buffers_of_a_device_are_made_once() -> None:
    assert transfer.staging("cpu") is transfer.staging("cpu")
