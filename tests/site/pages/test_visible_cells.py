"""What a reader copies from a page with its folds closed needs nothing that they do not see.

The names are compared in the syntax tree: what a visible cell loads, a visible cell before it binds. Whether the code
runs, the build of the site has seen; `make test-thoroughly` runs the visible cells by themselves.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from gpuguide.site.pages import page_source, reading

SOURCES = Path(__file__).parents[3] / "tutorials"
TUTORIALS = sorted(path.stem for path in SOURCES.glob("[0-9]*.md"))
ORDERED = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)
"""Statements that load all their names before they bind any"""
COMPREHENSIONS = {"listcomp", "setcomp", "dictcomp", "genexpr"}


def unbound_names(cells: Iterable[str]) -> list[str]:
    """Return the names that cells load, one after the other, and that none of them has bound by then.

    A function's body may use what a later cell binds: it is called later.
    """
    bound, missing, used_in_functions = set(dir(builtins)), [], set()
    for code in cells:
        for statement in ast.parse(code).body:
            table = symtable.symtable(ast.unparse(statement), "cell", "exec")
            binds = {symbol.get_name() for symbol in table.get_symbols() if binds_name(symbol)}
            known = bound if isinstance(statement, ORDERED) else bound | binds
            loaded = set(names_loaded_at_once(table))
            if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
                loaded.add(statement.target.id)
            missing += sorted(loaded - known)
            used_in_functions |= set(names_loaded_later(table))
            bound |= binds
    return missing + sorted(used_in_functions - bound)


def binds_name(symbol: symtable.Symbol) -> bool:
    """Return whether a statement binds a name of the module."""
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def names_loaded_at_once(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the module's names that run with the statement: its own, and those of its comprehensions and classes."""
    at_module = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (at_module or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        if child.get_name() in COMPREHENSIONS or child.get_type() == "class":
            yield from names_loaded_at_once(child)


def names_loaded_later(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the module's names that the bodies of functions load."""
    for child in table.get_children():
        if child.get_type() == "function" and child.get_name() not in COMPREHENSIONS:
            yield from (symbol.get_name() for symbol in child.get_symbols() if symbol.is_global())
            yield from names_loaded_at_once(child)
        yield from names_loaded_later(child)


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_visible_cell_loads_what_a_visible_cell_binds(name: str) -> None:
    cells = list(page_source.cells((SOURCES / f"{name}.md").read_text(encoding="utf-8")))
    visible = [cell for cell in cells if not reading.HIDDEN_CODE & set(cell.tags)]
    assert unbound_names(cell.code for cell in visible) == []
    snippets = [cell for cell in visible if reading.SNIPPET in cell.tags]
    assert snippets
    for snippet in snippets:
        assert unbound_names([snippet.code]) == [], f"the snippet on line {snippet.line} is copied alone"


@pytest.mark.parametrize(
    ("cells", "missing"),
    [
        (["x = 1", "print(x)"], []),
        (["print(x)", "x = 1"], ["x"]),
        (["x = x + 1"], ["x"]),
        (["x += 1"], ["x"]),
        (["import math as m\nfrom torch import nn", "m.pi, nn, math"], ["math"]),
        (["def f(a):\n    return helper(a)", "def helper(a):\n    return a"], []),
        (["def f(a):\n    return helper(a)"], ["helper"]),
        (["rows = [2 * row for row in table]"], ["table"]),
        (["f = lambda a: a + offset"], ["offset"]),
        (["class Model(nn.Module):\n    size = width"], ["nn", "width"]),
        (["for i in range(3):\n    total = i\nprint(i, total)"], []),
        (["with open('a') as file:\n    text = file.read()\ntext"], []),
        (["def f():\n    def g():\n        return hidden\n    return g"], ["hidden"]),
        (["draw(data)"], ["data", "draw"]),
    ],
)
def test_unbound_names_are_found(cells: list[str], missing: list[str]) -> None:
    assert unbound_names(cells) == missing
