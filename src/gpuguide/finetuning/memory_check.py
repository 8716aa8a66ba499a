"""Memory check before the model is loaded: the bytes that a step takes, and the changes with which it would fit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpuguide.costs import memory
from gpuguide.cross_entropy.chunked import default_chunk
from gpuguide.cross_entropy.cost import chunked_extra_memory
from gpuguide.errors import GpuguideError
from gpuguide.models import gpt2, llama
from gpuguide.units import format_bytes

ALL_LOGITS_MOMENTS = ("loss, forward", "loss, backward", "head, backward")
"""Moments of the cost model at which all logits exist"""
SHORT = 64
"""Length of the shortest sequences that are proposed, in tokens"""


@dataclass(frozen=True)
class MemoryEstimate:
    """Estimate of the memory that a step takes on one GPU.

    Parameters
    ----------
    config : gpt2.GPT2Config or llama.LlamaConfig
        Shape of the model.
    micro_batch, length : int
        Sequences per pass, and tokens of the longest.
    rank : int
        Rank of the adapters.
    attention_only : bool
        Whether only the matrices of attention have adapters.
    weights : int
        Bytes of a frozen weight, where it is not packed.
    base : str
        Storage of the matrices with adapters, in the names of the cost model: ``bf16`` for unchanged, ``int8`` or
        ``nf4``.
    all_logits : bool
        Whether the loss takes all logits at once, as it must where the head has an adapter. Otherwise it computes one
        chunk of logits at a time.
    """

    config: gpt2.GPT2Config | llama.LlamaConfig
    micro_batch: int
    length: int
    rank: int
    attention_only: bool
    weights: int
    base: str = "bf16"
    all_logits: bool = False

    @property
    def shape(self) -> memory.Shape:
        """Shape of the model in the cost model."""
        return shape_of(self.config)

    @property
    def setup(self) -> memory.Setup:
        """Settings of the training in the cost model."""
        return memory.Setup(
            precision="mixed" if self.weights == 2 else "fp32",
            batch=self.micro_batch,
            seq_len=self.length,
            lora_rank=self.rank,
            adapted="attention" if self.attention_only else "all",
            base="bf16" if self.attention_only else self.base,  # other matrices stay as they are
        )

    @property
    def can_be_packed(self) -> bool:
        """Flag that packing the matrices with adapters is still possible, and would save much."""
        return not self.attention_only and self.base == "bf16"

    @property
    def extra_weight_bytes(self) -> float:
        """Extra bytes of unquantised weights stored in more than the 16 bits that the cost model assumes.

        With packed matrices these are the embeddings and the head, apart from small vectors.
        """
        plain = self.shape.parameters()
        if self.setup.base != "bf16":
            plain = (1 if self.shape.tied else 2) * self.shape.vocab * self.shape.hidden
        return (self.weights - 2) * plain

    def bytes(self) -> float:
        """Return the peak memory of a step in bytes."""
        if self.all_logits:
            return memory.predict(self.shape, self.setup).total + self.extra_weight_bytes
        return peak_with_chunked_loss(self.shape, self.setup, self.weights) + self.extra_weight_bytes


def shape_of(config: gpt2.GPT2Config | llama.LlamaConfig) -> memory.Shape:
    """Return the shape of a model in the cost model."""
    gated = isinstance(config, llama.LlamaConfig)
    return memory.Shape(
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads if isinstance(config, llama.LlamaConfig) else config.heads,
        head_dim=config.head_dim,
        intermediate=config.inner if isinstance(config, llama.LlamaConfig) else 4 * config.hidden,
        vocab=config.vocab_size,
        context=config.context,
        gated=gated,
        tied=config.tied if isinstance(config, llama.LlamaConfig) else True,
        learned_positions=not gated,
        bias="none" if gated else "all",
        layer_norm=not gated,
    )


def peak_with_chunked_loss(shape: memory.Shape, setup: memory.Setup, element_size: int) -> float:
    """Return the peak memory of a step whose loss computes one chunk of logits at a time.

    A chunk of logits, in ``element_size`` bytes each, is added to the highest of all other moments, which is at most
    one chunk too much.
    """
    tokens = min(default_chunk(shape.vocab, element_size), setup.batch * setup.seq_len)
    chunk = chunked_extra_memory(tokens, shape.vocab, element_size)
    moments = memory.predict(shape, setup).moments
    return max(moment.total for moment in moments if moment.name not in ALL_LOGITS_MOMENTS) + chunk


def check_memory(estimate: MemoryEstimate, available: int, device: str) -> float:
    """Return the bytes that a step takes, and raise if the GPU has fewer.

    Parameters
    ----------
    estimate : MemoryEstimate
        Estimate for the training.
    available : int
        Memory of the GPU in bytes.
    device : str
        Name of the GPU, for the message.

    Raises
    ------
    GpuguideError
        If it does not fit; the message proposes changes with which it does.
    """
    needed, room = estimate.bytes(), memory.SAFE_SHARE * available
    if needed <= room:
        return needed
    proposals = "; or ".join(_proposals(estimate, room))
    raise GpuguideError(
        f"This training takes about {format_bytes(needed)}, and {device} has {format_bytes(available)}, of which "
        f"{100 * memory.SAFE_SHARE:.0f} % can be used. "
        + (f"What fits: {proposals}." if proposals else "Not even one short sequence fits: take a smaller model.")
    )


def _proposals(estimate: MemoryEstimate, room: float) -> Iterator[str]:
    """Yield single changes with which it fits, the one that keeps the result first; or else a combination."""
    found = list(_single_changes(estimate, room))
    yield from found or _shortest_combination(estimate, room)


def _single_changes(estimate: MemoryEstimate, room: float) -> Iterator[str]:
    """Yield the changes each of which is sufficient."""
    batches = range(1, estimate.micro_batch)
    most = bisect_right(batches, room, key=lambda micro_batch: replace(estimate, micro_batch=micro_batch).bytes())
    if most:
        yield f"--micro-batch {most}, which computes the same step and takes longer"
    if estimate.weights > 2 and replace(estimate, weights=2).bytes() <= room:
        yield "--dtype bf16"
    if estimate.can_be_packed and replace(estimate, base="nf4").bytes() <= room:
        yield "--weights nf4, which keeps the frozen matrices in 4 bits"
    for length in _shorter_lengths(estimate):
        if replace(estimate, length=length, micro_batch=1).bytes() <= room:
            option = "" if replace(estimate, length=length).bytes() <= room else " --micro-batch 1"
            yield f"--length {length}{option}, with shorter sequences"
            return


def _shortest_combination(estimate: MemoryEstimate, room: float) -> Iterator[str]:
    """Yield the shortest sequence of changes with which it fits, if it fits with all of them."""
    changes: list[tuple[str, str | int, dict[str, Any]]] = []
    if estimate.weights > 2:
        changes.append(("--dtype", "bf16", {"weights": 2}))
    if estimate.micro_batch > 1:
        changes.append(("--micro-batch", 1, {"micro_batch": 1}))
    if estimate.can_be_packed:
        changes.append(("--weights", "nf4", {"base": "nf4"}))
    changes += [("--length", length, {"length": length}) for length in _shorter_lengths(estimate)]
    options: dict[str, str | int] = {}
    for option, value, change in changes:
        options[option], estimate = value, replace(estimate, **change)
        if estimate.bytes() <= room:
            yield " ".join(f"{option} {value}" for option, value in options.items()) + ", all together"
            return


def _shorter_lengths(estimate: MemoryEstimate) -> Iterator[int]:
    """Yield sequence lengths, each half of the previous one, down to :data:`SHORT`."""
    length = estimate.length // 2
    while length >= SHORT:
        yield length
        length //= 2
