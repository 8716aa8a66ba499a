"""Every rung of the ladder against fp32, micro-batches against one batch, and a step that is resumed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import small_adapted as small
import torch

from gpuguide import training
from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.training import rungs

CPU = torch.device("cpu")
BATCH = torch.randint(61, (4, 9), generator=torch.Generator().manual_seed(3))
TOKENS, TARGETS = BATCH[:, :-1], BATCH[:, 1:]
HERE = ("bf16", "attention", "optimizer", "loss", "weights")
"""Rungs that a processor can take without compiling"""


def step_of(names: Any = (), model: str = "gpt2", **more: Any) -> training.TrainingStep:
    torch.compiler.reset()
    settings = training.StepSettings(**{"learning_rate": 1e-2, "weight_decay": 0.1, "clip": 1.0, **more})
    return rungs.make_step(small.model(model), 4, 8, names, settings)


def gradient(step: training.TrainingStep) -> torch.Tensor:
    return torch.cat([each.float().flatten() for each in step.gradients()])


@pytest.mark.parametrize("model", ["gpt2", "llama"])
@pytest.mark.parametrize("name", HERE)
def test_gradients_of_every_rung_are_those_of_fp32(model: str, name: str) -> None:
    exact, narrow = step_of(model=model), step_of({name, "bf16"} if name == "weights" else {name}, model)
    wide = name not in ("bf16", "weights")
    assert float(narrow(TOKENS, TARGETS)) == pytest.approx(float(exact(TOKENS, TARGETS)), rel=1e-5 if wide else 1e-3)
    error = torch.linalg.vector_norm(gradient(narrow) - gradient(exact)) / torch.linalg.vector_norm(gradient(exact))
    assert error < (1e-5 if wide else 2e-2)


@pytest.mark.parametrize("names", [(), ("loss",), ("bf16", "weights", "loss"), ("bf16", "weights", "optimizer")])
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_micro_batches_add_up_to_the_batch(names: tuple[str, ...], micro_batch: int) -> None:
    whole, parts = step_of(names), step_of(names, micro_batch=micro_batch)
    narrow = "bf16" in names
    for _ in range(1 if narrow else 3):
        assert float(parts(TOKENS, TARGETS)) == pytest.approx(float(whole(TOKENS, TARGETS)), rel=1e-3)
        error = torch.linalg.vector_norm(gradient(parts) - gradient(whole))
        assert error < (2e-2 if narrow else 1e-4)  # of a norm of 1, to which both are clipped
    norms = [float(each.grad_norm) for each in (parts, whole) if each.grad_norm is not None]
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)


@pytest.mark.parametrize("names", [(), ("bf16", "weights", "loss"), ("bf16", "weights", "optimizer")])
@pytest.mark.parametrize("begun", [False, True])
def test_a_restored_step_goes_on_to_the_bit(names: tuple[str, ...], begun: bool) -> None:
    first = step_of(names)
    for _ in range(2):
        first(TOKENS, TARGETS)
    state = copy.deepcopy(first.state())
    expected = [float(first(TOKENS, TARGETS)) for _ in range(3)]
    other = step_of(names)
    if begun:
        other(TOKENS, TARGETS)
    for _ in range(2):
        other.restore(state)
        assert [float(other(TOKENS, TARGETS)) for _ in range(3)] == expected


def test_fp16_takes_a_scaler_and_leaves_out_steps_that_overflow() -> None:
    model = small.model()
    settings = training.StepSettings(autocast="fp16", backend=None, clip=1.0)
    step = training.TrainingStep(rungs.whole_loss(model), model.parameters(), 4, 8, settings)
    exact = step_of(learning_rate=3e-4, weight_decay=0.0)
    assert float(step(TOKENS, TARGETS)) == pytest.approx(float(exact(TOKENS, TARGETS)), rel=1e-3)
    assert torch.linalg.vector_norm(gradient(step) - gradient(exact)) < 2e-2
    step.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = [each.detach().clone() for each in step.parameters]
    step(TOKENS, TARGETS)
    assert all(torch.equal(old, new) for old, new in zip(before, step.parameters, strict=True))
    assert step.scaler.get_scale() < 2.0**40


def test_one_pass_is_for_parameters_with_copies() -> None:
    settings = training.StepSettings(one_pass=True)
    with pytest.raises(GpuguideError, match="16 bits"):
        training.TrainingStep(torch.add, small.model().parameters(), 4, 8, settings)


def test_norms_and_biases_do_not_decay() -> None:
    step = step_of(weight_decay=0.5)
    decayed, left = step.optimizer.param_groups
    assert {each.ndim for each in decayed["params"]} == {2}
    assert {each.ndim for each in left["params"]} == {1}
    assert (decayed["weight_decay"], left["weight_decay"]) == (0.5, 0.0)


def test_copies_keep_what_rounding_takes_from_the_weights() -> None:
    exact, step = small.model(), step_of({"bf16", "weights"})
    for value, master, narrow in zip(exact.parameters(), step.masters.trained, step.parameters, strict=True):
        assert torch.equal(value, master)
        assert torch.equal(value.bfloat16(), narrow)


def test_rungs_are_left_out_by_name() -> None:
    assert rungs.all_rungs_but(["compile", "graph"]) == rungs.ALL - {"compile", "graph"}
    with pytest.raises(UnknownName, match="graph"):
        rungs.all_rungs_but(["graphs"])
    assert "graph" not in rungs.rungs_of(CPU)
    assert "weights" not in rungs.rungs_of(CPU, rungs.all_rungs_but(["bf16"]))


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"micro_batch": 0}, "0"),
        ({"attention": "flesh"}, "flash"),
        ({"mode": "reduce-overhead", "micro_batch": 2, "graphed": False}, "micro-batches"),
        ({"mode": "reduce-overhead"}, "graph"),
        ({"autocast": "fp16", "graphed": True}, "fp16"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(GpuguideError, match=named):
        training.StepSettings(**wrong)


def test_micro_batches_divide_the_batch_and_shapes_stay() -> None:
    with pytest.raises(GpuguideError, match="3"):
        step_of(micro_batch=3)
    with pytest.raises(GpuguideError, match=r"\(4, 7\)"):
        step_of()(TOKENS[:, 1:], TARGETS[:, 1:])


# --- on a GPU --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize("left_out", [(), ("compile",), ("weights",), ("optimizer",), ("loss",)])
def test_a_captured_step_has_the_gradients_of_fp32(left_out: tuple[str, ...], micro_batch: int | None) -> None:
    torch.compiler.reset()
    settings = training.StepSettings(learning_rate=1e-3, clip=1.0, micro_batch=micro_batch)
    step = rungs.make_step(small.model().cuda(), 4, 8, rungs.all_rungs_but(left_out), settings)
    exact = step_of(learning_rate=1e-3, weight_decay=0.0)
    losses = [(float(step(TOKENS, TARGETS)), float(exact(TOKENS, TARGETS))) for _ in range(4)]
    assert step.graph is not None
    for found, wanted in losses:
        assert found == pytest.approx(wanted, abs=2e-2)
    assert torch.linalg.vector_norm(gradient(step).cpu() - gradient(exact)) < 0.1  # of a norm of 1, after 4 steps


@pytest.mark.gpu
def test_a_captured_step_goes_on_from_a_state() -> None:
    torch.compiler.reset()
    settings = training.StepSettings(learning_rate=1e-3, clip=1.0)
    first, other = (
        rungs.make_step(small.model().cuda(), 4, 8, rungs.all_rungs_but(["compile"]), settings) for _ in range(2)
    )
    first(TOKENS, TARGETS)
    other.restore(copy.deepcopy(first.state()))
    for _ in range(3):
        assert float(other(TOKENS, TARGETS)) == pytest.approx(float(first(TOKENS, TARGETS)), abs=1e-3)
