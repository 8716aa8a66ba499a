"""Checkpoints in the format of ``transformers``: ``config.json``, ``model.safetensors``, ``tokenizer.json``.

``transformers`` keeps the four linear layers of a GPT-2 block as ``Conv1D``, with the weight as (inputs, outputs).
:class:`torch.nn.Linear` has it the other way round, so these are transposed on the way in and out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file, save_file

from gpuguide.errors import GpuguideError
from gpuguide.models.gpt2 import GPT2, Config
from gpuguide.models.tokenizer import END_OF_TEXT, Tokenizer

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"
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
"""Entries of old checkpoints that hold no weights of their own: causal masks, and the tied head"""
PREFIX = "transformer."


def read(folder: Path) -> tuple[GPT2, Tokenizer]:
    """Read a model, in fp32 and ``eval`` mode, and its tokenizer.

    Parameters
    ----------
    folder : Path
        With the three files of a GPT-2 checkpoint.

    Raises
    ------
    GpuguideError
        If a file is missing, damaged or of another kind of model, or the tokenizer does not match the model.
    """
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        if not (folder / name).is_file():
            raise GpuguideError(
                f"There is no {name} in {folder}; a checkpoint has {CONFIG}, {WEIGHTS} and {TOKENIZER}."
            )
    config = read_config(folder / CONFIG)
    tokenizer = Tokenizer.read(folder / TOKENIZER)
    if tokenizer.vocab_size > config.vocab_size:
        raise GpuguideError(
            f"The tokenizer in {folder} has {tokenizer.vocab_size} tokens and the model {config.vocab_size}: "
            "they do not belong together."
        )
    model = GPT2(config)
    model.load_state_dict(from_transformers(read_weights(folder / WEIGHTS), model, folder / WEIGHTS))
    return model.eval(), tokenizer


def read_config(path: Path) -> Config:
    """Read a ``config.json``. Errors as :func:`read`."""
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise GpuguideError(f"{path} is no JSON ({error}).") from error
    if not isinstance(given, dict) or given.get("model_type") != "gpt2":
        kind = given.get("model_type") if isinstance(given, dict) else None
        raise GpuguideError(f"{path}: model_type is {kind!r}; only 'gpt2' can be read.")
    for key, assumed in ASSUMED.items():
        if given.get(key, assumed) != assumed:
            raise GpuguideError(f"{path}: {key} is {given[key]!r}; only {assumed!r} can be read.")
    inner = given.get("n_inner")
    for ours, theirs in SIZES.items():
        if not isinstance(given.get(theirs), int):
            raise GpuguideError(f"{path}: {theirs} is {given.get(theirs)!r}; it must be a whole number ({ours}).")
    if inner not in (None, 4 * given["n_embd"]):
        raise GpuguideError(f"{path}: n_inner is {inner}; only four times n_embd can be read.")
    sizes = {ours: given[theirs] for ours, theirs in SIZES.items()}
    try:
        return Config(**sizes, norm_epsilon=float(given.get("layer_norm_epsilon", 1e-5)))
    except GpuguideError as error:
        raise GpuguideError(f"{path}: {error}") from error


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a ``model.safetensors``. Errors as :func:`read`."""
    try:
        return load_file(path)
    except (safetensors.SafetensorError, ValueError, OSError) as error:
        raise GpuguideError(f"{path} is damaged or no safetensors file ({error}).") from error


def from_transformers(given: Mapping[str, torch.Tensor], model: GPT2, path: Path) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors under our names, in our layout and in fp32.

    Parameters
    ----------
    given : mapping of str to torch.Tensor
        As ``GPT2LMHeadModel`` or ``GPT2Model`` saves them.
    model : GPT2
        The model that they are for.
    path : Path
        Where they come from, for messages.

    Raises
    ------
    GpuguideError
        If a tensor is missing, unknown, of another shape, or holds a number that is not finite.
    """
    left = {name.removeprefix(PREFIX): tensor for name, tensor in given.items() if not name.endswith(IGNORED)}
    state = {}
    for name, ours in model.state_dict().items():
        if name == "head.weight":  # tied
            continue
        theirs = their_name(name)
        if theirs not in left:
            raise GpuguideError(f"{path} has no tensor {theirs}; it does not hold the model that {CONFIG} describes.")
        tensor = left.pop(theirs)
        if theirs.endswith(CONV1D):
            tensor = tensor.t()
        if tensor.shape != ours.shape:
            raise GpuguideError(
                f"{path}: {theirs} has the shape {tuple(tensor.shape)}, and {CONFIG} wants {tuple(ours.shape)}."
            )
        if not bool(torch.isfinite(tensor).all()):
            raise GpuguideError(f"{path}: {theirs} holds numbers that are not finite; the file is damaged.")
        state[name] = tensor.float().contiguous()
    if left:
        raise GpuguideError(f"{path}: no place for {', '.join(sorted(left)[:3])}; it is another kind of model.")
    state["head.weight"] = state["token_embedding.weight"]
    return state


def to_transformers(model: GPT2) -> dict[str, torch.Tensor]:
    """Return the weights under the names and in the layout of ``GPT2LMHeadModel``. The tied head is left out."""
    state = {}
    for name, tensor in model.state_dict().items():
        if name != "head.weight":
            theirs = their_name(name)
            state[PREFIX + theirs] = (tensor.t() if theirs.endswith(CONV1D) else tensor).contiguous()
    return state


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
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.to("cpu", torch.bfloat16) for name, tensor in to_transformers(model).items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    tokenizer.write(folder / TOKENIZER)
    write_json(folder / CONFIG, described(model.config, tokenizer))
    end = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
    tokenizer_settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    write_json(
        folder / "tokenizer_config.json", {**tokenizer_settings, "model_max_length": model.config.context, **end}
    )


def described(config: Config, tokenizer: Tokenizer) -> dict[str, object]:
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


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """Write a JSON file to be read by people."""
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
