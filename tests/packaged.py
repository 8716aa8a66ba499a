"""The two models of the site, each loaded once for all test files of a process. Nobody may change them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from gpuguide import models
from gpuguide.inference import Decoder, prepare
from gpuguide.models import corpus


@functools.cache
def loaded(name: str = "draft") -> models.Loaded:
    """Return a model with its tokenizer."""
    return models.load(name)


@functools.cache
def decoder(name: str = "draft") -> Decoder:
    """Return a model that is ready to write."""
    return prepare(loaded(name).model)


@functools.cache
def held_out() -> tuple[int, ...]:
    """Return the tokens of a text that neither model has seen."""
    return tuple(loaded().tokenizer.encode(corpus.load_held_out()))


def uncached(prompt: Sequence[int], count: int, name: str = "draft") -> list[int]:
    """Return what a model writes by itself, without a KV cache: the reference for all that has one."""
    return list(_uncached(tuple(prompt), count, name))


@functools.cache
def _uncached(prompt: tuple[int, ...], count: int, name: str) -> tuple[int, ...]:
    return tuple(models.generate(loaded(name).model, prompt, count))
