"""Training from a text to a checkpoint: stopped and resumed, in two processes, and refused where it cannot work."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_text import StopsAt, options, run, run_on_rank, stop_on_rank, write_text

from gpuguide import models, pretraining
from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.finetuning import read_log
from gpuguide.finetuning.memory_check import shape_of
from gpuguide.hardware import device
from gpuguide.interconnect.processes import Team
from gpuguide.pretraining import expectation, settings, texts
from gpuguide.training.rungs import ALL

GPT2_SMALL = shape_of(settings.SHAPES["gpt2-small"])
H100 = device.fake("h100-sxm")


def test_a_run_learns_and_leaves_checkpoint_log_and_report(folder: Path) -> None:
    record = run(options(folder))
    assert record.losses[-1] < record.losses[0]
    assert [step for step, _ in record.eval_losses] == [0, 2, 4, 6, 8]
    out = folder / "out"
    assert {path.name for path in out.iterdir()} == {"log.csv", "model", "tokens.json", "tokens.npy", "train.json"}
    loaded = models.load(out / "model")
    assert loaded.model.parameter_count() == record.parameters.trained
    rows = read_log(out / "log.csv")
    assert [row.step for row in rows] == list(range(9))
    assert [row.loss for row in rows[1:]] == list(record.losses)
    assert all(row.grad_norm and row.tokens == 64 and row.tokens_per_second for row in rows[1:])
    assert json.loads((out / "train.json").read_text())["rungs"] == ["attention", "optimizer", "loss"]


@pytest.mark.parametrize("step", [1, 4, 5])
def test_a_run_that_was_interrupted_ends_as_one_that_was_not(folder: Path, tmp_path: Path, step: int) -> None:
    whole = run(options(folder))
    parts = replace(options(folder), out=tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        run(parts, StopsAt(step))
    assert (parts.out / "unfinished.pt").exists()
    resumed = run(parts)
    assert resumed.losses == whole.losses
    assert resumed.eval_losses == whole.eval_losses
    assert [row.loss for row in read_log(parts.out / "log.csv")[1:]] == list(whole.losses)
    assert (parts.out / "model/model.safetensors").read_bytes() == (folder / "out/model/model.safetensors").read_bytes()


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder with the same text."""
    (tmp_path / "two").mkdir()
    write_text(tmp_path / "two/text.txt")
    return tmp_path / "two"


@pytest.mark.parametrize("clocks", [(1.0, 1.0), (1e-6, 1e6)])
def test_two_processes_train_as_one_does_whatever_their_clocks_say(
    folder: Path, other: Path, clocks: tuple[float, float]
) -> None:
    whole = run(options(folder, eval_every=4))
    with Team(2, device="cpu") as team:
        first, second = team.run(run_on_rank, str(other), clocks)
    assert first == second
    torch.testing.assert_close(first[0], whole.losses, rtol=1e-5, atol=0)
    torch.testing.assert_close(first[1], whole.eval_losses, rtol=1e-5, atol=0)


def test_processes_stop_together_and_resume(folder: Path, other: Path) -> None:
    whole = run(options(folder, eval_every=4))
    with Team(2, device="cpu") as team:
        assert team.run(stop_on_rank, str(other)) == ["interrupted", "interrupted"]
        first, _ = team.run(run_on_rank, str(other))
    torch.testing.assert_close(first[0], whole.losses, rtol=1e-5, atol=0)


def test_a_step_that_the_scaler_leaves_out_ends_no_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU without bf16: the first scale is too large for the gradients of some steps."""
    monkeypatch.setattr("gpuguide.training.rungs.autocast_format", lambda *given: "fp16")
    monkeypatch.setattr("torch.amp.GradScaler", functools.partial(torch.amp.GradScaler, init_scale=2.0**24))
    record = run(options(folder))
    assert len(record.losses) == 8
    assert min(row.grad_norm for row in read_log(folder / "out/log.csv")[1:]) == 0


def test_a_text_is_tokenised_once(folder: Path) -> None:
    chosen, tokenizer = options(folder), texts.read_tokenizer("main")
    first = texts.prepare_corpus(chosen.texts, tokenizer, 2048, chosen.out)
    written = first.token_file.stat().st_mtime_ns
    again = texts.prepare_corpus(chosen.texts, tokenizer, 2048, chosen.out)
    assert (again.token_file.stat().st_mtime_ns, again.digest) == (written, first.digest)
    chosen.texts[0].write_text("another text, which is shorter " * 9)
    other = texts.prepare_corpus(chosen.texts, tokenizer, 2048, chosen.out)
    assert other.digest != first.digest
    decoded = tokenizer.decode([int(each) for each in (*other.training, *other.held_out)][1:])
    assert decoded == chosen.texts[0].read_text()


def test_a_token_file_is_used_as_it_is(folder: Path) -> None:
    path = folder / "train.bin"
    path.write_bytes(np.arange(2000, dtype=np.uint16).tobytes())
    record = run(replace(options(folder), texts=(path,)))
    assert record.setup.corpus.token_file == path
    assert len(record.setup.corpus.training) == 1900


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"shape": "gpt3"}, "gpt2-small"),
        ({"tokenizer": "nobody"}, "nobody"),
        ({"without": ("compiling",)}, "compile"),
        ({"seq_len": 17}, "17"),
        ({"tokens": 10}, "10 tokens"),
        ({"micro_batch": 3}, "3"),
        ({"batch": 0}, "batch"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_trained(folder: Path, more: dict[str, Any], named: str) -> None:
    with pytest.raises((GpuguideError, UnknownName), match=named):
        run(options(folder, **more))


def test_a_text_shorter_than_a_window_is_refused(folder: Path) -> None:
    (folder / "text.txt").write_text("few words")
    with pytest.raises(GpuguideError, match="longer text"):
        run(options(folder))


def test_a_state_of_another_run_or_cut_short_is_refused(folder: Path) -> None:
    chosen = options(folder)
    with pytest.raises(KeyboardInterrupt):
        run(chosen, StopsAt(3))
    with pytest.raises(GpuguideError, match="differs in seed"):
        run(replace(chosen, seed=1))
    settings.SHAPES["wider"] = replace(settings.SHAPES["tiny"], hidden=64)
    with pytest.raises(GpuguideError, match="model"):
        run(replace(chosen, shape="wider", learning_rate=settings.learning_rate(1)))
    state = chosen.out / "unfinished.pt"
    state.write_bytes(state.read_bytes()[:-100])
    with pytest.raises(GpuguideError, match="damaged"):
        run(chosen)
    assert len(run(replace(chosen, overwrite=True)).losses) == 8
    with pytest.raises(GpuguideError, match="finished run"):
        run(chosen)


def test_the_largest_micro_batch_that_fits_is_taken() -> None:
    chosen = expectation.choose_micro_batch(GPT2_SMALL, 512, 1024, ALL, H100, None)
    assert 512 % chosen == 0
    room = 0.9 * H100.memory
    assert expectation.step_bytes(GPT2_SMALL, chosen, 1024, ALL, True) <= room
    assert expectation.step_bytes(GPT2_SMALL, 2 * chosen, 1024, ALL, True) > room
    with pytest.raises(GpuguideError, match=f"--micro-batch {chosen}"):
        expectation.choose_micro_batch(GPT2_SMALL, 512, 1024, ALL, H100, 2 * chosen)


def test_no_sequence_that_fits_is_said() -> None:
    with pytest.raises(GpuguideError, match="--seq-len"):
        expectation.choose_micro_batch(GPT2_SMALL, 8, 1024, ALL, replace(H100, memory=2**30), None)


def test_a_run_is_expected_to_be_faster_with_every_rung() -> None:
    options_of_h100 = settings.PretrainOptions(texts=(), out=Path("out"))
    rungs = settings.rungs_here(options_of_h100, H100)
    assert rungs == ALL
    config = settings.TrainingConfig(steps=100, batch=64, precision="bf16")
    whole = expectation.expect(GPT2_SMALL, config, 512, rungs, H100)
    slow = expectation.expect(GPT2_SMALL, replace(config, precision="fp32"), 512, rungs - {"bf16", "weights"}, H100)
    assert whole is not None and slow is not None  # noqa: PT018
    assert whole.tokens_per_second and slow.tokens_per_second and whole.seconds  # noqa: PT018
    assert whole.tokens_per_second > 4 * slow.tokens_per_second
    assert whole.seconds == pytest.approx(100 * 64 * 512 / whole.tokens_per_second)


def test_out_of_memory_says_what_would_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("gpuguide.pretraining.recipe.run_steps", fail)
    with pytest.raises(GpuguideError, match="--micro-batch 2"):
        run(options(folder))


def test_a_gpu_without_bf16_takes_fp16_and_no_graph(folder: Path) -> None:
    turing = replace(H100, supports=frozenset({"fp16"}))
    setup = pretraining.prepare(options(folder), turing, pretraining.PretrainCallback())
    rungs = setup.rungs
    assert any("fp16" in line for line in pretraining.recipe.describe_plan(setup))
    assert "bf16" in rungs
    assert not rungs & {"weights", "graph"}
