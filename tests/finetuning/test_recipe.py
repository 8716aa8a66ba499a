"""The whole recipe on small models: what is left, what is shown, what goes on after it was stopped."""

from __future__ import annotations

import errno
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from gpuguide import files, lora, models, training
from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.finetuning import (
    Callback,
    DatasetSplits,
    Declined,
    FinetuneOptions,
    RunRecord,
    RunStage,
    html,
    peft_names,
    read_log,
    run,
)
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.models import checkpoint

CPU = devices.cpu()
needs = pytest.mark.needs
WORDS = ("import", "return", "raise", "yield", "assert", "global", "print", "while", "lambda", "class")


class Stopped(Exception):
    """Raised in place of Ctrl-C."""


class Stopping(Callback):
    """Stops a run after a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step(self, record: RunRecord) -> None:
        if len(record.losses) == self.at:
            raise Stopped


class Recording(Callback):
    """Keeps the events and the reports."""

    def __init__(self) -> None:
        self.stages: list[RunStage] = []
        self.pages: list[str] = []
        self.first = 0

    def on_stage(self, stage: RunStage, options: FinetuneOptions, device: Device) -> None:
        self.stages.append(stage)

    def on_step(self, record: RunRecord) -> None:
        self.first = self.first or len(record.losses)

    def on_evaluation(self, record: RunRecord) -> None:
        self.pages.append(html(record, "gpuguide finetune"))

    on_end = on_evaluation


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    texts = [f"{one} {other}\n{one} {other}\n" for one in WORDS for other in WORDS[:4]]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def request(data: Path, model: Path, out: str = "out", **more: Any) -> FinetuneOptions:
    settings = {"steps": 20, "learning_rate": 1e-2, "eval_every": 4, "rank": 4, "patience": None, **more}
    return FinetuneOptions(data, str(model), data.parent / out, **settings)


def test_what_a_run_leaves(data: Path, llama_folder: Path) -> None:
    asked, callback = request(data, llama_folder), Recording()
    record = run(asked, CPU, callback)
    assert callback.stages == list(RunStage)
    assert {path.name for path in asked.out.iterdir()} == {"adapter", "merged", "finetune.json", "log.csv"}
    assert record.best[1] < record.eval_losses[0][1]
    assert record.merged_loss == pytest.approx(record.best[1], rel=1e-4)
    note = json.loads((asked.out / "finetune.json").read_text())
    assert note["best"] == list(record.best)
    assert len(note["losses"]) == 20
    assert len(record.generations) == 3
    assert any(each.before != each.after for each in record.generations)


@pytest.mark.parametrize("at", [3, 9])
def test_the_log_has_a_row_for_each_step_of_a_resumed_run(data: Path, gpt2_folder: Path, at: int) -> None:
    asked = request(data, gpt2_folder)
    with pytest.raises(Stopped):
        run(asked, CPU, Stopping(at))
    record = run(asked, CPU, Callback())
    rows = read_log(asked.out / "log.csv")
    assert tuple(rows) == record.log
    assert [row.step for row in rows] == list(range(21))
    assert tuple(row.loss for row in rows[1:]) == record.losses
    assert tuple((row.step, row.eval_loss) for row in rows if row.eval_loss is not None) == record.eval_losses
    config = record.setup.training
    rates = [row.learning_rate for row in rows[1:]]
    assert rates == pytest.approx([config.learning_rate * config.lr_multiplier(step) for step in range(20)])
    assert all(row.grad_norm and row.tokens_per_second and row.step_seconds for row in rows[1:])
    assert {(row.mfu, row.peak_memory_bytes) for row in rows} == {(None, None)}  # as on a CPU


@pytest.mark.parametrize("kind", ["llama_folder", "gpt2_folder", "chat_folder"])
def test_the_merged_checkpoint_computes_what_was_trained(data: Path, kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    asked = globals()["request"](data, folder)
    run(asked, CPU, Callback())
    tokens = torch.arange(3, 40).view(1, -1)
    trained = checkpoint.open_checkpoint(folder).read_model()
    lora.load_adapter(trained, asked.out / "adapter", places=peft_names.places(trained))
    with torch.inference_mode():
        expected = trained(tokens)
        ours = models.load(asked.out / "merged").model(tokens)
        theirs = AutoModelForCausalLM.from_pretrained(asked.out / "merged", dtype=torch.float32)(tokens).logits
    tolerance = 1e-4 if kind == "llama_folder" else 0.1  # the others are stored in bf16
    torch.testing.assert_close(ours, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))
    torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)
    before, after = (load_file(each / "model.safetensors") for each in (folder, asked.out / "merged"))
    assert {name: each.dtype for name, each in after.items()} == {name: each.dtype for name, each in before.items()}
    assert not (asked.out / "merged" / "training.json").exists()


@needs("peft")
@pytest.mark.parametrize("kind", ["llama_folder", "gpt2_folder"])
def test_peft_reads_the_adapter_beside_the_checkpoint(data: Path, kind: str, request: pytest.FixtureRequest) -> None:
    from peft import PeftModel

    folder = request.getfixturevalue(kind)
    asked = globals()["request"](data, folder, targets=("query_key_value", "up" if kind == "gpt2_folder" else "down"))
    run(asked, CPU, Callback())
    tokens = torch.arange(3, 40).view(1, -1)
    ours = checkpoint.open_checkpoint(folder).read_model()
    lora.load_adapter(ours, asked.out / "adapter", places=peft_names.places(ours))
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(base, asked.out / "adapter").eval()
    with torch.inference_mode():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("at", [1, 9, 20])
def test_a_run_that_was_stopped_goes_on(data: Path, gpt2_folder: Path, at: int) -> None:
    whole = run(request(data, gpt2_folder, "whole"), CPU, Callback())
    asked, callback = request(data, gpt2_folder, "parts"), Recording()
    with pytest.raises(Stopped):
        run(asked, CPU, Stopping(at))
    record = run(asked, CPU, callback)
    assert (record.losses, record.eval_losses) == (whole.losses, whole.eval_losses)
    assert record.generations == whole.generations
    assert callback.first == (0 if at == 20 else at // 4 * 4 + 1)


def test_it_stops_early_and_keeps_the_best(data: Path, gpt2_folder: Path) -> None:
    record = run(request(data, gpt2_folder, learning_rate=0.3, steps=200, eval_every=2, patience=2), CPU, Callback())
    assert record.stopped_early
    assert len(record.losses) < 200
    assert record.best[1] < record.eval_losses[-1][1]
    assert record.merged_loss == pytest.approx(record.best[1], rel=0.02)
    assert "stopped early because the held-out loss no longer fell" in html(record, "")


def test_a_finished_run_is_not_written_over_unasked(data: Path, gpt2_folder: Path) -> None:
    asked = request(data, gpt2_folder, steps=4)
    run(asked, CPU, Callback())
    with pytest.raises(GpuguideError, match="--overwrite"):
        run(asked, CPU, Callback())
    other = replace(asked, steps=8, overwrite=True, merge=False)
    assert len(run(other, CPU, Callback()).losses) == 8
    assert not (asked.out / "merged").exists()


def test_again_goes_on_with_its_own_run_and_with_no_other(data: Path, gpt2_folder: Path) -> None:
    asked = request(data, gpt2_folder, overwrite=True)
    for plan, first in ((asked, 1), (asked, 9), (replace(asked, seed=1), 1)):
        callback = Recording()
        with pytest.raises(Stopped):
            run(plan, CPU, Stopping(9) if first == 1 else Stopping(17))
    callback = Recording()
    run(replace(asked, seed=1), CPU, callback)
    assert callback.first == 9
    with pytest.raises(Stopped):
        run(asked, CPU, Stopping(9))
    with pytest.raises(GpuguideError, match="differs in config"):
        run(replace(asked, overwrite=False, learning_rate=1e-3), CPU, Callback())


def test_a_full_disk_at_the_end_loses_nothing(data: Path, gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(data, gpt2_folder)

    def full(*given: object, **named: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lora.checkpoint, "save_file", full)
    with pytest.raises(GpuguideError, match=r"merged cannot be written \(.*No space left on device\)"):
        run(asked, CPU, Callback())
    assert not list(asked.out.glob(".merged-*"))
    monkeypatch.undo()
    callback = Recording()
    record = run(asked, CPU, callback)
    assert callback.first == 0  # no step was taken again
    assert len(record.losses) == 20
    assert (asked.out / "merged" / "model.safetensors").exists()


def test_a_kill_while_results_are_written_loses_nothing(
    data: Path, gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*given: object) -> None:
        raise Stopped

    asked = request(data, gpt2_folder)
    monkeypatch.setattr(files, "write_json", killed)
    with pytest.raises(Stopped):
        run(asked, CPU, Callback())
    monkeypatch.undo()
    callback = Recording()
    assert len(run(asked, CPU, callback).losses) == 20
    assert callback.first == 0
    assert "finetune.json" in {path.name for path in asked.out.iterdir()}


def test_declining_leaves_nothing(data: Path, gpt2_folder: Path) -> None:
    class Refusing(Callback):
        def confirm_data(self, splits: DatasetSplits) -> bool:
            return False

    asked = request(data, gpt2_folder)
    with pytest.raises(Declined):
        run(asked, CPU, Refusing())
    assert not asked.out.exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"targets": ("query",)}, r"No layer fits 'query'\. Did you mean query_key_value\?"),
        ({"targets": ("head",)}, "is tied to"),
        ({"rank": 33}, "The rank is 33, but "),
        ({"length": 65}, r"length is 65; .* reads 64 tokens at most"),
        ({"epochs": 0.0}, "epochs is 0.0; it must be a positive number"),
        ({"alpha": 0.0}, "alpha is 0.0; it must be a positive number"),
        ({"seed": 2**32}, r"seed is 4294967296; it must be at least 0 and below 2\*\*32"),
        ({"dropout": 1.5}, "dropout is 1.5; it must be"),
        ({"targets": ("q_proj",)}, "No layer fits 'q_proj'"),
        ({"dtype": "fp8"}, "There is no format named 'fp8'"),
        ({"model": "drft"}, "There is no model named 'drft'. Did you mean draft"),
        ({"model": "no/folder"}, "There is no folder no/folder"),
        ({"learning_rate": 1e30, "steps": 40}, "the run has diverged. Lower the learning rate"),
    ],
)
def test_what_cannot_be_done_is_said(data: Path, gpt2_folder: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(GpuguideError, match=said):
        run(replace(request(data, gpt2_folder), **more), CPU, Callback())


@pytest.mark.parametrize("more", [{"rank": 1000}, {"alpha": 0.0}, {"targets": ("nothing",)}, {"dtype": "fp8"}])
def test_wrong_settings_are_refused_before_the_data_are_shown(
    data: Path, gpt2_folder: Path, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Callback, "confirm_data", pytest.fail)
    with pytest.raises(GpuguideError):
        run(replace(request(data, gpt2_folder), **more), CPU, Callback())


def test_a_file_in_place_of_the_folder(data: Path, gpt2_folder: Path, tmp_path: Path) -> None:
    asked = replace(request(data, gpt2_folder), out=data)
    with pytest.raises(GpuguideError, match="is a file; name a folder with --out"):
        run(asked, CPU, Callback())
    with pytest.raises(GpuguideError, match="cannot be written"):
        files.write_text(data / "report.html", "text")


def test_the_alpha_of_a_stabilised_adapter_is_over_the_root_of_its_rank(data: Path, gpt2_folder: Path) -> None:
    asked, callback = request(data, gpt2_folder, alpha=6.0, rslora=True), Recording()
    run(asked, CPU, callback)
    assert json.loads((asked.out / "adapter" / "adapter_config.json").read_text())["use_rslora"] is True
    assert "alpha 6 over √rank" in callback.pages[-1]


def test_the_report_of_a_run_that_was_stopped_does_not_wait_for_more(data: Path, gpt2_folder: Path) -> None:
    pages: list[str] = []

    class Last(Stopping):
        def on_interrupt(self, record: RunRecord) -> None:
            pages.append(html(record, "gpuguide finetune"))

    with pytest.raises(Stopped):
        run(request(data, gpt2_folder), CPU, Last(9))
    (page,) = pages
    assert "Stopped" in page
    assert "after 9 of 20 steps" in page
    assert "http-equiv" not in page


def test_a_run_that_ends_was_not_stopped(data: Path, gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Callback, "on_interrupt", pytest.fail)
    asked = request(data, gpt2_folder)
    record = run(asked, CPU, Callback())
    assert record.interrupted_at is None
    assert record.finished_at is not None


def test_the_merged_checkpoint_can_be_read_by_whoever_reads_the_base(data: Path, gpt2_folder: Path) -> None:
    (gpt2_folder / "model.safetensors").chmod(0o644)
    asked = request(data, gpt2_folder)
    run(asked, CPU, Callback())
    assert (asked.out / "merged" / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_what_does_not_fit_is_said_before_the_model_is_loaded(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint.Checkpoint, "read_model", pytest.fail)
    card = devices.fake("rtx-4090")
    with pytest.raises(GpuguideError, match=r"NVIDIA GeForce RTX 4090 has .* What fits: --micro-batch \d+"):
        run(request(data, Path("main"), batch=100_000), card, Callback())
    with pytest.raises(GpuguideError, match="fake device"):
        run(request(data, Path("main")), card, Callback())


def test_memory_that_runs_out_is_said(data: Path, gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object, **named: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(training, "finetune", fails)
    with pytest.raises(GpuguideError, match="--micro-batch"):
        run(request(data, gpt2_folder), CPU, Callback())


@needs("bs4")
def test_the_report_is_one_file_with_everything(data: Path, gpt2_folder: Path) -> None:
    from bs4 import BeautifulSoup

    callback = Recording()
    asked = request(data, gpt2_folder, prompts=("import <b>",))
    record = run(asked, CPU, callback)
    first, last = (BeautifulSoup(page, "html.parser") for page in (callback.pages[0], callback.pages[-1]))
    assert first.find("meta", attrs={"http-equiv": "refresh"})
    assert not last.find("meta", attrs={"http-equiv": "refresh"})
    assert not last.find_all(["script", "link", "img", "iframe"])
    assert not [tag for tag in last.find_all(True) if tag.get("src") or tag.get("href")]
    assert "url(" not in callback.pages[-1]
    assert "prefers-color-scheme: dark" in callback.pages[-1]
    assert [svg["class"][0] for svg in last.find_all("svg")] == ["wide", "narrow", "chart", "chart", "chart"]
    label = last.find("svg")["aria-label"]
    assert re.match(r"The held-out loss is [\d.]+ before training, [\d.]+ after step 20, and lowest", label)
    text = last.get_text(" ", strip=True)
    assert "import <b>" in text
    for said in (
        "LoRA of rank 4, alpha 8",
        "parameters",
        f"{record.best[1]:.3f}",
        "36 sequences to train on",
        "--overwrite",
        "tokens/s",
        "per step",
        "gradient norm",
        "no measured fp32 matmul ceiling",
        "log.csv",
    ):
        assert said in text, said
    shown = last.find_all("details", attrs={"name": "Trained on"})
    assert [each.summary.get_text() for each in shown] == ["1 to 20 of 36", "21 to 36 of 36"]
    memory = html(with_memory(record), "")
    assert "3 GiB" in memory
    assert "predicted 2 GiB" in memory


def with_memory(record: RunRecord) -> RunRecord:
    """Return a record as of a GPU."""
    log = (*record.log, replace(record.log[-1], peak_memory_bytes=3 * 2**30))
    return replace(record, log=log, setup=replace(record.setup, predicted_memory=2 * 2**30))


@pytest.mark.parametrize("weights", ["int8", "int4", "nf4"])
def test_frozen_matrices_can_be_packed(data: Path, llama_folder: Path, weights: str) -> None:
    plain = run(request(data, llama_folder, "plain"), CPU, Callback())
    asked, callback = request(data, llama_folder, "packed", weights=weights), Recording()
    record = run(asked, CPU, callback)
    assert record.parameters == plain.parameters
    assert record.eval_losses[0][1] != plain.eval_losses[0][1]  # rounded weights predict otherwise
    assert record.best[1] == pytest.approx(plain.best[1], rel=0.05)
    assert record.merged_loss == pytest.approx(record.best[1], rel=0.02)  # merged into the weights as they were
    assert f"matrices with adapters in {weights}" in callback.pages[-1]


def test_a_packed_run_does_not_go_on_with_plain_weights(data: Path, llama_folder: Path) -> None:
    with pytest.raises(Stopped):
        run(request(data, llama_folder, weights="nf4"), CPU, Stopping(9))
    with pytest.raises(GpuguideError, match="differs in base"):
        run(request(data, llama_folder), CPU, Callback())
    with pytest.raises(UnknownName, match="There is no kind of weights named 'fp4'"):
        run(request(data, llama_folder, weights="fp4"), CPU, Callback())


def test_a_compiled_run_is_one_that_was_not(data: Path, gpt2_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = list[str]()

    def compile(model: torch.nn.Module, *, backend: str) -> Any:
        compiled.append(backend)
        return torch._dynamo.optimize("eager")(model)  # traced; making kernels takes minutes here

    plain = run(request(data, gpt2_folder, "plain"), CPU, Callback())
    monkeypatch.setattr(torch, "compile", compile)
    record = run(request(data, gpt2_folder, "compiled", compiled=True), CPU, Callback())
    assert compiled == ["inductor"]
    assert record.losses == pytest.approx(plain.losses, rel=1e-5)


def test_answers_alone_can_count(tmp_path: Path, chat_folder: Path) -> None:
    path = tmp_path / "data.jsonl"
    rows = [[{"role": "user", "content": f"say {word}"}, {"role": "assistant", "content": word}] for word in WORDS]
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    asked, callback = request(path, chat_folder, "answers", train_on_assistant=True), Recording()
    record = run(asked, CPU, callback)
    model = checkpoint.open_checkpoint(asked.out / "merged").read_model()
    losses, count = 0.0, 0
    for piece in record.setup.splits.held_out:
        tokens = piece.tokens.tolist()
        begin = max(
            place
            for place in range(len(tokens))
            if models.load("draft").tokenizer.decode(tokens[place:]).startswith("ASSISTANT<")
        )
        prompt = len(chat_tokens(chat_folder, "ASSISTANT<"))
        surprise = -model(piece.tokens[None, :-1])[0].log_softmax(-1).gather(1, piece.tokens[1:, None])[:, 0]
        losses += float(surprise[begin + prompt - 1 :].sum().detach())
        count += len(tokens) - begin - prompt
    assert record.merged_loss == pytest.approx(losses / count, rel=1e-3)
    assert "the assistant's answers" in callback.pages[-1].replace("&#39;", "'")


def chat_tokens(folder: Path, text: str) -> list[int]:
    return models.load(folder).tokenizer.encode(text)


@pytest.mark.gpu(alone=True)
def test_on_a_gpu_the_memory_is_what_was_predicted(data: Path) -> None:
    card = devices.current()
    record = run(request(data, Path("main"), batch=16, learning_rate=1e-3), card, Callback())
    assert record.best[1] < record.eval_losses[0][1]
    assert record.merged_loss == pytest.approx(record.best[1], rel=0.02)
    assert record.peak_memory
    assert record.setup.predicted_memory
    assert 0.5 * record.setup.predicted_memory <= record.peak_memory <= 1.2 * record.setup.predicted_memory
    assert "peak GPU memory" in html(record, "")
    if record.ceiling is not None:
        assert all(0 < (row.mfu or 0) < 1 for row in record.log[1:])
