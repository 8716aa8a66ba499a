"""A training under way, kept in a file so that it goes on as if it had not been stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from gpuguide.errors import GpuguideError
from gpuguide.models.gpt2 import GPT2

STATE = "unfinished.pt"


class State:
    """What must be kept of a training so that it can go on."""

    def __init__(self, path: Path, model: GPT2, optimizer: torch.optim.Optimizer, identity: dict[str, Any]) -> None:
        self.path = path
        self.model = model
        self.optimizer = optimizer
        self.identity = json.loads(json.dumps(identity))
        self.step = 0
        self.losses: list[tuple[int, float, float]] = []
        self.recent: list[torch.Tensor] = []
        """Losses of the steps since the last row of ``losses``"""
        self.seconds = 0.0
        self.surroundings: list[dict[str, str | None]] = []
        """With what each part of the training ran; parts that ran with the same are one"""
        if path.exists():
            self._resume()

    def _resume(self) -> None:
        try:
            kept = torch.load(self.path, map_location="cpu", weights_only=True)
            identity = json.loads(kept["identity"])
        except Exception as error:  # a truncated file fails in many ways
            raise GpuguideError(f"{self.path} is damaged ({error}). Remove it to begin anew.") from error
        if identity != self.identity:
            differing = [part for part in self.identity if identity.get(part) != self.identity[part]]
            raise GpuguideError(
                f"{self.path} belongs to a training with another {' and '.join(differing)}. "
                "Name another folder, or remove the file to begin anew."
            )
        self.model.load_state_dict(kept["model"])
        self.optimizer.load_state_dict(kept["optimizer"])
        self.step, self.seconds = kept["step"], kept["seconds"]
        self.losses = [tuple(row) for row in kept["losses"]]
        device = next(self.model.parameters()).device
        self.recent = list(kept.get("recent", torch.empty(0)).to(device).unbind())
        self.surroundings = json.loads(kept.get("surroundings", "[]"))

    def note_surroundings(self, now: dict[str, str | None]) -> None:
        """Note with what the training goes on, if that has changed."""
        if self.surroundings[-1:] != [now]:
            self.surroundings.append(now)

    def save(self, seconds: float) -> None:
        """Write the state beside its place, then rename it, so that there is a whole one at any time."""
        kept = {
            "identity": json.dumps(self.identity),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "losses": [list(row) for row in self.losses],
            "recent": torch.stack(self.recent) if self.recent else torch.empty(0),
            "seconds": self.seconds + seconds,
            "surroundings": json.dumps(self.surroundings),
        }
        beside = self.path.with_suffix(".writing")
        torch.save(kept, beside)
        os.replace(beside, self.path)
