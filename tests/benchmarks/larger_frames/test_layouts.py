"""The benchmark of files that are written in different ways, on small files."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gpuguide.benchmarks.larger_frames import layouts
from gpuguide.benchmarks.larger_frames.layouts import LAYOUTS, Layout
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations

DECLARED = declarations.get("parquet-layout")
ROWS = 300_000


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    yield
    layouts.end()


def count_data_pages(path: Path, column: str) -> int:
    """Return how many data pages a column of the first row group has, from headers in Thrift's compact protocol."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    chunk = group.column([group.column(i).path_in_schema for i in range(group.num_columns)].index(column))
    data, found = path.read_bytes(), 0
    at = chunk.dictionary_page_offset or chunk.data_page_offset
    end = at + chunk.total_compressed_size
    while at < end:
        header, at = read_struct(data, at)
        found += header[1] == 0
        at += header[3]  # compressed_page_size
    return found


def read_struct(data: bytes, at: int) -> tuple[dict[int, int], int]:
    """Return the integers of a struct by their fields' numbers, and where it ends."""
    found, field = {}, 0
    while data[at]:
        step, type = data[at] >> 4, data[at] & 15
        assert step, "a long field number, which no page header has"
        field, at = field + step, at + 1
        if type in (4, 5, 6):
            raw, at = read_varint(data, at)
            found[field] = (raw >> 1) ^ -(raw & 1)
        elif type == 8:
            length, at = read_varint(data, at)
            at += length
        elif type == 12:
            _, at = read_struct(data, at)
        else:
            assert type in (1, 2), f"type {type}, which no page header has"
    return found, at + 1


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        found |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return found, at


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_files_have_their_layout(layout: Layout) -> None:
    path = layouts.list_files(layouts.write_files(layout, 1, ROWS))[0]
    found = pq.ParquetFile(path).metadata
    assert found.num_rows == ROWS
    assert found.num_row_groups == math.ceil(ROWS / layout.group_rows)
    codec = {"none": "UNCOMPRESSED"}.get(layout.codec, layout.codec.upper())
    assert {found.row_group(0).column(i).compression for i in range(found.num_columns)} == {codec}
    pages = math.ceil(min(ROWS, layout.group_rows) / layout.page_rows)
    for column in layouts.COLUMNS:  # a page more where a dictionary is given up
        assert pages <= count_data_pages(path, column) <= pages + 1


def test_layouts_hold_the_same_rows() -> None:
    one, other = (
        pq.read_table(layouts.write_files(layout, 2, 20_000))
        for layout in (Layout(), Layout(page_rows=1000, group_rows=10_000, codec="zstd"))
    )
    assert one.equals(other)
    assert one["id6"].combine_chunks().slice(0, 20_000) != one["id6"].combine_chunks().slice(20_000)


@pytest.mark.parametrize("engine", ["polars", "duckdb"])
def test_engines_add_up_all_rows(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "FILE_ROWS_ON_CPU", 20_000)
    case = DECLARED.cases(devices.cpu())[0]
    work = DECLARED.contenders[engine].build(devices.cpu(), case)
    assert work.check
    work.check()
    rows = pa.concat_tables(
        pq.read_table(path) for path in layouts.list_files(layouts.write_files(Layout(), 2, 20_000))
    )
    found = {row["v1"]: row for row in layouts.run_query(engine, layouts.write_files(Layout(), 2, 20_000)).to_pylist()}
    assert sorted(found) == [1, 2, 3, 4, 5]
    assert sum(row["id3"] for row in found.values()) == 12 * rows.num_rows
    assert max(row["id6"] for row in found.values()) == max(rows["id6"].to_pylist())


def test_threads_are_set_in_a_module_that_its_package_does_not_import(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = {"num_threads": 4}
    defaults = ModuleType("kvikio.defaults")
    vars(defaults).update(get=threads.__getitem__, set=threads.__setitem__)
    for name, module in (("kvikio", ModuleType("kvikio")), ("kvikio.defaults", defaults)):
        monkeypatch.setitem(sys.modules, name, module)
    layouts.use_read_threads(12)
    assert threads == {"num_threads": 12}


@pytest.mark.gpu
@pytest.mark.needs("cudf")
@pytest.mark.parametrize("contender", ["polars-gpu", "polars-gpu-4-threads"])
def test_a_gpu_reads_every_layout(contender: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "FILE_ROWS_ON_CPU", 20_000)
    if why := DECLARED.contenders[contender].unavailable_reason():
        pytest.skip(why)
    for case in DECLARED.cases(devices.cpu()):
        work = DECLARED.contenders[contender].build(devices.cpu(), case)
        assert work.check
        work.check()


def test_a_wrong_result_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "FILE_ROWS_ON_CPU", 20_000)
    work = DECLARED.contenders["polars"].build(devices.cpu(), DECLARED.cases(devices.cpu())[0])
    right = layouts.right_result(Layout(), 2, 20_000)
    monkeypatch.setattr(layouts, "right_result", lambda *_: right.slice(1))
    assert work.check
    with pytest.raises(AssertionError, match="on polars"):
        work.check()
