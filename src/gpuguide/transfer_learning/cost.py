"""Cost model of training a part of a model: operations and memory, by the depth that its gradient reaches.

A layer's matrices multiply each token once in the forward pass. If anything before or in the layer is trained, the
gradient passes it, which is a second matmul; if its matrices are trained, their own gradient is a third. So what
decides is where the lowest trained part is, and not how many numbers are trained. These decide the optimizer's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Part = Literal["unreached", "passed", "adapted", "trained"]
"""Part that a layer has in the backward pass: the gradient ends above it, or passes frozen matrices, or matrices with
adapters, or trains them"""
PRODUCTS: dict[Part, int] = {"unreached": 1, "passed": 2, "adapted": 2, "trained": 3}
"""Matmuls of each matrix in a step; the low-rank ones of adapters are left out"""
KEPT: dict[Part, int] = {"unreached": 0, "passed": 10, "adapted": 16, "trained": 16}
"""Numbers that a layer of GPT-2 keeps of each token for the backward pass, in widths of the model.

What enters both norms (2), query, key and value (3), attention's result (1) and what enters the activation (4) are
needed to pass a gradient on. What enters the matrices beside that, the results of both norms and of the activation
(1 + 1 + 4), is needed for their own gradients, and for those of adapters.
"""


@dataclass(frozen=True)
class Depth:
    """Depth to which a transformer is trained.

    Parameters
    ----------
    layers : int
        Of the whole model.
    reached : int
        How many of them, counted from the last one, the gradient passes.
    part : str
        What these are: ``"passed"``, ``"adapted"`` or ``"trained"``.

    Raises
    ------
    ValueError
        If more layers are reached than there are, or fewer than none.
    """

    layers: int
    reached: int
    part: Part

    def __post_init__(self) -> None:
        if not 0 <= self.reached <= self.layers:
            raise ValueError(f"{self.reached} layers are reached; from 0 to {self.layers} are possible")

    def sum_over_layers(self, amounts: dict[Part, int]) -> int:
        """Return the sum of what each layer adds, given by what it is."""
        return self.reached * amounts[self.part] + (self.layers - self.reached) * amounts["unreached"]


def operations(depth: Depth, hidden: int, seq_len: int) -> float:
    """Return the operations a token of a training step, with attention's and without those of the head.

    Parameters
    ----------
    depth : Depth
        How far down is trained.
    hidden : int
        Width of the model, whose layers have ``12 hidden**2`` weights.
    seq_len : int
        Length of the texts. Half of all scores are counted, since attention is causal.
    """
    matrices = 2 * 12 * hidden**2 * depth.sum_over_layers(PRODUCTS)
    attention: dict[Part, int] = {"unreached": 1, "passed": 3, "adapted": 3, "trained": 3}
    return matrices + 2 * hidden * seq_len * depth.sum_over_layers(attention)


def activation_bytes(depth: Depth, hidden: int, tokens: int, element_size: int = 4) -> int:
    """Return the bytes that the layers keep for the backward pass, without what grows with neither.

    Parameters
    ----------
    depth : Depth
        How far down is trained.
    hidden : int
        Width of the model.
    tokens : int
        Of the whole batch, padding included.
    element_size : int
        Bytes of a number.
    """
    return depth.sum_over_layers(KEPT) * tokens * hidden * element_size


def training_bytes(parameters: int, trained: int, kept: int) -> int:
    """Return the bytes of a step in fp32 at its highest: weights, Adam's two moments, and what a backward pass holds.

    That is what layers keep when it begins and all gradients when it ends; one goes as the other comes.

    Parameters
    ----------
    parameters, trained : int
        Of the whole model, and those of them that are trained.
    kept : int
        From :func:`activation_bytes`.
    """
    return 4 * parameters + 8 * trained + max(4 * trained, kept)
