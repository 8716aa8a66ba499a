"""Expressions of the ledger: what they compute, look up and refuse."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.claims import expression
from gpuguide.claims.expression import ExpressionError
from gpuguide.claims.quantity import LedgerQuantity
from gpuguide.errors import GpuguideError
from gpuguide.measure import measured_ceilings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 * 4096**3", 137438953472),
        ("1 - 2 * 0.5**5", 0.9375),
        ("-(-1000 // 256) * 256", 1024),
        ("7 % 4 + +1", 4),
        ("sqrt(2) ** 2", 2.0),
        ("log2(1024) + log10(1000) + log(exp(1))", 14.0),
        ("floor(2.9) + ceil(2.1) + round(2.567, 1)", 7.6),
        ("max(1, 2) + min(3, 4) + abs(-5)", 10),
        ("2 * pi", 2 * math.pi),
        ("cos(pi / 3) + cos(0)", 1.5),
        ("sum(n**2 for n in range(1, 5))", 30),
    ],
)
def test_arithmetic(text: str, expected: float) -> None:
    assert expression.evaluate(text) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[8 * n for n in (1, 2, 3) if n != 2]", [8, 24]),
        ("[a * b for a in (1, 2) for b in (10, 20)]", [10, 20, 20, 40]),
        ("[[a + b for b in range(2)] for a in range(2)]", [[0, 1], [1, 2]]),
        ("1 < 2 < 3", True),
        ("1 < 2 > 3", False),
        ("not 1 > 2 and (2 >= 3 or 3 == 3)", True),
    ],
)
def test_lists_and_comparisons(text: str, expected: object) -> None:
    assert expression.evaluate(text) == expected


@given(st.integers(-100, 100), st.integers(-100, 100), st.sampled_from(["+", "-", "*", "<", "<=", "==", "!="]))
def test_two_numbers_give_what_python_gives(a: int, b: int, op: str) -> None:
    by_hand = {
        "+": a + b,
        "-": a - b,
        "*": a * b,
        "<": a < b,
        "<=": a <= b,
        "==": a == b,
        "!=": a != b,
    }
    assert expression.evaluate(f"({a}) {op} ({b})") == by_hand[op]


NO_EXPRESSIONS = [
    "",
    "1 +",
    "1; 2",
    "x = 1",
    "import os",
    "unknown_function(1)",
    "unknown_name",
    "open('/etc/passwd')",
    "measurement('a/b:time').p50",
    "measurement('a/b:time').record",
    "measurement(1)",
    "measurement('a/' + 'b:time')",
    "datasheet('h100-sxm', 1)",
    "(" * 300 + "1" + ")" * 300,
]


@pytest.mark.parametrize("text", NO_EXPRESSIONS, ids=lambda text: text[:40] or "empty")
def test_what_cannot_be_read_is_refused_before_it_is_evaluated(text: str) -> None:
    with pytest.raises(GpuguideError):
        expression.parse(text)
    with pytest.raises(GpuguideError):
        expression.evaluate(text)


@pytest.mark.parametrize(
    "text",
    [
        "1 / 0",
        "log(0)",
        "sqrt(-1)",
        "(-1) ** 0.5",
        "exp(10000)",
        "10.0 ** 1000",
        "sum((1, (2, 3)))",
        "[n for n in 3]",
        "max()",
        "None",
        "sqrt",
        "datasheet('h100-sxm')",
        "quantity(datasheet('h100-sxm', 'memory'), 'GB/s')",
    ],
)
def test_what_has_no_value_says_so(text: str) -> None:
    with pytest.raises(ExpressionError):
        expression.evaluate(text)


def test_an_unknown_name_is_told_with_the_near_ones() -> None:
    with pytest.raises(ExpressionError, match=r"sqroot.*sqrt"):
        expression.parse("sqroot(2)")


def test_library_functions_are_known_only_if_named() -> None:
    assert expression.evaluate("double(4)", {"double": lambda number: 2 * number}) == 8
    with pytest.raises(ExpressionError, match="double"):
        expression.evaluate("double(4)")


def test_datasheet_figures() -> None:
    # 989.4 TFLOP/s over 3.35 TB/s, the H100's ridge, by hand
    ridge = "datasheet('h100-sxm', 'bf16_dense') / datasheet('h100-sxm', 'memory_bandwidth')"
    assert expression.evaluate(ridge) == pytest.approx(295.3, abs=0.1)
    with pytest.raises(GpuguideError, match="h100-sxm"):
        expression.evaluate("datasheet('h100-sxn', 'memory_bandwidth')")
    with pytest.raises(GpuguideError, match="memory_bandwidth"):
        expression.evaluate("datasheet('h100-sxm', 'bandwidth')")


def test_a_ceiling_is_that_of_the_gpu_that_prose_speaks_of() -> None:
    gpu = measured_ceilings.load_reference()
    assert expression.evaluate("16e9 / ceiling('read')") == 16e9 / gpu.bandwidth["read"].value
    found = expression.evaluate("ceiling('bf16 sustained')")
    assert isinstance(found, LedgerQuantity)
    assert (float(found), found.unit) == (gpu.sustained["bf16"].value, "FLOP/s")
    with pytest.raises(GpuguideError, match="fp4"):
        expression.evaluate("ceiling('fp4')")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("quantity(2**33, 'B')", "8 GiB"),
        ("quantity(2**33, 'GB')", "8.59 GB"),
        ("quantity(12345e9, 'GB/s')", "12,345 GB/s"),
        ("quantity(0.25, '%')", "25%"),
        ("quantity(1234e-7, 'ms', 4)", "0.1234 ms"),
        ("round(quantity(datasheet('h100-sxm', 'memory'), 'GB'))", "80 GB"),
        ("round(quantity(0.8604, 's'), 2)", "0.860 s"),
        ("round(quantity(42.6, 's'))", "43 s"),
        ("quantity(-log(0.01), 'nats', 2)", "4.6 nats"),
        ("quantity(5400, 'hours')", "1.50 hours"),
        ("digits(2 / 3, 5)", "0.66667"),
    ],
)
def test_a_quantity_is_written_with_its_unit(text: str, written: str) -> None:
    quantity = expression.evaluate(text)
    assert isinstance(quantity, LedgerQuantity)
    assert quantity.text() == written


def test_a_quantity_loses_its_unit_in_arithmetic() -> None:
    assert type(expression.evaluate("quantity(3, 's')")) is LedgerQuantity
    assert type(expression.evaluate("2 * quantity(3, 's')")) is float


def test_lookups_name_what_is_read_once_and_in_order() -> None:
    tree = expression.parse(
        "measurement('ceilings/copy:bandwidth').p25 > datasheet('h100-sxm', 'memory_bandwidth') / 2 "
        "and ratio('a/b/c:time').p25 > 1 and measurement('ceilings/copy:bandwidth').median > 1"
    )
    assert expression.lookups(tree) == [
        ("measurement", ("ceilings/copy:bandwidth",)),
        ("datasheet", ("h100-sxm", "memory_bandwidth")),
        ("ratio", ("a/b/c:time",)),
    ]
