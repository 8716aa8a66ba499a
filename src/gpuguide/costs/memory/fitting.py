"""Does it fit? And what to change when it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuguide.costs.memory.faults import LARGEST
from gpuguide.costs.memory.prediction import predict
from gpuguide.costs.memory.setup import Setup, setup_faults
from gpuguide.costs.memory.shape import Shape
from gpuguide.costs.memory.sizes import ELEMENT_SIZE

SAFE_SHARE = 0.9
"""Share of a GPU's memory that a run may take: the driver, other libraries and gaps between tensors need the rest"""


@dataclass(frozen=True)
class Remedy:
    """One change to a setup that lowers its memory."""

    change: str
    setup: Setup
    total: float
    """Bytes that the changed setup needs"""


def judge(total: float, capacity: float) -> str:
    """Return ``fits``, ``tight`` (more than :data:`SAFE_SHARE` of a GPU's memory) or ``too large``."""
    if total <= SAFE_SHARE * capacity:
        return "fits"
    return "tight" if total <= capacity else "too large"


def remedies(shape: Shape, setup: Setup) -> list[Remedy]:
    """Return single changes that lower the memory of a setup, each with what it leads to.

    Parameters
    ----------
    shape : Shape
        The model.
    setup : Setup
        A setup that makes sense for it.
    """
    now = predict(shape, setup).total
    found = []
    for change, changed in _changes(shape, setup):
        if not setup_faults(shape, changed):
            total = predict(shape, changed).total
            if total < 0.995 * now:
                found.append(Remedy(change, changed, total))
    return found


def _changes(shape: Shape, setup: Setup) -> Iterator[tuple[str, Setup]]:
    """Yield the changes worth trying, those that cost the least first."""
    if not setup.fused_attention:
        yield "use fused attention", replace(setup, fused_attention=True)
    if setup.purpose == "train":
        if setup.optimizer == "adamw":
            yield "use the fused AdamW", replace(setup, optimizer="adamw-fused")
        if setup.precision == "fp32":
            yield "train in mixed precision", replace(setup, precision="mixed")
        if not setup.checkpointing:
            yield "checkpoint the layers", replace(setup, checkpointing=True)
    if setup.batch > 1:
        yield f"halve the batch to {setup.batch // 2}", replace(setup, batch=setup.batch // 2)
    if setup.seq_len > 1:
        yield f"halve the sequences to {setup.seq_len // 2} tokens", replace(setup, seq_len=setup.seq_len // 2)
    if setup.purpose == "train":
        for gpus in (2, 4, 8):
            if gpus > setup.data_parallel or setup.sharding < 3:
                yield (
                    f"shard everything over {max(gpus, setup.data_parallel)} GPUs",
                    replace(setup, data_parallel=max(gpus, setup.data_parallel), sharding=3),
                )
    else:
        for precision in ("bf16", "int8", "int4"):
            if ELEMENT_SIZE[precision] < ELEMENT_SIZE[setup.precision]:
                yield f"store the weights as {precision}", replace(setup, precision=precision)
        if setup.purpose == "generate" and setup.cache != "fp8":
            yield "store the cache as fp8", replace(setup, cache="fp8")
    for gpus in (2, 4, 8):
        if gpus > setup.tensor_parallel:
            yield f"divide the matrices over {gpus} GPUs", replace(setup, tensor_parallel=gpus)


def largest_batch(shape: Shape, setup: Setup, available: float) -> int:
    """Return how many sequences at a time fit into ``available`` bytes: 0 if not even one does."""
    if predict(shape, replace(setup, batch=1)).total > available:
        return 0
    low, high = 1, 2
    while high <= LARGEST["count"] and predict(shape, replace(setup, batch=high)).total <= available:
        low, high = high, 2 * high
    high = min(high, LARGEST["count"] + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if predict(shape, replace(setup, batch=middle)).total <= available else (low, middle)
    return low
