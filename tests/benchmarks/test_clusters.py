from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpuguide.benchmarks import clusters as benchmarks
from gpuguide.benchmarks.clusters import SAVERS, SHAPES, Save, Saver, Saving, State, Training
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure.benchmark import too_large
from gpuguide.models.gpt2 import GPT2, GPT2Config

CHECKPOINT = declarations.get("checkpoint")
TINY = GPT2Config(vocab_size=100, context=16, layers=1, heads=2, hidden=16)
ON_A_CPU = {name: saver for name, saver in SAVERS.items() if name != "dcp-async-pinned"}
"""No memory can be pinned without a GPU"""
each_saver = pytest.mark.parametrize("saver", ON_A_CPU.values(), ids=ON_A_CPU)
quiet = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def training() -> Training:
    torch.manual_seed(0)
    return Training(TINY, 1, "cpu")


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(benchmarks.TARGETS, "tmpfs", str(tmp_path))


@quiet
@each_saver
def test_a_right_checkpoint_passes_and_is_timed(saver: Callable[[], Saver], training: Training, tmp_path: Path) -> None:
    saving = Saving(saver(), training, "tmpfs")
    saving.check()
    assert saving.sample() > 0
    found = saving.further()
    assert set(found) == {"stall", "first_stall"}
    assert all(len(metric.samples) == 1 for metric in found.values())
    assert not list(saving.folder.iterdir()), "what was written is removed"


class LateCopy(benchmarks.TorchSave):
    """Writes a state that the next step has changed already."""

    def save(self, state: State, folder: Path, step: int) -> Save:
        """Write half of it."""
        for tensor in state["weights"].values():
            tensor.add_(1)
        super().save(state, folder, step)
        return Save(benchmarks.complete())


def test_a_changed_state_is_found(training: Training) -> None:
    with pytest.raises(AssertionError, match="weights of"):
        Saving(LateCopy(), training, "tmpfs").check()


def test_the_bytes_are_those_of_the_model() -> None:
    for name, shape in SHAPES.items():
        with torch.device("meta"):
            parameters = GPT2(shape).parameter_count()
        assert benchmarks.state_bytes({"model": name}) == pytest.approx(12 * parameters, rel=0.01)


@pytest.mark.parametrize(("gigabytes", "fitting"), [(8, 0), (16, 1), (24, 1), (48, 2), (80, 2)])
def test_what_does_not_fit_is_left_out(gigabytes: int, fitting: int) -> None:
    device = replace(devices.fake("h100-sxm"), memory=gigabytes * 10**9)
    assert sum(not too_large(CHECKPOINT, keys, device) for keys in CHECKPOINT.cases(device)) == fitting


def test_a_target_without_space_is_skipped_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keys = {"model": "gpt2-small", "target": "tmpfs"}
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(benchmarks.shutil, "disk_usage", lambda folder: usage(64, 0, 64e6))
    assert "0.1 GB left" in str(benchmarks.no_space(devices.cpu(), keys))
    monkeypatch.setitem(benchmarks.TARGETS, "tmpfs", str(tmp_path / "none"))
    assert "there is no" in str(benchmarks.no_space(devices.cpu(), keys))
