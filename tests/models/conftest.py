from __future__ import annotations

import pytest
import torch

from gpuguide.models import corpus, training
from gpuguide.models.gpt2 import GPT2, Config
from gpuguide.models.training import Corpus, Recipe

TINY = Config(vocab_size=300, context=16, layers=2, heads=2, hidden=16)


@pytest.fixture(scope="session")
def small_corpus() -> Corpus:
    """Forty made-up files, enough for some sequences to train on and some to validate on."""
    sources = [
        corpus.Source(f"package/module{index}.py", f"def f{index}(x):\n    return x + {index}\n\n" * 20)
        for index in range(40)
    ]
    return training.prepare(sources, vocab_size=300)


@pytest.fixture
def tiny_recipe() -> Recipe:
    return Recipe(TINY, steps=12, batch=4, warm_up=3)


@pytest.fixture
def tiny_model() -> GPT2:
    torch.manual_seed(0)
    return GPT2(TINY).eval()
