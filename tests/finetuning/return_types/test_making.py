from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gpuguide import models
from gpuguide.finetuning.return_types import making

SOURCE = '''
import torch

def plain(values: list[float], far: int = 3) -> float:
    """Return something."""
    total: float = 0.0
    unused: int
    for value in values:
        total += value * far
    return total

def other_name(values: list[float], far: int = 3) -> float:
    total: float = 0.0
    for value in values:
        total += value * far
    return total

def test_nothing() -> None:
    assert plain([1.0, 2.0, 3.0]) == 6.0 + plain([1.0, 2.0, 3.0], far=0)

class Thing:
    def __len__(self) -> int:
        return sum(each for each in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11))

    @property
    def rows(self) -> torch.Tensor:
        def inner(count: int) -> torch.Tensor:
            """Say so."""
            return torch.zeros(count) + torch.ones(count)
        return inner(3) if self else inner(4)

    def unknown(self, given: int) -> Thing:
        return self if given in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11) else self

def short() -> int:
    return 1
'''


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        ("list[int]", "list"),
        ("dict[str, list[int]]", "dict"),
        ("torch.Tensor", "Tensor"),
        ("None", "None"),
        ("str | None", ""),
        ("'str'", ""),
        ("Thing", "Thing"),
    ],
)
def test_kinds(annotation: str, kind: str) -> None:
    assert making.kind_of(ast.parse(annotation, mode="eval").body) == kind
    assert making.kind_of(None) == ""


def test_functions_of_a_project(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "code.py").write_text(SOURCE)
    tokenizer = models.load("draft").tokenizer
    found = making.functions_of([folder], tokenizer)
    assert {(each.file, each.text.partition("(")[0], each.returns) for each in found} == {
        ("project/deep/code.py", "def plain", "float"),
        ("project/deep/code.py", "def rows", "Tensor"),
        ("project/deep/code.py", "def inner", "Tensor"),
    }
    plain = next(each for each in found if each.returns == "float")
    assert plain.text == (
        "def plain(values, far=3):\n    total = 0.0\n    for value in values:\n"
        "        total += value * far\n    return total"
    )
    assert making.functions_of([folder], tokenizer) == found
