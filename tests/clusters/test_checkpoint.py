"""Checkpoints: every bit comes back, and whatever fails, the last good one stays."""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
import time
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.clusters import checkpoint as checkpoints
from gpuguide.clusters.checkpoint import PinnedCheckpoint
from gpuguide.errors import GpuguideError

KILLS = 50


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small states go over the ends of buffers."""
    monkeypatch.setattr(checkpoints, "PIECE", 4096)


def trained(device: str = "cpu") -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a small model after a step, with memory in several orders, and its optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.Flatten(), torch.nn.Linear(64 * 36, 5))
    model = model.to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 3, 8, 8, device=device)).sum().backward()
    optimizer.step()
    return model, optimizer


def state_of(device: str = "cpu") -> dict[str, Any]:
    """Return a state with everything that a run saves."""
    model, optimizer = trained(device)
    weight = next(model.parameters())
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
        "losses": [2.5, float("inf")],
        "tied": [weight, weight.detach()],
        "empty": torch.empty(0, 3, device=device),
        "number": torch.tensor(3.0, device=device),
        "bf16": torch.ones(5, dtype=torch.bfloat16, device=device),
        "order": torch.randn(1, 4, 1, 3).permute(3, 1, 2, 0),
        "nothing": None,
    }


def check_equal(found: Any, right: Any) -> None:
    """Check that two states are equal to the bit, with the same order in memory."""
    if isinstance(right, torch.Tensor):
        assert found.device.type == "cpu"
        assert (found.dtype, found.shape, found.stride()) == (right.dtype, right.shape, right.stride())
        assert torch.equal(found, right.cpu())
    elif isinstance(right, dict):
        assert list(found) == list(right)
        for name, value in right.items():
            check_equal(found[name], value)
    elif isinstance(right, list):
        for one, other in zip(found, right, strict=True):
            check_equal(one, other)
    else:
        assert found == right


def load(checkpoint: PinnedCheckpoint, step: int | None = None) -> checkpoints.LoadedState:
    loaded = checkpoint.load(step)
    assert loaded is not None
    return loaded


# --- what comes back -------------------------------------------------------------------------------------


def test_every_bit_comes_back(tmp_path: Path) -> None:
    state, checkpoint = state_of(), PinnedCheckpoint(tmp_path)
    assert checkpoint.load() is None
    assert checkpoint.save(state, 7).result() is None
    step, found = load(PinnedCheckpoint(tmp_path))
    assert step == 7
    check_equal(found, state)
    assert found["tied"][0].data_ptr() == found["tied"][1].data_ptr(), "shared memory is saved once"


@given(st.lists(st.tuples(st.integers(0, 3000), st.sampled_from([torch.uint8, torch.float16, torch.float64]))))
def test_tensors_of_any_size_come_back(tmp_path_factory: pytest.TempPathFactory, sizes: list[Any]) -> None:
    state = [torch.arange(size).to(dtype) for size, dtype in sizes]
    checkpoint = PinnedCheckpoint(tmp_path_factory.mktemp("any"))
    checkpoint.save(state, 0)
    check_equal(load(checkpoint).state, state)
    checkpoint.close()


def test_a_state_may_change_its_shape_between_saves(tmp_path: Path) -> None:
    checkpoint = PinnedCheckpoint(tmp_path, keep=3)
    states = [{"a": torch.randn(size)} for size in (10, 5000, 20)]
    for step, state in enumerate(states):
        checkpoint.save(state, step).result()
    for step, state in enumerate(states):
        check_equal(load(checkpoint, step).state, state)


def test_a_change_after_the_copy_does_not_reach_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, write = threading.Event(), checkpoints._write_file

    def late(*arguments: Any) -> None:
        go_on.wait()
        write(*arguments)

    monkeypatch.setattr(checkpoints, "_write_file", late)
    state, checkpoint = {"weight": torch.ones(9000)}, PinnedCheckpoint(tmp_path)
    checkpoint.save(state, 1)
    checkpoint.wait_for_copy()
    state["weight"].zero_()
    go_on.set()
    assert load(checkpoint).state["weight"].eq(1).all()


@pytest.mark.gpu
@pytest.mark.parametrize("waits", [("",), ("first", "second")], ids=["all", "by-part"])
def test_the_optimizer_never_changes_what_is_being_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: tuple[str, ...]
) -> None:
    monkeypatch.setattr(checkpoints, "PIECE", 2**26)
    state = {part: [torch.randn(2**24, device="cuda") for _ in range(8)] for part in ("first", "second")}
    right = {part: [tensor.cpu() for tensor in tensors] for part, tensors in state.items()}
    checkpoint = PinnedCheckpoint(tmp_path)
    for step in range(3):
        checkpoint.save(state, step)
        for part in waits:
            checkpoint.wait_for_copy(*filter(None, [part]))
            for tensor in state[part] if part else [tensor for tensors in state.values() for tensor in tensors]:
                tensor.add_(1)
        check_equal(load(checkpoint).state, right)
        for tensors, were in zip(state.values(), right.values(), strict=True):
            for tensor, was in zip(tensors, were, strict=True):
                tensor.copy_(was)


def test_the_guard_waits_before_each_step_of_the_optimizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, optimizer = trained()
    waits: list[tuple[str, ...]] = []
    monkeypatch.setattr(PinnedCheckpoint, "wait_for_copy", lambda self, *parts: waits.append(parts))
    PinnedCheckpoint(tmp_path).guard(optimizer)
    optimizer.step()
    optimizer.step()
    assert waits == [(), ()]


def test_a_part_that_was_not_saved_is_named(tmp_path: Path) -> None:
    checkpoint = PinnedCheckpoint(tmp_path)
    checkpoint.wait_for_copy("buffers")  # nothing was saved yet
    checkpoint.save({"buffers": [torch.ones(3)], "model": torch.ones(3)}, 0)
    checkpoint.wait_for_copy("buffers", "model")
    with pytest.raises(GpuguideError, match=r"'bufers'.*buffers"):
        checkpoint.wait_for_copy("bufers")


# --- which stay ------------------------------------------------------------------------------------------


def test_the_last_checkpoints_stay(tmp_path: Path) -> None:
    checkpoint = PinnedCheckpoint(tmp_path, keep=2)
    for step in (10, 20, 30):
        checkpoint.save({"step": torch.tensor(step)}, step).result()
    assert checkpoint.steps() == [20, 30]
    assert load(checkpoint, 20).state["step"] == 20
    with pytest.raises(GpuguideError, match="20, 30"):
        checkpoint.load(10)


def test_a_checkpoint_counts_once_all_ranks_have_written(tmp_path: Path) -> None:
    first, second = (PinnedCheckpoint(tmp_path, rank=rank, world_size=2, keep=1) for rank in range(2))
    for step in (1, 2, 3):
        first.save([step], step).result()
    assert first.load() is None
    second.save([-1], 1).result()
    assert (load(first), load(second)) == ((1, [1]), (1, [-1]))
    second.save([-3], 3).result()
    assert (load(first), load(second)) == ((3, [3]), (3, [-3]))
    first.save([4], 4).result()
    first.wait()
    assert first.steps() == [3], "what not all have written replaces nothing"


def test_another_world_size_is_refused(tmp_path: Path) -> None:
    for rank in range(2):
        PinnedCheckpoint(tmp_path, rank=rank, world_size=2).save([rank], 5).result()
    with pytest.raises(GpuguideError, match=r"2 processes.*has 3"):
        PinnedCheckpoint(tmp_path, rank=0, world_size=3).load()


@pytest.mark.parametrize("settings", [{"rank": 1}, {"rank": -1}, {"world_size": 0}, {"keep": 0}])
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, settings: dict[str, int]) -> None:
    with pytest.raises(GpuguideError, match=r"rank -?\d of \d with keep=\d"):
        PinnedCheckpoint(tmp_path, **settings)


@pytest.mark.parametrize("tensor", [torch.eye(3).to_sparse(), torch.ones(4, 4)[:, :2], torch.ones(1).expand(5)])
def test_tensors_with_gaps_are_refused(tmp_path: Path, tensor: torch.Tensor) -> None:
    with pytest.raises(GpuguideError, match=r"^A tensor"):
        PinnedCheckpoint(tmp_path).save([tensor], 0)


# --- what fails ------------------------------------------------------------------------------------------


def saved(folder: Path) -> tuple[PinnedCheckpoint, dict[str, torch.Tensor]]:
    """Save two steps, and return what saved them and the last state."""
    checkpoint, state = PinnedCheckpoint(folder), {"weight": torch.randn(9000)}
    for step in (1, 2):
        checkpoint.save(state, step).result()
    return checkpoint, state


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.9, 0.999])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, share: float) -> None:
    checkpoint, state = saved(tmp_path)
    (last,) = tmp_path.glob("*2.rank*")
    os.truncate(last, int(share * last.stat().st_size))
    with pytest.raises(GpuguideError, match=r"cut short.*step 1"):
        checkpoint.load()
    check_equal(load(checkpoint, 1).state, state)


@given(st.integers(0, 10**6))
def test_a_changed_byte_is_found(tmp_path_factory: pytest.TempPathFactory, place: int) -> None:
    folder = tmp_path_factory.mktemp("changed")
    checkpoint, _ = saved(folder)
    (last,) = folder.glob("*2.rank*")
    content = bytearray(last.read_bytes())
    content[place % len(content)] ^= 1
    last.write_bytes(content)
    with pytest.raises(GpuguideError, match=r"damaged|cut short"):
        checkpoint.load()
    checkpoint.close()


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, state = saved(tmp_path)

    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        checkpoint.save({"weight": torch.zeros(9000)}, 3)
        with pytest.raises(GpuguideError, match=r"No space left on device.*step 2"):
            checkpoint.save(state, 4)
    assert [path.suffix for path in tmp_path.iterdir()] == [".checkpoint"] * 2
    check_equal(load(checkpoint).state, state)
    checkpoint.save(state, 4)
    assert load(checkpoint).step == 4, "once there is space again, saves go on"


def test_too_little_space_is_found_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, state = saved(tmp_path)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda folder: usage(10**6, 10**6 - 100, 100))
    with pytest.raises(GpuguideError, match=r"1e-07 GB left.*step 2"):
        checkpoint.save(state, 3)


def test_a_save_that_is_longer_than_the_interval_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write: Callable[..., None] = checkpoints._write_file

    def slow(*arguments: Any) -> None:
        time.sleep(0.2)
        write(*arguments)

    monkeypatch.setattr(checkpoints, "_write_file", slow)
    checkpoint, state = PinnedCheckpoint(tmp_path), [torch.ones(10)]
    checkpoint.save(state, 1)
    with pytest.warns(UserWarning, match=r"to save step 2.*step 1 took"):
        checkpoint.save(state, 2)
    checkpoint.wait()
    checkpoint.save(state, 3)  # nothing to wait for, nothing to say
    checkpoint.close()


@pytest.mark.apart
def test_a_process_that_is_killed_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    """Kill a process that saves all the time at random moments, each time another one that goes on from there."""
    draw, known = random.Random(0), -1
    for _ in range(KILLS):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                save_for_ever(tmp_path, write)
            finally:
                os._exit(1)
        os.close(write)
        with os.fdopen(read) as reports:
            complete = [reports.readline() for _ in range(draw.randint(1, 3))]
            time.sleep(draw.uniform(0, 0.03))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            complete += reports.readlines()
        known = max(known, *map(int, complete))
        loaded = load(PinnedCheckpoint(tmp_path))
        assert loaded.step >= known, "a checkpoint that was complete is lost"
        assert all(tensor.eq(loaded.step).all() for tensor in loaded.state.values())


def save_for_ever(folder: Path, report: int) -> None:
    """Go on from the last checkpoint, and say which step is complete, until killed."""
    torch.set_num_threads(1)
    checkpoint = PinnedCheckpoint(folder)
    loaded = checkpoint.load()
    step = 0 if loaded is None else loaded.step + 1
    while True:
        checkpoint.save({str(index): torch.full((3000,), step, dtype=torch.int32) for index in range(8)}, step)
        checkpoint.wait()
        os.write(report, f"{step}\n".encode())
        step += 1
