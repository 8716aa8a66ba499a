from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch

from gpuguide import lora, models
from gpuguide.benchmarks.lora import task
from gpuguide.finetuning import comparison, return_types
from gpuguide.finetuning.comparison import TrainingHistory
from gpuguide.finetuning.return_types import Encoded, Score
from gpuguide.hardware import device as devices
from gpuguide.lora import update
from gpuguide.measure import benchmark as declarations
from gpuguide.measure.benchmark import Keys
from gpuguide.measure.records import Metric
from gpuguide.models.gpt2 import GPT2

LORA_TASK = declarations.get("lora-task")
SMALL: Keys = {**task.USUAL, "rank": 4, "alpha": 8.0, "batch": 2, "epochs": 4}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train the draft, on a few functions."""
    tokenizer = models.load("draft").tokenizer
    chosen = {
        "training": return_types.encode(return_types.training(12), tokenizer),
        "validation": return_types.encode(return_types.validation()[:5], tokenizer),
        "held-out": return_types.encode(return_types.load_held_out()[:6], tokenizer),
    }

    def draft(*, device: str = "cpu") -> GPT2:
        model = models.load("draft").model.to(device)
        assert isinstance(model, GPT2)
        return model

    monkeypatch.setattr(comparison, "all_weights", draft)
    monkeypatch.setattr(task, "parts", lambda keys: chosen)
    monkeypatch.setattr(task, "CHECKED", 6)


def cases_of(name: str) -> list[Keys]:
    device = devices.fake("h100-sxm")
    return [keys for keys in LORA_TASK.cases(device) if not LORA_TASK.contenders[name].skip_reason(device, keys)]


# --- declaration -----------------------------------------------------------------------------------------


def test_cases_change_one_thing_at_a_time() -> None:
    cases = LORA_TASK.cases(devices.fake("h100-sxm"))
    assert cases[0] == task.USUAL
    assert len({tuple(keys.items()) for keys in cases}) == len(cases)
    for keys in cases:
        assert list(keys) == list(task.USUAL)
        changed = task.find_differences(keys) - {"seed"}
        ranked = {"rank", "alpha"} <= changed <= {"rank", "alpha", "learning_rate"}
        assert len(changed) <= 1 or ranked or task.is_case_of_few_samples(keys)


def test_every_way_has_its_rates_with_three_seeds_and_every_rank_too() -> None:
    for name, rates in task.AGAIN.items():
        for rate in rates:
            seeds = {
                keys["seed"] for keys in cases_of(name) if {**keys, "seed": 0} == {**task.USUAL, "learning_rate": rate}
            }
            assert seeds == {0, 1, 2}
    of_ranks = [keys for keys in cases_of("lora") if keys["alpha"] == task.SCALE * float(keys["rank"])]
    assert task.RATES_OF_RANKS[16] == task.AGAIN["lora"]
    for rank, rates in task.RATES_OF_RANKS.items():
        for rate in rates:
            assert {each["seed"] for each in of_ranks if (each["rank"], each["learning_rate"]) == (rank, rate)} >= {
                0,
                1,
                2,
            }
    assert {keys["counted"] for keys in cases_of("full")} == set(comparison.COUNTED)
    assert {keys["learning_rate"] for keys in cases_of("last-layer")} == set(task.RATES)


def test_each_case_takes_part_and_a_processor_has_one() -> None:
    device = devices.fake("h100-sxm")
    for keys in LORA_TASK.cases(device):
        assert not LORA_TASK.contenders["lora"].skip_reason(device, keys) or keys in [
            *cases_of("full"),
            *cases_of("last-layer"),
        ]
    (keys,) = LORA_TASK.cases(devices.cpu())
    assert not any(each.skip_reason(devices.cpu(), keys) for each in LORA_TASK.contenders.values())


# --- work ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make", [task.adapters, lambda keys, device: comparison.all_weights(), lambda keys, device: comparison.last_layer()]
)
def test_a_training_is_right_and_its_steps_are_the_samples(make: Callable[[Keys, str], GPT2]) -> None:
    work = task.work(make, devices.cpu(), SMALL)
    assert work.check is not None
    work.check()
    assert work.sample is not None
    times = [work.sample() for _ in range(task.STEPS_TIMED)]
    assert min(times) > 0
    found = work.further()
    assert sum(times) <= found["training_time"].samples[0]
    assert found["training_loss"].samples[0] < found["loss_by_step"].samples[0]
    assert len(found["loss_by_step"].samples) == 12
    assert found["held_out_loss_by_step"].samples[-1] == found["loss"].samples[0]
    assert found["held_out_accuracy_by_step"].samples[-1] == found["accuracy"].samples[0]


def test_when_the_held_out_loss_had_halved_is_told_if_it_did() -> None:
    def results_of(*losses: float) -> Mapping[str, Metric]:
        course = TrainingHistory(losses=[1.0], step_seconds=[1.0])
        course.scores += [(10 * place, Score(0.5, loss)) for place, loss in enumerate(losses)]
        return task.results(course, {"training": Score(0.5, 1.0), "validation": Score(0.5, 1.0)})

    assert results_of(4.0, 3.0, 2.0, 1.0)["steps_to_half"].samples == (20.0,)
    assert "steps_to_half" not in results_of(4.0, 3.0, 2.1)


def broken_frozen(model: GPT2) -> None:
    layer = next(iter(lora.find_adapted_layers(model).values()))
    with torch.no_grad():
        layer.base.weight[0, 0] += 1e-3  # type: ignore[index, operator]


def broken_adapter(model: GPT2) -> None:
    """Let a layer compute with another adapter than it shows."""
    layer = next(iter(lora.find_adapted_layers(model).values()))
    shown = layer.forward
    layer.forward = lambda x: 1.01 * shown(x)  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("breaks", "said"), [(broken_frozen, "is frozen and was changed"), (broken_adapter, "the relative error is")]
)
def test_what_is_wrong_is_found(breaks: Callable[[GPT2], None], said: str) -> None:
    models_made = []

    def make(keys: Keys, device: str) -> GPT2:
        models_made.append(task.adapters(keys, device))
        return models_made[-1]

    work = task.work(make, devices.cpu(), SMALL)
    breaks(models_made[0])
    assert work.check is not None
    with pytest.raises(AssertionError, match=said):
        work.check()


def test_a_training_that_begins_elsewhere_is_found() -> None:
    def make(keys: Keys, device: str) -> GPT2:
        model = task.adapters(keys, device)
        with torch.no_grad():
            next(iter(lora.find_adapted_layers(model).values())).adapter("default").up.fill_(0.1)
        return model

    work = task.work(make, devices.cpu(), SMALL)
    assert work.check is not None
    with pytest.raises(AssertionError, match="before the first step"):
        work.check()


# --- updates ---------------------------------------------------------------------------------------------


def test_cut_updates_are_scored_on_the_base_they_belong_to() -> None:
    base, model = comparison.all_weights(), comparison.all_weights()
    data: Encoded = task.parts(SMALL)["held-out"]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for block in model.blocks:
            weight = block.feed_forward.up.weight  # type: ignore[union-attr]
            thin = [torch.randn(size, 2, generator=generator) for size in weight.shape]
            weight += 0.02 * thin[0] @ thin[1].t()
    found = task.score_updates(model, data)
    assert set(found["rank_for_nine_tenths"].samples) <= {1.0, 2.0}
    assert found["accuracy_cut_to_2"].samples == found["accuracy_matrices"].samples
    trained = comparison.score(model, data).loss
    for whole in ("loss_cut_to_2", "loss_cut_to_128", "loss_matrices"):
        assert found[whole].samples[0] == pytest.approx(trained, rel=1e-4)
    assert found["loss_cut_to_1"].samples[0] != pytest.approx(found["loss_cut_to_2"].samples[0], rel=1e-3)
    assert found["singular_values"].samples[2] < 1e-5 < found["singular_values"].samples[1] < 1.0
    assert found["singular_values_of_weights"].samples[0] == 1.0
    assert len(found["singular_values"].samples) == base.config.hidden
    assert update.rank_for(torch.tensor(found["singular_values"].samples), 0.999) == 2
