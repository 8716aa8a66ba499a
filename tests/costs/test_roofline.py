from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.costs import roofline

sizes = st.integers(1, 100_000)
rates = st.floats(1e6, 1e16)


class Counting(float):
    """A number that counts the operations done on it."""

    done = 0

    def __mul__(self, other: float) -> Counting:
        Counting.done += 1
        return Counting(float(self) * float(other))

    def __add__(self, other: float) -> Counting:
        Counting.done += 1
        return Counting(float(self) + float(other))


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (2, 3, 4), (5, 1, 7), (3, 8, 1)])
def test_operations_of_a_product_are_those_that_are_done(rows: int, inner: int, columns: int) -> None:
    """Do the product as it is defined, and count."""
    Counting.done = 0
    for _ in range(rows * columns):
        total = Counting(0)
        for step in range(inner):
            total = total + Counting(step) * Counting(2)
    assert roofline.matmul_flops(rows, inner, columns) == Counting.done


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 1, 1), (2, 3, 4), (16, 64, 32)])
def test_bytes_of_a_product_are_those_of_its_matrices(rows: int, inner: int, columns: int, dtype: type) -> None:
    left, right = np.zeros((rows, inner), dtype), np.zeros((inner, columns), dtype)
    held = left.nbytes + right.nbytes + (left @ right).nbytes
    assert roofline.matmul_bytes(rows, inner, columns, np.dtype(dtype).itemsize) == held


def test_a_copy_reads_and_writes() -> None:
    assert roofline.copy_bytes(100) == 200


def test_a_square_product_does_a_third_of_its_size_a_byte_in_bf16() -> None:
    n = 8192
    flops, moved = roofline.matmul_flops(n, n, n), roofline.matmul_bytes(n, n, n, 2)
    assert roofline.arithmetic_intensity(flops, moved) == pytest.approx(n / 3)


@given(peak=rates, bandwidth=rates, intensity=st.floats(1e-6, 1e9))
def test_the_roof_is_the_lower_of_two_lines_that_meet_at_the_ridge(
    peak: float, bandwidth: float, intensity: float
) -> None:
    ridge = roofline.ridge(peak, bandwidth)
    assert roofline.attainable(ridge, peak, bandwidth) == pytest.approx(peak)
    found = roofline.attainable(intensity, peak, bandwidth)
    assert found <= peak
    assert found <= intensity * bandwidth
    assert found in (peak, intensity * bandwidth)
    if intensity > ridge * 1.001:
        assert found == peak
    if intensity < ridge * 0.999:
        assert found == intensity * bandwidth


@given(flops=st.floats(1, 1e18), moved=st.floats(1, 1e15), peak=rates, bandwidth=rates)
def test_the_time_floor_and_the_roof_say_the_same(flops: float, moved: float, peak: float, bandwidth: float) -> None:
    intensity = roofline.arithmetic_intensity(flops, moved)
    rate = roofline.attainable(intensity, peak, bandwidth)
    assert roofline.time_floor(flops, moved, peak, bandwidth) == pytest.approx(flops / rate)


@given(rows=sizes, inner=sizes, columns=sizes)
def test_a_product_costs_the_same_transposed(rows: int, inner: int, columns: int) -> None:
    assert roofline.matmul_flops(rows, inner, columns) == roofline.matmul_flops(columns, inner, rows)
    assert roofline.matmul_bytes(rows, inner, columns, 2) == roofline.matmul_bytes(columns, inner, rows, 2)


def test_a_transfer_is_latency_and_then_bandwidth() -> None:
    assert roofline.transfer_time(0, 50e9, 10e-6) == 10e-6
    assert roofline.transfer_time(50e9, 50e9) == 1.0
    assert roofline.transfer_time(1e6, 50e9, 10e-6) == pytest.approx(30e-6)


def test_a_product_of_data_on_the_host_is_three_transfers_and_the_product() -> None:
    seconds = roofline.offloaded_matmul_time(1000, peak=1e12, link=1e9, latency=1e-3, element_size=4)
    assert seconds == pytest.approx(3 * (1e-3 + 4e6 / 1e9) + 2e9 / 1e12)
    assert roofline.offloaded_matmul_time(1000, 1e12, 1e9, 1e-3, 2) < seconds
