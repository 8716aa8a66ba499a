"""A memory snapshot in tables and sentences: the peak by part and by line of code, and changes that lower it."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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
from gpuguide.training_memory.snapshot import BEGINNING, Allocation, History, MemoryRequest, is_private
from gpuguide.units import format_bytes

EXPANDABLE = "PYTORCH_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF up to PyTorch 2.9)"
"""What lets segments grow: PyTorch 2.10 renamed it"""
LARGE_HOLES = 2**28
"""Bytes of holes that are worth a sentence, and at least a tenth of what is reserved"""
IN_BACKWARD = "the backward pass"


@dataclass(frozen=True)
class Explanation:
    """Parts, lines and causes of the memory in use at one moment of a history."""

    moment: str
    """The moment that is explained, in words"""
    total: int
    """Bytes in use then"""
    reserved: int
    """Bytes of all segments then"""
    parts: Mapping[str, int]
    """Bytes by part of the cost model, the largest first"""
    lines: Mapping[str, int]
    """Bytes by the user's own line that requested them, the largest first"""
    named_share: float
    """Share of the bytes whose purpose is known"""
    sentences: Sequence[str]


def explain(history: History) -> Explanation:
    """Return what a history shows at its highest moment, or at the last request that failed."""
    failed = history.requests[-1] if history.requests else None
    moment = failed.moment if failed else history.peak
    holders = name_holders(history, moment)
    total = sum(holder.allocation.size for holder in holders)
    parts: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for holder in holders:
        parts[KINDS[holder.kind]] += holder.allocation.size
        lines[line_of(holder)] += holder.allocation.size
    unnamed = parts.get("unnamed", 0)
    return Explanation(
        describe_moment(history, moment, failed),
        total,
        history.reserved_at(moment),
        dict(parts.most_common()),
        dict(lines.most_common()),
        1 - unnamed / total if total else 1.0,
        list(find_causes(history, moment, holders, failed)),
    )


def line_of(holder: Holder) -> str:
    """Return the line of code that requested an allocation, in words."""
    if holder.allocation.start == BEGINNING and not holder.allocation.frames:
        return "before the history"
    line = own_line(holder.allocation.frames)
    if line is not None:
        return name_of(line)
    return IN_BACKWARD if phase_of(holder.allocation.frames) == "backward" else "PyTorch"


def describe_moment(history: History, moment: int, failed: MemoryRequest | None) -> str:
    """Return a moment in words, with the size of its request and the phase of the step."""
    if moment == BEGINNING:
        return f"before the first of {len(history.events)} recorded events"
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
    if moment == BEGINNING:
        yield (
            f"The highest memory use that can be computed, {format_bytes(history.before)}, is before the first "
            "recorded event, so the line that reached the peak is unknown. Record at least one whole step"
            + (", and raise max_entries: older events were dropped." if history.wrapped else ".")
        )
    if not any(event.get("frames") for event in history.events):
        yield (
            "The history has no frames, so allocations are named by size and lifetime only. Record with "
            'stacks="python" and context="all".'
        )
    kept_graphs = list(_about_kept_graphs(holders))
    yield from kept_graphs or _about_names(history, moment, holders)
    if failed:
        yield _about_request(history, failed)
    else:
        yield from _about_holes(history, moment)
    yield from _about_pools(history)
    if moment != BEGINNING:
        yield from _about_beginning(history)


def _about_kept_graphs(holders: Sequence[Holder]) -> Iterator[str]:
    """Yield a sentence for each line of which several losses exist, each with the activations of its graph."""
    losses = Counter(
        (line_of(holder), holder.allocation.size, _signature(holder))
        for holder in holders
        if holder.allocation.size >= SMALL and is_of_loss(holder.allocation.frames)
    )
    most: dict[str, int] = {}
    for (line, _, _), count in losses.items():
        most[line] = max(count, most.get(line, 0))
    for line, count in most.items():
        if count > 1:
            held = sum(each.allocation.size for each in holders if each.kind in ("activation", "loss", "copy"))
            yield (
                f"{count} losses hold their graphs: {line}. Activations, copies and logits take {format_bytes(held)}. "
                "Call backward() on each before the next, and keep loss.item() or loss.detach(), not the loss."
            )


def _about_names(history: History, moment: int, holders: Sequence[Holder]) -> Iterator[str]:
    """Yield a sentence if a variable holds what the backward pass does not need, such as the logits."""
    phases = [
        phase_of(event.get("frames", ())) if event["action"] == "alloc" else "no allocation" for event in history.events
    ]
    starts = _step_starts(history, phases[: moment + 1])
    if not starts:
        return
    backward = [number for number, phase in enumerate(phases) if phase == "backward"]

    def outlives(allocation: Allocation) -> bool:
        if starts[0] <= allocation.start < starts[-1]:
            return True
        place = bisect_right(backward, allocation.start)
        passed = place < len(backward) and allocation.end is not None and backward[place] < allocation.end
        return passed and bool(allocation.end_frames) and phase_of(allocation.end_frames) == "forward"

    lines: Counter[str] = Counter()
    for holder in holders:
        if holder.kind in ("activation", "loss", "copy") and outlives(holder.allocation):
            lines[line_of(holder)] += holder.allocation.size
    total = sum(lines.values())
    if total >= max(SMALL, 0.02 * history.total_at(moment)):
        line, size = lines.most_common(1)[0]
        yield (
            f"{format_bytes(total)} outlive their step, {format_bytes(size)} of them from {line}. A variable holds "
            "them through the backward pass, until it is assigned again after the next forward pass. Delete it with "
            "del, or compute the loss in a function of its own."
        )


def _step_starts(history: History, phases: Sequence[str]) -> list[int]:
    """Return the events with which forward passes begin: the first after a backward pass or an optimizer's step."""
    starts, before = [], "backward"
    for number, phase in enumerate(phases):
        begins = phase == "forward" != before
        if phase == "no allocation" or (begins and history.events[number]["size"] < SMALL):
            continue
        if begins:
            starts.append(number)
        before = phase
    return starts


def _signature(holder: Holder) -> tuple[tuple[str, int], ...]:
    """Return the lines through which an allocation was requested."""
    return tuple((frame["filename"], frame["line"]) for frame in python_frames(holder.allocation.frames))


def _about_request(history: History, failed: MemoryRequest) -> str:
    """Return a sentence about the request that failed: which setting could have served it, if any."""
    holes = history.holes(failed.moment)
    unused, largest = sum(holes), max(holes, default=0)
    requested, free = format_bytes(failed.size), format_bytes(failed.free)
    if failed.size > failed.free + unused:
        return (
            f"The request for {requested} exceeds the {free} that the device had free and the {format_bytes(unused)} "
            "reserved but unused, so no setting of the allocator serves it. Lower the memory of the step: gpuguide fit "
            "lists how."
        )
    return (
        f"The request for {requested} found {format_bytes(unused)} reserved but unused, in {len(holes)} holes of which "
        f"the largest has {format_bytes(largest)}. {EXPANDABLE} would have served it, and so would the same shapes in "
        "every step."
    )


def _about_holes(history: History, moment: int) -> Iterator[str]:
    """Yield a sentence about memory that is reserved and unused at the peak."""
    holes = history.holes(moment)
    unused = sum(holes)
    if unused >= max(LARGE_HOLES, 0.1 * history.reserved[moment]):
        yield (
            f"At the peak, {format_bytes(unused)} are reserved and not in use, in {len(holes)} holes of which the "
            f"largest has {format_bytes(holes[0])}. {EXPANDABLE} makes such holes usable."
        )


def _about_pools(history: History) -> Iterator[str]:
    """Yield a sentence about the memory of CUDA graphs, which allocated bytes do not show."""
    private = [segment for segment in history.segments if is_private(segment)]
    size = sum(segment["total_size"] for segment in private)
    if size:
        used = sum(block["size"] for segment in private for block in segment["blocks"] if block["state"] != "inactive")
        yield (
            f"Pools of CUDA graphs hold {format_bytes(size)}, of which {format_bytes(used)} count as allocated. A "
            "replay uses the rest without the allocator, so the allocated memory is less than what is used."
        )


def _about_beginning(history: History) -> Iterator[str]:
    """Yield a sentence if memory was in use before the history."""
    if history.wrapped:
        yield (
            f"The history wrapped. It begins when {format_bytes(history.before)} were in use, and a higher peak before "
            "is not seen. Raise max_entries, or record fewer steps."
        )
    elif history.before >= SMALL:
        yield (
            f"The recording began when {format_bytes(history.before)} were in use, which are named by size "
            "and lifetime. Start the recording before the model is made to see their lines."
        )


# --- comparisons -------------------------------------------------------------------------------------------------


def predicted_parts(prediction: MemoryPrediction) -> dict[str, float]:
    """Return the predicted bytes of each part at the highest moment, without parts of zero bytes."""
    return {part: size for part, size in prediction.highest.parts.items() if size}


def differences(now: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """Return by how many bytes each entry is larger now than in another snapshot, the largest change first."""
    changes = {name: now.get(name, 0) - other.get(name, 0) for name in now.keys() | other.keys()}
    return dict(sorted(((name, size) for name, size in changes.items() if size), key=lambda item: -abs(item[1])))
