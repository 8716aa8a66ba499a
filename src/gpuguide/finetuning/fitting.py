"""Whether a fine-tuning fits a GPU, asked before the model is loaded; and what would."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuguide.costs import memory
from gpuguide.errors import GpuguideError
from gpuguide.measure.units import format_bytes
from gpuguide.models import gpt2, llama

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
    """

    config: gpt2.Config | llama.Config
    at_once: int
    length: int
    rank: int
    attention_only: bool
    weights: int
    base: str = "bf16"

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
    def wider(self) -> float:
        """Bytes by which weights that are not packed are wider than the 16 bits that the cost model takes them to be.

        Embeddings and head are all that is not packed then, small vectors aside.
        """
        plain = self.shape.parameters()
        if self.setup.base != "bf16":
            plain = (1 if self.shape.tied else 2) * self.shape.vocab * self.shape.hidden
        return (self.weights - 2) * plain

    def bytes(self) -> float:
        """Return what a step takes at its highest."""
        return memory.predict(self.shape, self.setup).total + self.wider


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
    """Yield the changes with which it fits, that which changes nothing of the result first."""
    most = memory.largest_batch(demand.shape, demand.setup, room - demand.wider)
    if 0 < most < demand.at_once:
        yield f"--micro-batch {most}, with which a step is the same and takes longer"
    if demand.weights > 2 and replace(demand, weights=2).bytes() <= room:
        yield "--dtype bf16"
    if not demand.attention_only and demand.base == "bf16" and replace(demand, base="nf4").bytes() <= room:
        yield "--weights nf4, which keeps the frozen matrices in 4 bits"
    length = demand.length // 2
    while length >= SHORT and replace(demand, length=length, at_once=1).bytes() > room:
        length //= 2
    if length >= SHORT:
        at_once = "" if replace(demand, length=length).bytes() <= room else " --micro-batch 1"
        yield f"--length {length}{at_once}, with shorter sequences"
