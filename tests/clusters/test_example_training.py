"""The training program that batch scripts start: stopped anywhere, it goes on as if it had not been."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpuguide.clusters import example_training

PROGRAM = Path(example_training.__file__)
pytestmark = pytest.mark.apart


def run(folder: Path, steps: int, *, stop: bool = False) -> str:
    """Train on two processes in a folder, asked to stop from the first step on or not at all."""
    code = f"from gpuguide.clusters.example_training import train; train({steps}, 0.0)"
    request = folder / "stop"
    request.touch() if stop else request.unlink(missing_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    done = subprocess.run(
        [*command, sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "STOP_FILE": str(request), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    run(tmp_path / "whole", 5)
    assert "step 1" in run(tmp_path / "parts", 5, stop=True)
    run(tmp_path / "parts", 5)
    whole, parts = (torch.load(tmp_path / name / "checkpoint.pt") for name in ("whole", "parts"))
    assert whole["step"] == parts["step"] == 5
    for name, weight in whole["model"].items():
        assert torch.equal(weight, parts["model"][name]), name
    for index, state in whole["optimizer"]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, parts["optimizer"]["state"][index][name]), name
    assert not list(tmp_path.rglob("*.new"))


def test_a_crash_while_saving_leaves_the_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    file = tmp_path / "checkpoint.pt"
    example_training.save(file, 7, model, optimizer)

    def fail(state: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="space"):
        example_training.save(file, 8, model, optimizer)
    assert example_training.load(file, model, optimizer, torch.device("cpu")) == 7


def test_it_imports_nothing_but_pytorch_and_the_standard_library() -> None:
    imported = [
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name) or ""
        for node in ast.walk(ast.parse(PROGRAM.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert {name.partition(".")[0] for name in imported} <= {"torch", *sys.stdlib_module_names}
