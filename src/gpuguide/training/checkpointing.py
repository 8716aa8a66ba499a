"""The state of a run: trained parameters, optimizer, losses; and the file from which it resumes."""

from __future__ import annotations

import hashlib
import io
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.files import replace_atomically
from gpuguide.lora.layer import find_adapted_layers
from gpuguide.precision import TrainingSetup
from gpuguide.training.config import TrainingConfig
from gpuguide.training.distributed import AllReduceScaler, broadcast_from_first, rank

STATE = "unfinished.pt"
"""Name of the file in the folder of a run"""
SAMPLED = 64
"""Numbers of each frozen tensor that enter the digest of the base model"""
WITHOUT_EFFECT = ("micro_batch", "backend")
"""Settings that change nothing except rounding, so a run may resume with others"""


class RunState:
    """Progress of a run, and what it goes on from.

    Parameters
    ----------
    path : Path
        File of the state.
    parameters : dict of nn.Parameter
        Trained parameters, by name.
    config : TrainingConfig
        Settings of the run.
    identity : dict
        What must be equal for a run to resume from the file, in values that JSON has.

    Raises
    ------
    GpuguideError
        If no parameter is trained.
    """

    def __init__(
        self, path: Path, parameters: dict[str, nn.Parameter], config: TrainingConfig, identity: dict[str, Any]
    ) -> None:
        if not parameters:
            raise GpuguideError("No parameter of the model requires a gradient; add adapters, or unfreeze a layer.")
        self.path, self.parameters, self.config, self.identity = path, parameters, config, identity
        self.step, self.losses, self.eval_losses = 0, list[float](), list[tuple[int, float]]()
        self.best, self.saved = dict[str, torch.Tensor](), time.monotonic()

    def content(self) -> dict[str, Any]:
        """Return parameters and the optimizer's state, to be saved."""
        raise NotImplementedError

    def take(self, content: dict[str, Any]) -> None:
        """Go on from what :meth:`content` gave."""
        raise NotImplementedError

    def should_stop_early(self) -> bool:
        """Return whether the held-out loss has not fallen during the last ``patience`` evaluations."""
        patience, losses = self.config.patience, [loss for _, loss in self.eval_losses]
        return patience is not None and len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])

    def add_eval_loss(self, loss: float) -> None:
        """Record a held-out loss, and copy the parameters if it is the lowest so far."""
        if self.config.keep_best and all(loss < other for _, other in self.eval_losses):
            self.best = {name: each.detach().clone() for name, each in self.parameters.items()}
        self.eval_losses.append((self.step, loss))

    def save(self) -> None:
        """Write the state to its file; if that fails, the previous file stays."""
        self.saved = time.monotonic()
        if rank() != 0:
            return
        progress: dict[str, Any] = {
            "best": self.best,
            "step": self.step,
            "losses": self.losses,
            "eval_losses": [list(row) for row in self.eval_losses],
        }
        save_state(self.path, self.identity, {**self.content(), **progress})

    def resume(self, discard: bool) -> None:
        """Load the saved state, if there is one; ``discard`` as in :func:`~gpuguide.training.finetune`."""
        try:
            if self.path.exists():
                self._read()
        except GpuguideError:
            if not discard:
                raise
        for parameter in self.parameters.values():
            broadcast_from_first(parameter)

    def _read(self) -> None:
        content = load_state(self.path, self.identity)
        self.take(content)
        self.best = {name: each.to(self.parameters[name].device) for name, each in content["best"].items()}
        self.step, self.losses = content["step"], content["losses"]
        self.eval_losses = [tuple(row) for row in content["eval_losses"]]


class TrainingState(RunState):
    """State of a fine-tuning. Only trained parameters are saved; the frozen base belongs to the caller."""

    def __init__(self, path: Path, model: nn.Module, config: TrainingConfig, data: str) -> None:
        parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        shapes = {name: list(each.shape) for name, each in parameters.items()}
        settings = {
            f"{name}.{each}": asdict(layer.adapter(each).settings)
            for name, layer in find_adapted_layers(model).items()
            for each in layer.adapters
        }
        identity = {
            "config": describe_config(config),
            "data": data,
            "base": _base_digest(model),
            "adapters": {"settings": settings, "shapes": shapes},
        }
        super().__init__(path, parameters, config, identity)
        optimizer = torch.optim.AdamW(parameters.values(), lr=config.learning_rate, weight_decay=config.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, config.lr_multiplier)
        scaler = AllReduceScaler(1.0, enabled=False)
        running = model if config.backend is None else cast(nn.Module, torch.compile(model, backend=config.backend))
        self.run = TrainingSetup(running, optimizer, scaler, schedule, config.precision, config.clip)

    def content(self) -> dict[str, Any]:
        """Return parameters, optimizer and schedule."""
        return {
            "parameters": {name: parameter.detach() for name, parameter in self.parameters.items()},
            "optimizer": self.run.optimizer.state_dict(),
            "schedule": self.run.schedule.state_dict() if self.run.schedule else None,
        }

    def take(self, content: dict[str, Any]) -> None:
        """Go on from parameters, optimizer and schedule that were saved."""
        copy_parameters(content["parameters"], self.parameters)
        self.run.optimizer.load_state_dict(content["optimizer"])
        if self.run.schedule:
            self.run.schedule.load_state_dict(content["schedule"])


def describe_config(config: TrainingConfig) -> dict[str, Any]:
    """Return the settings that change a run, apart from rounding."""
    return {name: value for name, value in asdict(config).items() if name not in WITHOUT_EFFECT}


def save_state(path: Path, identity: dict[str, Any], content: dict[str, Any]) -> None:
    """Write the state of a run atomically.

    Parameters
    ----------
    path : Path
        File of the state.
    identity : dict
        Everything that must be equal for the run to resume from it, in values that JSON has.
    content : dict
        Tensors and numbers.

    Raises
    ------
    GpuguideError
        If it cannot be written; the previous file stays.
    """
    buffer = io.BytesIO()
    torch.save({"identity": json.dumps(identity), **content}, buffer)
    try:
        with replace_atomically(path) as temporary:
            temporary.write_bytes(buffer.getvalue())
    except OSError as error:
        before = "the last one stays. Free disk space and run the same command again to resume from it."
        raise GpuguideError(
            f"{path} cannot be written ({error.strerror}); "
            + (before if path.is_file() else "no state of this run is saved.")
        ) from error


def load_state(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a saved state.

    Raises
    ------
    GpuguideError
        If the file is damaged, or belongs to a run with another identity; the message names the parts that differ.
    """
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        saved = json.loads(content["identity"])
    except Exception as error:  # a truncated file fails in many ways
        raise GpuguideError(f"{path} is damaged ({error}). Remove it to start again.") from error
    own = json.loads(json.dumps(identity))
    if saved != own:
        differing = [part for part in own if saved.get(part) != own[part]]
        raise GpuguideError(
            f"{path} belongs to another run, which differs in {' and '.join(differing)}. "
            "Name another folder, or remove the file to start again."
        )
    return content


def remove_state(folder: Path) -> None:
    """Remove the saved state of a run, once its model is saved elsewhere."""
    (folder / STATE).unlink(missing_ok=True)


@torch.no_grad()
def copy_parameters(values: dict[str, torch.Tensor], parameters: dict[str, nn.Parameter]) -> None:
    """Overwrite parameters with the values of the same names."""
    for name, parameter in parameters.items():
        parameter.copy_(values[name])


def _base_digest(model: nn.Module) -> str:
    """Return a digest of the frozen weights, from a sample of the numbers of each tensor."""
    digest = hashlib.sha256()
    frozen = [(name, each) for name, each in model.named_parameters() if not each.requires_grad]
    for name, each in (*frozen, *model.named_buffers()):  # packed matrices are buffers
        flat = each.detach().flatten()
        some = flat[:: max(1, flat.numel() // SAMPLED)].float().cpu()
        digest.update(f"{name} {tuple(each.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()
