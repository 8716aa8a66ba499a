"""One case: set up every contender, check it, time them in turn, and say what became of each."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

from gpuguide.hardware.device import Device
from gpuguide.measure import records, timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, find_called_libraries, find_skip_reason
from gpuguide.measure.records import Case, Metric
from gpuguide.measure.runner.environment import SEED, mask_paths
from gpuguide.measure.timing import Sampler

FEW_SAMPLES = 5
"""Samples of calls that take a second or longer"""
SLOW = 1.0
LEAST_SAMPLES = 20
MOST_SAMPLES = 100
QUICK_SAMPLES = 3
TURNS = 4
SETTLE = 0.1
"""Seconds of calls that do not count at the beginning of every turn, the same for all: a share of a ceiling says
something only if both were timed when the clock had had the same time to settle"""
DEVICE_LOST = "the GPU failed"


def measure_case(benchmark: Benchmark, keys: Keys, device: Device, quick: bool = False) -> tuple[Case, ...]:
    """Set up, check and time all contenders of one case, taking samples from each in turn.

    A contender that cannot run, is wrong or runs out of memory is reported with its reason; the others go on.
    """
    results: dict[str, Case] = {}
    samplers: dict[str, Sampler] = {}
    works: dict[str, Work] = {}
    for name, contender in benchmark.contenders.items():
        try:
            if why := find_skip_reason(benchmark, name, keys, device):
                results[name] = Case(keys, name, 0, "skipped", mask_paths(why))
                continue
            works[name] = _set_up(contender, keys, device)
            samplers[name] = sampler(works[name], device)
        except Exception as error:
            results[name] = failure(keys, name, error)
            works.pop(name, None)
    settling = {name: work.sample is None for name, work in works.items()}
    for name, outcome in _take_in_turn(samplers, settling, benchmark, quick).items():
        work = works[name]
        try:
            if isinstance(outcome, Exception):
                raise outcome
            measured = {"time": outcome, **work.further()}
        except Exception as error:
            results[name] = failure(keys, name, error)
            continue
        correct: records.Correct = "yes" if work.check else "n/a"
        results[name] = Case(keys, name, 0, "ok", "", correct, measured, dict(work.rates))
    works.clear()
    samplers.clear()
    if not any(case.reason.startswith(DEVICE_LOST) for case in results.values()):  # nothing can be released then
        release_memory(device)
    return tuple(
        replace(results[name], libraries=find_called_libraries(contender, device))
        for name, contender in benchmark.contenders.items()
    )


def _set_up(contender: Contender, keys: Keys, device: Device) -> Work:
    """Build a contender's work on the same random data every time, and check its result; a fake device builds none."""
    if device.backend == "fake":
        return Work([], sample=simulate_times())
    import torch

    torch.manual_seed(SEED)
    work = contender.build(device, keys)
    if work.check is not None:
        work.check()
    return work


def sampler(work: Work, device: Device) -> Sampler:
    """Return the timer for ``work`` on ``device``, warmed up."""
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


def simulate_times() -> Sampler:
    """Return a timer for a fake device: times around 5 µs with some spread, the same every time."""
    spread = random.Random(SEED)
    return lambda: 5e-6 * (1.05 + 0.05 * spread.random())


def _take_in_turn(
    samplers: Mapping[str, Sampler], settling: Mapping[str, bool], benchmark: Benchmark, quick: bool
) -> dict[str, Metric | Exception]:
    """Let contenders take turns, A A A B B B A A A B B B, so that a slow drift meets all of them alike.

    A turn begins with calls that do not count: the clock of a GPU follows the power that it drew before, and the
    first calls of a turn would be timed at the clock that the previous contender left.
    """
    outcomes: dict[str, Metric | Exception] = {}
    taken: dict[str, list[list[float]]] = {name: [] for name in samplers}
    for turns_left in range(1 if quick else TURNS, 0, -1):
        for name in [name for name in samplers if name not in outcomes]:
            try:
                if settling[name]:
                    settle(samplers[name], SETTLE)
                turn = one_turn(samplers[name], list(chain(*taken[name])), turns_left, benchmark, quick)
                if not all(0 < seconds < math.inf for seconds in turn):
                    raise ValueError(f"the timer gave times from {min(turn)} to {max(turn)} s")
                taken[name].append(turn)
            except Exception as error:
                outcomes[name] = error
    return {
        name: outcomes.get(name) or records.metric("s", chain(*turns), [len(turn) for turn in turns if turn])
        for name, turns in taken.items()
    }


def one_turn(
    sample: Sampler, before: Sequence[float], turns_left: int, benchmark: Benchmark, quick: bool
) -> list[float]:
    """Take the samples of one turn: an equal share of those still wanted, and first enough to tell how many that is."""
    turn: list[float] = []
    if not before:
        turn.append(sample())
        few = 1 if turn[0] >= SLOW else QUICK_SAMPLES if quick else FEW_SAMPLES
        turn.extend(sample() for _ in range(few - 1))
    wanted = len(turn) if quick else samples_wanted([*before, *turn], benchmark)
    share = (wanted - len(before)) // turns_left
    turn.extend(sample() for _ in range(share - len(turn)))
    return turn


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
"""Messages of PyTorch's allocators, CUDA's and those of Linux and Windows, whatever the exception's type"""


def failure(keys: Keys, contender: str, error: Exception) -> Case:
    """Turn an exception into a case with a status and a reason of one line."""
    first = mask_paths((str(error).strip() or type(error).__name__).splitlines()[0])
    out_of_memory = any(words in str(error) for words in OUT_OF_MEMORY)
    if out_of_memory or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return Case(keys, contender, 0, "out-of-memory", first)
    if isinstance(error, AssertionError):
        return Case(keys, contender, 0, "failed", f"wrong result: {first}")
    if type(error).__name__ == "AcceleratorError" or "CUDA error" in str(error):
        return Case(keys, contender, 0, "failed", f"{DEVICE_LOST}: {first}")
    return Case(keys, contender, 0, "failed", f"{type(error).__name__}: {first}")


def release_memory(device: Device) -> None:
    """Give back what the contenders of a case held, so that the next case finds all memory free."""
    gc.collect()
    if device.backend == "cuda":
        import torch

        torch.cuda.empty_cache()
