"""Snapshots built by hand, in PyTorch's format: one device whose segments and events are written down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MIB = 2**20
SEGMENT = 2**40


def frames(*names: str) -> list[dict[str, Any]]:
    """Return frames of functions, the innermost first, each ``file.py:line:function``."""
    found = []
    for name in names:
        filename, line, function = name.split(":")
        found.append({"filename": filename, "line": int(line), "name": function})
    return found


def event(action: str, address: int, mib: float, *names: str, **more: Any) -> dict[str, Any]:
    """Return an entry of a history; addresses are in MiB from the first segment's."""
    entry = {"action": action, "size": int(mib * MIB), "stream": 0, "time_us": 0, "frames": frames(*names), **more}
    return entry if action == "oom" else {**entry, "addr": SEGMENT + address * MIB}


def freed(address: int, mib: float, *names: str) -> list[dict[str, Any]]:
    """Return the two entries with which memory is freed."""
    return [event(action, address, mib, *names) for action in ("free_requested", "free_completed")]


def segment(total: int, used: Sequence[tuple[int, int]], at: int = 0, **more: Any) -> dict[str, Any]:
    """Return a segment of so many MiB, in which pieces ``(address, MiB)`` are in use; all else is free."""
    blocks, end = [], at
    for address, mib in [*used, (at + total, 0)]:
        if address > end:
            blocks.append({"address": SEGMENT + end * MIB, "size": (address - end) * MIB, "state": "inactive"})
        if mib:
            sizes = {"size": mib * MIB, "requested_size": mib * MIB}
            blocks.append({"address": SEGMENT + address * MIB, **sizes, "state": "active_allocated", "frames": []})
        end = address + mib
    place = {"device": 0, "address": SEGMENT + at * MIB, "total_size": total * MIB, "segment_pool_id": (0, 0)}
    return {**place, "stream": 0, "blocks": blocks, **more}


def snapshot(segments: Sequence[dict[str, Any]], *traces: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a snapshot."""
    return {"segments": list(segments), "device_traces": list(traces), "allocator_settings": {}}
