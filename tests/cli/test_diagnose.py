"""``gpuguide diagnose`` on small programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

Run = Callable[..., tuple[int, str, str]]
PROGRAM = """
import torch

x = torch.rand(1000)

def step():
    return torch.tanh(x * 2).sum().item()

def needs(batch):
    return batch

def broken():
    return x @ x.view(10, 100)
"""
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "small_program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


@without_gpu
def test_what_can_be_told_without_a_gpu(gpuguide: Run, program: Path) -> None:
    status, out, err = gpuguide("diagnose", f"{program}:step", "--gpu", "h100-sxm")
    assert status == 0
    assert "H100" in err
    assert "launches" in out
    assert "kernels    3, fused 1" in out
    assert "small_program.py:7" in out


@pytest.mark.parametrize(
    ("name", "status", "named"),
    [
        ("needs", 1, "needs(batch)"),
        ("stap", 2, "step"),
        ("x", 2, "step"),
        ("broken", 1, "RuntimeError"),
    ],
)
def test_functions_that_cannot_be_diagnosed(gpuguide: Run, program: Path, name: str, status: int, named: str) -> None:
    found, _, err = gpuguide("diagnose", f"{program}:{name}")
    assert found == status
    assert named in err


def test_files_that_cannot_be_imported(gpuguide: Run, tmp_path: Path) -> None:
    broken = tmp_path / "broken_program.py"
    broken.write_text("import no_such_module_anywhere", encoding="utf-8")
    for target, status, named in (
        (f"{broken}:step", 1, "no_such_module_anywhere"),
        (f"{tmp_path / 'absent.py'}:step", 1, "absent.py"),
        (str(broken), 2, "FILE:FUNCTION"),
    ):
        found, _, err = gpuguide("diagnose", target)
        assert found == status, err
        assert named in err
