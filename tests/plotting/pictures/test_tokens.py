"""Drawings of a token's way: their shapes are those of GPT-2, and their powers those of the softmax."""

from __future__ import annotations

import math

import pytest
import torch
from figure_rows import rows_of

from gpuguide import logits
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.plotting.pictures import tokens


def test_the_weights_are_those_of_gpt2() -> None:
    rows = {row["what"]: int(row["size_B"]) for row in rows_of(tokens.from_text_to_token())}
    with torch.device("meta"):
        model = GPT2(GPT2Config(vocab_size=50257, context=1024, layers=12, heads=12, hidden=768, dropout=0.0))
    blocks = sum(each.numel() for name, each in model.named_parameters() if name.startswith("blocks."))
    assert rows["weights of the blocks"] == 2 * blocks
    assert rows["weights of the head"] == 2 * model.head.weight.numel()
    assert rows["logits"] == logits.logits_bytes(1, 50257, 2)


def test_the_powers_are_those_of_the_softmax() -> None:
    values = [12.0, 10.5, 9.0]
    shown = tokens.softmax_on_a_line(values, ["a", "b", "c"])
    powers = torch.tensor([float(row["power"]) for row in rows_of(shown)])
    torch.testing.assert_close(powers / powers.sum(), logits.softmax(torch.tensor(values)), rtol=1e-4, atol=0)


def test_the_limit_is_that_of_fp16() -> None:
    assert pytest.approx(math.log(torch.finfo(torch.float16).max)) == tokens.LARGEST_FP16
