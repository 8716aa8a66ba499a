"""A training so small that a run takes seconds: what tests stop, resume and divide among processes."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from gpuguide import pretraining
from gpuguide.finetuning import RunProgress
from gpuguide.hardware import device
from gpuguide.interconnect.processes import Member
from gpuguide.pretraining import PretrainOptions, PretrainRecord, settings

WORDS = ["import", "return", "raise", "yield", "assert", "global"]
TINY = replace(settings.SHAPES["draft"], context=16, layers=1, hidden=32)


def write_text(path: Path) -> Path:
    """A text that a model learns something from."""
    path.write_text("\n".join(f"{one} {other} {one}" for one in WORDS for other in WORDS) * 4)
    return path


def options(folder: Path, **more: Any) -> PretrainOptions:
    """Options of a run of eight steps."""
    settings.SHAPES["tiny"] = TINY  # also in processes of their own
    text = folder / "text.txt"
    given = {"tokenizer": "main", "shape": "tiny", "batch": 4, "tokens": 8 * 4 * 16, "eval_every": 2, **more}
    return PretrainOptions(texts=(text,), out=folder / "out", **given)


class StopsAt(pretraining.PretrainCallback):
    """A user who presses Ctrl-C after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, record: RunProgress) -> None:
        """Press it."""
        if len(record.losses) == self.step:
            os.kill(os.getpid(), signal.SIGINT)


def run(chosen: PretrainOptions, callback: pretraining.PretrainCallback | None = None) -> PretrainRecord:
    """Train on the processor, from the text to the checkpoint."""
    callback = callback or pretraining.PretrainCallback()
    trained = pretraining.train(pretraining.prepare(chosen, device.cpu(), callback), callback)
    return pretraining.export(trained, callback)


def run_on_rank(
    member: Member, folder: str, clocks: tuple[float, float] = (1.0, 1.0)
) -> tuple[tuple[float, ...], tuple[tuple[int, float], ...], list[float]]:
    """Train in one of several processes, by a clock of its own: losses, held-out losses, and the weights."""
    torch.set_num_threads(1)
    pretraining.run.time = SimpleNamespace(perf_counter=lambda: clocks[member.rank] * time.perf_counter())
    callback = pretraining.PretrainCallback()
    setup = pretraining.prepare(options(Path(folder), micro_batch=1, eval_every=4), device.cpu(), callback)
    trained = pretraining.train(setup, callback)
    record = trained.record
    return record.losses, record.eval_losses, [float(each.sum()) for each in trained.model.parameters()]


def stop_on_rank(member: Member, folder: str) -> str:
    """Train in one of several processes, the first of which is asked to stop; return how the run ended."""
    torch.set_num_threads(1)
    callback = StopsAt(3) if member.rank == 0 else pretraining.PretrainCallback()
    try:
        pretraining.train(pretraining.prepare(options(Path(folder), eval_every=4), device.cpu(), callback), callback)
    except KeyboardInterrupt:
        return "interrupted"
    return "finished"
