"""Memory over one training step by part, from a snapshot of PyTorch's allocator.

GPT-2 small in mixed precision, 8 × 1024 tokens. Three steps are recorded from before the model is made, and the last
one is drawn. ``time`` is the time of a step while it is recorded. The check replays the history and compares its
highest total with what the allocator counted, ``requested_bytes.all.peak``: they must be equal.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from gpuguide.benchmarks.training.contenders import many_compilations, settings
from gpuguide.benchmarks.training.ladder import memory_in_use
from gpuguide.benchmarks.training_memory.levers import LEVERS, LeverStep
from gpuguide.benchmarks.training_memory.models import GPT2_SMALL, batches, make_model
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric
from gpuguide.measure.timing import wall_clock
from gpuguide.training import make_step
from gpuguide.training.rungs import ALL
from gpuguide.training_memory.holders import KINDS, parts_over_time
from gpuguide.training_memory.snapshot import History, replay

KEYS: Keys = {"batch": 8, "seq_len": 1024}
POINTS = 160
"""Moments of a step that the record has"""
STEPS = 3
NAMES = {"eager": "torch-default", "checkpointed": "checkpoint-all", "compiled": "compile"}
"""Contenders that are steps of the benchmark ``memory-levers``"""


def make(name: str, device: str, keys: Keys) -> Any:
    """Return the step of a contender."""
    if name == "captured":
        model = make_model(GPT2_SMALL, device)
        return make_step(model, int(keys["batch"]), int(keys["seq_len"]), ALL, settings())
    return LeverStep(LEVERS[NAMES[name]], GPT2_SMALL, device)


def record_steps(name: str, device: Device, keys: Keys) -> tuple[dict[str, Any], list[int], float, int]:
    """Return a snapshot, the numbers of events before each step, the seconds of a step, and the allocator's peak."""
    memory_in_use(device)
    draw = batches(keys, device.torch_device)
    batches_of_steps = [draw(number) for number in range(STEPS)]
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
    try:
        torch.cuda.reset_peak_memory_stats()
        with many_compilations():
            step = make(name, device.torch_device, keys)
            starts = []
            for batch in batches_of_steps:
                starts.append(count_events(device))
                seconds = wall_clock(functools.partial(step, *batch), torch.cuda.synchronize)()
        peak = torch.cuda.memory_stats()["requested_bytes.all.peak"]
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    del step
    torch.compiler.reset()
    return snapshot, starts, seconds, peak


def count_events(device: Device) -> int:
    """Return the number of events in the history."""
    return len(torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()])


def curve(history: History, start: int) -> Mapping[str, Metric]:
    """Return the bytes of each part at evenly spaced events from one upwards, and at the peak between them."""
    last = len(history.totals) - 1
    moments = {start + round(number * (last - start) / (POINTS - 1)) for number in range(POINTS)}
    moments.add(max(range(start, last + 1), key=history.totals.__getitem__))
    ordered = sorted(moments)
    over_time = parts_over_time(history, ordered)
    return {
        f"{part}_memory": records.metric("B", [float(each[part]) for each in over_time])
        for part in dict.fromkeys(KINDS.values())
    }


def work(name: str, device: Device, keys: Keys) -> Work:
    """Record steps now, and return the curve of the last one."""
    snapshot, starts, seconds, peak = record_steps(name, device, keys)
    history = replay(snapshot, torch.cuda.current_device())
    at_peak = parts_over_time(history, [history.peak])[0]
    found = dict(curve(history, starts[-1]))
    found["named_share"] = records.metric("1", [1 - at_peak["unnamed"] / max(1, history.total_at(history.peak))])
    found["peak_memory"] = records.metric("B", [history.total_at(history.peak)])

    def check() -> None:
        replayed = history.total_at(history.peak)
        assert replayed == peak, f"the history adds up to {replayed} bytes, and the allocator counted {peak}"

    return Work([], check, sample=lambda: seconds, further=lambda: found)


MEMORY_TIMELINE = Benchmark(
    name="memory-timeline",
    title="Memory over one training step, by part",
    question="What fills the memory at each moment of a training step?",
    contenders={
        name: Contender(functools.partial(work, name), frozenset({"gpu", "bf16"}), libraries=("cublas",))
        for name in (*NAMES, "captured")
    },
    cases=lambda device: [KEYS] if device.is_gpu else [],
    memory=lambda keys: 20 * 2.0**30,
    samples=1,
)
