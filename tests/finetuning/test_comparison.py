from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from gpuguide import lora, models
from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.finetuning import comparison, return_types
from gpuguide.finetuning.comparison import Setting
from gpuguide.finetuning.return_types import Encoded
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.tokenizer import Tokenizer

SMALL = Setting(1e-3, batch=4, epochs=2, warm_up=1)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return models.load("draft").tokenizer


@pytest.fixture(scope="module")
def few(tokenizer: Tokenizer) -> Encoded:
    return return_types.encode(return_types.training(10), tokenizer)


def small() -> GPT2:
    model = models.load("draft").model
    assert isinstance(model, GPT2)
    return model


def adapted(rank: int = 4) -> GPT2:
    model = small()
    torch.manual_seed(0)
    lora.add_adapters(model, comparison.TARGETS, lora.Settings(rank, 2.0 * rank))
    return model


# --- what is trained -------------------------------------------------------------------------------------


def test_each_way_trains_what_it_says() -> None:
    whole = lora.count_parameters(comparison.all_weights())
    assert whole.frozen == 0
    rank, config = 4, models.load("main").config
    ends = [(1, 3), (1, 1), (1, 4), (4, 1)]  # inputs and outputs of each matrix of a block, in hidden sizes
    thin = config.layers * sum(rank * config.hidden * (inputs + outputs) for inputs, outputs in ends)
    assert lora.count_parameters(comparison.load_with_adapters(rank, 8.0)) == lora.Count(thin, whole.trained)
    last = comparison.last_layer()
    assert {name.split(".")[0] for name, each in last.named_parameters() if each.requires_grad} == {
        "blocks",
        "final_norm",
    }
    block = sum(each.numel() for each in last.blocks[-1].parameters())
    assert lora.count_parameters(last).trained == block + 2 * config.hidden


def test_adapters_are_drawn_from_the_seed_and_change_nothing_at_first(few: Encoded) -> None:
    one, same, other = (comparison.load_with_adapters(2, 4.0, seed=seed) for seed in (3, 3, 4))
    downs = [
        next(iter(lora.find_adapted_layers(model).values())).adapter("default").down for model in (one, same, other)
    ]
    assert torch.equal(downs[0], downs[1])
    assert not torch.equal(downs[0], downs[2])
    assert torch.equal(comparison.answer_logits(one, few), comparison.answer_logits(comparison.all_weights(), few))


# --- what is read and counted ----------------------------------------------------------------------------


def test_an_epoch_leaves_no_function_out() -> None:
    places = torch.cat(list(comparison.order(10, 8, Setting(1e-3, batch=4))))
    assert len(places) == 32
    for epoch in range(3):
        assert sorted(places[10 * epoch : 10 * epoch + 10].tolist()) == list(range(10))
    assert not torch.equal(places[:10], places[10:20])
    assert torch.equal(places, torch.cat(list(comparison.order(10, 8, Setting(1.0, batch=4)))))
    assert not torch.equal(places, torch.cat(list(comparison.order(10, 8, Setting(1e-3, batch=4, seed=1)))))


@pytest.mark.parametrize("counted", comparison.COUNTED)
def test_what_counts(few: Encoded, counted: str) -> None:
    found = comparison.targets_of(few, counted)
    for row, last, kind, targets in zip(few.tokens, few.last, few.kinds, found, strict=True):
        for place in range(len(row)):
            if place == last:
                wanted = int(few.answers[kind])
            elif (place < last and counted != "answer") or (place > last and counted == "padding"):
                wanted = int(row[place + 1]) if place + 1 < len(row) else int(row[0])
            else:
                wanted = -100
            assert targets[place] == wanted


def test_answers_are_the_logits_at_the_ends_in_the_order_given(few: Encoded) -> None:
    model = small().eval()
    with torch.no_grad():
        wanted = torch.stack(
            [model(row[: last + 1][None])[0, -1] for row, last in zip(few.tokens, few.last, strict=True)]
        )
    torch.testing.assert_close(comparison.answer_logits(model, few), wanted, rtol=1e-4, atol=1e-4)
    assert comparison.score(model, few) == return_types.score(comparison.answer_logits(model, few), few)


# --- the loop --------------------------------------------------------------------------------------------


def test_a_step_is_adamw_on_the_mean_loss_of_its_functions(few: Encoded) -> None:
    setting = replace(SMALL, clip=1e9)
    model, plain = adapted(), adapted()
    course = comparison.train(model, few, setting)
    parameters = [each for each in plain.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1.0, weight_decay=0.0)
    losses = []
    for number, places in enumerate(comparison.order(10, 5, setting)):
        chosen = few.select(places)
        logits = plain(chosen.tokens)[torch.arange(4), chosen.last]
        loss = functional.cross_entropy(logits, chosen.answers[chosen.kinds])
        optimizer.param_groups[0]["lr"] = setting.rate_at(number, 5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert course.losses == pytest.approx(losses, rel=1e-4)
    assert len(course.step_seconds) == 5
    for ours, theirs in zip((each for each in model.parameters() if each.requires_grad), parameters, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5)


def test_functions_are_watched_before_meanwhile_and_at_the_end(few: Encoded) -> None:
    model, seen = adapted(), list[int]()
    before = comparison.score(model, few)
    course = comparison.train(model, few, SMALL, few, looks=2, keep=seen.append)
    assert [step for step, _ in course.scores] == [0, 3, 5]
    assert seen == [1, 2, 3, 4, 5]
    assert course.scores[0][1] == before
    assert course.scores[-1][1] == comparison.score(model, few)
    assert course.scores[-1][1].loss < before.loss


def test_the_same_seed_gives_the_same_run(few: Encoded) -> None:
    one, two = (comparison.train(adapted(), few, SMALL).losses for _ in range(2))
    assert one == two
    assert comparison.train(adapted(), few, replace(SMALL, seed=1)).losses != one


def test_the_rate_rises_and_falls() -> None:
    rates = [Setting(0.5, warm_up=4).rate_at(step, 12) for step in range(12)]
    assert rates[:5] == [0.125, 0.25, 0.375, 0.5, 0.5]
    assert rates[8] == pytest.approx(0.25)
    assert rates == sorted(rates[:4]) + sorted(rates[4:], reverse=True)
    assert Setting(0.5, warm_up=20).rate_at(11, 12) == 0.5 * 12 / 20


def test_bad_settings_and_a_run_that_diverges() -> None:
    with pytest.raises(UnknownName, match="Did you mean answer"):
        Setting(1e-3, counted="answers")
    with pytest.raises(GpuguideError, match="batch is 0"):
        Setting(1e-3, batch=0)


def test_a_run_that_diverges_says_so(few: Encoded) -> None:
    with pytest.raises(GpuguideError, match="at step 2 of 5: lower the learning rate"):
        comparison.train(small(), few, replace(SMALL, learning_rate=1e30))
