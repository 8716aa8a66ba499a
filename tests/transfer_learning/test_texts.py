from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.transfer_learning import NewHead, NextToken, SoftPrompt, prepend_examples, train_only

VOCAB, CONTEXT, HIDDEN = 60, 24, 16


@pytest.fixture
def model() -> GPT2:
    torch.manual_seed(0)
    return GPT2(GPT2Config(vocab_size=VOCAB, context=CONTEXT, layers=3, heads=2, hidden=HIDDEN, dropout=0.0)).eval()


@pytest.fixture
def texts() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randint(VOCAB, (4, 12)), torch.tensor([3, 11, 0, 7])


def test_the_answer_is_the_models_next_token(model: GPT2, texts: tuple[torch.Tensor, torch.Tensor]) -> None:
    tokens, last = texts
    expected = model(tokens)[torch.arange(4), last]
    torch.testing.assert_close(NextToken(model)(tokens, last), expected)


def test_what_comes_after_the_question_changes_nothing(model: GPT2, texts: tuple[torch.Tensor, torch.Tensor]) -> None:
    tokens, last = texts
    other = torch.where(torch.arange(12) > last[:, None], torch.randint(VOCAB, (4, 12)), tokens)
    for module in (NextToken(model), NewHead(model, 3), SoftPrompt(copy.deepcopy(model), 2)):
        torch.testing.assert_close(module(other, last), module(tokens, last))


def test_a_new_head_reads_what_the_old_one_does(model: GPT2, texts: tuple[torch.Tensor, torch.Tensor]) -> None:
    tokens, last = texts
    module = NewHead(model, kinds=5)
    assert module(tokens, last).shape == (4, 5)
    torch.testing.assert_close(model.head(module.features(tokens, last)), NextToken(model)(tokens, last))


def test_a_head_on_features_learns_what_one_on_the_whole_model_does(
    model: GPT2, texts: tuple[torch.Tensor, torch.Tensor]
) -> None:
    tokens, last = texts
    kinds = torch.tensor([0, 1, 2, 1])
    module = NewHead(model, kinds=3)
    train_only(module, "fc.*")
    alone = copy.deepcopy(module.fc)
    features = module.features(tokens, last).detach()
    for head, inputs in ((module, (tokens, last)), (alone, (features,))):
        optimizer = torch.optim.Adam([each for each in head.parameters() if each.requires_grad], lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            functional.cross_entropy(head(*inputs), kinds).backward()
            optimizer.step()
    torch.testing.assert_close(module.fc.weight, alone.weight)


def test_vectors_of_tokens_are_these_tokens(model: GPT2, texts: tuple[torch.Tensor, torch.Tensor]) -> None:
    tokens, last = texts
    before = torch.tensor([7, 3, 20])
    prompt = SoftPrompt(copy.deepcopy(model), 3)
    with torch.no_grad():
        prompt.vectors.copy_(model.token_embedding.weight[before])
    written = torch.cat([before.expand(4, -1), tokens], dim=1)
    torch.testing.assert_close(prompt(tokens, last), NextToken(model)(written, last + 3))


def test_a_soft_prompt_begins_as_tokens_and_trains_nothing_else(
    model: GPT2, texts: tuple[torch.Tensor, torch.Tensor]
) -> None:
    prompt = SoftPrompt(model, 5)
    rows = {tuple(row.tolist()) for row in model.token_embedding.weight}
    assert all(tuple(row.tolist()) in rows for row in prompt.vectors)
    prompt(*texts).sum().backward()
    assert [name for name, each in prompt.named_parameters() if each.grad is not None] == ["vectors"]


@pytest.mark.parametrize("length", [0, CONTEXT])
def test_a_soft_prompt_needs_vectors_and_leaves_room(model: GPT2, length: int) -> None:
    with pytest.raises(ValueError, match=f"of {length} vectors is asked for; from 1 to {CONTEXT - 1} are possible"):
        SoftPrompt(model, length)


def test_texts_that_are_too_long_are_refused(model: GPT2) -> None:
    tokens, last = torch.zeros(1, CONTEXT, dtype=torch.int64), torch.tensor([CONTEXT - 1])
    NextToken(model)(tokens, last)
    with pytest.raises(ValueError, match=f"have {CONTEXT + 2} positions, and the model knows {CONTEXT}"):
        SoftPrompt(model, 2)(tokens, last)


def test_parts_of_another_width_get_a_head_that_fits() -> None:
    config = GPT2Config(vocab_size=10, context=4, layers=1, heads=1, hidden=8, dropout=0.0)
    assert isinstance(NewHead(GPT2(config), 2).fc, nn.Linear)
    assert NewHead(GPT2(config), 2).fc.weight.shape == (2, 8)


def test_examples_stand_before_the_question_with_their_answers() -> None:
    assert prepend_examples([([1, 2], 9), ([3], 8)], [4, 5]) == [1, 2, 9, 3, 8, 4, 5]
    assert prepend_examples([], [4, 5]) == [4, 5]
