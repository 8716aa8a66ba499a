"""The saved state of a pretraining run, from which it resumes exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from gpuguide.models.gpt2 import GPT2
from gpuguide.training.checkpointing import STATE, load_state, save_state

__all__ = ["STATE", "PretrainingState"]


class PretrainingState:
    """State of a run: model, optimizer, losses, and the environments in which it ran."""

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
        self.environments: list[dict[str, str | None]] = []
        """Device and versions of each part of the run; consecutive parts with the same ones are one"""
        if path.exists():
            self._resume()

    def _resume(self) -> None:
        content = load_state(self.path, self.identity)
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        self.step, self.seconds = content["step"], content["seconds"]
        self.losses = [tuple(row) for row in content["losses"]]
        device = next(self.model.parameters()).device
        self.recent = list(content.get("recent", torch.empty(0)).to(device).unbind())
        self.environments = json.loads(content.get("surroundings", "[]"))

    def note_environment(self, now: dict[str, str | None]) -> None:
        """Add the current device and versions, if they have changed."""
        if self.environments[-1:] != [now]:
            self.environments.append(now)

    def save(self, seconds: float) -> None:
        """Write the state atomically; ``seconds`` is the time since this process began to train."""
        content = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "losses": [list(row) for row in self.losses],
            "recent": torch.stack(self.recent) if self.recent else torch.empty(0),
            "seconds": self.seconds + seconds,
            "surroundings": json.dumps(self.environments),
        }
        save_state(self.path, self.identity, content)
