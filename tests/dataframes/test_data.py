from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from gpuguide.dataframes import data, libraries
from gpuguide.errors import GpuguideError


def test_a_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    assert data.frame(1000, seed=3).equals(data.frame(1000, seed=3))
    for name in data.COLUMNS:
        assert not data.frame(1000, seed=3)[name].equals(data.frame(1000, seed=4)[name])


def test_a_column_does_not_depend_on_the_others() -> None:
    whole, part = data.frame(1000, nulls=0.1), data.frame(1000, columns=("value", "id"), nulls=0.1)
    assert part.column_names == ["value", "id"]
    assert all(part[name].equals(whole[name]) for name in part.column_names)


def test_types_and_numbers_of_different_values() -> None:
    table = data.frame(100_000)
    assert [str(field.type) for field in table.schema] == ["int32", "int64", "double", "string"]
    keys, ids = (table[name].to_numpy() for name in ("key", "id"))
    assert sorted(set(keys.tolist())) == list(range(1000))
    assert sorted(set(ids.tolist())) == list(range(1000))
    assert 0 <= table["value"].to_numpy().min() < table["value"].to_numpy().max() < 1
    assert set(table["name"].to_pylist()) == set(data.NAMES)
    assert any(ord(letter) > 0xFFFF for name in data.NAMES for letter in name)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_frames_may_be_small(rows: int) -> None:
    assert data.frame(rows).num_rows == rows
    assert data.lookup(rows).num_rows == 1


def test_shares_of_missing_values_are_as_asked() -> None:
    table = data.frame(100_000, nulls=0.2, nans=0.1)
    assert all(abs(table[name].null_count / 100_000 - 0.2) < 0.01 for name in data.COLUMNS)
    values = table["value"].drop_null().to_numpy()
    assert abs(np.isnan(values).mean() - 0.1) < 0.01


def test_the_lookup_has_most_ids_once() -> None:
    ids = data.lookup(10_000)["id"].to_pylist()
    assert sorted(ids) == [number for number in range(100) if number % 10 != 9]
    assert ids != sorted(ids)


def test_nan_becomes_a_missing_value_and_the_rest_stays() -> None:
    table = pa.table({"value": [1.5, float("nan"), None], "key": pa.array([1, None, 3], pa.int32())})
    found = data.normalize_table(table)
    assert found["value"].to_pylist() == [1.5, None, None]
    assert found["key"].equals(table["key"])


def test_integers_to_be_summed_are_widened() -> None:
    table = pa.table({"value": pa.array([2**31 - 1, 1], pa.int32()), "key": pa.array([1, 1], pa.int32())})
    assert [str(field.type) for field in data.normalize_table(table).schema] == ["int64", "int32"]


def test_a_sum_that_may_not_fit_is_refused_and_one_that_fits_is_not() -> None:
    with pytest.raises(GpuguideError, match=r"up to 9,223,372,036,854,775,807, and the sum of 2 .* cast the column to"):
        data.normalize_table(pa.table({"value": [1, 2**63 - 1]}))
    with pytest.raises(GpuguideError, match="may not fit 64 bits"):
        data.normalize_table(pa.table({"value": [-(2**62) - 1, 0]}))
    assert data.normalize_table(pa.table({"value": [2**62 - 1, 1]}))["value"].to_pylist() == [2**62 - 1, 1]
    assert data.normalize_table(pa.table({"value": pa.array([], pa.int64())})).num_rows == 0


@pytest.mark.parametrize(
    ("column", "remedy"),
    [
        (pa.array([True]), "cast it to int8"),
        (pa.array([1], pa.date32()), "cast it to int32, days since 1970"),
        (pa.array([1], pa.timestamp("s")), "cast it to int64, moments since 1970"),
        (pa.array(["a"]).dictionary_encode(), "decode it with .cast('string')"),
        (pa.array([Decimal("1.50")]), "cast it to double, or multiply it by a power of ten and cast it to int64"),
        (pa.array([[1]]), "cast it to one of int8, int16, int32, int64, float, double, string, large_string"),
    ],
)
def test_unsupported_types_are_named_with_the_cast_that_helps(column: pa.Array, remedy: str) -> None:
    with pytest.raises(GpuguideError) as caught:
        data.normalize_table(pa.table({"when": column}))
    beginning = f"Column 'when' has the type {column.type}, which not every engine takes"
    assert str(caught.value) == f"{beginning}; {remedy}, or leave it out."


def test_the_casts_that_are_advised_can_be_done() -> None:
    columns = {
        "flag": pa.chunked_array([[True, None]]).cast(pa.int8()),
        "day": pa.chunked_array([pa.array([1, None], pa.date32())]).cast(pa.int32()),
        "moment": pa.chunked_array([pa.array([1, None], pa.timestamp("s"))]).cast(pa.int64()),
        "word": pa.chunked_array([pa.array(["a", None]).dictionary_encode()]).cast("string"),
        "price": pa.chunked_array([pa.array([Decimal("1.50"), None])]).cast(pa.float64()),
    }
    found = data.normalize_table(pa.table(columns)).to_pydict()
    assert found == {
        "flag": [1, None],
        "day": [1, None],
        "moment": [1, None],
        "word": ["a", None],
        "price": [1.5, None],
    }


def test_an_unknown_column_is_named_with_the_near_ones() -> None:
    with pytest.raises(GpuguideError, match=r"no column named 'valeu'. Did you mean value\?"):
        data.frame(10, columns=("valeu",))


@pytest.mark.parametrize(("name", "extra"), [("pandas.nothing", "dataframes"), ("cudf_polars", "cuda12 or cuda13")])
def test_a_library_that_is_not_here_is_named_with_its_extra(name: str, extra: str) -> None:
    command = rf"pip install 'gpuguide\[{extra.split()[-1]}\]'\.$"
    with pytest.raises(
        GpuguideError, match=rf"^{name} cannot be imported .*; it comes with the extra {extra}: {command}"
    ):
        libraries.library(name)
