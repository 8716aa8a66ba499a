"""Llama checkpoints in the format of ``transformers``.

``transformers`` keeps queries, keys and values in three matrices, and the gate and what it lets through in two; we
keep each group in one, below each other, so that one matmul gives all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gpuguide.checkpoint_files import check_assumed, format_names, number, whole_number
from gpuguide.errors import GpuguideError
from gpuguide.models.llama import Llama, LlamaConfig, RopeScaling

SIZES = {
    "vocab_size": "vocab_size",
    "context": "max_position_embeddings",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden": "hidden_size",
    "inner": "intermediate_size",
}
"""Our name of each size, and theirs"""
ASSUMED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "quantization_config": None}
"""Settings that a checkpoint may name, and the one value of each that :class:`Llama` computes"""
ROPE_TYPES = ("default", "llama3")
ROPE_SCALING = {
    "factor": "factor",
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
}
"""Our name of each number of a rope scaling, and theirs"""
ORIGINAL = "original_max_position_embeddings"
"""Their name of a rope scaling's original context, which is the whole context unless a file says otherwise"""
OUTER = {
    "token_embedding": "model.embed_tokens",
    "final_norm": "model.norm",
    "head": "lm_head",
}
INNER = {
    "attention_norm": ("input_layernorm",),
    "attention.query_key_value": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.out": ("self_attn.o_proj",),
    "feed_forward_norm": ("post_attention_layernorm",),
    "feed_forward.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "feed_forward.down": ("mlp.down_proj",),
}
IGNORED = (".rotary_emb.inv_freq",)
"""Ends of the names of entries in old checkpoints that hold no weights of their own: the frequencies"""
IGNORED_IF_TIED = (*IGNORED, "lm_head.weight")
"""The same where the head is tied: some checkpoints hold the embedding twice"""


def parse_config(given: Mapping[str, Any], path: Path) -> LlamaConfig:
    """Return the shape that a ``config.json`` describes.

    Parameters
    ----------
    given : mapping
        Its content.
    path : Path
        Where it comes from, for messages.

    Raises
    ------
    GpuguideError
        If a size is missing or makes no model, or a setting is one that :class:`Llama` does not compute.
    """
    check_assumed(given, ASSUMED, path)
    sizes: dict[str, Any] = {ours: whole_number(given, theirs, path) for ours, theirs in SIZES.items()}
    heads = "num_key_value_heads"  # not in files of before Llama 2: as many as there are of queries
    sizes["kv_heads"] = sizes["heads"] if given.get(heads) is None else whole_number(given, heads, path)
    epsilon = number(given, "rms_norm_eps", path, 1e-6)
    base, scaling = _rope(given, path, sizes["context"])
    try:
        config = LlamaConfig(
            **sizes,
            norm_epsilon=epsilon,
            rope_base=base,
            rope_scaling=None if scaling is None else RopeScaling(**scaling),
            tied=bool(given.get("tie_word_embeddings", False)),
        )
    except GpuguideError as error:
        raise GpuguideError(f"{path}: {error}") from error
    if given.get("head_dim") not in (None, config.head_dim):
        raise GpuguideError(
            f"{path}: head_dim is {given['head_dim']!r}; only hidden_size / num_attention_heads, "
            f"{config.head_dim}, can be read."
        )
    return config


def _rope(given: Mapping[str, Any], path: Path, context: int) -> tuple[float, dict[str, Any] | None]:
    """Return the base of the rotations and the numbers of their scaling.

    Newer files hold both in ``rope_parameters``, older ones the scaling alone in ``rope_scaling``.
    """
    settings = given.get("rope_parameters") or given.get("rope_scaling") or {}
    if not isinstance(settings, dict):
        raise GpuguideError(f"{path}: the rope settings are {settings!r}; they must be an object, in braces.")
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in ROPE_TYPES:
        raise GpuguideError(f"{path}: rope_type is {kind!r}; only {' and '.join(map(repr, ROPE_TYPES))} can be read.")
    if left := settings.keys() - {"rope_type", "type", "rope_theta", ORIGINAL, *ROPE_SCALING.values()}:
        raise GpuguideError(f"{path}: the rope setting {format_names(left)} cannot be read.")
    base = number(settings if "rope_theta" in settings else given, "rope_theta", path, 10000.0)
    if kind == "default":
        return base, None
    numbers: dict[str, Any] = {ours: number(settings, theirs, path) for ours, theirs in ROPE_SCALING.items()}
    return base, {**numbers, "original_context": whole_number({ORIGINAL: context, **settings}, ORIGINAL, path)}


def their_places(model: Llama) -> dict[str, torch.Tensor]:
    """Return where each tensor of a checkpoint goes, by the checkpoint's names: views of the model's weights.

    A tied head has no place of its own.
    """
    config = model.config
    heads = [config.head_dim * count for count in (config.heads, config.kv_heads, config.kv_heads)]
    rows = {"attention.query_key_value": heads, "feed_forward.gate_up": [config.inner, config.inner]}
    places = {}
    for name, parameter in model.named_parameters():
        module = name.removesuffix(".weight")
        if module in OUTER:
            places[f"{OUTER[module]}.weight"] = parameter.detach()
            continue
        _, layer, inner = module.split(".", 2)
        parts = parameter.detach().split(rows.get(inner, len(parameter)))
        for theirs, part in zip(INNER[inner], parts, strict=True):
            places[f"model.layers.{layer}.{theirs}.weight"] = part
    return places
