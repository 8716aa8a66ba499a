"""Memory traffic of attention, by the GPU's own counters.

Each contender runs in a process of its own under Nsight Compute, several times. The L2 cache is overwritten before each
call. The time is that of the kernels, under the profiler.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence

import torch

from gpuguide.benchmarks.attention import contenders, speed
from gpuguide.benchmarks.attention.problem import TOKENS, WIDTH, AttentionTensors, check_errors, relative_errors
from gpuguide.benchmarks.attention.speed import AMPERE, ON_GPU, TENSOR_CORES
from gpuguide.hardware import counters
from gpuguide.hardware import device as devices
from gpuguide.hardware.counters import DURATION, READ, WRITTEN, Kernel
from gpuguide.hardware.device import Device
from gpuguide.measure import records, timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric

CALLS = 10
SHORT, LONG = 1024, 8192
"""The first for the formula alone, whose scores the L2 cache may hold a part of"""
MAKERS = {
    "naive": contenders.naive,
    "gpuguide-triton": contenders.ours_triton,
    "sdpa-flash": contenders.library("FLASH_ATTENTION"),
    "sdpa-cudnn": contenders.library("CUDNN_ATTENTION"),
}
NEEDS = {"naive": ON_GPU, "gpuguide-triton": TENSOR_CORES, "sdpa-flash": AMPERE, "sdpa-cudnn": AMPERE}


def run_under_profiler(contender: str, keys: Keys) -> None:
    """Check the contender's result, then let the profiler see some calls."""
    device = devices.current()
    problem, attend = AttentionTensors.draw(keys, device.torch_device), MAKERS[contender](device, keys)
    check_errors(relative_errors(problem, problem.forward(attend)), keys)
    flush = timing.cache_flusher(device.torch_device)
    for _ in range(CALLS):
        flush()
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        problem.forward(attend)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def count_kernels(contender: str, keys: Keys) -> list[list[Kernel]]:
    """Return what the counters say of each kernel of each call."""
    here = (
        f"import json, sys; from {__name__} import run_under_profiler as run; run(sys.argv[1], json.loads(sys.argv[2]))"
    )
    kernels = counters.count([sys.executable, "-c", here, contender, json.dumps(dict(keys))])
    assert len(kernels) % CALLS == 0, f"{CALLS} calls had {len(kernels)} kernels, which are not as many for each"
    each = len(kernels) // CALLS
    return [kernels[first : first + each] for first in range(0, len(kernels), each)]


def traffic(calls: Sequence[Sequence[Kernel]]) -> dict[str, Metric]:
    """Return the bytes that each call read and wrote, and those of each kernel of the last call, in their order."""
    found = {}
    for name, counter in (("read", READ), ("written", WRITTEN)):
        found[name] = records.metric("B", [sum(kernel[counter] for kernel in call) for call in calls])
        found[f"kernel_{name}"] = records.metric("B", [kernel[counter] for kernel in calls[-1]])
    return found


def work(contender: str, device: Device, keys: Keys) -> Work:
    """Count once, all calls in one process, and hand out their times one after another."""
    calls: list[list[Kernel]] = []

    def times() -> Iterator[float]:
        calls.extend(count_kernels(contender, keys))
        yield from (sum(kernel[DURATION] for kernel in call) for call in calls)

    left = times()
    return Work([], sample=lambda: next(left), further=lambda: traffic(calls))


def require_counters() -> str | None:
    """Return the reason to skip machines without a tool that reads the counters, or None."""
    if counters.profiler():
        return None
    return "Nsight Compute (ncu), which reads the GPU's counters, is not installed"


def contender(name: str) -> Contender:
    """Return an implementation of attention as a contender."""

    def skip_reason(device: Device, keys: Keys) -> str | None:
        if name != "naive" and keys["seq_len"] != LONG:
            return f"what moves no scores is watched at {LONG} tokens only"
        return None

    return Contender(
        lambda device, keys: work(name, device, keys),
        NEEDS[name],
        skip_reason,
        unavailable_reason=require_counters,
    )


def cases(device: Device) -> Sequence[Keys]:
    """Return a short and a long sequence with heads of 128; on a CPU none."""
    if not device.is_gpu:
        return []
    heads = WIDTH // 128
    return [
        speed.case(
            device,
            **{"pass": "forward"},
            head_dim=128,
            seq_len=seq_len,
            causal=True,
            batch=TOKENS // seq_len,
            heads=heads,
            kv_heads=heads,
        )
        for seq_len in (SHORT, LONG)
    ]


ATTENTION_TRAFFIC = Benchmark(
    name="attention-traffic",
    title="Attention's traffic with the memory",
    question="How many bytes does attention read from the GPU's memory and write there, kernel by kernel?",
    contenders={name: contender(name) for name in MAKERS},
    cases=cases,
    memory=lambda keys: speed.bytes_needed(keys) + 4 * 2 * TOKENS * WIDTH // 128 * int(keys["seq_len"]),
    samples=CALLS,
)
