"""A run that is stopped and gone on with equals one that was not; what is wrong is said."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import small_adapted as small
import torch
from small_run import CONFIG, LONG, data, model, run_on_rank, slow_run, without_dropout

from gpuguide import lora, training
from gpuguide.errors import GpuguideError
from gpuguide.interconnect.processes import Team

KILLS = 4


class Stopped(Exception):
    """Raised in place of a kill."""


@pytest.mark.parametrize("at", [1, 4, 5, 11])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path, at: int) -> None:
    whole_model, model_again = model(), model()
    whole = training.finetune(whole_model, data(7, 1), data(3, 2), CONFIG, tmp_path / "whole")

    def stop(progress: training.TrainingProgress) -> None:
        if progress.metrics.step == at:
            raise Stopped

    with pytest.raises(Stopped):
        training.finetune(model(), data(7, 1), data(3, 2), CONFIG, tmp_path / "parts", stop)
    again = training.finetune(model_again, data(7, 1), data(3, 2), CONFIG, tmp_path / "parts")
    assert again == whole
    for one, other in zip(whole_model.parameters(), model_again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_only_adapters_change(tmp_path: Path) -> None:
    trained, before = model(), model()
    training.finetune(trained, data(7, 1), data(3, 2), CONFIG, tmp_path)
    changed = {
        name
        for (name, one), other in zip(trained.named_parameters(), before.parameters(), strict=True)
        if not torch.equal(one, other)
    }
    assert changed == {name for name, each in before.named_parameters() if "adapters" in name}


def test_it_stops_when_the_held_out_loss_no_longer_falls(tmp_path: Path) -> None:
    """One sequence is learned by heart; what follows its tokens elsewhere is then predicted worse and worse."""
    config = training.TrainingConfig(steps=200, batch=1, learning_rate=5e-2, eval_every=1, patience=3)
    held_out = [torch.tensor([1, 5, 1, 5])]
    result = training.finetune(model(), [torch.tensor([1, 2, 1, 2])], held_out, config, tmp_path)
    assert result.stopped_early
    losses = [loss for _, loss in result.eval_losses]
    assert min(losses[-3:]) >= min(losses[:-3])


def test_a_full_disk_leaves_the_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(progress: training.TrainingProgress) -> None:
        if progress.metrics.step == 2:
            raise Stopped

    with pytest.raises(Stopped):
        training.finetune(model(), data(7, 1), data(3, 2), CONFIG, tmp_path, stop)
    before = (tmp_path / "unfinished.pt").read_bytes()

    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(GpuguideError, match="No space left"):
        training.finetune(model(), data(7, 1), data(3, 2), CONFIG, tmp_path)
    assert (tmp_path / "unfinished.pt").read_bytes() == before


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(GpuguideError, match="no training"):
        training.finetune(model(), [], data(1, 2), CONFIG, tmp_path)
    with pytest.raises(GpuguideError, match="1 of 1 held-out"):
        training.finetune(model(), data(2, 1), data(1, 1), CONFIG, tmp_path)
    with pytest.raises(GpuguideError, match="requires a gradient"):
        training.finetune(model().requires_grad_(False), data(2, 1), data(1, 2), CONFIG, tmp_path)
    with pytest.raises(GpuguideError, match="micro_batch is 0; it must be at least 1, or None"):
        replace(CONFIG, micro_batch=0)
    (tmp_path / "unfinished.pt").write_bytes(b"half of a file")
    with pytest.raises(GpuguideError, match="is damaged"):
        training.finetune(model(), data(2, 1), data(1, 2), CONFIG, tmp_path)


def below(tokens: torch.Tensor, counted: list[int]) -> torch.Tensor:
    return torch.stack([tokens, torch.tensor(counted)])


def test_only_tokens_that_count_are_learnt(tmp_path: Path) -> None:
    """The first step's loss, and the held-out one, are means over counted tokens, computed here one by one."""
    learnt = [below(torch.tensor([1, 2, 3, 4]), [1, 0, 1, 0]), below(torch.tensor([5, 6, 7]), [0, 1, 1])]
    held_out = [below(torch.tensor([8, 9, 1, 2]), [0, 0, 0, 1])]
    base, config = without_dropout(), training.TrainingConfig(steps=1, batch=2, eval_every=1)

    def surprise(given: int, follows: int) -> float:
        return -float(base(torch.tensor([given]))[0].log_softmax(-1)[follows].detach())

    result = training.finetune(without_dropout(), learnt, held_out, config, tmp_path)
    wanted = [surprise(2, 3), surprise(5, 6), surprise(6, 7)]
    assert result.losses[0] == pytest.approx(sum(wanted) / 3, rel=1e-5)
    assert result.eval_losses[0][1] == pytest.approx(surprise(1, 2), rel=1e-5)
    for marked, says in (([0, 0, 0, 0], "No token of training sequence 0 counts"), ([1, 0, 0, 0], "No token")):
        with pytest.raises(GpuguideError, match=says):
            training.finetune(
                without_dropout(), [below(torch.tensor([1, 2, 3, 4]), marked)], held_out, config, tmp_path
            )
    with pytest.raises(GpuguideError, match=r"shape \(3, 4\)"):
        training.finetune(without_dropout(), [torch.zeros(3, 4).long()], held_out, config, tmp_path)
    with pytest.raises(GpuguideError, match="1 of 1 held-out"):
        training.finetune(without_dropout(), [held_out[0][0]], held_out, config, tmp_path)


def test_counting_everything_is_counting_nothing_in_particular(tmp_path: Path) -> None:
    marked = [below(each, [1] * len(each)) for each in data(7, 1)]
    one, other = without_dropout(), without_dropout()
    plain = training.finetune(one, data(7, 1), data(3, 2), CONFIG, tmp_path / "plain")
    assert training.finetune(other, marked, data(3, 2), CONFIG, tmp_path / "marked") == plain
    for first, second in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_loss_without_logits_trains_alike(tmp_path: Path, name: str) -> None:
    def adapted() -> torch.nn.Module:
        made = small.model(name)
        lora.add_adapters(made, ["query_key_value"], lora.Settings(rank=2))
        return made

    headless = training.WithoutHead(adapted())
    whole = training.finetune(adapted(), data(7, 1), data(3, 2), CONFIG, tmp_path / "whole")
    found = training.finetune(
        headless, data(7, 1), data(3, 2), CONFIG, tmp_path / "chunked", loss_sum=headless.loss_sum
    )
    assert found.losses == pytest.approx(whole.losses, rel=1e-4)
    assert [loss for _, loss in found.eval_losses] == pytest.approx([loss for _, loss in whole.eval_losses], rel=1e-4)


def test_a_compiled_run_goes_on_uncompiled(tmp_path: Path) -> None:
    def stop(progress: training.TrainingProgress) -> None:
        if progress.metrics.step == 5:
            raise Stopped

    whole = training.finetune(without_dropout(), data(7, 1), data(3, 2), CONFIG, tmp_path / "whole")
    with pytest.raises(Stopped):
        training.finetune(without_dropout(), data(7, 1), data(3, 2), replace(CONFIG, backend="eager"), tmp_path, stop)
    again = training.finetune(without_dropout(), data(7, 1), data(3, 2), CONFIG, tmp_path)
    assert again.losses == pytest.approx(whole.losses, rel=1e-4)


def test_the_model_ends_as_it_was_at_its_best(tmp_path: Path) -> None:
    config = training.TrainingConfig(steps=30, batch=1, learning_rate=5e-2, eval_every=1, keep_best=True)
    held_out = [torch.tensor([1, 5, 1, 5])]
    trained, states = model(), {}

    def note(progress: training.TrainingProgress) -> None:
        states[progress.metrics.step] = [each.detach().clone() for each in trained.parameters()]

    result = training.finetune(trained, [torch.tensor([1, 2, 1, 2])], held_out, config, tmp_path, note)
    step, loss = result.best
    assert loss == min(loss for _, loss in result.eval_losses) < result.eval_losses[-1][1]
    wanted = states.get(step) or list(model().parameters())
    assert all(map(torch.equal, wanted, trained.parameters()))


def test_the_state_stays_until_it_is_removed(tmp_path: Path) -> None:
    result = training.finetune(model(), data(7, 1), data(3, 2), CONFIG, tmp_path, keep_state=True)
    again = training.finetune(model(), data(7, 1), data(3, 2), CONFIG, tmp_path, pytest.fail, keep_state=True)
    assert again == result
    assert len(again.losses) == CONFIG.steps
    training.remove_state(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_metrics_of_steps(tmp_path: Path) -> None:
    """The first gradient norm is computed here by autograd; the rate is read off the schedule."""
    metrics: list[training.StepMetrics] = []
    config = training.TrainingConfig(steps=4, batch=2, learning_rate=0.1, warm_up=2)
    sequences = [torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6, 7])]
    base = without_dropout()
    losses = [
        torch.nn.functional.cross_entropy(base(sequence[:-1]), sequence[1:], reduction="sum") for sequence in sequences
    ]
    (sum(losses) / 5).backward()  # type: ignore[union-attr]
    gradients = [each.grad.flatten() for each in base.parameters() if each.grad is not None]
    training.finetune(
        without_dropout(), sequences, data(3, 2), config, tmp_path, lambda progress: metrics.append(progress.metrics)
    )
    assert [each.step for each in metrics] == [1, 2, 3, 4]
    assert [each.learning_rate for each in metrics] == pytest.approx([0.05, 0.1, 0.1, 0.05])
    assert metrics[0].grad_norm == pytest.approx(float(torch.cat(gradients).norm()), rel=1e-4)
    assert {tuple(sorted(each.lengths)) for each in metrics} == {(2, 3)}
    assert metrics[0].tokens == 5
    assert all(each.seconds > 0 for each in metrics)


def test_fewer_sequences_at_once_are_the_same_step(tmp_path: Path) -> None:
    whole = training.finetune(without_dropout(), data(7, 1), data(3, 2), CONFIG, tmp_path)
    parts = training.finetune(without_dropout(), data(7, 1), data(3, 2), replace(CONFIG, micro_batch=1), tmp_path)
    torch.testing.assert_close(parts.losses, whole.losses, rtol=1e-5, atol=0)
    torch.testing.assert_close(parts.eval_losses, whole.eval_losses, rtol=1e-5, atol=0)


def test_a_state_of_another_run_is_refused_and_what_differs_is_named(tmp_path: Path) -> None:
    def stop(progress: training.TrainingProgress) -> None:
        if progress.metrics.step == 2:
            raise Stopped

    with pytest.raises(Stopped):
        training.finetune(model(), data(7, 1), data(3, 2), CONFIG, tmp_path, stop)
    other = model()
    with torch.no_grad():
        other[0].weight.add_(1)  # type: ignore[index, union-attr, operator]
    with pytest.raises(GpuguideError, match="differs in base"):
        training.finetune(other, data(7, 1), data(3, 2), CONFIG, tmp_path)
    with pytest.raises(GpuguideError, match="differs in config and data\\."):
        training.finetune(model(), data(8, 1), data(3, 2), replace(CONFIG, seed=1), tmp_path)
    training.finetune(model(), data(7, 1), data(3, 2), replace(CONFIG, micro_batch=2), tmp_path)


@pytest.fixture
def forking() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported what a run needs, and forks for each folder that it is told."""
    script = Path(__file__).with_name("small_run.py")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, script], **pipes) as process:  # type: ignore[call-overload]
        yield process
        process.stdin.close()


def wait_for_a_change(path: Path, most: float = 60.0) -> None:
    """Wait until a file is written once more."""
    before, until = path.stat().st_mtime_ns if path.exists() else 0, time.monotonic() + most
    while not path.exists() or path.stat().st_mtime_ns == before:
        assert time.monotonic() < until
        time.sleep(0.001)


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_as_one_that_was_not(
    tmp_path: Path, forking: subprocess.Popen[str]
) -> None:
    assert forking.stdin
    assert forking.stdout
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    slow_run(tmp_path / "whole")
    draw, steps, state = random.Random(0), [], tmp_path / "parts" / "unfinished.pt"
    for _ in range(KILLS):
        forking.stdin.write(f"{tmp_path / 'parts'}\n")
        forking.stdin.flush()
        child = int(forking.stdout.readline())
        wait_for_a_change(state)
        time.sleep(draw.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        assert forking.stdout.readline() == "ended\n"
        steps.append(torch.load(state, weights_only=True)["step"])
    assert steps == sorted(steps)
    assert steps[-1] < LONG.steps, steps
    slow_run(tmp_path / "parts")
    assert (tmp_path / "parts" / "losses").read_text() == (tmp_path / "whole" / "losses").read_text()


def test_two_processes_train_as_one_does(tmp_path: Path) -> None:
    alone = without_dropout()
    whole = training.finetune(alone, data(7, 1), data(3, 2), CONFIG, tmp_path / "one")
    with Team(2, device="cpu") as team:
        (result, weights, left), other = team.run(run_on_rank, str(tmp_path / "two"))
    assert other[:2] == (result, weights)
    assert not left
    torch.testing.assert_close(result.losses, whole.losses, rtol=1e-5, atol=0)
    torch.testing.assert_close(result.eval_losses, whole.eval_losses, rtol=1e-5, atol=0)
    expected = [float(each.detach().sum()) for each in alone.parameters() if each.requires_grad]
    assert weights == pytest.approx(expected, rel=1e-4)
