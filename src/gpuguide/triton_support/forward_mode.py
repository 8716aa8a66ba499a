"""Error of operators where ``torch.compile`` traces forward-mode differentiation, which operators cannot support."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

__all__ = ["refuse_compiled"]


def refuse_compiled() -> None:
    """Raise a :class:`NotImplementedError` where ``torch.compile`` traces forward-mode differentiation.

    It would treat an operator as a constant with a derivative of zero. Without ``fullgraph`` the error makes it run the
    function uncompiled, which is correct.
    """
    if torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        raise NotImplementedError(
            "This operator has no forward-mode derivative under torch.compile; call it outside the compiled function."
        )
