"""``gpuguide train`` in a terminal and out of one, alone and under torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguide.finetuning import read_log

Run = Callable[..., tuple[int, str, str]]
SMALL = ("--shape", "draft", "--device", "cpu", "--seq-len", 16, "--batch", 4, "--tokens", 6 * 64, "--eval-every", 2)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"def number_{index}():\n    return {index}\n" for index in range(200)))
    return path


def test_stages_expectation_losses_and_results(gpuguide: Run, text: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    status, out, err = gpuguide("train", text, "--out", folder, *SMALL)
    assert status == 0, err
    lines = [line for line in err.splitlines() if line]
    assert [line[:5] for line in lines if line.startswith("[")] == [f"[{number}/5]" for number in range(1, 6)]
    assert "6 steps of 4 x 16 tokens, 384 in all" in err
    assert "With attention, optimizer, loss" in err
    assert re.search(r"step 2: loss \d\.\d{3}, held out \d\.\d{3}; .*; at most \d+ s left", err)
    assert re.match(r"held-out loss +\d\.\d{4} nats a token after step 6, \d\.\d{4} before", out)
    report = (folder / "report.html").read_text()
    assert "draft trained on text.txt" in report
    assert "left out" in report
    assert "Generated text" not in report
    assert len(read_log(folder / "log.csv")) == 7
    status, out, _ = gpuguide("generate", "--model", folder / "model", "--prompt", "def", "--max-new-tokens", 3)
    assert status == 0
    status, _, err = gpuguide("train", text, "--out", folder, *SMALL)
    assert status == 1
    assert "--overwrite" in err


def test_a_dry_run_says_what_it_would_take_and_trains_nothing(
    gpuguide: Run, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "h100-sxm")
    status, _, err = gpuguide("train", text, "--out", tmp_path / "out", "--shape", "draft", "--dry-run", "--batch", 4,
                              "--seq-len", 64)  # fmt: skip
    assert status == 0, err
    assert "With bf16, attention, compile, optimizer, loss, weights, graph" in err
    assert re.search(r"A step takes about [\d.]+ [MG]iB of ", err)
    assert re.search(r"Expected: [\d,]+ tokens/s, [\d.]+ minutes", err)
    assert not (tmp_path / "out" / "model").exists()


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        (("--tokens", "many"), 2, "many"),
        (("--shape", "gpt5"), 2, "gpt2-small"),
        (("--without", "compiler"), 2, "compile"),
        (("--micro-batch", 3), 1, "3"),
        (("--tokenizer", "none"), 1, "tokenizer"),
    ],
)
def test_wrong_words_are_refused(
    gpuguide: Run, text: Path, tmp_path: Path, words: tuple[object, ...], status: int, named: str
) -> None:
    found, _, err = gpuguide("train", text, "--out", tmp_path / "out", *SMALL, *words)
    assert found == status
    assert named in err


def test_torchrun_trains_as_one_process_does(gpuguide: Run, text: Path, tmp_path: Path) -> None:
    status, _, err = gpuguide("train", text, "--out", tmp_path / "one", *SMALL)
    assert status == 0, err
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["-m", "gpuguide", "train", text, "--out", tmp_path / "two", *SMALL]
    subprocess.run(
        [*command, *map(str, words)], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True
    )
    alone, shared = (read_log(tmp_path / name / "log.csv") for name in ("one", "two"))
    assert [row.loss for row in shared[1:]] == pytest.approx([row.loss for row in alone[1:]], rel=1e-4)
    assert (tmp_path / "two" / "model" / "model.safetensors").exists()
