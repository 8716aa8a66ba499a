"""Generation of whole texts, timed: prefill of the prompts, and decoding of so many new tokens.

A sample is the host's time from the prompts to the last token. It lasts so long that the GPU's clock settles within,
so there are no calls before it that do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

import torch

from gpuguide.benchmarks.inference.models import number, shape_of, storage_of
from gpuguide.hardware.device import Device
from gpuguide.inference import cost
from gpuguide.measure import records
from gpuguide.measure.benchmark import Keys, Work
from gpuguide.measure.records import Metric, Rate

Check = Callable[[torch.Tensor], None]
"""Takes texts, ``(batch, prompt + new_tokens)``, and raises if one is wrong"""
Result = TypeVar("Result")


class Writer(Protocol):
    """Engine that generates a token of each text at every step, as :class:`gpuguide.inference.Engine` does."""

    texts: torch.Tensor

    def start(self, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Read the prompts, and write the first token."""

    def step(self) -> torch.Tensor:
        """Write one more."""


def rates(keys: Keys) -> dict[str, Rate]:
    """Return the work in one sample."""
    return {"throughput": Rate("token/s", number(keys, "batch") * number(keys, "new_tokens"))}


def step_bytes(keys: Keys) -> float:
    """Return the bytes that a step must read, with as many tokens in the cache as there are on average."""
    context = number(keys, "prompt") + (number(keys, "new_tokens") - 2) // 2
    return cost.bytes_moved(cost.decode_step(shape_of(keys), number(keys, "batch"), context, storage_of(keys)))


def work_of_writer(writer: Writer, prompts: Sequence[Sequence[int]], keys: Keys, device: Device, check: Check) -> Work:
    """Return the work of a writer, whose steps are also timed by themselves, without the prefill."""
    steps = number(keys, "new_tokens") - 1  # the first token is the prefill's
    last = number(keys, "prompt") + number(keys, "new_tokens")
    lasted: list[float] = []

    def write() -> Callable[[], float]:
        writer.start(prompts)
        begun = moment(device)
        for _ in range(steps):
            writer.step()
        ended = moment(device)
        return lambda: seconds_between(begun, ended) / steps

    def sample() -> float:
        seconds, a_step = time_call(write, device)
        lasted.append(a_step())
        return seconds

    def further() -> Mapping[str, Metric]:
        return {
            "step": records.metric("s", lasted),
            "bandwidth": records.metric("B/s", [step_bytes(keys) / seconds for seconds in lasted]),
        }

    write()  # compiles, and captures the step
    return Work([], lambda: check(writer.texts[:, :last]), rates(keys), sample=sample, further=further)


def work_of_generator(generate: Callable[[], torch.Tensor], keys: Keys, device: Device, check: Check) -> Work:
    """Return the work of a function that writes whole texts, ``(batch, prompt + new_tokens)``, at one call."""
    generate()  # compiles
    texts = generate()  # and captures a graph, where it uses one
    return Work([], lambda: check(texts), rates(keys), sample=lambda: time_call(generate, device)[0])


def time_call(call: Callable[[], Result], device: Device) -> tuple[float, Result]:
    """Return the seconds from a call to the end of the work that it starts, and what it returns."""
    synchronize(device)
    start = time.perf_counter_ns()
    result = call()
    synchronize(device)
    return (time.perf_counter_ns() - start) * 1e-9, result


def synchronize(device: Device) -> None:
    """Wait until a device has done its work."""
    if device.backend == "cuda":
        torch.cuda.synchronize()


def moment(device: Device) -> torch.cuda.Event | float:
    """Return when a device comes to this point of its work."""
    if device.backend != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(begun: torch.cuda.Event | float, ended: torch.cuda.Event | float) -> float:
    """Return the seconds from one moment to another; both have passed."""
    if isinstance(begun, float) or isinstance(ended, float):
        assert isinstance(begun, float)
        assert isinstance(ended, float)
        return ended - begun
    return begun.elapsed_time(ended) * 1e-3
