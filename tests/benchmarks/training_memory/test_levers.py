"""Benchmarks of training memory, with models so small that a processor trains them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gpuguide.benchmarks.interconnect import ranks
from gpuguide.benchmarks.training import contenders
from gpuguide.benchmarks.training_memory import levers, models, optimizers, predictions, shards, timelines
from gpuguide.benchmarks.training_memory.levers import LEVERS, LeverStep
from gpuguide.costs import memory
from gpuguide.hardware import device as devices
from gpuguide.interconnect.processes import Team
from gpuguide.measure import benchmark as declarations
from gpuguide.measure.benchmark import Keys, too_large
from gpuguide.measure.records import metric
from gpuguide.models.gpt2 import GPT2Config
from gpuguide.models.llama import LlamaConfig

CPU = devices.cpu()
TINY: dict[str, Any] = {
    "gpt2-small": GPT2Config(vocab_size=2048, context=32, layers=2, heads=2, hidden=32),
    "llama-1b-shape": LlamaConfig(2048, 32, 2, 4, 2, 32, 64, tied=True),
}
EAGER = [name for name, lever in LEVERS.items() if not lever.compiled]
NAMES = ("memory-levers", "optimizer-step", "memory-prediction", "memory-timeline", "sharded-memory")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make models small, and train few steps."""
    monkeypatch.setattr(models, "CONFIGS", TINY)
    monkeypatch.setattr(optimizers, "CONFIGS", TINY)
    monkeypatch.setattr(contenders, "text", lambda: np.tile(np.arange(100, dtype=np.uint16), 100))
    monkeypatch.setattr(levers, "SAMPLES", 2)
    monkeypatch.setattr(levers, "TRAINED", {"gpt2-small": 40})
    levers._first_losses.clear()
    optimizers.parameters_of.cache_clear()


def keys_of(model: str) -> Keys:
    """Return a case of a small model."""
    return {"model": model, "batch": 2, "seq_len": 16}


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("gpt2-small", EAGER),
        ("llama-1b-shape", ["chunked-loss", "checkpoint-selective", "offload-overlapped", "8-bit"]),
    ],
)
def test_every_lever_is_measured_and_begins_with_the_loss_of_the_first(model: str, names: list[str]) -> None:
    for name in names:
        work = levers.work(name, CPU, keys_of(model))
        assert work.check is not None
        work.check()
        assert work.sample is not None
        assert [work.sample() > 0 for _ in range(2)] == [True, True]
        found = work.further()
        if name in levers.REPORTS_LOSS and model == "gpt2-small":
            assert found["loss"].samples[0] < torch.log(torch.tensor(2048.0))


def test_a_step_with_another_loss_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    levers.work("torch-default", CPU, keys_of("gpt2-small"))
    right = LeverStep.loss
    monkeypatch.setattr(LeverStep, "loss", lambda step, *given: 1.2 * right(step, *given))
    wrong = levers.work("chunked-loss", CPU, keys_of("gpt2-small"))
    assert wrong.check is not None
    with pytest.raises(AssertionError, match="first loss"):
        wrong.check()


def test_states_in_8_bits_train_as_fp32_does() -> None:
    losses = {
        name: levers.work(name, CPU, keys_of("gpt2-small")).further()["loss"] for name in ("chunked-loss", "8-bit")
    }
    assert losses["8-bit"].samples[0] == pytest.approx(losses["chunked-loss"].samples[0], abs=0.1)


@pytest.mark.needs("transformers")
def test_a_step_of_transformers_trains() -> None:
    step = levers.TransformersStep("gelu_new", "cpu", n_layer=1, n_head=2, n_embd=32, vocab_size=2048, n_positions=32)
    tokens, targets = models.batches(keys_of("gpt2-small"), "cpu")(0)
    losses = [float(step(tokens, targets)) for _ in range(12)]
    assert losses[-1] < losses[0]


def test_the_cost_model_knows_what_is_not_compiled() -> None:
    case = keys_of("gpt2-small")
    known = {name: levers.setup_of(lever, case) for name, lever in LEVERS.items()}
    assert {name for name, setup in known.items() if setup is None} == {
        "offload-torch", "compile", "budget-0.5", "budget-0.2", "everything",
    }  # fmt: skip
    shape = models.shape_of(models.GPT2_SMALL)
    peaks = {
        name: memory.predict(shape, replace(setup, batch=32, seq_len=1024)).total
        for name, setup in known.items()
        if setup is not None
    }
    assert peaks["checkpoint-all"] < peaks["checkpoint-selective"] < peaks["checkpoint-half"] < peaks["chunked-loss"]
    assert peaks["chunked-loss"] < peaks["fused-adamw"] <= peaks["torch-default"]


def test_shapes_are_those_of_the_published_models() -> None:
    assert models.shape_of(models.LLAMA_1B).parameters() == 1_235_814_400
    assert models.shape_of(models.LLAMA_7B).parameters() == 6_738_415_616
    made = models.make_model(TINY["llama-1b-shape"], "cpu")
    count = sum(each.numel() for each in made.parameters())
    assert models.shape_of(TINY["llama-1b-shape"]).parameters() == count


@pytest.mark.parametrize(
    "name", ["for-loop", "foreach", "fused", "masters-graph", "gpuguide-8bit", "gpuguide-8bit-graph", "muon"]
)
def test_an_optimizer_steps_against_the_gradient(name: str) -> None:
    work = optimizers.work(name, CPU, {"parameters": "gpt2-small"})
    assert work.check is not None
    work.check()
    work.calls[0]()


def test_an_optimizer_that_does_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "CONTENDERS", {"fused": (lambda parameters: lambda: None, "fp32", ())})
    work = optimizers.work("fused", CPU, {"parameters": "gpt2-small"})
    assert work.check is not None
    with pytest.raises(AssertionError, match="against the gradient"):
        work.check()


def test_predictions_are_near_each_other_and_rules_are_not() -> None:
    shape: Keys = {"layers": 2, "heads": 4, "hidden": 256, "vocab": 4096, "batch": 8, "seq_len": 256}
    keys, variant = {**shape, "variant": "train-bf16"}, predictions.VARIANTS["train-bf16"]
    found = {name: predict(keys, variant, "cpu") for name, predict in predictions.PREDICTIONS.items()}
    workspace = memory.predict(predictions.shape_of(keys), predictions.setup_of(keys, variant)).highest.parts[
        "workspace"
    ]
    assert found["gpuguide"] - workspace == pytest.approx(found["mem-tracker"], rel=0.05)
    assert found["four-times-weights"] < found["rule-of-16"] < 0.7 * found["mem-tracker"]


def test_ranks_train_in_replicas_and_shards() -> None:
    with Team(3, device="cpu", start="fork") as team:
        for name in shards.NAMES:
            answers = team.run(shards.measure, name, dict(keys_of("llama-1b-shape")), TINY["llama-1b-shape"], CPU, 1)
            for seconds, losses, _ in answers:
                assert len(seconds) == 1
                assert losses[-1] < losses[0]


def test_each_contender_of_shards_has_processes_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[tuple[list[float], list[float], Any]] = [([1.0], [2.0, 1.0], {"peak_memory": metric("B", [8.0])})]
    seen = []

    def team(device: Any) -> Any:
        started = Team(1, device="cpu", start="fork")
        ranks._teams["one"] = started
        seen.append(started)
        return SimpleNamespace(run=lambda *given: answers)

    monkeypatch.setattr(shards.data_parallel, "team", team)
    for name in shards.NAMES:
        shards.work(name, CPU, keys_of("llama-1b-shape"), TINY["llama-1b-shape"])
    assert [each.is_running for each in seen] == [False, False, True]
    ranks.end()
    assert not seen[-1].is_running


def test_what_another_contender_left_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "memory_in_use", lambda device: (2**30, 2**30))
    member = SimpleNamespace(synchronize=lambda: None)
    with pytest.raises(AssertionError, match="in use before fsdp2 is made"):
        shards.measure(member, "fsdp2", {}, None, CPU)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_cases_fit_an_h100_and_not_a_small_card(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    declared = declarations.get(name)
    h100 = devices.fake("h100-sxm")
    assert not any(too_large(declared, keys, h100) for keys in declared.cases(h100))
    assert declared.cases(CPU) == []
    if name != "sharded-memory":
        assert all(too_large(declared, keys, replace(h100, memory=10**9)) for keys in declared.cases(h100))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fused-graph", "masters-graph", "gpuguide-8bit", "gpuguide-8bit-graph"])
def test_on_a_gpu_an_optimizer_steps_and_can_be_captured(name: str) -> None:
    work = optimizers.work(name, devices.current(), {"parameters": "gpt2-small"})
    assert work.check is not None
    work.check()
    work.calls[0]()
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("name", EAGER)
def test_on_a_gpu_every_lever_begins_with_the_loss_of_the_first(name: str) -> None:
    for contender in ("torch-default", name):
        work = levers.work(contender, devices.current(), keys_of("gpt2-small"))
        assert work.check is not None
        work.check()
        assert work.further()["peak_memory"].samples[0] > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["eager", "checkpointed"])
def test_on_a_gpu_the_history_adds_up_to_what_the_allocator_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timelines, "GPT2_SMALL", TINY["gpt2-small"])
    work = timelines.work(name, devices.current(), {"batch": 2, "seq_len": 16})
    assert work.check is not None
    work.check()
    assert work.further()["peak_memory"].samples[0] > 0
