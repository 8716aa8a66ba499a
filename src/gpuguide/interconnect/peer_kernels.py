"""The kernel that copies between GPUs by loads and stores."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import triton
import triton.language as tl

__all__ = ["BLOCK", "copy_words"]

BLOCK = 4096
"""Words of four bytes that a program moves at a time: 16 KiB, or 64 bytes a thread"""
WARPS = 8
PROGRAMS_A_MULTIPROCESSOR = 4
"""So many programs wait for different stores or loads, and all are on the GPU at once"""
FEW_PROGRAMS = 4
"""Where there is no GPU"""


@triton.jit
def _copy_words(source, destination, words, BLOCK: tl.constexpr):
    """Move blocks of words in turn; one of the two pointers may lead to another GPU."""
    program = tl.program_id(0).to(tl.int64)
    for block in range(program, tl.cdiv(words, BLOCK), tl.num_programs(0)):
        at = block * BLOCK + tl.arange(0, BLOCK)
        inside = at < words
        tl.store(destination + at, tl.load(source + at, mask=inside), mask=inside)


def copy_words(source: torch.Tensor, destination: torch.Tensor, runs_on: torch.device) -> None:
    """Copy words with a kernel on the GPU ``runs_on``, which must have access to both ends.

    Parameters
    ----------
    source, destination : torch.Tensor
        (words,), ``int32``, one of them or both on ``runs_on``.
    runs_on : torch.device
        Whose multiprocessors copy, on its current stream.
    """
    words = len(source)
    at_once = FEW_PROGRAMS
    if runs_on.type == "cuda":
        chip = torch.cuda.get_device_properties(runs_on)
        at_once = PROGRAMS_A_MULTIPROCESSOR * int(chip.multi_processor_count)
    programs = min(at_once, triton.cdiv(words, BLOCK))
    with torch.cuda.device(runs_on) if runs_on.type == "cuda" else nullcontext():
        _copy_words[(programs,)](source, destination, words, BLOCK=BLOCK, num_warps=WARPS)
