"""Llama checkpoints in the format of ``transformers``.

``transformers`` keeps queries, keys and values in three matrices, and the gate and what it lets through in two; we
keep each group in one, below each other, so that one product gives all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gpuguide.errors import GpuguideError
from gpuguide.models.checkpoint_files import Tensors, listed, opened, read_json
from gpuguide.models.llama import Config, Llama, RopeScaling
from gpuguide.models.shapes import tie

CONFIG = "config.json"
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
IGNORED = ".rotary_emb.inv_freq"
"""End of the names of entries in old checkpoints that hold no weights: the frequencies"""


def read_model(folder: Path, dtype: torch.dtype = torch.float32) -> Llama:
    """Read a model from a folder, in ``eval`` mode, on the processor.

    Each tensor goes straight to its place, so that the memory is that of the model in ``dtype`` and one tensor more.

    Parameters
    ----------
    folder : Path
        With ``config.json`` and the weights, in one file or in shards.
    dtype : torch.dtype
        Format of the model's weights, whatever theirs: fp32, bf16 or fp16.

    Raises
    ------
    GpuguideError
        If a file is missing, damaged or of another kind of model, a setting is not computed here, weights are missing,
        unknown or of another shape, or a number is not finite.
    """
    config = parse_config(read_json(folder / CONFIG), folder / CONFIG)
    with torch.device("meta"):  # names and shapes are compared before any memory is taken
        model = Llama(config).to(dtype)
    with opened(folder) as tensors:
        check(tensors, their_places(model), config)
        model.to_empty(device="cpu")
        tie(model)
        for name, place in their_places(model).items():
            fill(place, tensors, name)
    return model.eval()


def parse_config(given: Mapping[str, Any], path: Path) -> Config:
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
    if given.get("model_type") != "llama":
        raise GpuguideError(f"{path}: model_type is {given.get('model_type')!r}; only 'llama' can be read.")
    for key, assumed in ASSUMED.items():
        if given.get(key, assumed) != assumed:
            raise GpuguideError(f"{path}: {key} is {given[key]!r}; only {assumed!r} can be read.")
    sizes: dict[str, Any] = {ours: _whole_number(given, theirs, path) for ours, theirs in SIZES.items()}
    heads = "num_key_value_heads"  # not in files of before Llama 2: as many as there are of queries
    sizes["kv_heads"] = sizes["heads"] if given.get(heads) is None else _whole_number(given, heads, path)
    epsilon = _number(given, "rms_norm_eps", path, 1e-6)
    base, scaling = _rope(given, path, sizes["context"])
    try:
        config = Config(
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
        raise GpuguideError(f"{path}: the rope setting {listed(left)} cannot be read.")
    base = _number(settings if "rope_theta" in settings else given, "rope_theta", path, 10000.0)
    if kind == "default":
        return base, None
    numbers: dict[str, Any] = {ours: _number(settings, theirs, path) for ours, theirs in ROPE_SCALING.items()}
    return base, {**numbers, "original_context": _whole_number({ORIGINAL: context, **settings}, ORIGINAL, path)}


def _whole_number(given: Mapping[str, Any], key: str, path: Path) -> int:
    if type(given.get(key)) is not int:
        raise GpuguideError(f"{path}: {key} is {given.get(key)!r}; it must be a whole number.")
    return int(given[key])


def _number(given: Mapping[str, Any], key: str, path: Path, otherwise: float | None = None) -> float:
    value = given.get(key, otherwise)
    if type(value) not in (int, float):
        raise GpuguideError(f"{path}: {key} is {value!r}; it must be a number.")
    return float(value)


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


def check(tensors: Tensors, places: Mapping[str, torch.Tensor], config: Config) -> None:
    """Compare the names and shapes of a checkpoint's tensors with those of a model.

    Raises
    ------
    GpuguideError
        If one is missing, unknown or of another shape.
    """
    given = {name for name in tensors.files if not name.endswith(IGNORED)}
    if config.tied:
        given.discard("lm_head.weight")  # some checkpoints hold the embedding twice
    if missing := places.keys() - given:
        raise GpuguideError(
            f"{tensors.source} has no tensor {listed(missing)}; it does not hold the model that {CONFIG} describes."
        )
    if unknown := given - places.keys():
        raise GpuguideError(f"{tensors.source}: no place for {listed(unknown)}; it is another kind of model.")
    for name, place in places.items():
        if tensors.shape(name) != tuple(place.shape):
            raise GpuguideError(
                f"{tensors.source}: {name} has the shape {tensors.shape(name)}, and {CONFIG} wants "
                f"{tuple(place.shape)}."
            )


def fill(place: torch.Tensor, tensors: Tensors, name: str) -> None:
    """Copy a tensor of a checkpoint to its place, in the format of the place.

    Raises
    ------
    GpuguideError
        If it is in a format of quantised weights, or holds a number that is not finite, there or after the copy.
    """
    given = tensors.read(name)
    place.copy_(given)
    if not bool(torch.isfinite(place).all()):
        reason = f"too large for {place.dtype}; read them in torch.bfloat16"
        if not bool(torch.isfinite(given).all()):
            reason = "that are not finite; the file is damaged"
        raise GpuguideError(f"{tensors.source}: {name} holds numbers {reason}.")
