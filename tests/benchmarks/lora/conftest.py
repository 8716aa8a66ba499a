"""Models small enough for a processor, under names that benchmarks may be asked for."""

from __future__ import annotations

import pytest

from gpuguide.benchmarks.lora import problem
from gpuguide.models import gpt2, llama

TINY = {
    "tiny-gpt2": gpt2.GPT2Config(vocab_size=256, context=32, layers=2, heads=2, hidden=64),
    "tiny-llama": llama.LlamaConfig(
        vocab_size=256, context=32, layers=2, heads=4, kv_heads=2, hidden=64, inner=96, tied=True
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let benchmarks know the small models."""
    for name, config in TINY.items():
        monkeypatch.setitem(problem.MODELS, name, config)
