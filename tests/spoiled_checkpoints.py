"""Changes to a checkpoint on the disk, as tests of bad checkpoints make them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def rewrite(name: str, change: Callable[[dict], None]) -> Callable[[Path], None]:
    """Return a function that changes a JSON file of a checkpoint."""

    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return apply


def reweigh(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    """Return a function that changes the tensors of a checkpoint."""

    def apply(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return apply
