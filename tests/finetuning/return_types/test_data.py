from __future__ import annotations

import ast
from collections import Counter

import pytest
import torch
from torch.nn import functional

from gpuguide import models
from gpuguide.errors import GpuguideError
from gpuguide.finetuning import return_types
from gpuguide.finetuning.return_types import KINDS, Function
from gpuguide.models.tokenizer import Tokenizer

PARTS = {
    "training": return_types.training,
    "validation": return_types.validation,
    "held-out": return_types.load_held_out,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return models.load("draft").tokenizer


def test_the_parts_share_no_file_and_no_function() -> None:
    parts = {name: part() for name, part in PARTS.items()}
    assert sum(map(len, parts.values())) == len(return_types.functions())
    files = Counter(file for part in parts.values() for file in {each.file for each in part})
    assert set(files.values()) == {1}
    assert max(Counter(each.text.partition("(")[2] for each in return_types.functions()).values()) == 1


@pytest.mark.parametrize("part", PARTS)
def test_each_part_has_enough_of_all_kinds_and_none_has_most(part: str) -> None:
    counts = Counter(each.returns for each in PARTS[part]())
    assert set(counts) == set(KINDS)
    assert min(counts.values()) >= 9
    assert max(counts.values()) < 0.27 * counts.total()


def test_nothing_in_a_function_says_its_type() -> None:
    for each in return_types.functions():
        (function,) = ast.parse(each.text).body
        assert isinstance(function, ast.FunctionDef)
        inner = [node for node in ast.walk(function) if isinstance(node, ast.FunctionDef)]
        assert all(node.returns is None and not node.decorator_list for node in inner)
        assert all(ast.get_docstring(node) is None for node in inner)
        assert all(node.annotation is None for node in ast.walk(function) if isinstance(node, ast.arg))
        assert not any(isinstance(node, ast.AnnAssign) for node in ast.walk(function))


def test_few_are_asked_for_in_the_drawn_order_and_too_many_are_refused() -> None:
    assert return_types.training(7) == return_types.training()[:7]
    with pytest.raises(GpuguideError, match="functions to train on, and 99999 are asked for"):
        return_types.training(99_999)
    with pytest.raises(GpuguideError, match="and 0 are asked for"):
        return_types.training(0)


def test_a_function_is_read_between_an_end_of_text_and_the_question(tokenizer: Tokenizer) -> None:
    given = [Function("a.py", "def one():\n    return 1", "int"), Function("a.py", "def no():\n    pass", "None")]
    encoded = return_types.encode(given, tokenizer)
    assert encoded.tokens.shape == (2, return_types.LENGTH)
    for row, last, each in zip(encoded.tokens, encoded.last, given, strict=True):
        assert tokenizer.decode(row[1 : last + 1].tolist()) == f"{each.text}\n# returns"
        assert row[0] == tokenizer.end_of_text
        assert (row[last + 1 :] == tokenizer.end_of_text).all()
    counted = encoded.targets != -100
    assert counted.sum(1).tolist() == [1, 1]
    assert encoded.targets[counted].tolist() == [tokenizer.encode(" int")[0], tokenizer.encode(" None")[0]]
    assert torch.equal(encoded.select(torch.tensor([1])).targets, encoded.targets[1:])


def test_answers_are_told_apart_by_their_first_token(tokenizer: Tokenizer) -> None:
    assert len(set(return_types.answers(tokenizer))) == len(KINDS)


def test_what_does_not_fit_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(GpuguideError, match="and 8 are taken"):
        return_types.encode([Function("a.py", "def one():\n    return 1", "int")], tokenizer, length=8)
    with pytest.raises(GpuguideError, match="No functions"):
        return_types.encode([], tokenizer)


def test_a_score_counts_the_likeliest_of_the_nine_and_the_surprise_among_all(tokenizer: Tokenizer) -> None:
    encoded = return_types.encode(return_types.load_held_out()[:40], tokenizer)
    logits = torch.randn(40, tokenizer.vocab_size, generator=torch.Generator().manual_seed(0))
    right = encoded.answers[encoded.kinds]
    logits[torch.arange(10), right[:10]] += 20
    logits[:, tokenizer.end_of_text] += 30  # no answer, so it takes nothing from the accuracy
    found = return_types.score(logits, encoded)
    nine = logits[:, encoded.answers].argmax(1)
    assert found.accuracy == pytest.approx(float((nine == encoded.kinds).double().mean()))
    assert found.loss == pytest.approx(float(functional.nll_loss(logits.double().log_softmax(1), right)), rel=1e-5)
    with pytest.raises(ValueError, match="40 functions"):
        return_types.score(logits[:3], encoded)
