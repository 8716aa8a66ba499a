"""Models small enough for a processor, under names that benchmarks may be asked for."""

from __future__ import annotations

from weakref import WeakValueDictionary

import pytest

from gpuguide.benchmarks.inference import models
from gpuguide.models import gpt2, llama, shapes

TINY = {
    "tiny-gpt2": gpt2.GPT2Config(vocab_size=512, context=96, layers=2, heads=4, hidden=256),
    "tiny-llama": llama.LlamaConfig(
        vocab_size=512, context=256, layers=2, heads=4, kv_heads=2, hidden=256, inner=384, tied=True,
        rope_scaling=llama.RopeScaling(32.0, 1.0, 4.0, 64),
    ),
    "tiny-llama-untied": llama.LlamaConfig(
        vocab_size=512, context=256, layers=2, heads=4, kv_heads=4, hidden=256, inner=384
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let benchmarks know the small models."""
    for name, config in TINY.items():
        monkeypatch.setitem(shapes.SHAPES, name, config)


@pytest.fixture(autouse=True)
def nothing_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test find what an earlier one left in a reference cycle: a decoder without the model that it shares with.

    A run of benchmarks collects such cycles before each contender.
    """
    monkeypatch.setattr(models, "_shared", WeakValueDictionary())
