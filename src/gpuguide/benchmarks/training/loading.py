"""How long the host takes for a batch of tokens, by the way it is made and by where the tokens lie.

The tokens are a file of :data:`COUNT` ids of 16 bits, in the folder for temporary files. ``ram`` is an array that was
read before; ``mapped`` a file mapped into memory whose pages the system holds; ``anew`` the same, mapped anew for each
batch, which nanoGPT does against a growing count of resident pages; ``cold`` a mapped file of which the system was
asked to forget everything before each batch, so that a disk is read.

Every contender makes the same windows, and the peers are PyTorch's ``DataLoader`` without and with workers: they draw
places of their own.
"""

from __future__ import annotations

import functools
import os
import resource
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate
from gpuguide.training import slow
from gpuguide.training.slow import Gather

COUNT = 200_000_000
"""Ids in the file, 400 MB"""
PIECE = 10_000_000
SEQ_LEN = 512
BATCHES = (16, 64, 128)
STORAGES = ("ram", "mapped", "anew", "cold")
WORKERS = {"dataloader": 0, "dataloader-4": 4}
VOCABULARY = 50257


@functools.lru_cache(maxsize=1)
def folder() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of the file, which goes with it."""
    return tempfile.TemporaryDirectory()


@functools.lru_cache(maxsize=1)
def token_file(count: int) -> Path:
    """Return a file of random ids, written once."""
    path, generator = Path(folder().name) / "tokens.bin", np.random.default_rng(0)
    with path.open("wb") as file:
        for start in range(0, count, PIECE):
            file.write(generator.integers(0, VOCABULARY, min(PIECE, count - start), dtype=np.uint16).tobytes())
    os.sync()
    return path


def forget(path: Path) -> None:
    """Ask the system to hold no page of a file."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def open_mapped(path: Path) -> np.ndarray:
    """Return a file of ids, mapped into memory."""
    return np.memmap(path, np.uint16, "r")


def opener(storage: str, path: Path) -> Callable[[], np.ndarray]:
    """Return what gives the tokens for a batch; it is called, and timed, with each."""
    if storage == "ram":
        loaded = np.fromfile(path, np.uint16)
        return lambda: loaded
    if storage == "anew":
        return lambda: open_mapped(path)
    held = open_mapped(path)

    def forgotten() -> np.ndarray:
        forget(path)
        return held

    return forgotten if storage == "cold" else lambda: held


def starts_of(count: int, batch: int) -> Callable[[], np.ndarray]:
    """Return what gives the places of one batch after another, equal for all contenders."""
    generator = np.random.default_rng(1)
    return lambda: generator.integers(0, count - SEQ_LEN - 1, batch)


def work(gather: Gather, device: Device, keys: Keys, count: int = COUNT) -> Work:
    """Make one batch after another."""
    batch, storage = int(keys["batch"]), str(keys["storage"])
    path = token_file(count)
    tokens, starts = opener(storage, path), starts_of(count, batch)

    def call() -> torch.Tensor:
        return gather(tokens(), starts(), SEQ_LEN + 1)

    def check() -> None:
        places = starts_of(count, batch)()
        expected = np.stack([np.fromfile(path, np.uint16, SEQ_LEN + 1, offset=2 * int(start)) for start in places])
        found = gather(tokens(), places, SEQ_LEN + 1)
        assert np.array_equal(found.numpy(), expected), "the batch is another one"

    return Work([call], check, _rates(keys), timing="wall", further=lambda: _faults(call))


def _faults(call: Callable[[], object]) -> Mapping[str, Metric]:
    """Return how often a batch touched a page that was not there, and how often a disk had to be read for it."""
    before = resource.getrusage(resource.RUSAGE_SELF)
    call()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "minor_faults": records.metric("1", [after.ru_minflt - before.ru_minflt]),
        "major_faults": records.metric("1", [after.ru_majflt - before.ru_majflt]),
    }


class RandomWindows(Dataset[torch.Tensor]):
    """Windows of a file as a ``Dataset``: one place at a time."""

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count
        self.tokens: np.ndarray | None = None

    def __len__(self) -> int:
        return self.count // SEQ_LEN - 1

    def __getitem__(self, place: int) -> torch.Tensor:
        if self.tokens is None:  # in each worker
            self.tokens = open_mapped(self.path)
        start = place * SEQ_LEN
        return torch.from_numpy(self.tokens[start : start + SEQ_LEN + 1].astype(np.int64))


def work_with_loader(workers: int, device: Device, keys: Keys, count: int = COUNT) -> Work:
    """Take one batch after another from a ``DataLoader``."""
    windows = RandomWindows(token_file(count), count)
    loader = DataLoader(
        windows, int(keys["batch"]), shuffle=True, num_workers=workers, persistent_workers=workers > 0, drop_last=True
    )

    def forever() -> Iterator[torch.Tensor]:
        while True:
            yield from loader

    batches = forever()

    def check() -> None:
        found = next(batches)
        assert found.shape == (int(keys["batch"]), SEQ_LEN + 1)
        assert int(found.max()) < VOCABULARY

    return Work([lambda: next(batches)], check, _rates(keys), timing="wall")


def _rates(keys: Keys) -> Mapping[str, Rate]:
    return {"throughput": Rate("token/s", int(keys["batch"]) * SEQ_LEN)}


def only_mapped(device: Device, keys: Keys) -> str | None:
    """Return why a loader is left out, or None."""
    return None if keys["storage"] == "mapped" else "is measured with a mapped file only"


def end() -> None:
    """Remove the file."""
    if token_file.cache_info().currsize:
        token_file.cache_clear()
        folder().cleanup()
        folder.cache_clear()


BATCH_LOADING = Benchmark(
    name="batch-loading",
    title="A batch of tokens, made by the host",
    question="How long does the host take for a batch of tokens, and what does a disk change?",
    contenders={
        **{f"batch-{name}": Contender(functools.partial(work, gather)) for name, gather in slow.BATCHES.items()},
        **{
            name: Contender(functools.partial(work_with_loader, workers), skip_reason=only_mapped)
            for name, workers in WORKERS.items()
        },
    },
    cases=lambda device: [{"storage": storage, "batch": batch} for storage in STORAGES for batch in BATCHES],
    budget=0.5,
    end=end,
)
