"""GPT-2 checkpoints in the format of ``transformers``, read and written.

``transformers`` keeps the four linear layers of a block as ``Conv1D``, with the weight as (inputs, outputs).
:class:`torch.nn.Linear` has it the other way round, so these are transposed on the way in and out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from gpuguide.checkpoint_files import (
    CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    check_assumed,
    number,
    whole_number,
    write_json,
)
from gpuguide.errors import GpuguideError
from gpuguide.files import replace_folder_atomically
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.models.tokenizer import END_OF_TEXT, Tokenizer

SIZES = {
    "vocab_size": "vocab_size",
    "context": "n_positions",
    "layers": "n_layer",
    "heads": "n_head",
    "hidden": "n_embd",
}
"""Our name of each size, and theirs"""
ASSUMED = {"activation_function": "gelu_new", "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False,
           "tie_word_embeddings": True, "add_cross_attention": False}  # fmt: skip
"""Settings that a checkpoint may name, and the one value of each that :class:`GPT2` computes"""
OUTER = {
    "token_embedding": "wte",
    "position_embedding": "wpe",
    "final_norm": "ln_f",
}
INNER = {
    "attention_norm": "ln_1",
    "attention.query_key_value": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}
CONV1D = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
IGNORED = (".attn.bias", ".attn.masked_bias", "lm_head.weight")
"""Ends of the names of entries in old checkpoints that hold no weights of their own: masks, and the tied head"""
PREFIX = "transformer."


def parse_config(given: Mapping[str, Any], path: Path) -> GPT2Config:
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
        If a size is missing or makes no model, or a setting is one that :class:`GPT2` does not compute.
    """
    check_assumed(given, ASSUMED, path)
    sizes = {ours: whole_number(given, theirs, path) for ours, theirs in SIZES.items()}
    if given.get("n_inner") not in (None, 4 * sizes["hidden"]):
        raise GpuguideError(f"{path}: n_inner is {given['n_inner']}; only four times n_embd can be read.")
    epsilon = number(given, "layer_norm_epsilon", path, 1e-5)
    try:
        return GPT2Config(**sizes, norm_epsilon=epsilon)
    except GpuguideError as error:
        raise GpuguideError(f"{path}: {error}") from error


def their_places(model: GPT2) -> dict[str, torch.Tensor]:
    """Return where each tensor of a checkpoint goes, by the checkpoint's names: views of the model's weights.

    The names are those of ``GPT2Model``; ``GPT2LMHeadModel`` puts :data:`PREFIX` before them. The tied head has no
    place of its own.
    """
    places = {}
    for name, parameter in model.named_parameters():
        theirs = their_name(name)
        places[theirs] = parameter.detach().t() if theirs.endswith(CONV1D) else parameter.detach()
    return places


def to_transformers(model: GPT2) -> dict[str, torch.Tensor]:
    """Return the weights under the names and in the layout of ``GPT2LMHeadModel``. The tied head is left out."""
    return {PREFIX + name: place.contiguous() for name, place in their_places(model).items()}


def their_name(name: str) -> str:
    """Return the name that ``transformers`` has for one of our tensors.

    >>> their_name("blocks.3.attention.out.bias")
    'h.3.attn.c_proj.bias'
    """
    module, _, tensor = name.rpartition(".")
    if module in OUTER:
        return f"{OUTER[module]}.{tensor}"
    _, layer, inner = module.split(".", 2)
    return f"h.{layer}.{INNER[inner]}.{tensor}"


def write(folder: Path, model: GPT2, tokenizer: Tokenizer) -> None:
    """Write a checkpoint that ``transformers`` can read, in bf16: half the size, and eight significant bits."""
    weights = {name: tensor.to("cpu", torch.bfloat16) for name, tensor in to_transformers(model).items()}
    end = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
    tokenizer_settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.config.context,
        **end,
    }
    with replace_folder_atomically(folder, marker=CONFIG) as temporary:
        save_file(weights, temporary / WEIGHTS, metadata={"format": "pt"})
        tokenizer.write(temporary / TOKENIZER)
        write_json(temporary / CONFIG, describe_config(model.config, tokenizer))
        write_json(temporary / TOKENIZER_CONFIG, tokenizer_settings)


def describe_config(config: GPT2Config, tokenizer: Tokenizer) -> dict[str, object]:
    """Return the content of ``config.json``."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "dtype": "bfloat16",
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        "n_inner": None,
        "layer_norm_epsilon": config.norm_epsilon,
        **ASSUMED,
        "bos_token_id": tokenizer.end_of_text,
        "eos_token_id": tokenizer.end_of_text,
    }
