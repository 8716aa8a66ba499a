"""``gpuguide finetune`` in a terminal and out of one, alone and under torchrun."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from gpuguide import finetuning, models
from gpuguide.cli import training_screen
from gpuguide.finetuning import FinetuneOptions, RunRecord
from gpuguide.finetuning.data import splits
from gpuguide.models import checkpoint, gpt2_checkpoint
from gpuguide.models.gpt2 import GPT2

Run = Callable[..., tuple[int, str, str]]
WORDS = ("import", "return", "raise", "yield", "assert", "global")
TWO_GPUS = (
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
)
SMALL = ("--model", "draft", "--device", "cpu", "--steps", 6, "--eval-every", 2, "--rank", 4)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    texts = [f"{one} {other}\n{one} {other}\n" for one in WORDS for other in WORDS]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, texts[0]]))
    return path


def test_stages_losses_and_results(gpuguide: Run, data: Path, tmp_path: Path) -> None:
    out_folder = tmp_path / "out"
    status, out, err = gpuguide("finetune", data, "--out", out_folder, "--yes", *SMALL)
    assert status == 0, err
    lines = [line for line in err.splitlines() if line]
    assert [line[:5] for line in lines if line.startswith("[")] == [f"[{number}/7]" for number in range(1, 8)]
    assert "1 duplicate" in err
    assert "32 to train on, 4 held out; the longest has " in err
    assert re.search(r"before: held out \d\.\d{3}\n", err)
    assert re.search(r"step 2: loss \d\.\d{3}, held out \d\.\d{3}; .*; at most \d+ s left", err)
    for metric in (r"[\d,]+ ms/step", r"[\d,]+ tokens/s", r"lr \d\.\d\de-0\d", r"grad norm \d"):
        assert re.search(metric, err), metric
    assert "MFU" not in err + out
    assert re.search(r"speed +[\d,]+ tokens/s, [\d,]+ ms per step", out)
    assert re.match(r"held-out loss +\d\.\d{4} nats a token after step \d, \d\.\d{4} before", out)
    assert "report.html" in out
    assert "gpuguide finetune" in (out_folder / "report.html").read_text()
    assert f"--out {out_folder}" in (out_folder / "report.html").read_text()
    status, out, _ = gpuguide("generate", "--model", out_folder / "merged", "--prompt", "import", "--tokens", 4,
                              "--device", "cpu")  # fmt: skip
    assert status == 0
    assert out


def test_ctrl_c_and_on(gpuguide: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("finetune", data, "--out", tmp_path / "out", "-y", *SMALL)
    on_evaluation = training_screen.TrainingScreen.on_evaluation

    def interrupt(screen: training_screen.TrainingScreen, record: RunRecord) -> None:
        on_evaluation(screen, record)
        if len(record.losses) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(training_screen.TrainingScreen, "on_evaluation", interrupt)
    status, _, err = gpuguide(*words)
    assert status == 1
    assert err.endswith("What was finished is kept; run the same command again to go on.\n")
    report = (tmp_path / "out" / "report.html").read_text()
    assert "after 4 of " in report
    assert "http-equiv" not in report
    monkeypatch.undo()

    def unreadable(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint.Checkpoint, "read_model", unreadable)
    status, _, _ = gpuguide(*words)
    assert status == 1
    assert (tmp_path / "out" / "report.html").read_text() == report  # nothing of this run could stand there
    monkeypatch.undo()
    status, _, err = gpuguide(*words)
    assert status == 0
    assert "Resuming after step 4." in err
    status, _, err = gpuguide(*words)
    assert status == 1
    assert "holds a finished run" in err


def test_a_full_disk_at_a_checkpoint(
    gpuguide: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, count = Path.write_bytes, 0

    def fills(path: Path, content: bytes) -> int:
        nonlocal count
        count += "unfinished" in path.name
        if count > 2:
            write(path, content[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", fills)
    words = ("finetune", data, "--out", tmp_path / "out", "-y", *SMALL)
    status, _, err = gpuguide(*words)
    assert status == 1
    assert "unfinished.pt cannot be written (No space left on device); the last one stays" in err
    monkeypatch.undo()
    status, _, err = gpuguide(*words)
    assert status == 0
    assert "Resuming after step 4." in err


def test_a_full_disk_at_the_first_checkpoint(
    gpuguide: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_bytes

    def fills(path: Path, content: bytes) -> int:
        if "unfinished" in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", fills)
    status, _, err = gpuguide("finetune", data, "--out", tmp_path / "out", "-y", *SMALL)
    assert status == 1
    assert "unfinished.pt cannot be written (No space left on device); no state" in err


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("none.txt",), 1, "The data file none.txt does not exist."),
        (("DATA", "--targets", "query"), 2, "No layer fits 'query'. Did you mean query_key_value?"),
        (("DATA", "--model", "drft"), 2, "There is no model named 'drft'. Did you mean draft"),
        (("DATA", "--overflow", "chop"), 2, "'chop'"),
        (("DATA", "--loss", "answer"), 2, "'answer'"),
        (("DATA", "--length", "8"), 1, "--overflow"),
        (("DATA", "--rank", "0"), 2, "rank"),
        ((), 2, "FILE"),
    ],
)
def test_wrong_words(gpuguide: Run, data: Path, tmp_path: Path, words: tuple[str, ...], status: int, said: str) -> None:
    given = [data if word == "DATA" else word for word in words]
    found, _, err = gpuguide("finetune", *SMALL, "--out", tmp_path / "out", *given)
    assert found == status
    assert said in re.sub(r"\s+", " ", err)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (("--eval-data", "DATA"), ("--held-out", "DATA")),
        (("--overflow", "drop"), ("--too-long", "skip")),
        (("--eval-every", "2"), ("--every", "2")),
        (("--rslora",), ("--stabilised",)),
        (("--train-on-assistant",), ("--loss", "answers")),
        (("--overwrite",), ("--again",)),
    ],
)
def test_old_names_of_options(
    gpuguide: Run,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new: tuple[str, ...],
    old: tuple[str, ...],
) -> None:
    """An old option means what the new one means; both together are refused, and the message names both."""
    options: list[FinetuneOptions] = []

    def prepare(given: FinetuneOptions, *rest: object) -> None:
        options.append(given)
        raise finetuning.Declined

    monkeypatch.setattr(finetuning, "prepare", prepare)
    words = ("finetune", data, "--out", tmp_path / "out")
    parts = [[data if word == "DATA" else word for word in option] for option in (new, old)]
    for part in ([], *parts):
        assert gpuguide(*words, *part)[0] == 1
    default, by_new_name, by_old_name = options
    assert default != by_new_name
    overflow = splits.OLD_OVERFLOW.get(by_old_name.overflow, by_old_name.overflow)
    assert replace(by_old_name, overflow=overflow) == by_new_name
    status, _, err = gpuguide(*words, *parts[0], *parts[1])
    assert status == 2
    assert new[0] in err
    assert old[0] in err
    assert len(options) == 3
    assert old[0] in gpuguide("finetune", "--help")[1]


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "status"), [("\nb\ns\n", 0), ("q\n", 1), ("", 1)])
def test_the_data_are_shown_page_by_page(
    gpuguide: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, status: int
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(typed))
    found, _, err = gpuguide("finetune", data, "--out", tmp_path / "out", *SMALL)
    assert found == status
    assert len(re.findall("page 1 of 4", err)) == (2 if status == 0 else 1)
    assert len(re.findall("page 2 of 4", err)) == (1 if status == 0 else 0)
    assert ("Nothing was trained." in err) == bool(status)
    assert re.search(r"train +line 1 +\d+ +import import", err)


def test_where_nobody_can_be_asked_one_page_is_shown(gpuguide: Run, data: Path, tmp_path: Path) -> None:
    status, _, err = gpuguide("finetune", data, "--out", tmp_path / "out", *SMALL)
    assert status == 0
    assert re.search(r"train +line 1 ", err)
    assert "page 1" not in err


def test_closed_standard_input_is_nobody_to_ask(
    gpuguide: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a job that cron starts."""
    monkeypatch.setattr(sys, "stdin", None)
    status, out, err = gpuguide("finetune", data, "--out", tmp_path / "out", *SMALL)
    assert status == 0, err
    assert "held-out loss" in out


def test_a_padded_vocabulary(gpuguide: Run, data: Path, tmp_path: Path) -> None:
    """The untrained model writes what stands for no token before and after."""
    model, _ = checkpoint.read(models.checkpoint_folder("draft"))
    padded = GPT2(replace(model.config, vocab_size=model.config.vocab_size + 64))
    with torch.no_grad():
        padded.token_embedding.weight[-64:] = 5.0
    gpt2_checkpoint.write(tmp_path / "padded", padded, models.load("draft").tokenizer)
    words = ("--model", tmp_path / "padded", "--device", "cpu")
    status, _, err = gpuguide("finetune", data, "--out", tmp_path / "out", "-y", "--steps", 1, *words)
    assert status == 0, err
    assert gpuguide("generate", "--prompt", "import", "--tokens", 8, *words)[0] == 0


def test_a_tokenizer_larger_than_the_model(gpuguide: Run, data: Path, tmp_path: Path) -> None:
    """What ``generate`` would refuse afterwards is refused at once."""
    shutil.copytree(models.checkpoint_folder("draft"), tmp_path / "larger")
    path = tmp_path / "larger" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 2048, "content": "[PAD]"})
    path.write_text(json.dumps(content))
    for words in (("finetune", data, "--out", tmp_path / "out", "-y"), ("generate", "--prompt", "x")):
        status, _, err = gpuguide(*words, "--model", tmp_path / "larger", "--device", "cpu")
        assert status == 1
        assert "has 2049 tokens and the model 2048" in err


def test_the_losses_are_drawn() -> None:
    lines = training_screen.chart([5.0, 4.0, 3.0, 2.0], [(0, 5.0), (4, 2.5)], 8, 40, 7)
    plain = [line.plain for line in lines]
    assert plain[0].startswith(" 5.000 o")
    assert plain[6].startswith(" 2.000 ")
    assert "o" in plain[5][7 + 14 :]
    assert training_screen.chart([], [], 8, 40) == []


def test_a_terminal_shows_a_chart_that_is_renewed(data: Path, tmp_path: Path) -> None:
    from gpuguide.hardware import device as devices

    terminal = io.StringIO()
    console = Console(file=terminal, force_terminal=True, width=80, height=40)
    options = finetuning.FinetuneOptions(data, "draft", tmp_path / "out", steps=4, eval_every=1, rank=4)
    with training_screen.TrainingScreen("the command", asks=False, console=console) as screen:
        finetuning.run(options, devices.cpu(), screen)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue())
    assert "step 4 of 4" in text
    assert "· each step   o held out" in text
    assert re.search(r"tokens/s   lr \d", text)
    assert "━" in text


@pytest.mark.slow
@pytest.mark.parametrize(("device", "near"), [("cpu", 1e-5), pytest.param("gpu", 1e-2, marks=TWO_GPUS)])
def test_two_processes_under_torchrun_train_as_one(
    gpuguide: Run, data: Path, tmp_path: Path, device: str, near: float
) -> None:
    """On GPUs the products are in bf16, and half a batch is summed in another order than a whole one."""
    settings = [device if each == "cpu" else each for each in SMALL]
    assert gpuguide("finetune", data, "--out", tmp_path / "one", "-y", *settings)[0] == 0
    words = [*map(str, ("finetune", data, "--out", tmp_path / "two", *settings))]
    begin = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*begin, "-m", "gpuguide", *words], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("held-out loss") == 1
    one, two = (json.loads((tmp_path / name / "finetune.json").read_text()) for name in ("one", "two"))
    assert two["losses"] == pytest.approx(one["losses"], rel=near)
    assert [loss for _, loss in two["eval_losses"]] == pytest.approx([loss for _, loss in one["eval_losses"]], rel=near)
    assert "torchrun --nproc-per-node 2 -m gpuguide finetune" in (tmp_path / "two" / "report.html").read_text()
