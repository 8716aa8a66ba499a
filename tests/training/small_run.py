"""A fine-tuning of a model so small that a run takes a second: what tests stop, kill and divide."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn

from gpuguide import lora, training
from gpuguide.interconnect.processes import Member

CONFIG = training.TrainingConfig(steps=12, batch=3, learning_rate=1e-2, eval_every=2)
LONG = training.TrainingConfig(steps=400, batch=3, learning_rate=1e-3, eval_every=3, keep_best=True)


def model() -> nn.Module:
    """A model of tokens with adapters that drop out."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 11))
    lora.add_adapters(made, ["1", "3"], lora.Settings(rank=4, dropout=0.2))
    return made


def data(count: int, seed: int) -> list[torch.Tensor]:
    """Sequences of several lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(11, (5 + place % 3,), generator=generator) for place in range(count)]


def without_dropout() -> nn.Module:
    """The same model, whose steps do not depend on how they are divided."""
    made = model()
    for each in made.modules():
        if isinstance(each, nn.Dropout):
            each.p = 0.0
    for layer in lora.find_adapted_layers(made).values():
        adapter = layer.adapter("default")
        adapter.settings = lora.Settings(rank=4)
    return made


def run_on_rank(member: Member, folder: str) -> tuple[training.TrainingResult, list[float], bool]:
    """Train in one of several processes: what came of it, the weights, and whether this process saw its state go."""
    trained = without_dropout()
    if member.rank:  # what another process drew is not used
        nn.init.ones_(lora.find_adapted_layers(trained)["1"].adapter("default").down)
    result = training.finetune(trained, data(7, 1), data(3, 2), CONFIG, Path(folder))
    weights = [float(each.detach().sum()) for each in trained.parameters() if each.requires_grad]
    return result, weights, (Path(folder) / "unfinished.pt").exists()


def slow_run(folder: Path) -> None:
    """Train, slowly enough to be killed on the way, and leave the losses behind."""
    torch.set_num_threads(1)
    result = training.finetune(model(), data(7, 1), data(3, 2), LONG, folder, lambda progress: time.sleep(0.002))
    (folder / "losses").write_text(repr((result.losses, result.eval_losses)))


if __name__ == "__main__":  # fork at each line that is read, and say the child's number
    import os

    for line in sys.stdin:
        child = os.fork()
        if not child:
            slow_run(Path(line.strip()))
            os._exit(0)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)
