"""A residual network small enough to train on a page: ten layers with weights, in the shape of a ResNet.

Source: He et al., "Deep Residual Learning for Image Recognition", 2015, section 4.2, with three stages of one block.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class ResidualBlock(nn.Module):
    """Two convolutions that add to what they read, each followed by a batch norm."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Transform ``(count, inputs, side, side)`` into ``(count, outputs, side / stride, side / stride)``."""
        hidden = functional.relu(self.norm1(self.conv1(image)))
        return functional.relu(self.shortcut(image) + self.norm2(self.conv2(hidden)))


class ResNet(nn.Module):
    """A stem, three stages, and a head that is called ``fc``, as in torchvision's.

    Parameters
    ----------
    kinds : int
        Outputs of the head.
    width : int
        Channels of the first stage; each further stage has twice as many.
    """

    def __init__(self, kinds: int, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.stage1 = ResidualBlock(width, width, stride=1)
        self.stage2 = ResidualBlock(width, 2 * width, stride=2)
        self.stage3 = ResidualBlock(2 * width, 4 * width, stride=2)
        self.fc = nn.Linear(4 * width, kinds)

    def features(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return what the head reads: ``(count, 1, side, side)`` to ``(count, 4 width)``."""
        return self.stage3(self.stage2(self.stage1(self.stem(pixels)))).mean(dim=(2, 3))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the scores of each kind: ``(count, 1, side, side)`` to ``(count, kinds)``."""
        return self.fc(self.features(pixels))
