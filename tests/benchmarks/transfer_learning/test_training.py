from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpuguide.benchmarks.transfer_learning.check import check_gradients, check_scores
from gpuguide.benchmarks.transfer_learning.methods import DECAY, METHODS, PROMPT_LENGTH, RANK, TransferMethod
from gpuguide.benchmarks.transfer_learning.training import (
    BATCH,
    CLIP,
    WEIGHT_DECAY,
    Examples,
    TransferTraining,
    order,
    share_of_learning_rate,
    use_tf32,
)
from gpuguide.finetuning.return_types import KINDS
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.transfer_learning import NewHead, count_trained_parameters, find_changed, layer_rates, snapshot

LAYERS, HIDDEN, VOCAB = 4, 32, 50
CONFIG = GPT2Config(vocab_size=VOCAB, context=64, layers=LAYERS, heads=2, hidden=HIDDEN, dropout=0.0)
STEPS = 4
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


@pytest.fixture
def model() -> GPT2:
    torch.manual_seed(0)
    return GPT2(CONFIG)


def examples(count: int = 40, seed: int = 0) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (count, 10), generator=generator)
    last = torch.randint(10, (count,), generator=generator)
    return Examples((tokens, last), torch.randint(len(KINDS), (count,), generator=generator))


def trained(method: TransferMethod, model: GPT2, seed: int = 1) -> TransferTraining:
    training = TransferTraining(method, model, 1e-2 / method.head_rate, examples())
    training.begin(examples(seed=5), STEPS, seed)
    training.finish()
    return training


# --- the step ----------------------------------------------------------------------------------------------


@each_method
def test_steps_are_those_of_adamw_written_out(method: TransferMethod, model: GPT2) -> None:
    training = trained(method, model)
    given = examples(seed=5)
    torch.manual_seed(1)
    module = method.prepare(copy.deepcopy(model))
    optimizer = torch.optim.AdamW(method.groups(module, 1e-2 / method.head_rate), weight_decay=WEIGHT_DECAY)
    highest = [group["lr"] for group in optimizer.param_groups]
    parameters = [each for each in module.parameters() if each.requires_grad]
    for step, places in enumerate(order(40, STEPS, 1)):
        for group, rate in zip(optimizer.param_groups, highest, strict=True):
            group["lr"] = rate * share_of_learning_rate(step, STEPS)
        optimizer.zero_grad()
        scores = module(*(each[places] for each in given.inputs))
        functional.cross_entropy(scores, given.wanted[places]).backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
    for (name, mine), theirs in zip(training.module.named_parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=name)


@each_method
def test_only_what_is_trained_changes(method: TransferMethod, model: GPT2) -> None:
    training = TransferTraining(method, model, 1e-2, examples())
    training.begin(examples(), STEPS, 0)
    before = snapshot(training.module)
    training.finish()
    wanted = {name for name, each in training.module.named_parameters() if each.requires_grad}
    if method.on_features:
        wanted = {"fc.weight", "fc.bias"}
    tied = {name.replace("token_embedding", "head") for name in wanted if "token_embedding" in name}
    assert set(find_changed(training.module, before)) == wanted | tied


@each_method
def test_a_training_that_begins_anew_remembers_nothing(method: TransferMethod, model: GPT2) -> None:
    training = trained(method, model)
    first = snapshot(training.module)
    training.begin(examples(seed=9), STEPS, 3)
    training.finish()
    assert find_changed(training.module, first)
    training.begin(examples(seed=5), STEPS, 1)
    training.finish()
    assert find_changed(training.module, first) == []


def test_features_change_nothing_but_the_work(model: GPT2) -> None:
    once, anew = trained(METHODS["new-head"], model), trained(TransferMethod(METHODS["new-head"].prepare), model)
    assert isinstance(once.module, NewHead)
    assert isinstance(anew.module, NewHead)
    torch.testing.assert_close(once.module.fc.weight, anew.module.fc.weight, rtol=1e-4, atol=1e-6)


def test_the_pretrained_model_stays(model: GPT2) -> None:
    before = snapshot(model)
    for method in METHODS.values():
        trained(method, model)
    assert find_changed(model, before) == []


def test_the_learning_rate_rises_and_falls() -> None:
    shares = [share_of_learning_rate(step, 200) for step in range(200)]
    assert shares[:20] == pytest.approx([(step + 1) / 20 for step in range(20)])
    assert shares[20:] == sorted(shares[20:], reverse=True)
    assert 0 < shares[-1] < 0.01
    assert share_of_learning_rate(0, 1) == 1.0


@pytest.mark.parametrize("count", [32, 40, 500])
def test_every_example_is_seen_before_any_comes_again(count: int) -> None:
    seen = order(count, 20, seed=0).flatten()
    assert len(seen) == 20 * BATCH
    for start in range(0, len(seen), count):
        part = seen[start : start + count]
        assert len(set(part.tolist())) == len(part)
    assert not torch.equal(order(count, 20, seed=1).flatten(), seen)


def test_tf32_is_left_as_it_was() -> None:
    before = torch.get_float32_matmul_precision()
    assert use_tf32(torch.get_float32_matmul_precision)() == "high"
    assert torch.get_float32_matmul_precision() == before
    with pytest.raises(ZeroDivisionError):
        use_tf32(lambda: 1 // 0)()
    assert torch.get_float32_matmul_precision() == before


# --- the ways ----------------------------------------------------------------------------------------------


def test_each_method_trains_what_it_should(model: GPT2) -> None:
    counts = {name: count_trained_parameters(method.prepare(copy.deepcopy(model))) for name, method in METHODS.items()}
    layer = 12 * HIDDEN**2 + 13 * HIDDEN
    everything = sum(each.numel() for each in model.parameters())
    sides = (1 + 3) + (1 + 1) + (1 + 4) + (4 + 1)
    assert counts == {
        "new-head": HIDDEN * 9 + 9,
        "soft-prompt": PROMPT_LENGTH * HIDDEN,
        "top-quarter": layer + 2 * HIDDEN,
        "top-half": 2 * layer + 2 * HIDDEN,
        "lora": LAYERS * RANK * sides * HIDDEN,
        "full": everything,
        "new-head-full": everything + HIDDEN * 9 + 9,
        "full-layer-rates": everything,
        "from-scratch": everything,
    }


def test_lower_layers_learn_more_slowly(model: GPT2) -> None:
    method = METHODS["full-layer-rates"]
    groups = method.groups(method.prepare(model), 1.0)
    assert [group["lr"] for group in groups] == pytest.approx([DECAY**power for power in range(LAYERS + 1, -1, -1)])
    assert sum(each.numel() for group in groups for each in group["params"]) == count_trained_parameters(model)


def test_a_new_head_learns_faster_than_pretrained_weights(model: GPT2) -> None:
    method = METHODS["new-head-full"]
    module = method.prepare(model)
    rates = {id(each): group["lr"] for group in method.groups(module, 1e-4) for each in group["params"]}
    assert len(rates) == len(list(module.parameters()))
    for name, each in module.named_parameters():
        assert rates[id(each)] == pytest.approx(3e-3 if name.startswith("fc.") else 1e-4)


def test_a_part_of_few_layers_is_one_at_least() -> None:
    shallow = GPT2(GPT2Config(vocab_size=VOCAB, context=64, layers=2, heads=2, hidden=HIDDEN, dropout=0.0))
    module = METHODS["top-quarter"].prepare(shallow)
    assert {
        name.split(".")[2] for name, each in module.named_parameters() if each.requires_grad and "blocks" in name
    } == {"1"}


def test_from_scratch_takes_nothing_over(model: GPT2) -> None:
    torch.manual_seed(0)
    fresh = METHODS["from-scratch"].prepare(model).get_submodule("model")
    assert isinstance(fresh, GPT2)
    assert fresh is not model
    assert fresh.config == model.config


# --- what is checked ---------------------------------------------------------------------------------------


@each_method
def test_right_gradients_pass(method: TransferMethod, model: GPT2) -> None:
    check_gradients(method.prepare(model), examples(8))


def test_wrong_gradients_are_found(model: GPT2) -> None:
    module = METHODS["full"].prepare(model)

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * (1.05 if gradient.dtype == torch.float32 else 1.0)

    model.final_norm.register_forward_hook(lambda layer, inputs, output: Wrong.apply(output))
    with pytest.raises(AssertionError, match=r"relative error of the gradients is [45]\.\de-02"):
        check_gradients(module, examples(8))


def test_wrong_scores_are_found(model: GPT2) -> None:
    module = METHODS["full"].prepare(model)
    given = examples(8)
    check_scores(module, *given.inputs)
    model.final_norm.register_forward_hook(
        lambda layer, inputs, output: output * 1.05 if output.dtype == torch.float32 else output
    )
    with pytest.raises(AssertionError, match=r"relative error of the scores is [45]\.\de-02"):
        check_scores(module, *given.inputs)


def test_groups_leave_out_what_is_frozen(model: GPT2) -> None:
    method = METHODS["top-quarter"]
    module = method.prepare(model)
    (group,) = method.groups(module, 0.5)
    assert group["lr"] == 0.5
    assert sum(each.numel() for each in group["params"]) == count_trained_parameters(module)
    assert layer_rates([module], 0.5)[0]["params"] == group["params"]
