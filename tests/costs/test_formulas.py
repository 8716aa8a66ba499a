from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.costs import limits, memory
from gpuguide.costs.formulas import Formulas, names_in, tree_of
from gpuguide.costs.memory import model
from gpuguide.errors import GpuguideError

NAMES = {"a": 7, "b": 2, "word": "yes", "table": {"yes": 3}}


@given(a=st.integers(-50, 50), b=st.integers(1, 50))
@pytest.mark.parametrize(
    "text",
    [
        "a + b * 2 - a / b",
        "a // b + a % b",
        "(a - b) ** 2",
        "-a if a < b and not a == 3 else max(a, b, 0)",
        "a >= b or a != 4",
        "min(a, b) <= 2",
        "ceil(a / b)",
        "table[word] * a",
        "word in ('yes', 'no') and a in (1, 2, 3)",
        "True if word == 'no' else 2.5",
    ],
)
def test_a_formula_is_what_python_computes(text: str, a: int, b: int) -> None:
    import math

    names = {**NAMES, "a": a, "b": b}
    expected = eval(text, {"__builtins__": {}, "min": min, "max": max, "ceil": math.ceil}, names)
    assert Formulas({"it": text}).values(names)["it"] == expected


def test_a_formula_that_nobody_asks_for_is_not_computed() -> None:
    found = Formulas({"one": "1 / a", "two": "one if a > 0 else 5", "three": "2 * two"}).values({"a": 0})
    assert found["three"] == 10
    with pytest.raises(ZeroDivisionError):
        _ = found["one"]
    with pytest.raises(KeyError):
        _ = found["four"]


@pytest.mark.parametrize("text", ["a +", "open('x')", "a.b", "[a]", "lambda: 1", "a if b", "1 < a < 3", "f(a)"])
def test_anything_else_is_no_formula(text: str) -> None:
    with pytest.raises(GpuguideError, match="cannot be read"):
        tree_of(text)


def every_tree() -> list[tuple[Formulas, Any, set[str]]]:
    """Return every tree of the cost models with the formulas that it may use and the names that somebody fills in."""
    given_names = set(model.SHAPE_FIELDS) | set(model.SETUP_FIELDS)
    trees: list[Any] = list(model.FORMULAS.trees.values())
    trees += [rule.holds for rule in (*model.SHAPE_RULES, *model.SETUP_RULES)]
    trees += [tree for moments in model.MOMENTS.values() for parts in moments.values() for tree in parts.values()]
    trees += [tree for change in model.CHANGES for tree in (change.when, *change.fields.values())]
    trees += [tree_of(field.when) for field in model.SETUP_FIELDS.values()]
    found = [(model.FORMULAS, tree, given_names) for tree in trees]
    for name, table in limits.OPERATIONS.items():
        filled = set(table["first"]) | {"cached", "tensor_parallel", *model.SHAPE_FIELDS, *model.SETUP_FIELDS}
        known = limits.formulas(name)
        found += [
            (known, tree, filled) for tree in (*known.trees.values(), *(rule.holds for rule in limits.rules(name)))
        ]
    of_a_limit = {"flops", "moved", "through", "peak", "bandwidth", "launch"}
    return found + [(limits.LIMIT, tree, of_a_limit) for tree in limits.LIMIT.trees.values()]


def test_every_name_in_a_formula_is_a_field_a_constant_or_another_formula() -> None:
    for known, tree, filled in every_tree():
        assert names_in(tree) <= known.trees.keys() | known.constants.keys() | filled


def test_the_fields_of_the_data_are_those_of_the_classes() -> None:
    assert list(model.SHAPE_FIELDS) == [field.name for field in fields(memory.Shape)]
    assert set(model.SETUP_FIELDS) == {field.name for field in fields(memory.Setup)}
    assert set(memory.OPTIMIZERS) == {*memory.STATE_COPIES, *memory.STATE_BYTES}
    for moments in model.MOMENTS.values():
        for parts in moments.values():
            assert set(parts) <= set(memory.PARTS)
