from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from gpuguide import checkpoint_files, models
from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.models import pretraining, pretraining_state
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.pretraining import Corpus, PretrainingProgress, Recipe

CPU = torch.device("cpu")


def train(recipe: Recipe, data: Corpus, folder: Path, stop_at: int | None = None) -> list[PretrainingProgress]:
    """Train, perhaps until Ctrl-C at a step, and return what was reported."""
    reports: list[PretrainingProgress] = []

    def report(progress: PretrainingProgress) -> None:
        reports.append(progress)
        if progress.step == stop_at:
            raise KeyboardInterrupt

    pretraining.train("tiny", recipe, data, folder, CPU, report, every=4)
    return reports


def test_training_learns(small_corpus: Corpus, tiny_recipe: Recipe, tmp_path: Path) -> None:
    recipe = dataclasses.replace(tiny_recipe, steps=120, learning_rate=1e-2)
    reports = train(recipe, small_corpus, tmp_path)
    record = json.loads((tmp_path / "training.json").read_text())
    assert [row["step"] for row in record["losses"]] == list(range(4, 121, 4))
    first, last = record["losses"][0], record["losses"][-1]
    assert last["training"] < 0.3 * first["training"]
    assert last["validation"] < 0.3 * first["validation"]
    assert reports[0].step == pretraining.FIRST_REPORT
    assert reports[0].seconds_left > 0
    assert reports[-1].seconds_left == 0


@pytest.mark.parametrize(("stop", "next_report"), [(pretraining.FIRST_REPORT, 4), (4, 4 + pretraining.FIRST_REPORT)])
def test_stopped_and_resumed_equals_uninterrupted(
    small_corpus: Corpus, tiny_recipe: Recipe, tmp_path: Path, stop: int, next_report: int
) -> None:
    recipe = dataclasses.replace(tiny_recipe, config=dataclasses.replace(tiny_recipe.config, dropout=0.2))
    train(recipe, small_corpus, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(recipe, small_corpus, tmp_path / "parts", stop_at=stop)
    assert (tmp_path / "parts" / pretraining_state.STATE).exists()
    assert not (tmp_path / "parts" / checkpoint_files.WEIGHTS).exists()
    reports = train(recipe, small_corpus, tmp_path / "parts")
    assert reports[0].step == next_report
    whole, parts = ((tmp_path / name / checkpoint_files.WEIGHTS).read_bytes() for name in ("whole", "parts"))
    assert whole == parts
    assert not (tmp_path / "parts" / pretraining_state.STATE).exists()
    records = [json.loads((tmp_path / name / "training.json").read_text()) for name in ("whole", "parts")]
    for record in records:
        del record["seconds"], record["finished_at"]
    assert records[0] == records[1]


def test_a_step_that_is_interrupted_halfway_is_taken_again(
    small_corpus: Corpus, tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny_recipe, small_corpus, tmp_path / "whole")
    take, taken = torch.optim.AdamW.step, []

    def interrupted(optimizer: torch.optim.AdamW) -> None:
        take(optimizer)
        taken.append(1)
        if len(taken) == 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(tiny_recipe, small_corpus, tmp_path / "parts")
    train(tiny_recipe, small_corpus, tmp_path / "parts")
    whole, parts = (json.loads((tmp_path / name / "training.json").read_text()) for name in ("whole", "parts"))
    assert whole["sha256"] == parts["sha256"]
    assert whole["losses"] == parts["losses"]


def test_a_training_that_goes_on_elsewhere_says_where_it_was_before(
    small_corpus: Corpus, tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe, small_corpus, tmp_path, stop_at=4)
    monkeypatch.setattr(pretraining, "processor_name", lambda: "Another")
    train(tiny_recipe, small_corpus, tmp_path)
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["device"] == "Another"
    (before,) = record["before"]
    assert before["device"] != "Another"
    assert before["torch"] == record["torch"] == torch.__version__


def test_no_record_of_an_earlier_training_is_left_with_new_weights(
    small_corpus: Corpus, tiny_recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny_recipe, small_corpus, tmp_path)
    earlier = json.loads((tmp_path / "training.json").read_text())
    other = dataclasses.replace(tiny_recipe, seed=1)

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pretraining, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(other, small_corpus, tmp_path)
    assert not (tmp_path / "training.json").exists()
    train(other, small_corpus, tmp_path)
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["recipe"]["seed"] == 1
    assert record["sha256"]["model.safetensors"] != earlier["sha256"]["model.safetensors"]


def test_a_student_learns_from_the_teacher_beside_it(small_corpus: Corpus, tiny_recipe: Recipe, tmp_path: Path) -> None:
    long = dataclasses.replace(tiny_recipe, steps=120, learning_rate=1e-2)
    train(long, small_corpus, tmp_path / "main")
    train(dataclasses.replace(long, seed=1, teacher="main"), small_corpus, tmp_path / "draft")
    train(dataclasses.replace(tiny_recipe, steps=1, seed=1), small_corpus, tmp_path / "untrained")
    tokens = small_corpus.validation[:16].unsqueeze(0)
    with torch.no_grad():
        teacher, student, untrained = (
            models.load(tmp_path / name).model(tokens).log_softmax(dim=-1) for name in ("main", "draft", "untrained")
        )
    apart = torch.nn.functional.kl_div(student, teacher, log_target=True, reduction="batchmean")
    assert apart < 0.1 * torch.nn.functional.kl_div(untrained, teacher, log_target=True, reduction="batchmean")
    assert json.loads((tmp_path / "draft" / "training.json").read_text())["recipe"]["teacher"] == "main"


def test_a_teacher_with_another_tokenizer_is_refused(small_corpus: Corpus, tiny_recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(
        GpuguideError, match=r"main was trained with another tokenizer .* first train main into .*main\."
    ):
        train(dataclasses.replace(tiny_recipe, teacher="main"), small_corpus, tmp_path / "draft")


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_the_loss_to_a_teacher(tiny_recipe: Recipe, temperature: float) -> None:
    recipe = dataclasses.replace(tiny_recipe, teacher="main", teacher_temperature=temperature)
    student, teacher = GPT2(recipe.config).eval(), GPT2(recipe.config).eval()
    windows = torch.randint(recipe.config.vocab_size, (2, 9))
    found = pretraining._loss_to_teacher(student, teacher, windows, recipe)
    expected = 0.0
    with torch.no_grad():
        logits = [model(windows[:, :-1]).flatten(0, 1) for model in (student, teacher)]
    for ours, theirs in zip(*logits, strict=True):
        weights = torch.exp(theirs.double() / temperature)
        logarithms = ours.double() - torch.log(torch.exp(ours.double()).sum())
        expected -= float((weights / weights.sum() * logarithms).sum()) / 16
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)


def test_state_of_another_training_is_refused(small_corpus: Corpus, tiny_recipe: Recipe, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe, small_corpus, tmp_path, stop_at=4)
    with pytest.raises(GpuguideError, match="differs in recipe"):
        train(dataclasses.replace(tiny_recipe, steps=13), small_corpus, tmp_path)
    other = dataclasses.replace(small_corpus, description={"files": 1})
    with pytest.raises(GpuguideError, match="differs in corpus"):
        train(tiny_recipe, other, tmp_path)
    train(tiny_recipe, small_corpus, tmp_path)


def test_damaged_state(small_corpus: Corpus, tiny_recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / pretraining_state.STATE).write_bytes(b"PK\x03\x04")
    with pytest.raises(GpuguideError, match=r"unfinished\.pt is damaged"):
        train(tiny_recipe, small_corpus, tmp_path)


def test_corpus_too_short(small_corpus: Corpus, tiny_recipe: Recipe, tmp_path: Path) -> None:
    short = dataclasses.replace(small_corpus, validation=small_corpus.validation[:16])
    with pytest.raises(GpuguideError, match="The text to validate on has 16 tokens; one sequence needs 17"):
        train(tiny_recipe, short, tmp_path)


def test_divergence_is_said(small_corpus: Corpus, tiny_recipe: Recipe, tmp_path: Path) -> None:
    wild = dataclasses.replace(tiny_recipe, learning_rate=float("inf"))
    with pytest.raises(GpuguideError, match="the training has diverged"):
        train(wild, small_corpus, tmp_path)


def test_learning_rate() -> None:
    recipe = dataclasses.replace(pretraining.recipe("main"), steps=1000, warm_up=100, learning_rate=1.0)
    assert recipe.learning_rate_at(0) == pytest.approx(0.01)
    assert recipe.learning_rate_at(99) == pytest.approx(1.0)
    assert recipe.learning_rate_at(100) == pytest.approx(1.0)
    assert recipe.learning_rate_at(550) == pytest.approx(0.55)
    assert recipe.learning_rate_at(1000) == pytest.approx(0.1)


def test_batches_differ_from_step_to_step_and_not_from_run_to_run(small_corpus: Corpus, tiny_recipe: Recipe) -> None:
    drawn = [pretraining._random_windows(small_corpus.training, tiny_recipe, step) for step in (0, 1, 0)]
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])
    assert drawn[0].shape == (4, 17)
    other = pretraining._random_windows(small_corpus.training, dataclasses.replace(tiny_recipe, seed=1), 0)
    assert not torch.equal(drawn[0], other)


def test_norms_and_biases_are_not_decayed(small_corpus: Corpus, tiny_recipe: Recipe) -> None:
    model = GPT2(tiny_recipe.config)
    decayed, left_alone = pretraining._optimizer(model, tiny_recipe).param_groups
    assert {parameter.ndim for parameter in decayed["params"]} == {2}
    assert {parameter.ndim for parameter in left_alone["params"]} == {1}
    assert left_alone["weight_decay"] == 0
    assert len(decayed["params"]) + len(left_alone["params"]) == len(list(model.parameters()))


def test_recipe_by_name() -> None:
    with pytest.raises(UnknownName, match="There is no recipe named 'large'"):
        pretraining.recipe("large")
