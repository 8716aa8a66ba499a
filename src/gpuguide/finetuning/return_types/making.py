"""Extract the functions of the task from a project's source.

Run as ``python -m gpuguide.finetuning.return_types.making FOLDER... > functions.jsonl``.
"""

from __future__ import annotations

import ast
import copy
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from gpuguide import models
from gpuguide.finetuning.return_types.data import KINDS, LENGTH, Function, encode_question
from gpuguide.models.tokenizer import Tokenizer

SHORTEST = 16
"""Tokens; shorter functions have no code to speak of"""


def functions_of(folders: Sequence[Path], tokenizer: Tokenizer, seed: int = 0) -> list[Function]:
    """Return the functions of the Python files in folders that return one of :data:`KINDS`, in a drawn order.

    Left out are tests, special methods, what is there twice but for its name, and what is too short or too long.
    """
    found: dict[str, Function] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder.parent).as_posix()
            for node in _find_annotated(ast.parse(path.read_text(encoding="utf-8"))):
                returned = kind_of(node.returns)
                text = strip_annotations(node)
                function = Function(name, text, returned)
                if SHORTEST <= len(encode_question(function, tokenizer)) <= LENGTH:
                    found.setdefault(text.partition("(")[2], function)
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed)).tolist()
    kept = list(found.values())
    return [kept[place] for place in order]


def kind_of(annotation: ast.expr | None) -> str:
    """Return what an annotation says, without what is in brackets: ``list`` for ``list[int]``; an empty text if more.

    >>> kind_of(ast.parse("tuple[torch.Tensor, int]", mode="eval").body)
    'tuple'
    """
    while isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    if isinstance(annotation, ast.Constant) and annotation.value is None:
        return "None"
    return annotation.attr if isinstance(annotation, ast.Attribute) else getattr(annotation, "id", "")


def strip_annotations(function: ast.FunctionDef) -> str:
    """Return the code of a function without annotations, decorators and docstrings."""
    return ast.unparse(ast.fix_missing_locations(_Plain().visit(copy.deepcopy(function))))


def _find_annotated(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        is_one = isinstance(node, ast.FunctionDef) and not node.name.startswith(("test_", "__"))
        if isinstance(node, ast.FunctionDef) and is_one and kind_of(node.returns) in KINDS:
            yield node


class _Plain(ast.NodeTransformer):
    """Takes out what says of which types things are."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt | None:
        self.generic_visit(node)
        return None if node.value is None else ast.Assign([node.target], node.value, lineno=node.lineno)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns, node.decorator_list = None, []
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        self.generic_visit(node)
        return node


if __name__ == "__main__":
    for each in functions_of([Path(name) for name in sys.argv[1:]], models.load("main").tokenizer):
        print(json.dumps(asdict(each)))
