"""One process a GPU, joined by ``torch.distributed``, that do what they are asked until one fails.

A :class:`Team` starts its processes once: each by itself, or on a CPU as copies of the asking process, which have
imported PyTorch already (``fork``). Then every rank runs the function that it is asked to run, and answers. What
a function sets up it may keep in ``member.kept`` for the next one, so that a timer can take one sample of each
contender in turn. The meeting point is a store that the asking process itself holds open on a port that the system
chose, so that two teams never meet at one port.

A rank that dies, raises or does not answer in time ends the whole team: the others wait for it in a collective, and
nothing else would end that. Whoever asks gets one sentence that says which rank it was, and keeps every answer from
before. Where one rank's end makes another raise, which may be heard first, the sentence is about the one that began.

Sources: PyTorch, "Distributed communication package" (``TCPStore``, ``init_process_group``) and "torchrun", whose
environment variables are set here.
"""

from __future__ import annotations

import math
import multiprocessing
import multiprocessing.connection
import os
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from gpuguide.errors import GpuguideError, unknown

__all__ = ["WITHOUT_MULTICAST", "Member", "Team"]

HOST = "127.0.0.1"
TIME_LIMIT = 120.0
"""Seconds for one answer of all ranks"""
START_LIMIT = 180.0
"""Seconds for all processes to import PyTorch and to find each other"""
END_SECONDS = 5.0
"""For processes to end by themselves, before they are stopped"""
AFTERMATH = 0.5
"""Seconds in which more ranks may fail because one did"""
FEWEST_CORES = 1
STARTS = ("spawn", "fork")
WITHOUT_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
"""Set in every process unless they are set already: collectives in the switch need rights that few machines give, and
a ratio says more where both contenders do without"""


@dataclass
class Member:
    """What a rank's function is given first."""

    rank: int
    world_size: int
    device: torch.device
    """``cuda:RANK``, or ``cpu``"""
    kept: dict[str, Any] = field(default_factory=dict)
    """Whatever functions leave for those that are run later in the same process"""

    def synchronize(self) -> None:
        """Wait for everything that this rank's GPU does."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class _Failure:
    """What a rank did in place of answering."""

    rank: int
    raised: str = ""
    """What it raised; nothing where it died"""
    when: float = -math.inf
    """By the clock that all processes of a machine share; a rank that died could not say when, and comes first"""


class Team:
    """Processes of one machine, one for each rank.

    Parameters
    ----------
    size : int
        Ranks, one or more.
    device : str
        ``cuda``: rank ``i`` has GPU ``i``, and collectives go through NCCL. ``cpu``: through Gloo.
    start : str
        ``spawn``: each process imports everything by itself. ``fork``, on a CPU only: each is a copy of this one and is
        there in a tenth of a second, with one thread. It knows the functions that were defined before it was started,
        those of a notebook too. On a machine with a GPU, start it before the first backward pass of this process:
        autograd may refuse to run in a copy that is made later.
    port : int, optional
        Where the processes meet; one that is free if none is given.
    time_limit : float
        Seconds that all ranks together may take for an answer.

    Raises
    ------
    GpuguideError
        If there are not so many GPUs, the port is in use, a process cannot start, or GPUs are asked for with ``fork``.

    Notes
    -----
    A team is ended by its ``with`` block::

        with Team(2, device="cpu") as team:
            totals = team.run(total_of_all_ranks, 3.0)
    """

    def __init__(
        self,
        size: int,
        device: str = "cuda",
        *,
        start: str = "spawn",
        port: int | None = None,
        time_limit: float = TIME_LIMIT,
    ) -> None:
        if size < 1:
            raise GpuguideError(f"A team needs one process or more, and {size} were asked for.")
        if device == "cuda" and torch.cuda.device_count() < size:
            raise GpuguideError(
                f"{size} processes need {size} GPUs, and PyTorch sees {torch.cuda.device_count()}. "
                "Use fewer processes, or device='cpu' to try the same on the processor."
            )
        if start not in STARTS:
            raise unknown("way to start processes", start, STARTS)
        forks = start == "fork"
        if forks and device != "cpu":
            raise GpuguideError("A copy of a process cannot use its GPU; leave start out, or use device='cpu'.")
        self.size, self.time_limit = size, time_limit
        context: Any = multiprocessing.get_context(start)
        self.processes: list[BaseProcess] = []
        self.pipes: list[Connection] = []
        # OpenMP's threads are not copied with a process, and a copy that waits for them waits for ever.
        cores = FEWEST_CORES if forks else max(FEWEST_CORES, (os.cpu_count() or 1) // size)
        for rank in range(size):
            ours, theirs = context.Pipe()
            copied = [*self.pipes, ours] if forks else []
            process = context.Process(
                target=_serve,
                args=(theirs, rank, size, device, time_limit, cores, copied),
                daemon=True,
            )
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)
        # Only now: a copy that is made while the store's thread holds a lock would wait for that lock for ever.
        try:
            self.store = _meeting_point(port)
        except GpuguideError:
            self._stop()
            raise
        for pipe in self.pipes:
            with suppress(OSError):  # of a process that has died already, which is noticed next
                pipe.send(self.store.port)
        self._collect("starting", START_LIMIT)

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run a function on every rank and return what each rank's returned, by rank.

        Parameters
        ----------
        function : callable
            Takes a :class:`Member` and ``arguments``. It must be one that a process can import by its name.
        *arguments
            Sent to every rank.

        Raises
        ------
        GpuguideError
            If a rank raises, dies, or does not answer within the time limit. The team has ended then.
        """
        if not self.processes:
            raise GpuguideError("This team has ended; start a new one.")
        name = getattr(function, "__name__", "a function")
        for rank, pipe in enumerate(self.pipes):
            try:
                pipe.send((function, arguments))
            except OSError:
                raise self._end_failed(rank, f"was gone before it could run {name}") from None
        return self._collect(f"running {name}", self.time_limit)

    def slowest(self, function: Callable[..., float], *arguments: Any) -> float:
        """Run a function that times something on every rank, and return the largest of the times.

        A collective is finished when the last rank has finished.
        """
        return max(map(float, self.run(function, *arguments)))

    @property
    def is_running(self) -> bool:
        """Whether the team still answers."""
        return bool(self.processes)

    def close(self) -> None:
        """Let the processes end, and stop those that do not."""
        for pipe in self.pipes:
            try:
                pipe.send(None)
            except OSError:
                continue
        deadline = time.monotonic() + END_SECONDS
        for process in self.processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self._stop()

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._stop()

    def _collect(self, doing: str, limit: float) -> list[Any]:
        """Wait for an answer of every rank."""
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + limit
        while len(answers) < self.size:
            waiting = {self.pipes[rank]: rank for rank in range(self.size) if rank not in answers}
            ready = multiprocessing.connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
            if not ready:
                late = ", ".join(map(str, sorted(waiting.values())))
                raise self._end_failed(None, f"rank {late} did not answer within {limit:.0f} s while {doing}")
            for pipe in ready:
                rank = waiting[pipe]  # type: ignore[index]
                answer = self._receive(rank)
                if isinstance(answer, _Failure):
                    began = self._began(answer, set(waiting.values()))
                    what = f"failed while {doing}: {began.raised}" if began.raised else f"died while {doing}"
                    raise self._end_failed(began.rank, what)
                answers[rank] = answer
        return [answers[rank] for rank in range(self.size)]

    def _receive(self, rank: int) -> Any:
        """Return the answer of a rank, or its failure."""
        try:
            went_well, answer = self.pipes[rank].recv()
        except (EOFError, OSError):
            return _Failure(rank)
        return answer if went_well else _Failure(rank, *answer)

    def _began(self, heard: _Failure, waiting: set[int]) -> _Failure:
        """Return the first failure: the one that was heard, or that of another rank that fails in the aftermath."""
        if not heard.raised:
            return heard
        time.sleep(AFTERMATH)
        others = [self._receive(rank) for rank in waiting - {heard.rank} if self.pipes[rank].poll()]
        return min([heard, *(each for each in others if isinstance(each, _Failure))], key=lambda each: each.when)

    def _end_failed(self, rank: int | None, what: str) -> GpuguideError:
        """End the team and return what to say."""
        subject = what
        if rank is not None:
            ending = ""
            if what.startswith("died"):
                self.processes[rank].join(END_SECONDS)
                ending = f" (exit status {self.processes[rank].exitcode})"
            subject = f"rank {rank} of {self.size} {what}{ending}"
        self._stop()
        return GpuguideError(
            f"{subject[0].upper()}{subject[1:].rstrip('.')}. The other ranks were stopped; what they answered before "
            "is kept."
        )

    def _stop(self) -> None:
        """End every process, and wait until each is gone."""
        for process in self.processes:
            process.kill()
            process.join()
        for pipe in self.pipes:
            pipe.close()
        self.processes, self.pipes = [], []


def _meeting_point(port: int | None) -> Any:
    """Return a store that listens on a port, and holds it until the team has ended."""
    try:
        return dist.TCPStore(HOST, port or 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    except (RuntimeError, OSError) as error:  # PyTorch's DistNetworkError is a RuntimeError
        raise GpuguideError(
            f"The processes cannot meet at port {port}: it is in use, or not allowed. "
            "Name another one, or none, and a free one is taken."
        ) from error


def _serve(
    pipe: Connection,
    rank: int,
    size: int,
    device: str,
    time_limit: float,
    cores: int,
    copied: Sequence[Connection],
) -> None:
    """Run what is asked in a rank's process, until nothing more is asked.

    A copy of a process also has that one's ends of pipes. They are closed: else no rank would notice that it is gone.
    """
    for end in copied:
        end.close()
    port = _next(pipe)
    if port is None:
        return
    try:
        member = _join(rank, size, device, port, time_limit, cores)
        pipe.send((True, None))
        while (asked := _next(pipe)) is not None:
            function, arguments = asked
            pipe.send((True, function(member, *arguments)))
    except Exception as error:
        failed_at = time.monotonic()
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        traceback.print_exc()
        pipe.send((False, (f"{type(error).__name__}: {first}", failed_at)))
        return
    member.kept.clear()
    dist.destroy_process_group()


def _next(pipe: Connection) -> Any:
    """Return what is asked next; ``None`` if nothing more is, or whoever asked is gone."""
    try:
        return pipe.recv()
    except EOFError:
        return None


def _join(rank: int, size: int, device: str, port: int, time_limit: float, cores: int) -> Member:
    """Set up a rank as torchrun would, and join the others."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR=HOST, MASTER_PORT=str(port))
    for name, value in WITHOUT_MULTICAST.items():
        os.environ.setdefault(name, value)
    torch.set_num_threads(cores)
    place = torch.device(device, rank) if device == "cuda" else torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    limit = timedelta(seconds=max(time_limit, START_LIMIT))  # the ranks of a busy machine come one after another
    store = dist.TCPStore(HOST, port, is_master=False, timeout=limit)  # type: ignore[attr-defined]
    dist.init_process_group(
        "nccl" if place.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=limit,
        device_id=place if place.type == "cuda" else None,
    )
    return Member(rank, size, place)
