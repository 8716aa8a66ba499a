"""Which error is raised where, as the docstring of gpuguide.errors has it; read from the source text."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

import pytest
from rooms import imported, modules, room

OF_TENSORS = {"attention", "cross_entropy", "logits", "precision", "sampling", "softmax", "transfer"}
PARTS_OF_TENSORS = (
    "gpuguide.dataframes.kernels",
    "gpuguide.inference.speculative.acceptance",
    "gpuguide.inference.graph",
    "gpuguide.inference.quantize",
    "gpuguide.interconnect.allreduce",
    "gpuguide.interconnect.copies",
    "gpuguide.interconnect.offload",
    "gpuguide.interconnect.peers",
    "gpuguide.interconnect.tensor_parallel",
)
"""Modules and packages of other topics"""
PYTORCHS = {"ValueError", "TypeError", "RuntimeError"}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in modules().items()}


def takes_tensors(module: str) -> bool:
    """Return whether a module's callers are programs that hand it tensors."""
    within = any(f"{module}.".startswith(f"{part}.") for part in PARTS_OF_TENSORS)
    return within or module.split(".")[1:2] in [[topic] for topic in OF_TENSORS]


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


@pytest.mark.parametrize("module", [name for name in TREES if takes_tensors(name)])
def test_functions_of_tensors_raise_what_pytorchs_do(module: str) -> None:
    assert built_in(raised(TREES[module])) <= PYTORCHS
    assert "gpuguide.errors" not in imported(module)


@pytest.mark.parametrize("module", [name for name in TREES if not takes_tensors(name) and room(name) != "benchmarks"])
def test_what_people_write_down_is_answered_in_a_sentence(module: str) -> None:
    """A built-in error is raised only where the room, or the topic, catches it."""
    beside = [tree for name, tree in TREES.items() if name.split(".")[1:2] == module.split(".")[1:2]]
    assert built_in(raised(TREES[module])) <= {error for tree in beside for error in caught(tree)}
