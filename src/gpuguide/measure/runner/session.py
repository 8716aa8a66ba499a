"""Benchmarks run case by case: what is still to measure, each case stored once it is finished, and the progress."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gpuguide.errors import GpuguideError
from gpuguide.hardware.device import Device, several
from gpuguide.measure import digest, libraries, records
from gpuguide.measure.benchmark import Benchmark, Keys, find_called_libraries, find_skip_reason
from gpuguide.measure.records import Case, Record, describe_keys
from gpuguide.measure.runner.case import DEVICE_LOST, SETTLE, TURNS, measure_case
from gpuguide.measure.runner.environment import device_state, environment, library_versions, moment, readings

COMPILED_WITH = ("torch", "triton")
"""Libraries that every contender calls, or was compiled with"""
SET_UP_SECONDS = 0.3
"""Seconds of building, checking and warming up a contender, for the estimate of the time left"""


@dataclass(frozen=True)
class RunProgress:
    """Progress that the runner reports after every case."""

    benchmark: str
    case: str
    done: int
    """Cases finished, of all that were asked for"""
    total: int
    seconds_left: float
    """The declared length of the cases to come, at the pace of those that are done"""
    results: tuple[Case, ...]


@dataclass(frozen=True)
class RunOutcome:
    """Result of a run."""

    records: tuple[Record, ...]
    """Records of the run, with ``quick`` in memory only"""
    measured: int
    already_fresh: int
    not_reached: int
    """Cases that the time limit left for another run"""


Report = Callable[[RunProgress], None]


def run(
    benchmarks: Sequence[Benchmark],
    device: Device,
    folder: Path | None,
    *,
    quick: bool = False,
    again: bool = False,
    commit: str | None = None,
    time_limit: float = math.inf,
    report: Report = lambda progress: None,
    say: Callable[[str], None] = lambda text: None,
) -> RunOutcome:
    """Measure every case that is not yet measured, and store each as soon as it is finished.

    What was measured with other code, or on another processor, is never written over: the file is kept beside the new
    one under another name. What was measured with another version of a library that is called is measured anew.

    Parameters
    ----------
    benchmarks : sequence of Benchmark
        Run in this order.
    device : Device
        What to measure; benchmarks of several GPUs take the others of its kind too, or are left out.
    folder : Path or None
        Where records go, as ``folder/<device slug>/<benchmark>.json``. ``None`` stores nothing.
    quick : bool
        The smallest case of each benchmark with a few samples; never stored.
    again : bool
        Measure also what is already there.
    commit : str, optional
        The commit of the code, where git cannot tell.
    time_limit : float
        Seconds after which no further case is begun.
    report : callable
        Called after every case.
    say : callable
        Called with a sentence where something that was measured before is not simply kept.

    Raises
    ------
    GpuguideError
        If another run is writing to ``folder``, or a record there is damaged, or the GPU stopped working.
    KeyboardInterrupt
        When interrupted. Every finished case is stored by then.
    """
    folder = None if quick else folder
    started = time.monotonic()
    with only_run(folder):
        plans = [_plan(benchmark, device, folder, quick, again) for benchmark in benchmarks]
        for note in [note for plan in plans for note in plan.notes]:
            say(note)
        total = sum(len(plan.waiting) for plan in plans)
        ahead = sum(len(plan.waiting) * forecast(plan.benchmark) for plan in plans)
        behind = 0.0
        finished: list[Record] = []
        done = 0
        for plan in plans:
            if not plan.waiting:
                continue
            session = _Session(plan, plan.device, folder, commit, quick)
            try:
                for keys in plan.waiting:
                    elapsed = time.monotonic() - started
                    if elapsed >= time_limit:
                        break
                    results = session.measure(keys)
                    done += 1
                    behind += forecast(plan.benchmark)
                    left = (time.monotonic() - started) * max(0.0, ahead / behind - 1)
                    case = describe_keys(keys) if keys else "one case"
                    report(RunProgress(plan.benchmark.name, case, done, total, left, results))
            finally:
                plan.benchmark.end()
            if session.record is not None:
                finished.append(session.record)
        fresh = sum(plan.already_fresh for plan in plans)
        return RunOutcome(tuple(finished), done, fresh, total - done)


def forecast(benchmark: Benchmark) -> float:
    """Return roughly the seconds that a case takes, from what the benchmark declares."""
    return len(benchmark.contenders) * (SET_UP_SECONDS + TURNS * SETTLE + benchmark.budget)


@dataclass(frozen=True)
class _Plan:
    benchmark: Benchmark
    device: Device
    previous: Record | None
    """The record to go on with"""
    waiting: tuple[Keys, ...]
    already_fresh: int
    aside: Record | None = None
    """A record that stands where the new one belongs, and has nothing in common with it"""
    notes: tuple[str, ...] = ()
    """Messages before measuring begins"""


def _plan(benchmark: Benchmark, device: Device, folder: Path | None, quick: bool, again: bool) -> _Plan:
    try:
        device = several(device, benchmark.gpus)
    except GpuguideError as error:
        return _Plan(benchmark, device, None, (), 0, notes=(f"{benchmark.name} is left out: {error}",))
    everything = tuple(benchmark.cases(device))
    if not everything:
        return _Plan(benchmark, device, None, (), 0, notes=(f"{benchmark.name}: no case is meant for {device.name}.",))
    if quick:
        return _Plan(benchmark, device, None, everything[:1], 0)
    path = record_path(folder, device, benchmark) if folder is not None else None
    previous = records.read(path) if path is not None and path.exists() else None
    if previous is not None and (why := _nothing_in_common(previous, device)):
        kept = records.find_backup_path(previous)
        note = f"{benchmark.name}: {why}, so everything is measured anew. The old record is kept as {kept}."
        return _Plan(benchmark, device, None, everything, 0, previous, (note,))
    finished = previous.cases if previous is not None and not again else ()
    outdated = {} if previous is None or again else _find_outdated_cases(previous, device)
    settled = [case for index, case in enumerate(finished) if index not in outdated]
    waiting = tuple(keys for keys in everything if not _is_finished(benchmark, keys, settled, device))
    changes = dict.fromkeys(outdated.values())
    notes = tuple(f"{benchmark.name}: {change}; what was measured with it is measured anew." for change in changes)
    return _Plan(benchmark, device, previous, waiting, len(everything) - len(waiting), notes=notes)


def _nothing_in_common(record: Record, device: Device) -> str | None:
    """Return why a record cannot be gone on with, or ``None`` if it can. All processors share one folder."""
    if record.stale:
        return "the code has changed since it was measured"
    if record.device_name != device.name:
        return f"the record is of {record.device_name}, and this is {device.name}"
    return None


def _find_outdated_cases(record: Record, device: Device) -> dict[int, str]:
    """Return the cases measured with another version of a library than is here, and which one each, by position.

    A library that is not here now changes nothing: what was measured with it stays.
    """
    called_here = dict.fromkeys((*libraries.CALLED_BY_ALL, *record.libraries()))
    here = library_versions(device, called_here) if device.backend != "fake" else {}
    found = {}
    for index, case in enumerate(record.cases):
        then = record.runs[case.run].versions
        for name in (*COMPILED_WITH, *case.libraries):
            if case.status == "ok" and name in here and name in then and here[name] != then[name]:
                found[index] = f"{libraries.title(name)} is {here[name]} here and was {then[name]}"
    return found


def record_path(folder: Path, device: Device, benchmark: Benchmark) -> Path:
    """Return where the record of a benchmark on a device belongs."""
    return folder / device.slug / f"{benchmark.name}.json"


def _is_finished(benchmark: Benchmark, keys: Keys, cases: Sequence[Case], device: Device) -> bool:
    """Return whether every contender of a case was measured, or still cannot be; what failed is tried again."""
    found = [case for case in cases if dict(case.keys) == dict(keys) and case.contender in benchmark.contenders]
    settled = {
        case.contender
        for case in found
        if case.status == "ok"
        or (case.status == "skipped" and find_skip_reason(benchmark, case.contender, keys, device))
    }
    return settled == set(benchmark.contenders)


class _Session:
    """The cases of one benchmark measured by one invocation; they share one entry in the record's ``runs``."""

    def __init__(self, plan: _Plan, device: Device, folder: Path | None, commit: str | None, quick: bool) -> None:
        self.plan, self.device, self.folder, self.quick = plan, device, folder, quick
        self.record, self.aside = plan.previous, plan.aside
        self.started = time.monotonic()
        everyone = plan.benchmark.contenders.values()
        self.run = environment(
            device, commit, [name for each in everyone for name in find_called_libraries(each, device)]
        )

    def measure(self, keys: Keys) -> tuple[Case, ...]:
        """Measure one case with all its contenders, store it and return it."""
        results = measure_case(self.plan.benchmark, keys, self.device, self.quick)
        self.record = self._replace_results(results)
        if self.folder is not None:
            if self.aside is not None and self.aside.path is not None:
                self.aside.path.replace(records.find_backup_path(self.aside))
                self.aside = None
            self.record = records.write(self.record, record_path(self.folder, self.device, self.plan.benchmark))
        if broken := next((case for case in results if case.reason.startswith(DEVICE_LOST)), None):
            raise GpuguideError(
                f"{broken.contender} of {self.plan.benchmark.name} ({describe_keys(keys)}) left the GPU in an error "
                f"state ({broken.reason}). Finished cases are kept; run the same command again to go on."
            )
        return results

    def _replace_results(self, results: tuple[Case, ...]) -> Record:
        """Return the record with ``results`` in place of earlier ones, and without runs that no case needs."""
        now = replace(
            self.run,
            after=readings(device_state(self.device)),
            finished_at=moment(),
            elapsed=round(time.monotonic() - self.started, 3),
        )
        before = self.record.cases if self.record else ()
        runs = list(self.record.runs) if self.record else []
        if runs and runs[-1] is self.run:
            runs.pop()
        runs.append(now)
        self.run = now
        replaced = {(case.contender, *sorted(case.keys.items())) for case in results}
        kept = [case for case in before if (case.contender, *sorted(case.keys.items())) not in replaced]
        cases = [*kept, *(replace(case, run=len(runs) - 1) for case in results)]
        used = sorted({case.run for case in cases})
        return Record(
            benchmark=self.plan.benchmark.name,
            device=self.device.slug,
            harness_version=records.HARNESS_VERSION,
            code_digest=digest.benchmark_digest(self.plan.benchmark.name),
            runs=tuple(runs[index] for index in used),
            cases=tuple(replace(case, run=used.index(case.run)) for case in self._sort_cases(cases)),
        )

    def _sort_cases(self, cases: list[Case]) -> list[Case]:
        """Sort cases as the benchmark declares them, so that a resumed record equals an uninterrupted one."""
        places = {_identity(keys): place for place, keys in enumerate(self.plan.benchmark.cases(self.device))}
        contenders = {name: place for place, name in enumerate(self.plan.benchmark.contenders)}
        far = len(places)
        return sorted(
            cases,
            key=lambda case: (places.get(_identity(case.keys), far), contenders.get(case.contender, far)),
        )


def _identity(keys: Keys) -> tuple[tuple[str, object], ...]:
    return tuple(sorted(keys.items()))


@contextmanager
def only_run(folder: Path | None) -> Iterator[None]:
    """Hold the folder's lock, so that two runs neither disturb each other's times nor write one file."""
    if folder is None:
        yield
        return
    import filelock

    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / ".lock")
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise GpuguideError(
            f"Another 'gpuguide bench run' is writing to {folder}. Wait for it, or name another folder with --out; "
            "two runs at once would disturb each other's times."
        ) from error
    except OSError as error:
        raise GpuguideError(
            f"Cannot write to {folder}: {error.strerror or error}. "
            "Name a folder that can be written with --out or GPUGUIDE_RECORDS."
        ) from error
    try:
        yield
    finally:
        lock.release()
