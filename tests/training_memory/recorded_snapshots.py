"""Snapshots of small training steps, recorded on a processor in the format that a GPU's have."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gpuguide.cross_entropy import linear_cross_entropy
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.training_memory.timeline import AllocationRecorder

SHAPE = GPT2Config(vocab_size=3000, context=64, layers=3, heads=4, hidden=128)
BATCH, SEQ_LEN = 3, 64


def record_training(kind: str = "eager", steps: int = 3, from_step: int = 0) -> dict[str, Any]:
    """Return the snapshot of some steps.

    Parameters
    ----------
    kind : str
        ``eager``, ``checkpointed``, ``chunked`` (checkpointed, with the loss in chunks), ``leak`` (losses are kept with
        their graphs), or ``logits`` (the name ``logits`` outlives its step).
    steps : int
        Steps, or losses that are kept.
    from_step : int
        The step with which the recording begins; at 0 it begins before the model is made.
    """
    torch.manual_seed(0)
    recorder = AllocationRecorder()
    kept: list[torch.Tensor] = []
    if from_step == 0:
        recorder.__enter__()
    model = GPT2(SHAPE)
    recorder.note(model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    logits = torch.zeros(0)
    for step in range(steps):
        if step == from_step > 0:
            recorder.note(state for each in optimizer.state.values() for state in each.values())
            recorder.events.clear()
            recorder.alive = {key: (address, size, []) for key, (address, size, _) in recorder.alive.items()}
            recorder.__enter__()
        tokens = torch.randint(SHAPE.vocab_size, (BATCH, SEQ_LEN))
        if kind == "chunked":
            hidden = model.embed(tokens)
            for block in model.blocks:
                hidden = checkpoint(block, hidden, use_reentrant=False)
            hidden = model.final_norm(hidden).flatten(0, 1)
            loss = linear_cross_entropy(hidden, model.head.weight, tokens.flatten())
        elif kind == "logits":
            logits = model(tokens)
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        else:
            loss = loss_of(model, tokens, checkpointed=kind == "checkpointed")
        if kind == "leak":
            kept.append(loss)
            continue
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    recorder.__exit__(None, None, None)
    return recorder.snapshot()


def loss_of(model: GPT2, tokens: torch.Tensor, checkpointed: bool) -> torch.Tensor:
    """Return the mean loss of tokens."""
    hidden = model.embed(tokens)
    for block in model.blocks:
        hidden = checkpoint(block, hidden, use_reentrant=False) if checkpointed else block(hidden)
    logits = model.head(model.final_norm(hidden))
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
