"""A fine-tuning under way: what is trained, where it is, and the file from which it goes on."""

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
from gpuguide.lora.files import write_whole
from gpuguide.lora.layer import adapted_layers
from gpuguide.precision import Training
from gpuguide.training.config import Plan
from gpuguide.training.distributed import SummingScaler, rank, take_from_first

SAMPLED = 64
"""Numbers of each frozen tensor by which the base of a run is known"""
WITHOUT_EFFECT = ("micro_batch", "backend")
"""What of a plan changes nothing but rounding, so that a run may go on with another one"""


class State:
    """A run under way. Only what is trained is kept; the frozen base is the caller's."""

    def __init__(self, path: Path, model: nn.Module, plan: Plan, data: str) -> None:
        self.path, self.plan = path, plan
        self.parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        if not self.parameters:
            raise GpuguideError("No parameter of the model asks for a gradient; add adapters, or unfreeze a layer.")
        optimizer = torch.optim.AdamW(self.parameters.values(), lr=plan.learning_rate, weight_decay=plan.weight_decay)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, plan.share_at)
        scaler = SummingScaler(1.0, enabled=False)
        running = model if plan.backend is None else cast(nn.Module, torch.compile(model, backend=plan.backend))
        self.run = Training(running, optimizer, scaler, schedule, plan.precision, plan.clip)
        shapes = {name: list(each.shape) for name, each in self.parameters.items()}
        settings = {
            f"{name}.{each}": asdict(layer.adapter(each).settings)
            for name, layer in adapted_layers(model).items()
            for each in layer.adapters
        }
        self.identity = {
            "plan": {name: value for name, value in asdict(plan).items() if name not in WITHOUT_EFFECT},
            "data": data,
            "base": _sampled(model),
            "adapters": {"settings": settings, "shapes": shapes},
        }
        self.step, self.losses, self.held_out = 0, list[float](), list[tuple[int, float]]()
        self.best, self.saved = dict[str, torch.Tensor](), time.monotonic()

    def exhausted(self) -> bool:
        """Return whether the held-out loss has not fallen for as long as the plan has patience."""
        patience, losses = self.plan.patience, [loss for _, loss in self.held_out]
        return patience is not None and len(losses) > patience and min(losses[-patience:]) >= min(losses[:-patience])

    def measured(self, loss: float) -> None:
        """Note the held-out loss, and the parameters if it is the lowest."""
        if self.plan.keep_best and all(loss < other for _, other in self.held_out):
            self.best = {name: each.detach().clone() for name, each in self.parameters.items()}
        self.held_out.append((self.step, loss))

    def save(self) -> None:
        """Write the state; if that fails, the one before stays."""
        self.saved = time.monotonic()
        if rank() != 0:
            return
        kept: dict[str, Any] = {
            "identity": json.dumps(self.identity),
            "parameters": {name: each.detach() for name, each in self.parameters.items()},
            "best": self.best,
            "optimizer": self.run.optimizer.state_dict(),
            "schedule": self.run.schedule.state_dict() if self.run.schedule else None,
            "step": self.step,
            "losses": self.losses,
            "held_out": [list(row) for row in self.held_out],
        }
        content = io.BytesIO()
        torch.save(kept, content)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, content.getvalue())
        except OSError as error:
            before = "the last one stays. Make room, and run the same again to go on from it."
            raise GpuguideError(
                f"{self.path} cannot be written ({error.strerror}); "
                + (before if self.path.is_file() else "no state of this run is kept.")
            ) from error

    def resume(self, discard: bool) -> None:
        """Go on from the state that was kept, if there is one; ``discard`` as of :func:`finetune`."""
        try:
            if self.path.exists():
                self._read()
        except GpuguideError:
            if not discard:
                raise
        for each in self.parameters.values():
            take_from_first(each)

    def _read(self) -> None:
        try:
            kept = torch.load(self.path, map_location="cpu", weights_only=True)
            identity = json.loads(kept["identity"])
        except Exception as error:  # a truncated file fails in many ways
            raise GpuguideError(f"{self.path} is damaged ({error}). Remove it to begin anew.") from error
        own = json.loads(json.dumps(self.identity))
        if identity != own:
            differing = [part for part in own if identity.get(part) != own[part]]
            raise GpuguideError(
                f"{self.path} belongs to a run with another {' and '.join(differing)}. "
                "Name another folder, or remove the file to begin anew."
            )
        copy(kept["parameters"], self.parameters)
        self.best = {name: each.to(self.parameters[name].device) for name, each in kept["best"].items()}
        self.run.optimizer.load_state_dict(kept["optimizer"])
        if self.run.schedule:
            self.run.schedule.load_state_dict(kept["schedule"])
        self.step, self.losses = kept["step"], kept["losses"]
        self.held_out = [tuple(row) for row in kept["held_out"]]


@torch.no_grad()
def copy(values: dict[str, torch.Tensor], parameters: dict[str, nn.Parameter]) -> None:
    """Give parameters the values of the same names."""
    for name, each in parameters.items():
        each.copy_(values[name])


def _sampled(model: nn.Module) -> str:
    """Return a digest of the frozen weights, taken from some of the numbers of each."""
    digest = hashlib.sha256()
    frozen = [(name, each) for name, each in model.named_parameters() if not each.requires_grad]
    for name, each in (*frozen, *model.named_buffers()):  # packed matrices are buffers
        flat = each.detach().flatten()
        some = flat[:: max(1, flat.numel() // SAMPLED)].float().cpu()
        digest.update(f"{name} {tuple(each.shape)}".encode() + some.numpy().tobytes())
    return digest.hexdigest()
