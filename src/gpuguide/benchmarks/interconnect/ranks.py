"""The processes of a benchmark of several GPUs: each sets a case up, checks it, and times it with the others.

The process that asks keeps one team for all cases of a benchmark. Each rank times its own GPU, and of their times the
largest counts, because a collective is finished when the last rank has finished.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist

from gpuguide.hardware.device import Device
from gpuguide.interconnect.processes import Member, Team
from gpuguide.measure import timing
from gpuguide.measure.benchmark import Contender, Keys, Work
from gpuguide.measure.timing import Call, Sampler

GATE_FLUSHES = 4
"""Overwritings of the cache before a replay, about 0.3 ms on an H200: meanwhile the host launches what is timed"""
WARM_UP_REPLAYS = 3
SETTLE = 0.1
"""Seconds of replays before the first sample of a contender after another's, until clocks are its own"""

_teams: dict[str, Team] = {}


@dataclass(frozen=True)
class Task:
    """A contender's work on one case, as it stands in a rank's process."""

    call: Call
    """Does the work once"""
    restore: Call
    """Puts inputs back that calls overwrite"""
    check: Call
    """Raises ``AssertionError`` if what ``calls`` calls left behind is wrong"""
    calls: int
    """Number of calls that are timed together"""


Prepare = Callable[..., Task]
"""Sets a task up in a rank's process, from the :class:`~gpuguide.interconnect.processes.Member` and the case"""


# --- in the process that asks ----------------------------------------------------------------------------


def team_with(settings: Mapping[str, str], device: Device) -> Team:
    """Return the running team whose processes began with these environment variables, or start one beside the others.

    It has a process for each GPU of the device, or on a CPU as many that go through Gloo. NCCL reads its variables
    once, when a process first uses it.
    """
    kind = "cuda" if device.backend == "cuda" else "cpu"
    name = " ".join([str(device.count), kind, *map("=".join, settings.items())])
    found = _teams.get(name)
    if found is None or not found.is_running:
        before = {each: os.environ[each] for each in settings if each in os.environ}
        os.environ.update(settings)
        try:
            found = _teams[name] = Team(device.count, kind)
        finally:
            for each in settings:
                del os.environ[each]
            os.environ.update(before)
    return found


def end() -> None:
    """End the processes of every team."""
    while _teams:
        _teams.popitem()[1].close()


def sampler(of: Team, name: str, prepare: Prepare, case: tuple[Any, ...]) -> Sampler:
    """Set a contender up on every rank, check it there, and return what times it: the slowest rank's time of a call.

    Parameters
    ----------
    of : Team
        The processes.
    name : str
        The contender.
    prepare : callable
        One that a process can import by its name.
    case : tuple
        What tells the case from others; ``prepare`` is given it.

    Raises
    ------
    AssertionError
        If a rank's result is wrong.
    GpuguideError
        If a rank fails otherwise; the team has ended then.
    """
    faults = [fault for fault in of.run(set_up, name, prepare, case) if fault]
    assert not faults, faults[0]
    replays = settling(of.slowest(sample, name, WARM_UP_REPLAYS) * _calls(of, name))
    return lambda: of.slowest(sample, name, replays)


def settling(seconds: float) -> int:
    """Return how many replays of ``seconds`` settle clocks; all ranks must make equally many.

    >>> settling(0.004), settling(0.5)
    (25, 1)
    """
    return max(1, round(SETTLE / seconds))


def _calls(of: Team, name: str) -> int:
    return int(of.run(calls_of, name)[0])


# --- in the process of each rank -------------------------------------------------------------------------


def set_up(member: Member, name: str, prepare: Prepare, case: tuple[Any, ...]) -> str | None:
    """Prepare a task, check what exactly those calls leave that will be timed, and return what is wrong with it."""
    forget_other_cases(member, case)
    task = prepare(member, *case)
    run = as_timed(member, task)
    member.kept["tasks"][name] = task, run
    task.restore()
    run()
    member.synchronize()
    try:
        task.check()
    except AssertionError as error:
        return f"rank {member.rank}: {error}"
    return None


def forget_other_cases(member: Member, case: tuple[Any, ...]) -> None:
    """Drop the tasks of another case, so that their memory is free."""
    if member.kept.get("case") != case:
        member.kept.update(case=case, tasks={}, shared={}, sampled=None)
        if member.device.type == "cuda":
            torch.cuda.empty_cache()


def as_timed(member: Member, task: Task) -> Call:
    """Return the calls in one go: on a GPU a graph that was captured, so that the host's launches do not count."""

    def run() -> None:
        for _ in range(task.calls):
            task.call()

    if member.device.type != "cuda":
        return run
    task.restore()
    timing.on_side_stream(task.call)
    graph = torch.cuda.CUDAGraph()
    # NCCL's watchdog asks for events from a thread of its own, which must not end the capture.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    torch.cuda.synchronize()
    replay: Call = graph.replay
    return replay


def calls_of(member: Member, name: str) -> int:
    """Return how many calls of a contender are timed together."""
    return int(member.kept["tasks"][name][0].calls)


def sample(member: Member, name: str, replays: int) -> float:
    """Return the seconds that one call took on this rank, all ranks having begun together.

    The first sample after another contender's has ``replays`` before it that do not count.
    """
    task, run = member.kept["tasks"][name]
    if member.kept["sampled"] != name:
        for _ in range(replays):
            task.restore()
            run()
        member.synchronize()
        member.kept["sampled"] = name
    seconds = time_on_gpu(member, task, run) if member.device.type == "cuda" else time_on_host(task, run)
    return float(seconds / task.calls)


def time_on_gpu(member: Member, task: Task, run: Call) -> float:
    """Time a replay by events, launched while the GPU still overwrites its cache and waits for the other ranks."""
    flush = timing.cache_flusher(str(member.device))
    group = aligning(member)
    token = torch.zeros(1, device=member.device)

    def gate() -> None:
        task.restore()
        for _ in range(GATE_FLUSHES):
            flush()
        dist.all_reduce(token, group=group)

    return timing.cuda_events(run, gate)()


def aligning(member: Member) -> Any:
    """Return a group of all ranks that only lets them wait for each other, apart from the one whose work is timed.

    NCCL does more for a communicator whose operations are partly in a graph and partly not.
    """
    if "aligning" not in member.kept:
        member.kept["aligning"] = dist.new_group()
    return member.kept["aligning"]


def time_on_host(task: Task, run: Call) -> float:
    """Time the calls by the host's clock, all ranks having begun together."""
    task.restore()
    dist.barrier()
    begun = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - begun) * 1e-9


def contender(
    work: Callable[[str, Prepare, Mapping[str, str], Device, Keys], Work],
    name: str,
    prepare: Prepare,
    skip_reason: Callable[[Device, Keys], str | None] = lambda device, keys: None,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Contender:
    """Return a task of several ranks as a contender; their processes have these settings."""
    return Contender(functools.partial(work, name, prepare, settings), frozenset({"gpu", "bf16"}), skip_reason)
