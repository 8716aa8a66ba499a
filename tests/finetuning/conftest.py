"""A checkpoint with a chat template, and one in the shape of Llama; both small and random."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from random_models import random_gpt2, random_llama
from safetensors.torch import save_file

from gpuguide import models
from gpuguide.models import checkpoint, gpt2_checkpoint
from gpuguide.models.tokenizer import Tokenizer

VOCABULARY = 2048
TEMPLATE = (
    "{% for message in messages %}{{ message.role | upper }}<{{ message.content }}>{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT<{% endif %}"
)


@pytest.fixture
def gpt2_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "gpt2"
    tokenizer = Tokenizer.read(models.checkpoint_folder("draft") / "tokenizer.json")
    gpt2_checkpoint.write(folder, random_gpt2(vocab_size=VOCABULARY, context=64), tokenizer)
    return folder


@pytest.fixture
def chat_folder(gpt2_folder: Path) -> Path:
    path = gpt2_folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    return gpt2_folder


@pytest.fixture
def llama_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "llama"
    folder.mkdir()
    model = random_llama(vocab_size=VOCABULARY, context=64, tied=True)
    tensors = {name: place.contiguous().clone() for name, place in checkpoint.places_in(model).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(models.checkpoint_folder("draft") / "tokenizer.json", folder)
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 64,
        "intermediate_size": 88,
        "rms_norm_eps": model.config.norm_epsilon,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
        "bos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
