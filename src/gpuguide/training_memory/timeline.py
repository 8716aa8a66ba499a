"""The allocations of a step on any device, in the format of a memory snapshot.

On a GPU, ``torch.cuda.memory._record_memory_history`` records the allocator's events. Elsewhere this module records
the results of operations: a dispatch mode sees each result, and a finaliser sees when its memory is freed. Memory that
an operation uses only while it runs is not seen.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FIRST_ADDRESS = 2**40
ENGINE = "_engine_run_backward"
"""Function in which a CPU runs the backward pass; for a GPU, autograd has a thread of its own"""
OF_RECORDING = ("torch/utils/_python_dispatch.py", "weakref.py", "torch/_compile.py", "torch/_dynamo/eval_frame.py")
"""Files of functions on the stack only because operations are recorded"""


class AllocationRecorder(TorchDispatchMode):
    """Records the allocations of operations and their frees as a context manager.

    Frames are those of a GPU's snapshot: none in the backward pass, except those of Python code that it calls.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.alive: dict[int, tuple[int, int, list[dict[str, Any]]]] = {}
        self.next_address = FIRST_ADDRESS

    def note(self, tensors: Iterable[torch.Tensor]) -> None:
        """Record tensors as allocated now, each storage once."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self.alive or not storage.nbytes():
                continue
            size, frames = storage.nbytes(), _frames(sys._getframe(1))
            self.alive[key] = self.next_address, size, frames
            self._event("alloc", self.next_address, size, frames)
            self.next_address += -(-size // 512) * 512
            weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        address, size, _ = self.alive.pop(key)
        frames = _frames(sys._getframe(1))
        self._event("free_requested", address, size, frames)
        self._event("free_completed", address, size, frames)

    def _event(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": len(self.events)}
        self.events.append({**entry, "frames": frames})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and record what it returns."""
        result = func(*args, **(kwargs or {}))
        self.note(leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))
        return result

    def snapshot(self) -> dict[str, Any]:
        """Return a snapshot as of ``torch.cuda.memory._snapshot``, with one segment for all that is alive."""
        blocks, at = [], FIRST_ADDRESS
        for address, size, frames in sorted(self.alive.values(), key=lambda each: each[0]):
            if address > at:
                blocks.append(_block(at, address - at, 0, "inactive", []))
            room = -(-size // 512) * 512
            blocks.append(_block(address, room, size, "active_allocated", frames))
            at = address + room
        total = at - FIRST_ADDRESS
        segment = {"device": 0, "address": FIRST_ADDRESS, "total_size": total, "segment_pool_id": (0, 0), "stream": 0}
        return {"segments": [{**segment, "blocks": blocks}], "device_traces": [list(self.events)]}


def _block(address: int, size: int, asked: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": asked, "state": state, "frames": frames}


def _frames(frame: FrameType | None) -> list[dict[str, Any]]:
    """Return the functions on the stack, the innermost first, as a GPU's snapshot has them."""
    found: list[dict[str, Any]] = []
    while frame is not None:
        code = frame.f_code
        if code.co_name == ENGINE:
            return found
        if code.co_filename != __file__ and not code.co_filename.replace("\\", "/").endswith(OF_RECORDING):
            found.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return found
