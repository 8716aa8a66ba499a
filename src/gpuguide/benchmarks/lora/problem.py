"""The problem that every contender trains: one model, adapters with the same numbers, and one batch.

An adapter is known by the name that its matrix has in ``transformers``, since one matrix of ours may be several there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import torch

from gpuguide.errors import unknown
from gpuguide.finetuning import peft_names
from gpuguide.lora.places import TransformersMatrix
from gpuguide.measure.benchmark import Keys
from gpuguide.models import gpt2, llama, shapes

IGNORED = -100
SPREAD_OF_UP = 0.02
"""Standard deviation of the Bs: with zeros, as they are at first, half of the gradients would be zero"""
ModelConfig = gpt2.GPT2Config | llama.LlamaConfig
Model = gpt2.GPT2 | llama.Llama
MODELS: dict[str, ModelConfig] = {
    "gpt2-small": shapes.SHAPES["gpt2-small"],
    "gpt2-medium": gpt2.GPT2Config(layers=24, heads=16, hidden=1024),
    "llama-1b-shape": shapes.SHAPES["llama-1b-shape"],
}
MODELS_OF_ALL = ("gpt2-small", "llama-1b-shape")
"""The smallest and the largest model, which all methods are measured on"""
OURS = {
    "gpt2": {
        "attention": ["query_key_value", "attention.out"],
        "all": ["query_key_value", "attention.out", "feed_forward.up", "feed_forward.down"],
    },
    "llama": {
        "attention": ["query_key_value:query,key,value", "attention.out"],
        "all": ["query_key_value:query,key,value", "attention.out", "gate_up:gate,up", "feed_forward.down"],
    },
}
"""Names of our layers, by kind of model and by targets"""
THEIRS = {
    "gpt2": {"attention": ["c_attn", "attn.c_proj"], "all": ["c_attn", "c_proj", "c_fc"]},
    "llama": {
        "attention": ["q_proj", "k_proj", "v_proj", "o_proj"],
        "all": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    },
}
"""The same in ``transformers``"""
Thin = tuple[torch.Tensor, torch.Tensor]
"""A, ``(rank, in)``, and B, ``(out, rank)``, or their gradients"""


def config(keys: Keys) -> ModelConfig:
    """Return the shape of a case's model."""
    name = str(keys["model"])
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name]


def kind(keys: Keys) -> str:
    """Return whether a case's model is a ``gpt2`` or a ``llama``."""
    return "gpt2" if isinstance(config(keys), gpt2.GPT2Config) else "llama"


def model(keys: Keys, device: str, dtype: torch.dtype = torch.bfloat16) -> Model:
    """Return the model of a case: random weights in bf16, the same each time, and in another format if asked."""
    return shapes.random_model(config(keys), torch.bfloat16, device).to(dtype)


def build_meta_model(keys: Keys) -> Model:
    """Return the model of a case with no numbers in it."""
    return shapes.build_meta_model(config(keys), torch.bfloat16)


def alpha(keys: Keys) -> int:
    """Return what the adapters' part is multiplied by, times the rank."""
    return 2 * int(keys["rank"])


def scale(keys: Keys) -> float:
    """Return what the adapters' part is multiplied by."""
    return alpha(keys) / int(keys["rank"])


def batch(keys: Keys, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens of a case, and what is to be predicted: the token that comes next, nothing at the end."""
    generator = torch.Generator().manual_seed(1)
    shape = (int(keys["batch"]), int(keys["seq_len"]))
    tokens = torch.randint(config(keys).vocab_size, shape, generator=generator)
    targets = torch.cat([tokens[:, 1:], torch.full_like(tokens[:, :1], IGNORED)], dim=1)
    return tokens.to(device), targets.to(device)


def find_adapted_matrices(keys: Keys) -> dict[str, tuple[str, TransformersMatrix]]:
    """Return our layer and its place for each matrix of ``transformers`` that has an adapter, by its name there."""
    ends = THEIRS[kind(keys)][str(keys["targets"])]
    return {
        place.name: (layer, place)
        for layer, known in peft_names.places(build_meta_model(keys)).items()
        for place in known
        if any(place.name.endswith(f".{end}") for end in ends)
    }


def values(keys: Keys, device: str) -> Mapping[str, Thin]:
    """Return the adapters of a case, in bf16: all contenders can hold these numbers."""
    return _values(tuple(sorted(keys.items())), device)


@lru_cache(maxsize=1)
def _values(items: tuple[tuple[str, object], ...], device: str) -> Mapping[str, Thin]:
    keys: Keys = dict(items)  # type: ignore[arg-type]
    generator, rank = torch.Generator().manual_seed(2), int(keys["rank"])
    found = {}
    whole = build_meta_model(keys)
    for name, (layer, place) in find_adapted_matrices(keys).items():
        weight = whole.get_submodule(layer).weight
        assert isinstance(weight, torch.Tensor)
        outputs, inputs = weight.shape
        start, stop = place.rows or (0, outputs)
        down = torch.empty(rank, inputs).uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator)
        up = torch.randn(stop - start, rank, generator=generator) * SPREAD_OF_UP
        found[name] = (down.to(device, torch.bfloat16), up.to(device, torch.bfloat16))
    return found
