"""A run that is stopped and gone on with equals one that was not; what is wrong is said."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from torch import nn

from gpuguide import lora
from gpuguide.errors import GpuguideError


class Stopped(Exception):
    """Raised in place of a kill."""


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


PLAN = lora.Plan(steps=12, batch=3, learning_rate=1e-2, every=2)


@pytest.mark.parametrize("at", [1, 4, 5, 11])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path, at: int) -> None:
    whole_model, model_again = model(), model()
    whole = lora.finetune(whole_model, data(7, 1), data(3, 2), PLAN, tmp_path / "whole")

    def stop(progress: lora.Progress) -> None:
        if progress.step == at:
            raise Stopped

    with pytest.raises(Stopped):
        lora.finetune(model(), data(7, 1), data(3, 2), PLAN, tmp_path / "parts", stop)
    again = lora.finetune(model_again, data(7, 1), data(3, 2), PLAN, tmp_path / "parts")
    assert again == whole
    for one, other in zip(whole_model.parameters(), model_again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_only_adapters_change(tmp_path: Path) -> None:
    trained, before = model(), model()
    lora.finetune(trained, data(7, 1), data(3, 2), PLAN, tmp_path)
    changed = {
        name
        for (name, one), other in zip(trained.named_parameters(), before.parameters(), strict=True)
        if not torch.equal(one, other)
    }
    assert changed == {name for name, each in before.named_parameters() if "adapters" in name}


def test_it_stops_when_the_held_out_loss_no_longer_falls(tmp_path: Path) -> None:
    """One sequence is learned by heart; what follows its tokens elsewhere is then predicted worse and worse."""
    plan = lora.Plan(steps=200, batch=1, learning_rate=5e-2, every=1, patience=3)
    held_out = [torch.tensor([1, 5, 1, 5])]
    result = lora.finetune(model(), [torch.tensor([1, 2, 1, 2])], held_out, plan, tmp_path)
    assert result.stopped_early
    losses = [loss for _, loss in result.held_out]
    assert min(losses[-3:]) >= min(losses[:-3])


def test_a_full_disk_leaves_the_last_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(progress: lora.Progress) -> None:
        if progress.step == 2:
            raise Stopped

    with pytest.raises(Stopped):
        lora.finetune(model(), data(7, 1), data(3, 2), PLAN, tmp_path, stop)
    before = (tmp_path / "unfinished.pt").read_bytes()

    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(GpuguideError, match="No space left"):
        lora.finetune(model(), data(7, 1), data(3, 2), PLAN, tmp_path)
    assert (tmp_path / "unfinished.pt").read_bytes() == before


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with pytest.raises(GpuguideError, match="no training"):
        lora.finetune(model(), [], data(1, 2), PLAN, tmp_path)
    with pytest.raises(GpuguideError, match="1 of 1 held-out"):
        lora.finetune(model(), data(2, 1), data(1, 1), PLAN, tmp_path)
    with pytest.raises(GpuguideError, match="asks for a gradient"):
        lora.finetune(model().requires_grad_(False), data(2, 1), data(1, 2), PLAN, tmp_path)
    (tmp_path / "unfinished.pt").write_bytes(b"half of a file")
    with pytest.raises(GpuguideError, match="is damaged"):
        lora.finetune(model(), data(2, 1), data(1, 2), PLAN, tmp_path)
