"""Names of our models' layers in ``transformers``, so that adapters can be exchanged with PEFT."""

from __future__ import annotations

import itertools

from gpuguide.lora.places import Places, TransformersMatrix
from gpuguide.models import gpt2_checkpoint, llama_checkpoint
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama


def places(model: GPT2 | Llama) -> Places:
    """Return where the matrices of a model are in ``transformers``, for :func:`gpuguide.lora.save_adapter`.

    Parameters
    ----------
    model : GPT2 or Llama
        With or without adapters.

    Returns
    -------
    mapping
        From the name of our layer to its names there, with rows where our matrix is several of theirs.
    """
    return _gpt2_places(model) if isinstance(model, GPT2) else _llama_places(model)


def _gpt2_places(model: GPT2) -> Places:
    names = [f"blocks.{block}.{inner}" for block in range(model.config.layers) for inner in gpt2_checkpoint.INNER]
    found = {name: gpt2_checkpoint.PREFIX + gpt2_checkpoint.their_name(f"{name}.weight") for name in names}
    return {
        ours: [TransformersMatrix(theirs.removesuffix(".weight"), transposed=True)]
        for ours, theirs in found.items()
        if theirs.endswith(gpt2_checkpoint.CONV1D)
    }


def _llama_places(model: Llama) -> Places:
    config = model.config
    heads = [config.head_dim * count for count in (config.heads, config.kv_heads, config.kv_heads)]
    sizes = {"attention.query_key_value": heads, "feed_forward.gate_up": [config.inner, config.inner]}
    found: dict[str, list[TransformersMatrix]] = {} if config.tied else {"head": [TransformersMatrix("lm_head")]}
    for block in range(config.layers):
        for inner, theirs in llama_checkpoint.INNER.items():
            if inner.endswith("norm"):
                continue
            names = [f"model.layers.{block}.{name}" for name in theirs]
            rows = _below_each_other(sizes[inner]) if inner in sizes else [None]
            found[f"blocks.{block}.{inner}"] = [TransformersMatrix(*each) for each in zip(names, rows, strict=True)]
    return found


def _below_each_other(sizes: list[int]) -> list[tuple[int, int] | None]:
    ends = itertools.accumulate(sizes)
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]
