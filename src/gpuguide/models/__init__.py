"""Models in the shapes of GPT-2 and Llama, and two small checkpoints that were trained for this site.

These two have the shape of GPT-2 and learned from Python's standard library.

>>> load("main").complete("def __init__(self", 1)
','
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpuguide import checkpoint_files
from gpuguide.errors import GpuguideError, UnknownName, unknown
from gpuguide.models import checkpoint, gpt2, llama
from gpuguide.models.generation import generate
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.models.llama import Llama
from gpuguide.models.tokenizer import Tokenizer

__all__ = [
    "GPT2",
    "HUB",
    "PACKAGED",
    "GPT2Config",
    "Llama",
    "Loaded",
    "Tokenizer",
    "generate",
    "load",
    "training_record",
]

PACKAGED = ("main", "draft")
"""The checkpoints that come with the library, in folders beside this file"""
HUB = {"gpt2": "openai-community/gpt2"}
"""Models that are downloaded by name, and where from"""


@dataclass(frozen=True)
class Loaded:
    """A model with its tokenizer.

    ``model`` is in ``eval`` mode, on the processor.
    """

    name: str
    model: GPT2 | Llama
    tokenizer: Tokenizer

    @property
    def config(self) -> gpt2.GPT2Config | llama.LlamaConfig:
        """The shape of the model."""
        return self.model.config

    def complete(self, prompt: str | bytes, count: int) -> str:
        """Return the text of the ``count`` tokens that the model holds most likely, each in its turn.

        The prompt may be any text or bytes, an empty one too. Errors as :func:`generate`.
        """
        return self.tokenizer.decode(generate(self.model, self.tokenizer.prompt(prompt), count))


def load(name: str | Path = "main", dtype: torch.dtype = torch.float32) -> Loaded:
    """Load a model by name, or from a folder.

    Parameters
    ----------
    name : str or Path
        ``main`` and ``draft`` come with the library. ``gpt2`` is downloaded (548 MB) unless it was before. Anything
        else is a folder with a checkpoint in the format of ``transformers``, of GPT-2 or of the Llama 3 family.
    dtype : torch.dtype
        Format of the model's weights, whatever the stored one is: fp32, bf16, fp16 or fp64.

    Raises
    ------
    GpuguideError
        If there is no such model, it cannot be fetched, or the checkpoint cannot be read.
    """
    model, tokenizer = checkpoint.read(find_checkpoint(name), dtype)
    return Loaded(str(name), model, tokenizer)


def find_checkpoint(name: str | Path) -> Path:
    """Return the folder of a model's checkpoint; one of the Hugging Face Hub is downloaded if it is missing.

    Parameters and errors as in :func:`load`.
    """
    if name in PACKAGED:
        return checkpoint_folder(str(name))
    if name in HUB:
        return fetch(HUB[str(name)])
    folder, names = Path(name), (*PACKAGED, *HUB)
    if folder.is_file():
        raise UnknownName(f"{name} is a file; give the folder of a checkpoint.")
    if not folder.is_dir() and os.sep in str(name):
        raise UnknownName(
            f"There is no folder {name}; give that of a checkpoint, or one of {', '.join(names)}. To download another "
            f"one of the Hugging Face Hub: hf download {name} --local-dir FOLDER."
        )
    if not folder.is_dir():
        raise unknown("model", str(name), [*names, "a folder with a checkpoint"])
    return folder


def checkpoint_folder(name: str) -> Path:
    """Return where a checkpoint that comes with the library lies."""
    return Path(__file__).parent / name


def training_record(name: str) -> dict[str, Any]:
    """Return how a packaged checkpoint was trained: recipe, corpus, machine, losses.

    Raises
    ------
    UnknownName
        If no such checkpoint comes with the library.
    """
    if name not in PACKAGED:
        raise unknown("packaged model", name, PACKAGED)
    return json.loads((checkpoint_folder(name) / "training.json").read_text(encoding="utf-8"))


def fetch(repository: str) -> Path:
    """Download a checkpoint from the Hugging Face Hub, unless it is here already, and return its folder.

    Raises
    ------
    GpuguideError
        If it is not here and cannot be fetched.
    """
    from huggingface_hub import snapshot_download

    files = [checkpoint_files.CONFIG, checkpoint_files.WEIGHTS, checkpoint_files.TOKENIZER]
    try:
        return Path(snapshot_download(repository, allow_patterns=files))
    except Exception as error:  # the client's errors have no base of their own, and depend on its HTTP library
        raise GpuguideError(
            f"{repository} is not on this machine and cannot be fetched from the Hugging Face Hub "
            f"({type(error).__name__}). Without a network, use one of: {', '.join(PACKAGED)}."
        ) from error
