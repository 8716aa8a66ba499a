from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers import decoders, pre_tokenizers, processors, trainers

from gpuguide.models import corpus, pretraining
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.models.pretraining import Corpus, Recipe

TINY = GPT2Config(vocab_size=300, context=16, layers=2, heads=2, hidden=16)


@pytest.fixture(scope="session")
def small_corpus() -> Corpus:
    """Forty made-up files, enough for some sequences to train on and some to validate on."""
    sources = [
        corpus.CorpusFile(f"package/module{index}.py", f"def f{index}(x):\n    return x + {index}\n\n" * 20)
        for index in range(40)
    ]
    return pretraining.prepare(sources, vocab_size=300)


@pytest.fixture
def tiny_recipe() -> Recipe:
    return Recipe(TINY, steps=12, batch=4, warm_up=3)


@pytest.fixture
def tiny_model() -> GPT2:
    torch.manual_seed(0)
    return GPT2(TINY).eval()


LLAMA3_SPLIT = "|".join(
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
"""How Llama 3's tokenizer.json cuts a text into words"""
LLAMA3_SPECIAL = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
"""After the tokens of text, as there"""


@pytest.fixture(scope="session")
def llama3_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tokenizer.json with the parts that Llama 3's has: 400 tokens of text and three special ones."""
    merges = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=True))
    merges.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(LLAMA3_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    merges.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    merges.train_from_iterator([corpus.load_held_out()], trainer)
    merges.add_special_tokens(list(LLAMA3_SPECIAL))
    begin = LLAMA3_SPECIAL[0]
    merges.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(f"{begin} $A", special_tokens=[(begin, merges.token_to_id(begin))]),
        ]
    )
    path = tmp_path_factory.mktemp("llama3") / "tokenizer.json"
    merges.save(str(path))
    return path
