"""The models that inference is measured with: shapes that are known, and random weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

import torch

from gpuguide.costs.memory import Shape
from gpuguide.inference import Decoder, cost, prepare
from gpuguide.measure.benchmark import Keys
from gpuguide.models import gpt2, llama, shapes

KEPT_AS = {"bf16": "plain", "int8": "int8", "int4": "int4"}
"""Name of each format of weights in :func:`gpuguide.inference.prepare`"""
LAID_OUT_ANEW = 0.75
"""Largest share of the weights that a decoder holds in another order, beside those that it shares with the model"""
_shared: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()


def number(keys: Keys, name: str) -> int:
    """Return the value of a key that is a whole number."""
    return int(keys[name])


def shape_of(keys: Keys) -> Shape:
    """Return the shape of a case's model, for the cost model."""
    return _shape(shapes.config(str(keys["model"])))


@cache
def _shape(config: gpt2.GPT2Config | llama.LlamaConfig) -> Shape:
    return prepare(shapes.build_meta_model(config, torch.bfloat16)).shape


def storage_of(keys: Keys) -> cost.Storage:
    """Return how a case's weights are stored, for the cost model."""
    return cost.make_storage(str(keys.get("weights", "bf16")))


def model(name: str, device: str) -> gpt2.GPT2 | llama.Llama:
    """Return a model with random weights in bf16. Contenders of one case get the same one."""
    return share_object(("model", name, device), lambda: shapes.random_model(name, torch.bfloat16, device))


def decoder(name: str, weights: str, device: str) -> Decoder:
    """Return the same model laid out for writing. Contenders of one case get the same one."""
    return share_object(
        ("decoder", name, weights, device), lambda: prepare(model(name, device), weights=KEPT_AS[weights])
    )


def share_object(key: Hashable, make: Callable[[], Any]) -> Any:
    """Return what was made under a key, as long as somebody holds it: when a case has ended, its memory is free."""
    found = _shared.get(key)
    if found is None:
        found = _shared[key] = make()
    return found


def weights_needed(keys: Keys) -> float:
    """Return the bytes of a case's weights: the model's, those that a decoder orders anew, and quantised ones."""
    plain = (1 + LAID_OUT_ANEW) * cost.weight_bytes_held(shape_of(keys))
    if keys.get("weights", "bf16") == "bf16":
        return plain
    return plain + cost.weight_bytes_held(shape_of(keys), storage_of(keys))


def cache_needed(keys: Keys, tokens: int) -> float:
    """Return the bytes of keys and values of so many tokens of each sequence of a case."""
    return number(keys, "batch") * tokens * cost.cache_bytes_per_token(shape_of(keys))


def prompts_for(keys: Keys, count: int, length: int) -> list[list[int]]:
    """Return random prompts, the same for every contender."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(shape_of(keys).vocab, (count, length), generator=generator).tolist()
