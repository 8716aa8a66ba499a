"""CUDA graphs that own all memory they use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def workspace_of_its_own() -> Iterator[None]:
    """Have the workspace of cuBLAS reserved within a capture, in memory that lives as long as the graph.

    PyTorch keeps a workspace for each stream, and the next capture takes it up even if it is in the memory of a graph
    that is gone. Once somebody asks for workspaces back, as ``torch.compile`` does before its own captures, that memory
    is given to the driver, and a replay fails with "unspecified launch failure".
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
