"""Which error is raised where, as the docstring of gpuguide.errors has it; read from the source text."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from rooms import imported, modules, room

PYTORCHS = {"ValueError", "TypeError", "RuntimeError"}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules().items()}


def takes_tensors(module: str) -> bool:
    """Return whether a module's callers are programs that hand it tensors, so that it does without our own error."""
    rooms = {"topic", "triton_support", "quantization", "training", "inference", "interconnect", "collectives"}
    return room(module) in rooms and not imports_our_error(module)


def imports_our_error(module: str) -> bool:
    return "gpuguide.errors" in imported(module)


def built_in(names: Iterator[str]) -> set[str]:
    """Return those names that are exceptions of Python's own; what is not implemented is no input's fault."""
    errors = {
        name for name, found in vars(builtins).items() if isinstance(found, type) and issubclass(found, Exception)
    }
    return set(names) & (errors - {"NotImplementedError"})


def raised(tree: ast.AST) -> Iterator[str]:
    """Yield the names of what is raised; what makes names of a module when asked must raise what Python does."""
    asked = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == "__getattr__"]
    left_out = {id(node) for each in asked for node in ast.walk(each)}
    for node in ast.walk(tree):
        if id(node) not in left_out and isinstance(node, ast.Raise) and node.exc is not None:
            yield ast.unparse(node.exc.func if isinstance(node.exc, ast.Call) else node.exc)


def caught(tree: ast.AST) -> Iterator[str]:
    """Yield the names of what is caught."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            yield from (ast.unparse(each) for each in getattr(node.type, "elts", [node.type]))


def test_functions_of_tensors_raise_what_pytorchs_do() -> None:
    wrong = {name: built_in(raised(tree)) - PYTORCHS for name, tree in TREES.items() if takes_tensors(name)}
    assert {name: errors for name, errors in wrong.items() if errors} == {}


def test_what_people_write_down_is_answered_in_a_sentence() -> None:
    """A built-in error is raised only where the room, or the topic, catches it."""
    handled: dict[str, set[str]] = {}
    for name, tree in TREES.items():
        handled.setdefault(".".join(name.split(".")[:2]), set()).update(caught(tree))
    wrong = {
        name: built_in(raised(tree)) - handled[".".join(name.split(".")[:2])]
        for name, tree in TREES.items()
        if not takes_tensors(name) and room(name) != "benchmarks"
    }
    assert {name: errors for name, errors in wrong.items() if errors} == {}
