"""What tells a reader to do something, and what only tells them something."""

from __future__ import annotations

import pytest

from gpuguide.site.checks.imperatives import is_instruction


@pytest.mark.parametrize(
    "sentence",
    [
        "Pin the memory that you send.",
        "For GPT-2, fuse and capture the step; for 7B, quantise it.",
        "Before you blame a kernel, rule out the clock.",
        "Never time a first call.",
        "**Do not** pass a mask.",
        "Fine-tune the last quarter of the layers.",
        "A kernel is ruled out by its format: of those that remain, take the fastest.",
        "First put the draw into the graph.",
    ],
)
def test_an_instruction(sentence: str) -> None:
    assert is_instruction(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "",
        "A GPU call returns before its work is done, so your timer has to wait.",
        "Bandwidth has to be asked for.",
        "With the bytes gone, what limits attention is how well matmuls overlap.",
        "If your copy takes longer, no GPU can help.",
        "Reads that wait for each other measure distance; independent reads measure width.",
    ],
)
def test_a_statement(sentence: str) -> None:
    assert not is_instruction(sentence)
