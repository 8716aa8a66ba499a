"""The memory of one GPU in each moment of a step, and the highest of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gpuguide.costs.fields import raise_first
from gpuguide.costs.formulas import Values
from gpuguide.costs.memory.model import FORMULAS, MOMENTS, TABLES
from gpuguide.costs.memory.setup import Setup, setup_faults
from gpuguide.costs.memory.shape import Shape

PART_NAMES: Mapping[str, str] = TABLES["part_names"]
"""What readers call each part"""
PARTS = tuple(PART_NAMES)
"""What memory is for. ``copies``: weights in bf16 in mixed precision, or gathered from other GPUs. ``temporary``: what
an operation needs while it runs."""
ELEMENT_SIZE: Mapping[str, float] = TABLES["constants"]["element_size"]
"""Bytes a number, with the scales that formats of 4 bits have"""
STATE_COPIES: Mapping[str, int] = TABLES["constants"]["state_copies"]
"""Numbers that an optimizer keeps for each trained weight, in the format of the weight"""
STATE_BYTES: Mapping[str, float] = TABLES["constants"]["state_bytes"]
"""Bytes for each trained weight of an optimizer that keeps its states in fewer bits"""
LIBRARY_WORKSPACE: int = TABLES["constants"]["workspace"]
"""What cuBLAS keeps for each thread that computes products, on a GPU of compute capability 9.0"""


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
class MemoryPrediction:
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


def values(shape: Shape, setup: Setup) -> Values:
    """Return every quantity of the cost model by name, computed when it is asked for; the names are in ``model.toml``.

    Raises
    ------
    GpuguideError
        If the setup makes no sense for this shape.
    """
    raise_first(setup_faults(shape, setup))
    return FORMULAS.values({**asdict(shape), **asdict(setup)})


def predict(shape: Shape, setup: Setup) -> MemoryPrediction:
    """Return the memory of one GPU in each moment of a step of training, or of a forward pass.

    Raises
    ------
    GpuguideError
        If the setup makes no sense for this shape.
    """
    found = values(shape, setup)
    moments = MOMENTS["train" if setup.purpose == "train" else "use"]
    return MemoryPrediction(
        tuple(
            Moment(name, {part: found.evaluate(trees[part]) if part in trees else 0.0 for part in PARTS})
            for name, trees in moments.items()
        )
    )


def activations_of_layer(shape: Shape, setup: Setup) -> float:
    """Return the bytes that a layer keeps for its backward pass, the norms' inputs included."""
    return float(values(shape, setup)["layer_activations"])


def cache_bytes(shape: Shape, setup: Setup) -> float:
    """Return the bytes of the keys and values of all positions, on one GPU."""
    return float(values(shape, setup)["cache_bytes"])


def weight_bytes(shape: Shape, setup: Setup) -> float:
    """Return the bytes of the weights, on one GPU: in use, or beside what training adds to them."""
    return float(values(shape, setup)["train_weights" if setup.purpose == "train" else "weight_bytes"])
