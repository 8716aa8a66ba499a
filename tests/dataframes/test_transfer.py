"""The staged copy, with the device's part done by the processor: pieces, padding and layouts are the same."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.dataframes import data, transfer
from gpuguide.dataframes.transfer import Column, Staging
from gpuguide.errors import GpuguideError

SMALL = Staging("cpu", piece=1000, buffers=3)
TYPES = {"bool": pa.uint8(), "date32[day]": pa.date32()} | {
    f"timestamp[{unit}]": pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")
}
"""Arrow types of the layout that was copied, where their name is no alias: a bool is a byte on the way"""


def rebuilt(column: Column) -> pa.Array:
    """Return what was copied as an Arrow array over the copied bytes."""

    def buffer(tensor: torch.Tensor | None) -> pa.Buffer | None:
        return None if tensor is None else pa.py_buffer(tensor.numpy())

    type = TYPES.get(column.type) or pa.type_for_alias(column.type)
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
        assert found.cast(chunks.type).to_pylist() == chunks.to_pylist()
        assert column.validity is None or len(column.validity) % 64 == 0
    return columns


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 249, 250, 251, 3001])
@pytest.mark.parametrize("nulls", [0.0, 0.3, 1.0])
def test_all_bytes_arrive(rows: int, nulls: float) -> None:
    check(data.frame(rows, nulls=nulls))


@given(
    values=st.lists(st.none() | st.text("aü🌍", max_size=9), max_size=40),
    begin=st.integers(0, 20),
    piece=st.sampled_from([1, 7, 64, 1000]),
)
def test_parts_of_tables_of_several_chunks_arrive(values: list[str | None], begin: int, piece: int) -> None:
    numbers = pa.array([None if value is None else len(value) for value in values], pa.int16())
    for type in (pa.string(), pa.large_string()):
        whole = pa.table({"text": pa.array(values, type), "number": numbers})
        check(pa.concat_tables([whole, whole.slice(begin), whole]), Staging("cpu", piece=piece, buffers=2))
        check(whole.slice(begin), Staging("cpu", piece=piece, buffers=1))


def widened(numbers: pa.Array, type: str) -> pa.Array:
    """Return int32 as another type; moments are made of int64."""
    wanted = TYPES.get(type) or pa.type_for_alias(type)
    return (numbers.cast(pa.int64()) if pa.types.is_timestamp(wanted) else numbers).cast(wanted)


@pytest.mark.parametrize("rows", [0, 1, 9, 3001])
@pytest.mark.parametrize("type", TYPES)
def test_bools_and_dates_arrive_with_what_is_missing(type: str, rows: int) -> None:
    numbers = pa.array([None if row % 5 == 3 else row % 7 for row in range(rows)], pa.int32())
    values = numbers.cast(pa.bool_()) if type == "bool" else widened(numbers, type)
    whole = pa.table({"x": values})
    check(whole)
    check(pa.concat_tables([whole.slice(min(rows, 3)), whole]))


@pytest.mark.parametrize("type", transfer.DTYPES)
def test_numbers_are_tensors_of_their_type_without_a_copy(type: str) -> None:
    numbers = pa.array([1, 0, 100], pa.int32())
    values = numbers.cast(pa.bool_()) if type == "bool" else widened(numbers, type)
    (column,) = check(pa.table({"x": values}))
    tensor = column.values()
    assert tensor.dtype == transfer.DTYPES[type]
    assert tensor.tolist() == ([True, False, True] if type == "bool" else [1, 0, 100])
    assert tensor.data_ptr() == column.data.data_ptr()


def test_text_is_no_tensor() -> None:
    (column,) = check(pa.table({"x": ["a"]}))
    with pytest.raises(GpuguideError, match="Column 'x' holds string"):
        column.values()


def test_a_type_of_another_layout_is_named() -> None:
    for type, words in ((pa.duration("s"), "cast it to int64"), (pa.list_(pa.int8()), "cast it to one of int8")):
        with pytest.raises(GpuguideError, match=r"Column 'when' has the type .*, which cannot be copied .*" + words):
            transfer.to_device(pa.table({"when": pa.array([None], type)}), "cpu")


def test_the_buffers_take_turns_and_all_bytes_arrive_once() -> None:
    staging = Staging("cpu", piece=100, buffers=3)
    filled = []

    class Noted(list[torch.Tensor]):
        def __getitem__(self, turn: Any) -> Any:
            filled.append(turn)
            return super().__getitem__(turn)

    staging.buffers = Noted(staging.buffers)
    source = torch.arange(950, dtype=torch.int16).view(torch.uint8)
    for _ in range(2):
        destinations = [torch.zeros(400, dtype=torch.uint8), torch.zeros(1550, dtype=torch.uint8)]
        staging.copy([source[:350], source[350:]], destinations)
        assert torch.equal(torch.cat([destinations[0][:350], destinations[1]]), source)
        assert not destinations[0][350:].any()
    assert filled == ([0, 1, 2] * 14)[:40]  # 4 pieces and 16, twice


def test_two_who_copy_at_the_same_time_do_not_meet_in_a_buffer() -> None:
    staging = Staging("cpu", piece=1000, buffers=2)
    sources = [torch.full((200_000,), number, dtype=torch.uint8) for number in range(6)]
    destinations = [torch.zeros_like(source) for source in sources]
    threads = [
        threading.Thread(target=staging.copy, args=([source], [destination]))
        for source, destination in zip(sources, destinations, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found, source) for found, source in zip(destinations, sources, strict=True))


def test_what_fails_is_told_and_the_buffers_are_free_again() -> None:
    staging, source = Staging("cpu", piece=1000), torch.ones(2000, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="size of tensor"):
        staging.copy([source], [torch.zeros(1999, dtype=torch.uint8)])
    destination = torch.zeros_like(source)
    staging.copy([source], [destination])
    assert destination.all()


def test_memory_that_must_not_be_written_is_read_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = transfer.first_bytes(pa.py_buffer(b"abcdef"), 4)
    assert bytes(found) == b"abcd"


def test_the_buffers_of_a_device_are_made_once() -> None:
    assert transfer.staging("cpu") is transfer.staging("cpu")
