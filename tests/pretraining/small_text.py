"""A training so small that a run takes seconds: what tests stop, resume and divide among processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gpuguide import pretraining
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


def run(chosen: PretrainOptions, callback: pretraining.PretrainCallback | None = None) -> PretrainRecord:
    """Train on the processor, from the text to the checkpoint."""
    callback = callback or pretraining.PretrainCallback()
    trained = pretraining.train(pretraining.prepare(chosen, device.cpu(), callback), callback)
    return pretraining.export(trained, callback)


def run_on_rank(member: Member, folder: str) -> tuple[tuple[float, ...], tuple[tuple[int, float], ...], list[float]]:
    """Train in one of several processes: losses, held-out losses, and the weights."""
    torch.set_num_threads(1)
    callback = pretraining.PretrainCallback()
    setup = pretraining.prepare(options(Path(folder), micro_batch=1), device.cpu(), callback)
    trained = pretraining.train(setup, callback)
    record = trained.record
    return record.losses, record.eval_losses, [float(each.sum()) for each in trained.model.parameters()]
