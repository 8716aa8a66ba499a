from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from fake_devices import on

from gpuguide.benchmarks.lora import contenders, problem, reference, step
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner
from gpuguide.measure.benchmark import Keys, too_large
from gpuguide.training.step import StepSettings, TrainingStep

LORA_STEP = declarations.get("lora-step")
SMALL: Keys = {"model": "tiny-gpt2", "targets": "all", "rank": 4, "batch": 3, "seq_len": 12}
EAGER = StepSettings(backend=None, graphed=False)
needs = pytest.mark.needs


def measured(name: str) -> list[Keys]:
    """Return the cases of a contender."""
    device = on(141)
    skip_reason = LORA_STEP.contenders[name].skip_reason
    return [keys for keys in LORA_STEP.cases(device) if not skip_reason(device, keys)]


# --- declarations ----------------------------------------------------------------------------------------


def test_peers_are_measured_where_the_bars_are() -> None:
    bar = {"model": "gpt2-small", "targets": "all", "rank": 16, "batch": 16, "seq_len": 512}
    for name in LORA_STEP.contenders:
        assert (bar in measured(name)) == (name != "peft-liger")
        assert {**bar, "model": "llama-1b-shape"} in measured(name)
    assert {keys["rank"] for keys in measured("peft")} == {8, 16, 64}
    assert {(keys["rank"], keys["targets"]) for keys in measured("peft-compile")} == {(16, "all")}
    assert {keys["targets"] for keys in measured("full-finetune-compile")} == {"all"}


def test_what_fits_which_card() -> None:
    cases = LORA_STEP.cases(on(141))
    assert not any(too_large(LORA_STEP, keys, on(141)) for keys in cases)
    assert {keys["model"] for keys in cases if not too_large(LORA_STEP, keys, on(80))} == {"gpt2-small", "gpt2-medium"}
    assert all(too_large(LORA_STEP, keys, on(16)) for keys in cases)


# --- work ------------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace whole graphs, and leave out making kernels, which takes minutes on a processor."""

    def made(trained: contenders.LoraContender, keys: Keys) -> TrainingStep:
        backend = trained.settings.backend and "eager"
        settings = replace(trained.settings, backend=backend)
        shape = int(keys["batch"]), int(keys["seq_len"])
        return TrainingStep(trained.loss, trained.model.parameters(), *shape, settings)

    monkeypatch.setattr(step, "step_of", made)


def checked(make: contenders.Make, keys: Keys) -> Mapping[str, float]:
    """Run the work of a contender and its check, and return the error that it found."""
    work = step.work(make, devices.cpu(), keys)
    assert work.timing == "wall"
    assert work.check is not None
    work.check()
    work.calls[0]()
    return {name: metric.samples[0] for name, metric in work.further().items()}


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-llama"])
@pytest.mark.parametrize("targets", ["attention", "all"])
@pytest.mark.parametrize("make", [contenders.ours, contenders.full])
def test_our_steps_are_right(make: contenders.Make, targets: str, model: str) -> None:
    found = checked(make, {**SMALL, "model": model, "targets": targets})
    assert 0 < found["error"] < reference.ACCEPTED_GRADIENT


@needs("peft", "transformers")
@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-llama"])
@pytest.mark.parametrize("name", ["peft", "peft-no-autocast", "peft-compile", "peft-compile-chunked-loss"])
def test_pefts_steps_are_right(name: str, model: str) -> None:
    more = {
        "peft": {"settings": EAGER, "autocast": True},
        "peft-no-autocast": {"settings": EAGER},
        "peft-compile": {"settings": contenders.COMPILED},
        "peft-compile-chunked-loss": {"settings": contenders.COMPILED, "chunked": True},
    }[name]

    def make(keys: Keys, device: str) -> contenders.LoraContender:
        return contenders.peft(keys, device, **more)  # type: ignore[arg-type]

    assert checked(make, {**SMALL, "model": model})["error"] < reference.ACCEPTED_GRADIENT


@needs("peft", "transformers")
def test_all_train_the_same_adapters() -> None:
    for model in ("tiny-gpt2", "tiny-llama"):
        for targets in ("attention", "all"):
            keys: Keys = {**SMALL, "model": model, "targets": targets}
            ours, theirs = contenders.ours(keys, "cpu"), contenders.peft(keys, "cpu", EAGER)
            counts = [
                sum(each.numel() for each in trained.model.parameters() if each.requires_grad)
                for trained in (ours, theirs)
            ]
            assert counts[0] == counts[1]
            values = problem.values(keys, "cpu")
            for trained in (ours, theirs):
                back = trained.name_gradients(trained.arrange(values))
                assert back.keys() == values.keys()
                assert all(torch.equal(back[name][half], values[name][half]) for name in values for half in (0, 1))


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("fault", ["scale", "targets", "frozen", "one matrix"])
def test_a_wrong_step_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(keys: Keys, device: str) -> contenders.LoraContender:
        trained = contenders.ours({**keys, "targets": "attention"} if fault == "targets" else keys, device)
        if fault == "scale":
            return replace(trained, loss=lambda tokens, targets: trained.loss(tokens, targets) * 1.01)
        if fault == "frozen":
            return replace(trained, settings=replace(trained.settings, learning_rate=1e-30))
        if fault == "one matrix":
            return replace(trained, name_gradients=lambda gradients: without_one(trained.name_gradients(gradients)))
        return trained

    work = step.work(wrong, devices.cpu(), SMALL)
    assert work.check is not None
    with pytest.raises(AssertionError, match=r"relative error|no gradients for|not changed"):
        work.check()


def without_one(gradients: contenders.Gradients) -> contenders.Gradients:
    """Return gradients of which the smallest matrix's are zero: of all together, little is missing."""
    least = min(gradients, key=lambda name: sum(float(each.float().norm()) for each in gradients[name]))
    return {**gradients, least: tuple(torch.zeros_like(each) for each in gradients[least])}


def test_the_reference_is_what_autograd_finds_of_adapters_in_float64() -> None:
    """Written out for one matrix, and differentiated by autograd itself."""
    expected = reference.compute_adapter_gradients(SMALL, "cpu")
    model = problem.model(SMALL, "cpu", torch.float64)
    values = problem.values(SMALL, "cpu")
    name, (layer, _) = next(iter(problem.find_adapted_matrices(SMALL).items()))
    for other, (path, _) in problem.find_adapted_matrices(SMALL).items():
        if other != name:
            down, up = (each.double() for each in values[other])
            model.get_submodule(path).weight.data += problem.scale(SMALL) * up @ down
    down, up = (each.double().requires_grad_() for each in values[name])
    whole = model.get_submodule(layer).weight.detach() + problem.scale(SMALL) * up @ down
    tokens, targets = problem.batch(SMALL, "cpu")
    logits = torch.func.functional_call(model, {f"{layer}.weight": whole}, (tokens,))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    for found, wanted in zip(expected.gradients[name], torch.autograd.grad(loss, (down, up)), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-7)
    assert expected.loss == pytest.approx(float(loss), rel=1e-5)


# --- on a GPU --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-llama"])
def test_contenders_are_right_on_a_gpu(model: str) -> None:
    keys: Keys = {**SMALL, "model": model, "rank": 16, "batch": 4, "seq_len": 32}
    for case in runner.measure_case(LORA_STEP, keys, devices.current(), quick=True):
        assert case.status in ("ok", "skipped"), case
        assert case.contender != "gpuguide" or {"time", "peak_memory", "error"} <= set(case.measured)
