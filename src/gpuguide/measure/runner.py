"""The runner: set up every contender of a case, check it, time them in turn, and keep what is finished."""

from __future__ import annotations

import gc
import math
import os
import platform
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import gpuguide
from gpuguide.errors import GpuguideError
from gpuguide.hardware import datasheet
from gpuguide.hardware.device import Device, processor_name
from gpuguide.hardware.monitor import DriverState, read_driver
from gpuguide.measure import digest, records, timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, lacking, too_large
from gpuguide.measure.records import Case, Metric, Readings, Record, Run, describe_keys
from gpuguide.measure.timing import Sampler

SEED = 0
FEW_SAMPLES = 5
"""Samples of calls that take a second or longer"""
SLOW = 1.0
LEAST_SAMPLES = 20
MOST_SAMPLES = 100
QUICK_SAMPLES = 3
TURNS = 4
SET_UP_SECONDS = 0.3
"""What building, checking and warming up a contender takes, for the estimate of the time left"""
LIBRARIES = ("torch", "triton", "numpy")


@dataclass(frozen=True)
class Progress:
    """What the runner reports after every case."""

    benchmark: str
    case: str
    done: int
    """Cases finished, of all that were asked for"""
    total: int
    seconds_left: float
    """The declared length of the cases to come, at the pace of those that are done"""
    results: tuple[Case, ...]


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    records: tuple[Record, ...]
    """With ``quick`` they are in memory only"""
    measured: int
    already_fresh: int
    not_reached: int
    """Cases that the time limit left for another run"""


Report = Callable[[Progress], None]


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
) -> Outcome:
    """Measure every case that is not yet measured, and store each as soon as it is finished.

    Parameters
    ----------
    benchmarks : sequence of Benchmark
        Run in this order.
    device : Device
        What to measure.
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

    Raises
    ------
    GpuguideError
        If another run is writing to ``folder``, or a record there is damaged, or the GPU stopped working.
    KeyboardInterrupt
        When interrupted. Every finished case is stored by then.
    """
    folder = None if quick else folder
    started = time.monotonic()
    with _only_run(folder):
        plans = [_plan(benchmark, device, folder, quick, again) for benchmark in benchmarks]
        total = sum(len(plan.waiting) for plan in plans)
        ahead = sum(len(plan.waiting) * forecast(plan.benchmark) for plan in plans)
        behind = 0.0
        finished: list[Record] = []
        done = 0
        for plan in plans:
            if not plan.waiting:
                continue
            session = _Session(plan, device, folder, commit, quick)
            for keys in plan.waiting:
                elapsed = time.monotonic() - started
                if elapsed >= time_limit:
                    break
                results = session.measure(keys)
                done += 1
                behind += forecast(plan.benchmark)
                left = (time.monotonic() - started) * max(0.0, ahead / behind - 1)
                case = describe_keys(keys) if keys else "one case"
                report(Progress(plan.benchmark.name, case, done, total, left, results))
            if session.record is not None:
                finished.append(session.record)
        fresh = sum(plan.already_fresh for plan in plans)
        return Outcome(tuple(finished), done, fresh, total - done)


def forecast(benchmark: Benchmark) -> float:
    """Return roughly the seconds that a case takes, from what the benchmark declares."""
    return len(benchmark.contenders) * (SET_UP_SECONDS + TURNS * benchmark.settle + benchmark.budget)


@dataclass(frozen=True)
class _Plan:
    benchmark: Benchmark
    previous: Record | None
    """The fresh record to go on with; a stale one is measured anew"""
    waiting: tuple[Keys, ...]
    already_fresh: int


def _plan(benchmark: Benchmark, device: Device, folder: Path | None, quick: bool, again: bool) -> _Plan:
    everything = tuple(benchmark.cases(device))
    if quick:
        return _Plan(benchmark, None, everything[:1], 0)
    path = record_path(folder, device, benchmark) if folder is not None else None
    previous = records.read(path) if path is not None and path.exists() else None
    if previous is not None and previous.stale:
        previous = None
    waiting = tuple(keys for keys in everything if again or not _is_finished(benchmark, keys, previous))
    return _Plan(benchmark, previous, waiting, len(everything) - len(waiting))


def record_path(folder: Path, device: Device, benchmark: Benchmark) -> Path:
    """Return where the record of a benchmark on a device belongs."""
    return folder / device.slug / f"{benchmark.name}.json"


def _is_finished(benchmark: Benchmark, keys: Keys, record: Record | None) -> bool:
    """Return whether every contender of a case was measured or rightly skipped; what failed is tried again."""
    if record is None:
        return False
    settled = {c.contender for c in record.cases if dict(c.keys) == dict(keys) and c.status in ("ok", "skipped")}
    return settled >= set(benchmark.contenders)


class _Session:
    """The cases of one benchmark measured by one invocation; they share one entry in the record's ``runs``."""

    def __init__(self, plan: _Plan, device: Device, folder: Path | None, commit: str | None, quick: bool) -> None:
        self.plan, self.device, self.folder, self.quick = plan, device, folder, quick
        self.record = plan.previous
        self.started = time.monotonic()
        self.run = environment(device, commit, plan.benchmark.libraries)

    def measure(self, keys: Keys) -> tuple[Case, ...]:
        """Measure one case with all its contenders, store it and return it."""
        results = measure_case(self.plan.benchmark, keys, self.device, self.quick)
        self.record = self._with(results)
        if self.folder is not None:
            self.record = records.write(self.record, record_path(self.folder, self.device, self.plan.benchmark))
        if broken := next((case for case in results if case.reason.startswith(DEVICE_LOST)), None):
            raise GpuguideError(
                f"{broken.contender} of {self.plan.benchmark.name} ({describe_keys(keys)}) left the GPU in an error "
                f"state ({broken.reason}). Finished cases are kept; run the same command again to go on."
            )
        return results

    def _with(self, results: tuple[Case, ...]) -> Record:
        """Return the record with ``results`` in place of earlier ones, and without runs that no case needs."""
        now = replace(
            self.run,
            after=readings(device_state(self.device)),
            finished_at=_now(),
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
            cases=tuple(replace(case, run=used.index(case.run)) for case in self._in_order(cases)),
        )

    def _in_order(self, cases: list[Case]) -> list[Case]:
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


DEVICE_LOST = "the GPU failed"


def measure_case(benchmark: Benchmark, keys: Keys, device: Device, quick: bool = False) -> tuple[Case, ...]:
    """Set up, check and time all contenders of one case, taking samples from each in turn.

    A contender that cannot run, is wrong or runs out of memory is reported with its reason; the others go on.
    """
    results: dict[str, Case] = {}
    samplers: dict[str, Sampler] = {}
    works: dict[str, Work] = {}
    for name, contender in benchmark.contenders.items():
        skipped = lacking(contender, device) or too_large(benchmark, keys, device) or contender.leaves_out(device, keys)
        if skipped:
            results[name] = Case(keys, name, 0, "skipped", skipped)
            continue
        try:
            works[name] = _set_up(contender, keys, device)
            samplers[name] = sampler(works[name], device)
        except Exception as error:
            results[name] = failure(keys, name, error)
            works.pop(name, None)
    settling = {name: work.sample is None and device.backend != "fake" for name, work in works.items()}
    for name, outcome in _take_in_turn(samplers, settling, benchmark, quick).items():
        work = works[name]
        try:
            if isinstance(outcome, Exception):
                raise outcome
            measured = {"time": outcome, **({} if device.backend == "fake" else work.further())}
        except Exception as error:
            results[name] = failure(keys, name, error)
            continue
        correct: records.Correct = "yes" if work.check and device.backend != "fake" else "n/a"
        results[name] = Case(keys, name, 0, "ok", "", correct, measured, dict(work.rates))
    works.clear()
    samplers.clear()
    if not any(case.reason.startswith(DEVICE_LOST) for case in results.values()):  # nothing can be released then
        _release_memory(device)
    return tuple(results[name] for name in benchmark.contenders)


def _set_up(contender: Contender, keys: Keys, device: Device) -> Work:
    """Build a contender's work on the same random data every time, and check its result."""
    import torch

    torch.manual_seed(SEED)
    work = contender.build(device, keys)
    if work.check is not None and device.backend != "fake":
        work.check()
    return work


def sampler(work: Work, device: Device) -> Sampler:
    """Return the timer for ``work`` on ``device``, warmed up."""
    if device.backend == "fake":
        return simulated(work, device)
    if work.sample is not None:
        return work.sample
    call = work.calls[0]
    if device.backend == "cpu":
        timing.warm_up(call, lambda: None)
        return timing.wall_clock(call)
    import torch

    seconds = timing.warm_up(call, torch.cuda.synchronize)
    if work.timing == "wall":
        return timing.wall_clock(call, torch.cuda.synchronize)
    if work.timing == "graph":
        timing.on_side_stream(call)
        launching_may_count = seconds < 100 * timing.SHORT
        return timing.cuda_graph(work.calls, timing.graph_estimate(call) if launching_may_count else seconds)
    estimate = seconds if seconds > 10 * timing.SHORT else timing.graph_estimate(call)
    stays_in_cache = work.footprint * len(work.calls) < 2 * device.l2
    if estimate < timing.SHORT and (work.timing == "warm" or not stays_in_cache):
        return timing.cuda_graph(work.calls, estimate)
    if work.timing == "warm":
        return timing.cuda_events(call)
    return timing.cuda_events(call, timing.flush_while_launching(call, device.torch_device))


def simulated(work: Work, device: Device) -> Sampler:
    """Return made-up times for a fake device: the datasheet's ceilings with some spread, the same every time."""
    figures = datasheet.get(device.name).figures
    ceilings = {"bandwidth": "memory_bandwidth", "throughput": "fp32"}
    floors = [rate.per_call / figures[ceilings[name]].value for name, rate in work.rates.items() if name in ceilings]
    floor = max(floors, default=0.0) + 5e-6
    spread = random.Random(SEED)
    return lambda: floor * (1.05 + 0.05 * spread.random())


def _take_in_turn(
    samplers: Mapping[str, Sampler], settling: Mapping[str, bool], benchmark: Benchmark, quick: bool
) -> dict[str, Metric | Exception]:
    """Let contenders take turns, A A A B B B A A A B B B, so that a slow drift meets all of them alike.

    A turn begins with calls that do not count: the clock of a GPU follows the power that it drew before, and the
    first calls of a turn would be timed at the clock that the previous contender left.
    """
    outcomes: dict[str, Metric | Exception] = {}
    taken: dict[str, list[float]] = {name: [] for name in samplers}
    for turn in range(1 if quick else TURNS):
        for name in [name for name in samplers if name not in outcomes]:
            try:
                if settling[name]:
                    settle(samplers[name], benchmark.settle)
                if turn == 0:
                    taken[name].append(samplers[name]())
                    few = QUICK_SAMPLES if quick else 1 if taken[name][0] >= SLOW else FEW_SAMPLES
                    taken[name].extend(samplers[name]() for _ in range(few - 1))
                wanted = len(taken[name]) if quick else samples_wanted(taken[name], benchmark)
                due = wanted * (turn + 1) // TURNS
                taken[name].extend(samplers[name]() for _ in range(due - len(taken[name])))
                if not all(0 < seconds < math.inf for seconds in taken[name]):
                    raise ValueError(f"the timer gave times from {min(taken[name])} to {max(taken[name])} s")
            except Exception as error:
                outcomes[name] = error
    return {name: outcomes.get(name) or records.metric("s", taken[name]) for name in samplers}


def settle(sample: Sampler, seconds: float) -> None:
    """Call for ``seconds``, or once if a call takes longer, until the clock is the contender's own."""
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        sample()


def samples_wanted(taken: Sequence[float], benchmark: Benchmark) -> int:
    """Return how many samples to take in all of a contender, from its first few."""
    if benchmark.samples is not None:
        return benchmark.samples
    few = sorted(taken[:FEW_SAMPLES])
    seconds = few[len(few) // 2]
    if seconds >= SLOW:
        return FEW_SAMPLES
    return max(LEAST_SAMPLES, min(MOST_SAMPLES, round(benchmark.budget / seconds)))


OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
"""What PyTorch's allocators, CUDA's and those of Linux and Windows say, whatever the exception's type"""


def failure(keys: Keys, contender: str, error: Exception) -> Case:
    """Turn an exception into a case with a status and a reason of one line."""
    first = without_paths((str(error).strip() or type(error).__name__).splitlines()[0])
    out_of_memory = any(words in str(error) for words in OUT_OF_MEMORY)
    if out_of_memory or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return Case(keys, contender, 0, "out-of-memory", first)
    if isinstance(error, AssertionError):
        return Case(keys, contender, 0, "failed", f"wrong result: {first}")
    if type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error):
        return Case(keys, contender, 0, "failed", f"{DEVICE_LOST}: {first}")
    return Case(keys, contender, 0, "failed", f"{type(error).__name__}: {first}")


def _release_memory(device: Device) -> None:
    gc.collect()
    if device.backend == "cuda":
        import torch

        torch.cuda.empty_cache()


# --- the run's circumstances -----------------------------------------------------------------------------


def environment(device: Device, commit: str | None, libraries: Sequence[str] = ()) -> Run:
    """Describe this moment and machine. It names no user, no host and no path."""
    import torch

    state = device_state(device)
    now = _now()
    return Run(
        device_name=device.name,
        driver=state.driver,
        cuda=torch.version.cuda if device.backend == "cuda" else None,
        python=platform.python_version(),
        versions={"gpuguide": gpuguide.__version__, **library_versions(libraries)},
        host_cpu=processor_name(),
        host_cores=os.cpu_count() or 1,
        before=readings(state),
        after=readings(state),
        started_at=now,
        finished_at=now,
        elapsed=0.0,
        commit=commit or commit_of_checkout(),
        seed=SEED,
        command=command_line(),
        simulated=device.backend == "fake",
    )


def device_state(device: Device) -> DriverState:
    """Return the driver's readings of a CUDA device; nothing for others."""
    if device.backend != "cuda":
        return DriverState()
    import torch

    return read_driver(str(torch.cuda.get_device_properties(device.torch_device).uuid))


def readings(state: DriverState) -> Readings:
    """Keep of a driver's state what a record holds."""
    fields = asdict(state)
    return Readings(**{name: fields[name] for name in Readings.__dataclass_fields__})


def library_versions(further: Sequence[str] = ()) -> dict[str, str]:
    """Return the installed versions of the libraries that take part in a measurement."""
    found = {}
    for library in (*LIBRARIES, *further):
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit_of_checkout() -> str | None:
    """Return the commit of the checkout that gpuguide runs from, marked if code differs; ``None`` elsewhere."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *arguments], cwd=digest.PACKAGE_FOLDER, capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "HEAD")
    if not head or not git("ls-files", "--", "measure/runner.py"):  # a project that has gpuguide in its environment
        return None
    return f"{head}-modified" if git("status", "--porcelain", "--", ".", ":!records") else head


def command_line() -> str:
    """Return the command that runs now, without the folders that it names."""
    words = ["gpuguide"]
    hide = False
    for word in sys.argv[1:]:
        is_path = hide or "/" in word or "\\" in word  # a notebook's kernel is started with one, too
        words.append("--out=DIR" if word.startswith("--out=") else "DIR" if is_path else word)
        hide = word == "--out"
    return shlex.join(words)


def without_paths(text: str) -> str:
    """Return ``text`` with absolute paths, which may name a user, written as ``PATH``."""
    return re.sub(r"(?<![\w.~])(/|[A-Za-z]:\\)[^\s'\"]+", "PATH", text)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@contextmanager
def _only_run(folder: Path | None) -> Iterator[None]:
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
