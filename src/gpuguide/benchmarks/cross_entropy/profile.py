"""Profile of a step: the time of each kind of kernel, and the time that the GPU waits for the host."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gpuguide.benchmarks.cross_entropy import losses, speed
from gpuguide.benchmarks.cross_entropy.losses import Loss, Preparation
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric

PROFILED = {
    "gpt2": ({"tokens": 32768, "hidden": 768, "vocab": 50304}, (512, 8192)),
    "gpt2-few": ({"tokens": 4096, "hidden": 768, "vocab": 50304}, (64, 4096)),
    "llama3": ({"tokens": 4096, "hidden": 4096, "vocab": 128256}, (128, 512, 2048)),
}
"""Shapes, each with the chunk that Liger takes, the one that we take, and for the longer shape one between"""
STEPS = 5
LOSS_KERNELS = ("liger_cross_entropy_kernel", "loss_then_gradient_kernel", "finish_rows_kernel")
"""The kernel of a chunk that computes its losses"""
ROW_KERNELS = ("target_logit_kernel", "recenter_kernel", "multiply_rows_kernel")
"""Kernels of the loss that read a few numbers for each position, and no logits"""
MATMULS = ("logits", "d_hidden", "d_head")
"""Results of the three matmuls of a chunk, in the order in which libraries launch them that store logits"""
EXP_MATMUL = "exp_matmul_kernel"
"""The matmul that stores exponentials in place of logits. The gradient of the head comes next, then the other."""
NAMES_OF_MATMULS = ("gemm", "nvjet", "cutlass", "xmma", EXP_MATMUL)
"""Parts of the names of cuBLAS's kernels, and ours"""


@dataclass(frozen=True)
class ProfiledKernel:
    """One kernel that ran: its name, and its time in seconds."""

    name: str
    start: float
    seconds: float


def profile_kernels(problem: speed.LossProblem, loss: Loss) -> list[ProfiledKernel]:
    """Return the kernels of one step, copies and fills among them, in the order in which they ran."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities, acc_events=True) as profile:
        problem.step(loss)
        torch.cuda.synchronize()
    on_gpu = [event for event in profile.events() if event.device_type.name == "CUDA"]
    found = [
        ProfiledKernel(event.name, event.time_range.start * 1e-6, event.time_range.elapsed_us() * 1e-6)
        for event in on_gpu
    ]
    return sorted((kernel for kernel in found if kernel.seconds > 0), key=lambda kernel: kernel.start)


def classify_kernels(kernels: Sequence[ProfiledKernel]) -> list[str]:
    """Return what each kernel is for: one of the three matmuls, the loss between them, or something else.

    A matmul does not say what it computes. Of those of a chunk, the logits come before the loss, and the two gradients
    after it.
    """
    kinds, matmuls = [], 0
    logits, *gradients = MATMULS
    order = (logits, *(reversed(gradients) if any(EXP_MATMUL in kernel.name for kernel in kernels) else gradients))
    for kernel in kernels:
        name = kernel.name.lower()
        if any(part in name for part in (*LOSS_KERNELS, *ROW_KERNELS)):
            kinds.append("loss")
        elif any(part in name for part in NAMES_OF_MATMULS):
            kinds.append(order[matmuls % 3])
            matmuls += 1
        else:
            kinds.append("other")
    return kinds


def seconds_by_kind(kernels: Sequence[ProfiledKernel]) -> dict[str, float]:
    """Return how long the GPU was busy with each kind, and how long it waited between the first kernel and the last.

    Raises
    ------
    ValueError
        If the matmuls are not three for each kernel of the loss, so that they cannot be told apart.
    """
    kinds = classify_kernels(kernels)
    of_loss = sum(any(part in kernel.name for part in LOSS_KERNELS) for kernel in kernels)
    of_matmuls = sum(kind in MATMULS for kind in kinds)
    if not of_loss or of_matmuls != 3 * of_loss:
        raise ValueError(f"{of_matmuls} matmuls and {of_loss} kernels of the loss ran; three to one were expected.")
    found = {kind: sum(k.seconds for k, of in zip(kernels, kinds, strict=True) if of == kind) for kind in set(kinds)}
    span = kernels[-1].start + kernels[-1].seconds - kernels[0].start
    return found | {"waiting": max(0.0, span - sum(found.values()))}


def further(problem: speed.LossProblem, loss: Loss) -> Mapping[str, Metric]:
    """Return the seconds of each kind in several steps, and the number of kernels in one."""
    steps = [profile_kernels(problem, loss) for _ in range(STEPS + 1)][1:]  # the first profile starts the profiler
    found = [seconds_by_kind(kernels) for kernels in steps]
    kinds = (*MATMULS, "loss", "other", "waiting")
    times = {f"{kind}_time": records.metric("s", [each.get(kind, 0.0) for each in found]) for kind in kinds}
    return times | {"kernels": records.metric("1", [float(len(steps[-1]))])}


def work(prepare: Preparation, device: Device, keys: Keys) -> Work:
    """Time a step as :func:`gpuguide.benchmarks.cross_entropy.speed.work` does, then look at its kernels.

    Steps are timed without the profiler, which delays launches: where the host is what takes long, the GPU waits longer
    under it. The time that a step takes beyond its kernels says how long it waits without.
    """
    loss, problem = prepare(device, keys), speed.LossProblem.draw(keys, device.torch_device)
    step = functools.partial(problem.step, loss)
    step()

    def check() -> None:
        speed.check_errors(speed.measure_errors(problem, loss))

    footprint = 2 * int(keys["tokens"]) * int(keys["vocab"])
    return Work([step], check, footprint=footprint, further=lambda: further(problem, loss))


def cases(device: Device) -> Sequence[Keys]:
    """Return each shape with small and with large chunks; on a CPU none."""
    if not device.is_gpu:
        return []
    return [{**shape, "chunk": chunk} for shape, chunks in PROFILED.values() for chunk in chunks]


LINEAR_CROSS_ENTROPY_PROFILE = Benchmark(
    name="linear-cross-entropy-profile",
    title="Head and loss, kernel by kernel",
    question="What does a small chunk of logits make slow: the matmuls, or the launches?",
    contenders={
        "gpuguide": Contender(lambda device, keys: work(losses.ours, device, keys), speed.BF16),
        "liger": Contender(
            lambda device, keys: work(losses.liger, device, keys), speed.BF16, libraries=("liger-kernel",)
        ),
    },
    cases=cases,
    memory=speed.bytes_needed,
    budget=0.5,
)
