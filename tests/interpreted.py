"""Triton kernels interpreted on the processor: part of a test file, run in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton has no build for this system"
)


def run(file: str, call: str, *, interpret: bool = True) -> None:
    """Call a function of a test file with ``TRITON_INTERPRET=1``, and assert that it passes.

    Triton decides when it is imported whether it interprets, hence the process.

    Parameters
    ----------
    file : str
        The test file's ``__file__``.
    call : str
        What is called, as the file would write it: ``compare('cpu')``.
    interpret : bool
        Whether kernels are interpreted. Otherwise they can be compiled, and not run.
    """
    tests = Path(file)
    program = f"import sys; sys.path[:0] = sys.argv[1:]; import {tests.stem}; {tests.stem}.{call}"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tests.parent), str(Path(__file__).parent)],
        env={**os.environ, "TRITON_INTERPRET": str(int(interpret))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def pieces_that_fit(columns: int, element_size: int, pieces: tuple[int, ...], device: str) -> list[int]:
    """Return those sizes of a piece, in bytes, with which all programs of a row can run at the same time."""
    from gpuguide.softmax.fused import Cut

    if device == "cpu":
        return list(pieces)
    at_once = torch.cuda.get_device_properties(device).multi_processor_count
    return [piece for piece in pieces if Cut.of(columns, element_size, piece).pieces <= at_once]
