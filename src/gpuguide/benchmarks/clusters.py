"""How long a checkpoint stalls training, and how long it takes until it is complete.

The state is that of GPT-2 in training with AdamW: weights and two averages in fp32. Training goes on while a checkpoint
is written, as far as the contender lets it, and all of the time that it then takes longer counts as the stall. Every
contender writes a new file or folder and has the file system flush it, as DCP does by default.
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.nn import functional

from gpuguide.clusters.checkpoint import PinnedCheckpoint
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate
from gpuguide.models.gpt2 import GPT2, GPT2Config

SHAPES = {
    "gpt2-small": GPT2Config(),
    "gpt2-medium": GPT2Config(layers=24, heads=16, hidden=1024),
}
BATCH, SEQ_LEN = 8, 1024
TARGETS = {"tmpfs": "/dev/shm"}
"""Folders to write to: in the memory of the host, so that no disk limits"""
PLAIN_STEPS = 4
"""Steps without a checkpoint before each sample, to compare with"""
OF_LARGE_MODELS = ("torch-save", "gpuguide")
"""Contenders that save a larger model too; the others would take minutes and say nothing new"""

State = dict[str, dict[str, torch.Tensor]]


class Training:
    """A model in training, its state, and a step that a checkpoint may delay."""

    def __init__(self, shape: GPT2Config, batch: int, device: str) -> None:
        self.device = torch.device(device)
        with self.device:
            self.model = GPT2(shape)
            self.tokens = torch.randint(shape.vocab_size, (batch, min(SEQ_LEN, shape.context) + 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.step()  # the optimizer makes its averages
        self.plain: list[float] = []
        """Seconds of steps during which nothing was saved, between the samples of all contenders"""

    def step(self, before_update: Callable[[], object] = lambda: None) -> None:
        """Take a step, and return when the device has taken it."""
        with torch.autocast(self.device.type, torch.bfloat16):
            logits = self.model(self.tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        before_update()
        self.optimizer.step()
        self.synchronize()

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def state(self) -> State:
        """Return weights, averages and steps of the optimizer, by the names of the parameters."""
        named = dict(self.model.named_parameters())
        averages = {
            kind: {name: self.optimizer.state[parameter][kind] for name, parameter in named.items()}
            for kind in ("exp_avg", "exp_avg_sq", "step")
        }
        return {"weights": {name: parameter.detach() for name, parameter in named.items()}, **averages}


@functools.lru_cache(maxsize=1)
def train(model: str, device: str) -> Training:
    """Return the training of a case, once for all contenders."""
    return Training(SHAPES[model], BATCH, device)


# --- ways to save ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Save:
    """A save that was begun. Training may go on."""

    complete: Future[Any]
    before_update: Callable[[], object] = lambda: None
    """Called before the next step of the optimizer: waits for what must not be changed yet"""


class Saver(Protocol):
    """A way to save a state as that of a step, in a folder."""

    def save(self, state: State, folder: Path, step: int) -> Save:
        """Begin to save, and return as early as training may go on."""

    def load(self, state: State, folder: Path, step: int) -> State:
        """Return what was saved; ``state`` has the same names and shapes."""


def complete() -> Future[Any]:
    """Return a future that is done."""
    future: Future[Any] = Future()
    future.set_result(None)
    return future


class TorchSave:
    """``torch.save``: training stands still until the file is written."""

    def save(self, state: State, folder: Path, step: int) -> Save:
        """Write a file."""
        with (folder / f"{step}.pt").open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        return Save(complete())

    def load(self, state: State, folder: Path, step: int) -> State:
        """Return what is in the file."""
        found: State = torch.load(folder / f"{step}.pt", weights_only=True)
        return found


class Dcp:
    """``torch.distributed.checkpoint.save``: training stands still until the folder is written."""

    def save(self, state: State, folder: Path, step: int) -> Save:
        """Write a folder."""
        state_dict_saver.save(state, checkpoint_id=folder / str(step), no_dist=True)
        return Save(complete())

    def load(self, state: State, folder: Path, step: int) -> State:
        """Return what is in the folder."""
        found = {part: {name: torch.zeros_like(each) for name, each in group.items()} for part, group in state.items()}
        state_dict_loader.load(found, checkpoint_id=folder / str(step), no_dist=True)
        return found


class DcpAsync(Dcp):
    """``async_save`` by default: training stands still while the state is copied to pageable memory."""

    def save(self, state: State, folder: Path, step: int) -> Save:
        """Copy the state, and have another thread write it."""
        future: Any = state_dict_saver.async_save(state, checkpoint_id=folder / str(step), no_dist=True)
        return Save(future)


class DcpAsyncPinned(Dcp):
    """``async_save`` with a stager that keeps pinned memory: training stands still while the state is copied to it.

    PyTorch's ``DefaultStager``, which copies in a thread, can be used only once in PyTorch 2.11 (its issue 183413).
    """

    def __init__(self) -> None:
        self.stager = BlockingAsyncStager(cache_staged_state_dict=True)

    def save(self, state: State, folder: Path, step: int) -> Save:
        """Copy the state, and have another thread write it."""
        future: Any = state_dict_saver.async_save(
            state, checkpoint_id=folder / str(step), no_dist=True, async_stager=self.stager
        )
        return Save(future)


class Pinned:
    """:class:`~gpuguide.clusters.checkpoint.PinnedCheckpoint`."""

    checkpoint: PinnedCheckpoint | None = None

    def save(self, state: State, folder: Path, step: int) -> Save:
        """Begin the copy on another stream."""
        self.checkpoint = self.checkpoint or PinnedCheckpoint(folder)
        return Save(self.checkpoint.save(state, step), self.checkpoint.wait_for_copy)

    def load(self, state: State, folder: Path, step: int) -> State:
        """Return what is in the file."""
        loaded = None if self.checkpoint is None else self.checkpoint.load(step)
        assert loaded is not None, "no checkpoint was written"
        found: State = loaded.state
        return found


# --- work ------------------------------------------------------------------------------------------------


class Saving:
    """A way to save, and what its saves took."""

    def __init__(self, saver: Saver, training: Training, target: str) -> None:
        self.saver, self.training = saver, training
        self.state = training.state()
        self.temporary = tempfile.TemporaryDirectory(prefix="gpuguide-", dir=TARGETS[target])
        self.folder = Path(self.temporary.name)
        self.steps = itertools.count()
        self.seconds: list[tuple[float, float, int]] = []
        """Of each save: seconds of the step that followed it, of all steps until it was complete, and their number"""

    def bytes(self) -> int:
        """Return the bytes of the state."""
        return sum(tensor.nbytes for group in self.state.values() for tensor in group.values())

    def sample(self) -> float:
        """Save once while training goes on, and return the seconds until the checkpoint is complete."""
        self.training.plain += [seconds_of(self.training.step) for _ in range(PLAIN_STEPS)]
        ends: list[float] = []
        begun = time.perf_counter()
        save = self.saver.save(self.state, self.folder, next(self.steps))
        save.complete.add_done_callback(lambda _: ends.append(time.perf_counter()))
        self.training.step(save.before_update)
        first, steps = time.perf_counter() - begun, 1
        while not save.complete.done():
            self.training.step()
            steps += 1
        self.seconds.append((first, time.perf_counter() - begun, steps))
        save.complete.result()
        self.empty()
        return ends[0] - begun

    def check(self) -> None:
        """Check that a checkpoint has every bit of the state from before the step that follows its save.

        Raises
        ------
        AssertionError
            If a tensor differs.
        """
        expected = {part: {name: each.clone() for name, each in group.items()} for part, group in self.state.items()}
        step = next(self.steps)
        save = self.saver.save(self.state, self.folder, step)
        self.training.step(save.before_update)
        save.complete.result()
        loaded = self.saver.load(self.state, self.folder, step)
        for part, group in expected.items():
            for name, right in group.items():
                same = torch.equal(loaded[part][name].to(right.device), right)
                assert same, f"{part} of {name} is another one than it was when the save began"
        self.empty()

    def empty(self) -> None:
        """Remove what was written."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def further(self) -> Mapping[str, Metric]:
        """Return how much longer training took in each save: in all, and in the step of the save."""
        plain = statistics.fmean(self.training.plain)
        return {
            "stall": records.metric("s", [total - steps * plain for _, total, steps in self.seconds]),
            "first_stall": records.metric("s", [first - plain for first, _, _ in self.seconds]),
        }


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def work(saver: Callable[[], Saver], device: Device, keys: Keys) -> Work:
    """Save the state of a model in training."""
    saving = Saving(saver(), train(str(keys["model"]), device.torch_device), str(keys["target"]))
    rates = {"bandwidth": Rate("B/s", saving.bytes())}
    return Work([], saving.check, rates, sample=saving.sample, further=saving.further)


def state_bytes(keys: Keys) -> int:
    """Return the bytes of a model's weights and averages in fp32."""
    shape = SHAPES[str(keys["model"])]
    weights = (shape.vocab_size + shape.context) * shape.hidden + 12 * shape.layers * shape.hidden**2
    return 12 * weights


def bytes_needed(keys: Keys) -> float:
    """Return roughly the device memory of a case: state, gradients, a copy of the state, activations and logits."""
    shape, tokens = SHAPES[str(keys["model"])], BATCH * SEQ_LEN
    return 2.4 * state_bytes(keys) + tokens * (60 * shape.layers * shape.hidden + 12 * shape.vocab_size)


def no_space(device: Device, keys: Keys) -> str | None:
    """Return why a target cannot take what a case writes, or ``None``; two checkpoints at most are there at once."""
    folder = Path(TARGETS[str(keys["target"])])
    if not folder.is_dir():
        return f"there is no {folder}"
    free = shutil.disk_usage(folder).free
    if free < 2.5 * state_bytes(keys):
        return f"{folder} has {free / 1e9:.1f} GB left, and it takes {2.5 * state_bytes(keys) / 1e9:.1f} GB"
    return None


def contender(name: str, saver: Callable[[], Saver]) -> Contender:
    """Return a way to save as a contender."""

    def skip_reason(device: Device, keys: Keys) -> str | None:
        if keys["model"] != "gpt2-small" and name not in OF_LARGE_MODELS:
            return "measured for the smallest model only, to save time"
        return no_space(device, keys)

    return Contender(functools.partial(work, saver), frozenset({"gpu", "bf16"}), skip_reason)


SAVERS: Mapping[str, Callable[[], Saver]] = {
    "torch-save": TorchSave,
    "dcp-save": Dcp,
    "dcp-async": DcpAsync,
    "dcp-async-pinned": DcpAsyncPinned,
    "gpuguide": Pinned,
}

CHECKPOINT = Benchmark(
    name="checkpoint",
    title="A checkpoint of a model in training: how long training waits, and when it is complete",
    question="How long does a checkpoint stall training, and how long does it take until it is complete?",
    contenders={name: contender(name, saver) for name, saver in SAVERS.items()},
    cases=lambda device: (
        [{"model": model, "target": target} for model in SHAPES for target in TARGETS] if device.is_gpu else []
    ),
    memory=bytes_needed,
    end=train.cache_clear,
)
