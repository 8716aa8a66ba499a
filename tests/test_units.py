from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.units import format_bytes, format_quantity, scale_for, significant

PREFIX = {"": 1.0, "n": 1e-9, "µ": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.02e12, "B/s", "3.02 TB/s"),
        (7.09e14, "FLOP/s", "709 TFLOP/s"),
        (1.5e15, "FLOP/s", "1.50 PFLOP/s"),
        (1.12e-5, "s", "11.2 µs"),
        (1.0, "s", "1.00 s"),
        (75.0, "s", "75.0 s"),
        (2e-10, "s", "0.200 ns"),
        (1.98e9, "Hz", "1.98 GHz"),
        (310.5, "W", "310 W"),
        (45.0, "°C", "45.0 °C"),
        (12345.0, "token/s", "12.3 ktoken/s"),
        (2.0**26, "B", "64 MiB"),
        (3e9, "B", "2.79 GiB"),
        (512.0, "B", "512 B"),
        (3.25, "nat", "3.25 nat"),
        (1.1279, "1", "1.13"),
        (999.9e9, "B/s", "1.00 TB/s"),
        (999.5e9, "B/s", "1.00 TB/s"),
        (999.4e9, "B/s", "999 GB/s"),
        (0.9996e-6, "s", "1.00 µs"),
        (-1.5e9, "B/s", "-1.50 GB/s"),
        (0.0, "B/s", "0 B/s"),
    ],
)
def test_quantities_as_people_write_them(value: float, unit: str, text: str) -> None:
    assert format_quantity(value, unit) == text


@given(st.floats(1e-9, 999e15), st.sampled_from(["s", "B/s", "FLOP/s"]))
def test_a_written_quantity_has_three_digits_and_is_near(value: float, unit: str) -> None:
    number, _, written = format_quantity(value, unit).partition(" ")
    match = re.fullmatch(rf"([nµmkMGTP]?){re.escape(unit)}", written)
    assert match is not None
    assert float(number) * PREFIX[match[1]] == pytest.approx(value, rel=5.1e-3)
    if 1e-9 <= value < (999 if unit == "s" else 999e15) and (unit == "s" or value >= 1):
        assert 1 <= float(number) < 1000
        assert len(number.replace(".", "")) == 3


@given(st.floats(-1e12, 1e12).filter(lambda x: x == 0 or abs(x) > 1e-12), st.integers(2, 6))
def test_significant_digits(value: float, digits: int) -> None:
    assert float(significant(value, digits)) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (math.nan, "nan"), (math.inf, "inf"), (1e-5, "1.00e-05")])
def test_numbers_out_of_the_ordinary(value: float, text: str) -> None:
    assert significant(value) == text


@given(st.integers(0, 2**50))
def test_sizes_are_near(count: int) -> None:
    number, unit = format_bytes(count).split()
    scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]
    assert float(number) * scale == pytest.approx(count, rel=5.1e-3)


@given(st.integers(0, 45))
def test_powers_of_two_are_exact(power: int) -> None:
    number, unit = format_bytes(2**power).split()
    scale = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}[unit]
    assert int(number) * scale == 2**power


def test_a_curve_is_scaled_as_its_largest_value() -> None:
    assert scale_for(3.02e12, "B/s") == (1e12, "TB/s")
    assert scale_for(5.0, "nat") == (1.0, "nat")
    assert scale_for(1e-12, "s") == (1e-9, "ns")
