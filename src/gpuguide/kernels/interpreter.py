"""Triton's interpreter beside a newer NumPy: kernels run on the processor where ``TRITON_INTERPRET=1`` is set.

In Triton 3.6 a number in a kernel is an array with one element, and the bounds of a loop are made integers by
``int(array)``. NumPy 2.4 and newer refuse that ("only 0-dimensional arrays can be converted to Python scalars").
Triton 3.7 asks for the element. Source: https://github.com/triton-lang/triton/issues/9171.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["accept_new_numpy"]


def accept_new_numpy() -> None:
    """Let Triton 3.6 interpret loops beside NumPy 2.4 and newer. Elsewhere, and without interpreting, do nothing."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    import triton

    if not triton.__version__.startswith("3.6."):
        return
    from triton.runtime import interpreter

    as_it_was = interpreter._patch_lang_tensor
    if as_it_was.__module__ == __name__:
        return

    def patched(tensor: Any, scope: Any) -> None:
        as_it_was(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
