"""Two tasks on drawn images: one with plenty of examples to learn from first, and another that is wanted.

The first asks for the shape of a bright thing on a dark ground, in eight kinds. The second shows one of four signs that
the first never had, on a bright and uneven ground. Edges, corners and curves matter in both, so what was learned on the
first is of use in the second. The brightness is not the same, which is what the statistics of a batch norm notice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Thing = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""From a pixel's place in a thing that reaches from -1 to 1, across and down, and half the width of a line there, to
whether the thing covers it"""
SIDE = 16
"""Pixels of an image in each direction"""
SHAPES = ("disc", "ring", "square", "frame", "triangle", "cross", "two bars", "stripe")
"""The kinds of the first task"""
SIGNS = ("plus", "two dots", "corner", "half ring")
"""The kinds of the second task"""
SMALLEST, LARGEST = 3.0, 5.5
"""Half the size of a thing, in pixels"""


@dataclass(frozen=True)
class Images:
    """Images of one channel, ``(count, 1, 16, 16)`` in fp32, and the kind of each, ``(count,)`` in int64."""

    pixels: torch.Tensor
    kinds: torch.Tensor

    def __len__(self) -> int:
        return len(self.kinds)

    def part(self, start: int, stop: int) -> Images:
        """Return the images from one number to another."""
        return Images(self.pixels[start:stop], self.kinds[start:stop])


def shapes(count: int, seed: int) -> Images:
    """Draw images of the first task: bright shapes on a dark ground, with noise.

    Parameters
    ----------
    count : int
        How many.
    seed : int
        The same seed gives the same images.
    """
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(len(SHAPES), (count,), generator=generator)
    covered = _cover(kinds, _SHAPES, generator)
    bright = 0.6 + 0.4 * torch.rand(count, 1, 1, generator=generator)
    noise = 0.25 * torch.randn(count, SIDE, SIDE, generator=generator)
    return Images((bright * covered + noise).unsqueeze(1), kinds)


def signs(count: int, seed: int) -> Images:
    """Draw images of the second task: faint signs on a ground that is bright and uneven. Parameters as above."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(len(SIGNS), (count,), generator=generator)
    covered = _cover(kinds, _SIGNS, generator)
    ground = 0.4 + 0.3 * torch.rand(count, 1, 1, generator=generator)
    slope = torch.randn(count, 2, 1, 1, generator=generator) * 0.03
    across, down = torch.meshgrid(torch.arange(SIDE) - SIDE / 2, torch.arange(SIDE) - SIDE / 2, indexing="xy")
    faint = 0.6 + 0.3 * torch.rand(count, 1, 1, generator=generator)
    noise = 0.25 * torch.randn(count, SIDE, SIDE, generator=generator)
    uneven = ground + slope[:, 0] * across + slope[:, 1] * down
    return Images((uneven + faint * covered + noise).unsqueeze(1), kinds)


# --- what a thing covers ---------------------------------------------------------------------------------------


def _cover(kinds: torch.Tensor, drawn: Sequence[Thing], generator: torch.Generator) -> torch.Tensor:
    """Return which pixels the thing of each image covers, ``(count, 16, 16)`` of 0 and 1, at a place of its own."""
    count = len(kinds)
    half = SMALLEST + (LARGEST - SMALLEST) * torch.rand(count, 1, 1, generator=generator)
    room = SIDE / 2 - half
    place = (2 * torch.rand(count, 2, 1, 1, generator=generator) - 1) * room.unsqueeze(1)
    pixel = torch.arange(SIDE) - (SIDE - 1) / 2
    down, across = torch.meshgrid(pixel, pixel, indexing="ij")
    x, y = (across - place[:, 0]) / half, (down - place[:, 1]) / half  # the thing reaches from -1 to 1
    line = 1.0 / half  # a pixel on either side
    every = torch.stack([each(x, y, line) for each in drawn])
    return every[kinds, torch.arange(count)].float()


def _disc(x: torch.Tensor, y: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
    return x.square() + y.square() < 1


def _ring(x: torch.Tensor, y: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
    return ((x.square() + y.square()).sqrt() - 1 + line).abs() < line


def _square(x: torch.Tensor, y: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
    return torch.maximum(x.abs(), y.abs()) < 0.9


def _frame(x: torch.Tensor, y: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
    return (torch.maximum(x.abs(), y.abs()) - 1 + line).abs() < line


def _triangle(x: torch.Tensor, y: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
    return (y < 0.9) & (2 * x.abs() < y + 1)


def _cross(x: torch.Tensor, y: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
    return ((x.abs() - y.abs()).abs() < 1.2 * line) & (x.abs() < 1)


def _two_bars(x: torch.Tensor, y: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
    return ((y.abs() - 1 + line).abs() < line) & (x.abs() < 1)


def _stripe(x: torch.Tensor, y: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
    return (x.abs() < line) & (y.abs() < 1)


def _plus(x: torch.Tensor, y: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
    return (torch.minimum(x.abs(), y.abs()) < line) & (torch.maximum(x.abs(), y.abs()) < 1)


def _two_dots(x: torch.Tensor, y: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
    return (x.abs() - 0.6).square() + y.square() < 0.16


def _corner(x: torch.Tensor, y: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
    outer = torch.maximum(x, y)
    return ((outer - 1 + line).abs() < line) & (torch.minimum(x, y) > -1)


def _half_ring(x: torch.Tensor, y: torch.Tensor, line: torch.Tensor) -> torch.Tensor:
    return _ring(x, y, line) & (y < 0)


_SHAPES = (_disc, _ring, _square, _frame, _triangle, _cross, _two_bars, _stripe)
_SIGNS = (_plus, _two_dots, _corner, _half_ring)
