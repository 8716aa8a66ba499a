"""Checkpoints in the format of ``transformers``: ``config.json``, ``tokenizer.json`` and the weights.

GPT-2 (:mod:`gpuguide.models.gpt2_checkpoint`) and Llama (:mod:`gpuguide.models.llama_checkpoint`) can be read, with a
byte-level tokenizer (:mod:`gpuguide.models.tokenizer`). Weights are in ``model.safetensors``, or in several files that
``model.safetensors.index.json`` names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from gpuguide import file_kinds
from gpuguide.checkpoint_files import (
    CONFIG,
    GENERATION_CONFIG,
    INDEX,
    TOKENIZER,
    TOKENIZER_CONFIG,
    WEIGHTS,
    StoredTensor,
    format_names,
    open_weights,
    read_json,
    tokenizer_settings,
    weight_files,
)
from gpuguide.errors import GpuguideError
from gpuguide.models import gpt2, gpt2_checkpoint, llama, llama_checkpoint, shapes
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama
from gpuguide.models.tokenizer import END_OF_TEXT, CheckpointTokenizer, Tokenizer

PARSERS: dict[str, Callable[[Mapping[str, Any], Path], gpt2.GPT2Config | llama.LlamaConfig]] = {
    "gpt2": gpt2_checkpoint.parse_config,
    "llama": llama_checkpoint.parse_config,
}
"""Parsers of the settings of each architecture, by its ``model_type``"""
HEAD = "lm_head.weight"
"""Name of the head's matrix in ``transformers``"""
FORMATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose ``config.json`` has been read, once; :func:`open_checkpoint` makes it."""

    folder: Path
    settings: Mapping[str, Any]
    """Content of ``config.json``"""
    config: gpt2.GPT2Config | llama.LlamaConfig
    """Shape of the model"""

    def read_tokenizer(self) -> Tokenizer:
        """Read the tokenizer.

        Raises
        ------
        GpuguideError
            If ``tokenizer.json`` is missing, damaged or of another kind, or has more tokens than the model.
        """
        path, numbers = self.folder / TOKENIZER, self.config.vocab_size
        if not path.is_file():
            raise GpuguideError(
                f"There is no {TOKENIZER} in {self.folder}; without it the model's tokens mean nothing."
                f"{file_kinds.instead_of_tokenizer(self.folder)}"
            )
        tokenizer = CheckpointTokenizer.from_file(path, ends_of_text(self), numbers)
        if tokenizer.vocab_size > numbers:
            raise GpuguideError(
                f"The tokenizer in {self.folder} has {tokenizer.vocab_size} tokens and the model {numbers}: "
                "they do not belong together. If tokens were added, resize the model "
                "(transformers: model.resize_token_embeddings) or take them out of the tokenizer again."
            )
        more = filter(tokenizer.has, ends_in_generation_config(self.folder))
        tokenizer.ends = tuple(dict.fromkeys((*tokenizer.ends, *more)))
        return tokenizer

    def read_model(self, dtype: torch.dtype = torch.float32) -> GPT2 | Llama:
        """Read the model, in ``eval`` mode and on the CPU.

        Each tensor goes straight to its parameter, so that the memory is that of the model in ``dtype`` and one tensor
        more.

        Parameters
        ----------
        dtype : torch.dtype
            Format of the model's weights, whatever the stored one is: fp32, bf16, fp16 or fp64.

        Raises
        ------
        GpuguideError
            If weights are missing, unknown or of another shape, a file is damaged, or a number is not finite.
        """
        if dtype not in FORMATS:
            raise GpuguideError(f"A model can be read in {', '.join(map(str, FORMATS))}; {dtype} is none of them.")
        model = shapes.build_meta_model(self.config, dtype)
        source, paths = weight_files(self.folder)
        with open_weights(paths, gpt2_checkpoint.PREFIX if isinstance(model, GPT2) else "") as tensors:
            check(tensors, places_in(model), names_to_ignore(model), source)
            model.to_empty(device="cpu")
            shapes.tie(model)
            for name, place in places_in(model).items():
                fill(place, tensors[name])
        return model.eval()


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read the settings of a checkpoint, and the shape of its model.

    Raises
    ------
    GpuguideError
        If ``config.json`` is missing, damaged or of another kind of model, or has a setting that is not computed here.
    """
    settings = read_json(folder / CONFIG)
    kind = settings.get("model_type")
    if not isinstance(kind, str) or kind not in PARSERS:
        known = " and ".join(map(repr, PARSERS))
        raise GpuguideError(f"{folder / CONFIG}: model_type is {kind!r}; only {known} can be read.")
    return Checkpoint(folder, settings, as_stored(PARSERS[kind](settings, folder / CONFIG), folder))


def read(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[GPT2 | Llama, Tokenizer]:
    """Read a model and its tokenizer. Parameters and errors as in :class:`Checkpoint`."""
    checkpoint = open_checkpoint(folder)
    tokenizer = checkpoint.read_tokenizer()
    return checkpoint.read_model(dtype), tokenizer


def as_stored(config: gpt2.GPT2Config | llama.LlamaConfig, folder: Path) -> gpt2.GPT2Config | llama.LlamaConfig:
    """Return the shape of a model with a head of its own where the weights hold one, whatever the settings say.

    ``transformers`` ties the head to the embedding only if the file has no head or one of the same numbers.

    Raises
    ------
    GpuguideError
        If a file of the weights is damaged, or a GPT-2 has a head of its own, which is not computed here.
    """
    tied = isinstance(config, gpt2.GPT2Config) or config.tied
    if not tied or not any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
        return config
    source, paths = weight_files(folder)
    embedding = "wte.weight" if isinstance(config, gpt2.GPT2Config) else "model.embed_tokens.weight"
    with open_weights(paths, gpt2_checkpoint.PREFIX if isinstance(config, gpt2.GPT2Config) else "") as tensors:
        pair = [tensors[name].read() for name in (HEAD, embedding) if name in tensors]
    if len(pair) < 2 or (pair[0].shape == pair[1].shape and torch.equal(pair[0], pair[1].to(pair[0].dtype))):
        return config
    if isinstance(config, gpt2.GPT2Config):
        raise GpuguideError(
            f"{source}: {HEAD} differs from {embedding}. A GPT-2 with a head of its own cannot be read; if the head is "
            "a leftover, delete it from the file."
        )
    return replace(config, tied=False)


def places_in(model: GPT2 | Llama) -> dict[str, torch.Tensor]:
    """Return where each tensor of a checkpoint goes in a model, by the checkpoint's names."""
    if isinstance(model, Llama):
        return llama_checkpoint.their_places(model)
    return gpt2_checkpoint.their_places(model)


def names_to_ignore(model: GPT2 | Llama) -> tuple[str, ...]:
    """Return how the names of tensors end that a checkpoint may have and the model does not need."""
    if isinstance(model, Llama):
        return llama_checkpoint.IGNORED_IF_TIED if model.config.tied else llama_checkpoint.IGNORED
    return gpt2_checkpoint.IGNORED


def check(
    tensors: Mapping[str, StoredTensor], places: Mapping[str, torch.Tensor], ignored: tuple[str, ...], source: Path
) -> None:
    """Compare the names and shapes of a checkpoint's tensors with those of a model.

    Raises
    ------
    GpuguideError
        If one is missing, unknown or of another shape.
    """
    given = {name for name in tensors if not name.endswith(ignored)}
    if missing := places.keys() - given:
        raise GpuguideError(
            f"{source} has no tensor {format_names(missing)}; it does not hold the model that {CONFIG} describes."
            f"{file_kinds.other_names(tensors, places)}"
        )
    if unknown := given - places.keys():
        raise GpuguideError(
            f"{source}: no place for {format_names(unknown)}; it is another kind of model."
            f"{file_kinds.other_names(tensors, places)}"
        )
    for name, place in places.items():
        if tensors[name].shape() != tuple(place.shape):
            raise GpuguideError(
                f"{source}: {name} has the shape {tensors[name].shape()}, and {CONFIG} wants {tuple(place.shape)}."
            )


def fill(place: torch.Tensor, stored: StoredTensor) -> None:
    """Copy a tensor of a checkpoint to its place, in the format of the place.

    Raises
    ------
    GpuguideError
        If it is in a format of quantised weights, or holds a number that is not finite, there or after the copy.
    """
    given = stored.read()
    place.copy_(given)
    if not bool(torch.isfinite(place).all()):
        reason = f"too large for {place.dtype}; read them in torch.bfloat16"
        if not bool(torch.isfinite(given).all()):
            reason = "that are not finite; the file is damaged"
        raise GpuguideError(f"{stored.path}: {stored.name} holds numbers {reason}.")


def ends_in_generation_config(folder: Path) -> list[int]:
    """Return the tokens that end a text by ``generation_config.json``, which a chat model may name there alone.

    Raises
    ------
    GpuguideError
        If the file is damaged.
    """
    path = folder / GENERATION_CONFIG
    numbers = read_json(path).get("eos_token_id") if path.is_file() else None
    return [end for end in (numbers if isinstance(numbers, list) else [numbers]) if type(end) is int]


def ends_of_text(checkpoint: Checkpoint) -> Collection[int | str]:
    """Return the tokens that end a text, as numbers or names.

    They are ``eos_token_id`` in the model's settings, one or several, or ``eos_token`` in those of the tokenizer. Where
    neither says anything, it is GPT-2's. :func:`ends_in_generation_config` may name more.

    Raises
    ------
    GpuguideError
        If they are something else than tokens, or a file is damaged.
    """
    folder, numbers = checkpoint.folder, checkpoint.settings.get("eos_token_id")
    if numbers is not None:
        ends: Sequence[Any] = numbers if isinstance(numbers, list) and numbers else [numbers]
        if not all(type(end) is int for end in ends):
            raise GpuguideError(
                f"{folder / CONFIG}: eos_token_id is {numbers!r}; it must be a token's number, or several."
            )
        return ends
    settings = tokenizer_settings(folder)
    name = settings.get("eos_token") or END_OF_TEXT
    name = name.get("content") if isinstance(name, dict) else name
    if not isinstance(name, str):
        raise GpuguideError(f"{folder / TOKENIZER_CONFIG}: eos_token is {name!r}; it must be a token's text.")
    return [name]
