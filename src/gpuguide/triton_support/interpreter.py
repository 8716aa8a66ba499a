"""Triton 3.6's interpreter (``TRITON_INTERPRET=1``), which runs kernels on the CPU, with NumPy 2.4 or newer.

In Triton 3.6 a number in a kernel is an array with one element, and the bounds of a loop are made integers by
``int(array)``. NumPy 2.4 and newer refuse that ("only 0-dimensional arrays can be converted to Python scalars").
Triton 3.7 asks for the element. Source: https://github.com/triton-lang/triton/issues/9171.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["accept_new_numpy"]


def accept_new_numpy() -> None:
    """Let Triton 3.6 interpret loops with NumPy 2.4 or newer. Otherwise do nothing."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    import triton

    if not triton.__version__.startswith("3.6."):
        return
    from triton.runtime import interpreter

    original = interpreter._patch_lang_tensor
    if original.__module__ == __name__:
        return

    def patch_tensor(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor
