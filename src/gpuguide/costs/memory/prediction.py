"""The memory of one GPU in each moment of a step, and the highest of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuguide.costs.memory.faults import raise_first
from gpuguide.costs.memory.inference import inference
from gpuguide.costs.memory.setup import Setup, setup_faults
from gpuguide.costs.memory.shape import Shape
from gpuguide.costs.memory.training import Step

PARTS = (
    "weights",
    "copies",
    "gradients",
    "optimizer",
    "cache",
    "activations",
    "logits",
    "temporary",
    "workspace",
)
"""What memory is for. ``copies``: weights in bf16 in mixed precision, or gathered from other GPUs. ``temporary``: what
an operation needs while it runs."""


@dataclass(frozen=True)
class Moment:
    """What is in memory at one point of a step."""

    name: str
    parts: Mapping[str, float]
    """Bytes of each of :data:`PARTS`"""

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Prediction:
    """The moments of a step, in order."""

    moments: tuple[Moment, ...]

    @property
    def highest(self) -> Moment:
        """The moment that takes the most memory: the first one, if there are several."""
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def total(self) -> float:
        """Bytes that the step needs."""
        return self.highest.total


def predict(shape: Shape, setup: Setup) -> Prediction:
    """Return the memory of one GPU in each moment of a step of training, or of a forward pass.

    Raises
    ------
    GpuguideError
        If the setup makes no sense for this shape.
    """
    raise_first(setup_faults(shape, setup))
    moments = Step(shape, setup).moments() if setup.purpose == "train" else inference(shape, setup)
    return Prediction(tuple(Moment(name, {part: parts.get(part, 0.0) for part in PARTS}) for name, parts in moments))
