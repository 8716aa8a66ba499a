"""Whether a fine-tuning fits a GPU, asked before the model is loaded; and what would."""

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

OF_ALL_LOGITS = ("loss, forward", "loss, backward", "head, backward")
"""Moments of the cost model in which all logits are there"""
SHORT = 64
"""Tokens of the shortest sequences that are proposed"""


@dataclass(frozen=True)
class Demand:
    """What decides about the memory of a step on one GPU.

    Parameters
    ----------
    config : gpt2.Config or llama.Config
        The model.
    at_once, length : int
        Sequences at a time, and tokens of the longest.
    rank : int
        Of the adapters.
    attention_only : bool
        Whether only the matrices of attention have some.
    weights : int
        Bytes of a frozen weight, where it is not packed.
    base : str
        How the matrices that have adapters are stored, in the cost model's words: ``bf16`` for as they are, ``int8`` or
        ``nf4``.
    all_logits : bool
        Whether the loss takes all logits at once, as it must where the head has an adapter. Otherwise a chunk of them
        is there at a time.
    """

    config: gpt2.Config | llama.Config
    at_once: int
    length: int
    rank: int
    attention_only: bool
    weights: int
    base: str = "bf16"
    all_logits: bool = False

    @property
    def shape(self) -> memory.Shape:
        """The model, as the cost model has it."""
        ours = self.config
        gated = isinstance(ours, llama.Config)
        return memory.Shape(
            layers=ours.layers,
            hidden=ours.hidden,
            heads=ours.heads,
            kv_heads=ours.kv_heads if isinstance(ours, llama.Config) else ours.heads,
            head_dim=ours.head_dim,
            intermediate=ours.inner if isinstance(ours, llama.Config) else 4 * ours.hidden,
            vocab=ours.vocab_size,
            context=ours.context,
            gated=gated,
            tied=ours.tied if isinstance(ours, llama.Config) else True,
            learned_positions=not gated,
            bias="none" if gated else "all",
            layer_norm=not gated,
        )

    @property
    def setup(self) -> memory.Setup:
        """The training, as the cost model has it."""
        return memory.Setup(
            precision="mixed" if self.weights == 2 else "fp32",
            batch=self.at_once,
            seq_len=self.length,
            lora_rank=self.rank,
            adapted="attention" if self.attention_only else "all",
            base="bf16" if self.attention_only else self.base,  # other matrices stay as they are
        )

    @property
    def can_be_packed(self) -> bool:
        """Whether fewer bits for the matrices that have adapters are left to propose, and would save much."""
        return not self.attention_only and self.base == "bf16"

    @property
    def wider(self) -> float:
        """Bytes by which weights that are not packed are wider than the 16 bits that the cost model takes them to be.

        Embeddings and head are all that is not packed then, small vectors aside.
        """
        plain = self.shape.parameters()
        if self.setup.base != "bf16":
            plain = (1 if self.shape.tied else 2) * self.shape.vocab * self.shape.hidden
        return (self.weights - 2) * plain

    def bytes(self) -> float:
        """Return what a step takes at its highest.

        A chunk of logits is counted on top of whatever else is highest, so at most one chunk too much.
        """
        predicted = memory.predict(self.shape, self.setup)
        if self.all_logits:
            return predicted.total + self.wider
        tokens = min(default_chunk(self.shape.vocab, self.weights), self.at_once * self.length)
        chunk = chunked_extra_memory(tokens, self.shape.vocab, self.weights)
        others = (moment.total for moment in predicted.moments if moment.name not in OF_ALL_LOGITS)
        return max(others) + chunk + self.wider


def check(demand: Demand, available: int, device: str) -> float:
    """Return the bytes that a step takes, if there are so many.

    Parameters
    ----------
    demand : Demand
        The training.
    available : int
        Bytes of the GPU.
    device : str
        Its name, for the message.

    Raises
    ------
    GpuguideError
        If it does not fit; what does is said.
    """
    needed, room = demand.bytes(), memory.SAFE_SHARE * available
    if needed <= room:
        return needed
    fitting = "; or ".join(_fitting(demand, room))
    raise GpuguideError(
        f"This training takes about {format_bytes(needed)}, and {device} has {format_bytes(available)}, of which "
        f"{100 * memory.SAFE_SHARE:.0f} % can be used. "
        + (f"What fits: {fitting}." if fitting else "Not even one short sequence fits: take a smaller model.")
    )


def _fitting(demand: Demand, room: float) -> Iterator[str]:
    """Yield the changes with which it fits, that which changes nothing of the result first; or what fits together."""
    found = list(_alone(demand, room))
    yield from found or _together(demand, room)


def _alone(demand: Demand, room: float) -> Iterator[str]:
    """Yield the changes each of which is enough."""
    batches = range(1, demand.at_once)
    most = bisect_right(batches, room, key=lambda at_once: replace(demand, at_once=at_once).bytes())
    if most:
        yield f"--micro-batch {most}, with which a step is the same and takes longer"
    if demand.weights > 2 and replace(demand, weights=2).bytes() <= room:
        yield "--dtype bf16"
    if demand.can_be_packed and replace(demand, base="nf4").bytes() <= room:
        yield "--weights nf4, which keeps the frozen matrices in 4 bits"
    for length in _shorter(demand):
        if replace(demand, length=length, at_once=1).bytes() <= room:
            at_once = "" if replace(demand, length=length).bytes() <= room else " --micro-batch 1"
            yield f"--length {length}{at_once}, with shorter sequences"
            return


def _together(demand: Demand, room: float) -> Iterator[str]:
    """Yield the fewest of all changes, one after another, with which it fits, if it fits with all."""
    changes: list[tuple[str, str | int, dict[str, Any]]] = []
    if demand.weights > 2:
        changes.append(("--dtype", "bf16", {"weights": 2}))
    if demand.at_once > 1:
        changes.append(("--micro-batch", 1, {"at_once": 1}))
    if demand.can_be_packed:
        changes.append(("--weights", "nf4", {"base": "nf4"}))
    changes += [("--length", length, {"length": length}) for length in _shorter(demand)]
    options: dict[str, str | int] = {}
    for option, value, change in changes:
        options[option], demand = value, replace(demand, **change)
        if demand.bytes() <= room:
            yield " ".join(f"{option} {value}" for option, value in options.items()) + ", all together"
            return


def _shorter(demand: Demand) -> Iterator[int]:
    """Yield lengths, each half of the one before, down to the shortest that makes sense."""
    length = demand.length // 2
    while length >= SHORT:
        yield length
        length //= 2
