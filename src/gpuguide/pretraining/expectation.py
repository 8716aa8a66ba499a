"""What a run will take, before it begins: the memory of a step, the largest micro-batch that fits, tokens/s and hours.

Memory is that of :mod:`gpuguide.costs.memory`, and time that of :mod:`gpuguide.training.cost` at the measured ceilings
of the GPU, or at those of its data sheet where we have measured none.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gpuguide.costs import memory
from gpuguide.errors import GpuguideError
from gpuguide.finetuning.memory_check import peak_with_chunked_loss, shape_of
from gpuguide.hardware import datasheet
from gpuguide.hardware.device import Device
from gpuguide.measure import measured_ceilings
from gpuguide.training import TrainingConfig, world_size
from gpuguide.training.cost import SUSTAINED_SHARE, Rates, precision_of, step_cost
from gpuguide.units import format_bytes

__all__ = ["Expectation", "choose_micro_batch", "expect", "rates_of", "shape_of", "step_bytes"]

MOST_ON_CPU = 8
"""Sequences of a pass on a CPU: more are no faster"""
MASTER_BYTES, MASTER_GRADIENT_BYTES = 8, 4
"""Bytes of a parameter in bf16 that the cost model does not count: its copy in fp32, and what two averages in fp32 take
beyond two in bf16; and the copy's gradient, where micro-batches are added up or AdamW takes several passes"""


@dataclass(frozen=True)
class Expectation:
    """What a run takes on a GPU."""

    memory: float
    """Bytes of a step at its peak"""
    tokens_per_second: float | None
    """Of all GPUs together; ``None`` for a GPU without known rates"""
    seconds: float | None
    """Duration of all steps"""


def step_bytes(
    shape: memory.Shape, micro_batch: int, seq_len: int, rungs: Collection[str], accumulates: bool = False
) -> float:
    """Return the bytes that a step takes at its peak on one GPU.

    Parameters
    ----------
    shape : gpuguide.costs.memory.Shape
        Shape of the model.
    micro_batch, seq_len : int
        Sequences of a pass, and tokens of each.
    rungs : collection of str
        What the step has of :data:`gpuguide.training.rungs.RUNGS`.
    accumulates : bool
        Whether gradients of several micro-batches are added up.
    """
    precision = precision_of(rungs)
    setup = memory.Setup(
        precision=precision,
        batch=micro_batch,
        seq_len=seq_len,
        optimizer="adamw-fused" if "optimizer" in rungs else "adamw",
        fused_attention="attention" in rungs,
        accumulation=2 if accumulates and "weights" not in rungs else 1,
    )
    if "loss" in rungs:
        peak = peak_with_chunked_loss(shape, setup, 4 if precision == "fp32" else 2)
    else:
        peak = memory.predict(shape, setup).total
    if precision != "bf16":
        return peak
    has_gradients = accumulates or "optimizer" not in rungs
    return peak + (MASTER_BYTES + has_gradients * MASTER_GRADIENT_BYTES) * shape.parameters()


def choose_micro_batch(
    shape: memory.Shape, local_batch: int, seq_len: int, rungs: Collection[str], device: Device, wanted: int | None
) -> int:
    """Return the sequences of a pass: as wanted, or the most that divide a GPU's share of the batch and fit.

    Raises
    ------
    GpuguideError
        If the wanted number does not divide the share or does not fit, or not even one sequence fits.
    """
    if wanted is not None and local_batch % wanted:
        raise GpuguideError(f"--micro-batch {wanted} does not divide the {local_batch} sequences of a step of one GPU.")
    if not device.is_gpu:
        return wanted or max(each for each in range(1, min(local_batch, MOST_ON_CPU) + 1) if local_batch % each == 0)
    room = memory.SAFE_SHARE * device.memory
    most = find_largest_micro_batch(shape, local_batch, seq_len, rungs, room)
    if wanted is None and most:
        return most
    if wanted is not None and step_bytes(shape, wanted, seq_len, rungs, wanted < local_batch) <= room:
        return wanted
    needed = step_bytes(shape, wanted or 1, seq_len, rungs)
    remedy = f"take --micro-batch {most}" if most else "take a shorter --seq-len, or a smaller --shape"
    raise GpuguideError(
        f"A pass of {wanted or 1} sequences of {seq_len} tokens takes about {format_bytes(needed)}, and {device.name} "
        f"has {format_bytes(device.memory)}, of which {100 * memory.SAFE_SHARE:.0f} % can be used: {remedy}."
    )


def find_largest_micro_batch(
    shape: memory.Shape, local_batch: int, seq_len: int, rungs: Collection[str], room: float
) -> int:
    """Return the most sequences of a pass that divide a GPU's share of the batch and fit into ``room`` bytes, or 0."""
    divisors = (each for each in range(local_batch, 0, -1) if local_batch % each == 0)
    fits = (each for each in divisors if step_bytes(shape, each, seq_len, rungs, each < local_batch) <= room)
    return next(fits, 0)


def expect(
    shape: memory.Shape, training: TrainingConfig, seq_len: int, rungs: Collection[str], device: Device
) -> Expectation | None:
    """Return what a run takes on a GPU; ``None`` on a CPU."""
    if not device.is_gpu:
        return None
    local = training.batch // world_size()
    micro_batch = training.micro_batch or local
    needed = step_bytes(shape, micro_batch, seq_len, rungs, micro_batch < local)
    rates = rates_of(device, training.precision)
    if rates is None:
        return Expectation(needed, None, None)
    cost = step_cost(shape, local, seq_len, rungs)
    tokens_per_second = world_size() * cost.tokens / cost.seconds(rates)
    return Expectation(needed, tokens_per_second, training.steps * training.batch * seq_len / tokens_per_second)


def rates_of(device: Device, precision: str) -> Rates | None:
    """Return what a GPU can do for seconds, as it was measured or is printed; ``None`` if neither is known."""
    sheet = datasheet.find(device.name) if device.is_gpu else None
    if sheet is None:
        return None
    ceilings = measured_ceilings.load(sheet.id)
    format = "fp16" if precision == "bf16" and "bf16" not in ceilings.arithmetic else precision
    if format not in ceilings.arithmetic or "copy" not in ceilings.bandwidth:
        return None
    burst = SUSTAINED_SHARE * ceilings.arithmetic[format].value
    rate = ceilings.sustained[format].value if format in ceilings.sustained else burst
    return Rates({precision: rate}, ceilings.bandwidth["copy"].value)
