"""What an operator says where ``torch.compile`` traces a forward mode, which operators cannot have."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

__all__ = ["refuse_compiled"]


def refuse_compiled() -> None:
    """Raise a :class:`NotImplementedError` where ``torch.compile`` traces a forward mode.

    It would take an operator for a constant and its derivative for zero. Without ``fullgraph`` it then leaves the
    function uncompiled, which is right.
    """
    if torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        raise NotImplementedError("Operators have no forward mode under torch.compile: call this one outside of it.")
