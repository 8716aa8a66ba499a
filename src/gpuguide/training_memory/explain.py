"""A memory snapshot in tables and sentences: the peak by part and by line of code, and what to change about it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuguide.costs.memory import MemoryPrediction
from gpuguide.training_memory.holders import (
    KINDS,
    SMALL,
    Holder,
    is_of_loss,
    name_holders,
    name_of,
    own_line,
    phase_of,
    python_frames,
)
from gpuguide.training_memory.snapshot import DEFAULT_POOL, Allocation, History, MemoryRequest
from gpuguide.units import format_bytes

LARGE_HOLES = 2**28
"""Bytes of holes that are worth a sentence, and at least a tenth of what is reserved"""
IN_BACKWARD = "the backward pass"


@dataclass(frozen=True)
class Explanation:
    """What a snapshot shows."""

    moment: str
    """The moment that is explained, in words"""
    total: int
    """Bytes in use then"""
    reserved: int
    parts: Mapping[str, int]
    """Bytes by part of the cost model, the largest first"""
    lines: Mapping[str, int]
    """Bytes by the reader's own line that asked for them, the largest first"""
    named_share: float
    """Share of the bytes whose purpose is known"""
    sentences: Sequence[str]


def explain(history: History) -> Explanation:
    """Return what a history shows at its highest moment, or at the last request that could not be served."""
    failed = history.requests[-1] if history.requests else None
    moment = failed.moment if failed else history.peak
    holders = name_holders(history, moment)
    total = sum(each.allocation.size for each in holders)
    parts: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for each in holders:
        parts[KINDS[each.kind]] += each.allocation.size
        lines[line_of(each)] += each.allocation.size
    unnamed = parts.get("unnamed", 0)
    return Explanation(
        describe_moment(history, moment, failed),
        total,
        history.reserved[moment],
        dict(parts.most_common()),
        dict(lines.most_common()),
        1 - unnamed / total if total else 1.0,
        list(find_causes(history, moment, holders, failed)),
    )


def line_of(holder: Holder) -> str:
    """Return the line of code that asked for an allocation, in words."""
    if holder.allocation.start < 0 and not holder.allocation.frames:
        return "before the history"
    line = own_line(holder.allocation.frames)
    if line is not None:
        return name_of(line)
    return IN_BACKWARD if phase_of(holder.allocation.frames) == "backward" else "PyTorch"


def describe_moment(history: History, moment: int, failed: MemoryRequest | None) -> str:
    """Return a moment in words: what the event asked for, and in which phase of a step."""
    event = history.events[moment]
    frames = event.get("frames", ())
    line = own_line(frames)
    where = f"at {name_of(line)}" if line else f"in {IN_BACKWARD}" if phase_of(frames) == "backward" else "in PyTorch"
    size = format_bytes(event["size"])
    what = f"a request for {size} that failed" if failed else f"an allocation of {size}"
    return f"event {moment + 1} of {len(history.events)}, {what}, {where}"


# --- causes ------------------------------------------------------------------------------------------------------


def find_causes(
    history: History, moment: int, holders: Sequence[Holder], failed: MemoryRequest | None
) -> Iterator[str]:
    """Yield a sentence for each cause that can be changed, the most certain first."""
    if not any(event.get("frames") for event in history.events):
        yield (
            "The history has no frames, so only sizes and lifetimes name what is what. Record with "
            'stacks="python", and context="all".'
        )
    yield from _about_kept_graphs(holders)
    yield from _about_names(history, moment, holders)
    yield from _about_request(history, moment, failed)
    if not failed:
        yield from _about_holes(history, moment)
    yield from _about_pools(history)
    yield from _about_beginning(history)


def _about_kept_graphs(holders: Sequence[Holder]) -> Iterator[str]:
    """Yield a sentence for each line whose loss is there several times over, with all that its graph keeps."""
    large = Counter(
        (line_of(each), each.allocation.size, _signature(each))
        for each in holders
        if each.allocation.size >= SMALL and is_of_loss(each.allocation.frames)
    )
    most: dict[str, int] = {}
    for (line, _, _), count in large.items():
        most[line] = max(count, most.get(line, 0))
    for line, count in most.items():
        if count > 1:
            held = sum(each.allocation.size for each in holders if each.kind in ("activation", "loss", "copy"))
            yield (
                f"{count} losses hold their graphs: {line}. Activations, copies and logits take {format_bytes(held)}. "
                "Call backward() on each before the next, and keep loss.item() or loss.detach(), not the loss."
            )


def _about_names(history: History, moment: int, holders: Sequence[Holder]) -> Iterator[str]:
    """Yield a sentence if a name holds what the backward pass does not need, such as the logits."""
    starts = _step_starts(history, moment)
    if not starts or any(_about_kept_graphs(holders)):
        return
    backward = [number for number, event in enumerate(history.events) if _is_of_backward(event)]

    def outlives(each: Allocation) -> bool:
        if starts[0] <= each.start < starts[-1]:
            return True
        place = bisect_right(backward, each.start)
        passed = place < len(backward) and each.end is not None and backward[place] < each.end
        return passed and bool(each.end_frames) and phase_of(each.end_frames) == "forward"

    lines: Counter[str] = Counter()
    for each in holders:
        if each.kind in ("activation", "loss", "copy") and outlives(each.allocation):
            lines[line_of(each)] += each.allocation.size
    total = sum(lines.values())
    if total >= max(SMALL, 0.02 * history.totals[moment]):
        line, size = lines.most_common(1)[0]
        yield (
            f"{format_bytes(total)} outlive their step, {format_bytes(size)} of them from {line}. A name holds them "
            "through the backward pass, until it is assigned again after the next forward pass: del it, or compute the "
            "loss in a function of its own."
        )


def _is_of_backward(event: Mapping[str, Any]) -> bool:
    return event["action"] == "alloc" and phase_of(event.get("frames", ())) == "backward"


def _step_starts(history: History, moment: int) -> list[int]:
    """Return the events with which forward passes begin, up to a moment: the first after a backward pass or a step."""
    starts, before = [], "backward"
    for number, event in enumerate(history.events[: moment + 1]):
        if event["action"] != "alloc":
            continue
        phase = phase_of(event.get("frames", ()))
        if phase == "forward" and before != "forward" and event["size"] >= SMALL:
            starts.append(number)
        if phase == "forward" and before != "forward" and event["size"] < SMALL:
            continue
        before = phase
    return starts


def _signature(holder: Holder) -> tuple[tuple[str, int], ...]:
    """Return the lines through which an allocation was asked for."""
    return tuple((each["filename"], each["line"]) for each in python_frames(holder.allocation.frames))


def _about_request(history: History, moment: int, failed: MemoryRequest | None) -> Iterator[str]:
    """Yield a sentence about the request that failed: which setting could have served it, if any."""
    if failed is None:
        return
    holes = history.holes(moment)
    unused, largest = sum(holes), max(holes, default=0)
    asked, free = format_bytes(failed.size), format_bytes(failed.free)
    if failed.size > failed.free + unused:
        yield (
            f"The request for {asked} exceeds the {free} that the device had free and the {format_bytes(unused)} "
            "reserved but unused: no setting of the allocator serves it. Something must be smaller."
        )
    else:
        yield (
            f"The request for {asked} found {format_bytes(unused)} reserved but unused, in {len(holes)} holes of which "
            f"the largest has {format_bytes(largest)}. PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True would have "
            "served it, and so would the same shapes in every step."
        )


def _about_holes(history: History, moment: int) -> Iterator[str]:
    """Yield a sentence about memory that is reserved and in no use at the peak."""
    holes = history.holes(moment)
    unused = sum(holes)
    if unused >= max(LARGE_HOLES, 0.1 * history.reserved[moment]):
        yield (
            f"At the peak, {format_bytes(unused)} are reserved and not in use, in {len(holes)} holes of which the "
            f"largest has {format_bytes(holes[0])}. PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True makes such holes "
            "usable."
        )


def _about_pools(history: History) -> Iterator[str]:
    """Yield a sentence about the memory of CUDA graphs, which the totals do not show."""
    private = [each for each in history.segments if tuple(each.get("segment_pool_id", DEFAULT_POOL)) != DEFAULT_POOL]
    size = sum(each["total_size"] for each in private)
    if size:
        used = sum(block["size"] for each in private for block in each["blocks"] if block["state"] != "inactive")
        yield (
            f"Pools of CUDA graphs hold {format_bytes(size)}, of which {format_bytes(used)} count as allocated: a "
            "replay uses the rest without asking the allocator, so allocated memory reads low."
        )


def _about_beginning(history: History) -> Iterator[str]:
    """Yield a sentence if the history begins in the middle."""
    if history.wrapped:
        yield (
            f"The history wrapped: it begins when {format_bytes(history.before)} were in use, and older events were "
            "dropped. Raise max_entries, or record fewer steps."
        )
    elif history.before >= SMALL:
        yield (
            f"The recording began when {format_bytes(history.before)} were in use; these are named by size and "
            "lifetime. Record from before the model is made to know their lines."
        )


# --- comparisons -------------------------------------------------------------------------------------------------


def predicted_parts(prediction: MemoryPrediction) -> dict[str, float]:
    """Return the predicted bytes of each part at the highest moment, those that are none left out."""
    return {part: size for part, size in prediction.highest.parts.items() if size}


def differences(now: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return by how many bytes each entry is larger now than in another snapshot, the largest change first."""
    changes = {name: now.get(name, 0) - other.get(name, 0) for name in now.keys() | other.keys()}
    return dict(sorted(((name, size) for name, size in changes.items() if size), key=lambda item: -abs(item[1])))
