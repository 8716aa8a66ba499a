"""Made-up records for the tests. They say ``simulated`` and are only ever written to a temporary folder."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuguide.measure import digest, records
from gpuguide.measure.records import HARNESS_VERSION, Case, Key, Rate, Readings, Record, Run

PUBLISHED = ("nvidia-h100-80gb-hbm3", "NVIDIA H100 80GB HBM3")
OTHER = ("nvidia-h200", "NVIDIA H200")
"""Published too, and not the one that prose speaks of"""
OWN = ("nvidia-geforce-rtx-4090", "NVIDIA GeForce RTX 4090")
TIMES = {
    "copy": 1.4e-3,
    "matmul-bf16": 1.6e-3,
    "matmul-fp16": 1.6e-3,
    "matmul-tf32": 3.1e-3,
    "matmul-fp32": 2.1e-2,
    "matmul-fp8": 8.4e-4,
    "h2d-pinned": 1.9e-2,
    "h2d-pageable": 6e-2,
    "d2h-pinned": 1.9e-2,
    "d2h-pageable": 7e-2,
    "launch": 4e-6,
    "launch-graph": 1.4e-6,
}


def run(device_name: str = PUBLISHED[1], **changes: Any) -> Run:
    """Return circumstances that look like a real machine's, with some of them changed."""
    readings = Readings(1.98e9, 2.6e9, 320.0, 45.0)
    usual = Run(
        device_name=device_name,
        driver="580.00",
        cuda="13.0",
        python="3.12.0",
        versions={"torch": "2.11.0", "gpuguide": "0.1.0"},
        host_cpu="a processor",
        host_cores=16,
        before=readings,
        after=readings,
        started_at="2026-01-02T03:04:05+00:00",
        finished_at="2026-01-02T03:14:05+00:00",
        elapsed=75.0,
        commit="0" * 40,
        seed=0,
        command="gpuguide bench run",
        simulated=True,
    )
    return replace(usual, **changes)


def case(keys: Mapping[str, Key], contender: str, time: float, rates: Mapping[str, Rate]) -> Case:
    """Return a good case with twenty samples around ``time`` seconds, in four turns."""
    noise = random.Random(f"{contender}{keys}")
    samples = [time * (1 + 0.02 * noise.random()) for _ in range(20)]
    return Case(
        keys, contender, 0, "ok", correct="yes", measured={"time": records.metric("s", samples, [5] * 4)}, rates=rates
    )


def record(
    benchmark: str, cases: Iterable[Case], device: tuple[str, str], *, stale: bool = False, **changes: Any
) -> Record:
    """Return a record, fresh unless ``stale``; ``changes`` are those of :func:`run`."""
    code = "sha256:" + "0" * 64 if stale else digest.benchmark_digest(benchmark)
    return Record(benchmark, device[0], HARNESS_VERSION, code, (run(device[1], **changes),), tuple(cases))


def cases_of(benchmark: str, slower: float = 1.0) -> list[Case]:
    """Return the cases of one of the first five benchmarks; ``slower`` stretches all times."""
    if benchmark == "ceilings":
        flops, size = 2 * 8192**3, 2 * 2**30
        return [
            case({}, name, time * slower, _rates(name, flops, size) if "launch" not in name else {})
            for name, time in TIMES.items()
        ]
    if benchmark == "copy-size":
        sizes = [2**power for power in range(14, 32)]
        speed = {size: (5.5e12 if size < 32 * 2**20 else 3.0e12) / slower for size in sizes}
        return [case({"working_set": n}, "copy", 2e-6 + n / speed[n], {"bandwidth": Rate("B/s", n)}) for n in sizes]
    if benchmark == "matmul-size":
        peaks = {"bf16": 7e14, "fp16": 6.9e14, "tf32": 3.6e14, "fp32": 5e13, "fp8": 1.3e15}
        return [
            case(
                {"size": n}, f"matmul-{name}", 8e-6 + 2 * n**3 * slower / peak, {"throughput": Rate("FLOP/s", 2 * n**3)}
            )
            for n in (2**power for power in range(8, 15))
            for name, peak in peaks.items()
        ]
    if benchmark == "transfer-size":
        speeds = {"h2d-pinned": 5.5e10, "h2d-pageable": 1.2e10, "d2h-pinned": 5.4e10, "d2h-pageable": 1.0e10}
        return [
            case({"bytes": n}, name, 9e-6 + n * slower / speed, {"bandwidth": Rate("B/s", n)})
            for n in (2**power for power in range(12, 31, 2))
            for name, speed in speeds.items()
        ]
    wrong = {
        "right": 1.0,
        "no-synchronize": 0.01,
        "no-warm-up": 60.0,
        "cold-clock": 1.3,
        "zeros": 0.8,
        "inside-l2": 0.95,
    }
    return [
        case({"shape": shape}, name, time * factor * slower, {"throughput": Rate("FLOP/s", flops)})
        for shape, time, flops in (("square", 1.6e-3, 2 * 8192**3), ("skinny", 2e-4, 2 * 8192**2 * 16))
        for name, factor in wrong.items()
    ]


def _rates(name: str, flops: float, size: float) -> dict[str, Rate]:
    if name.startswith("matmul"):
        return {"throughput": Rate("FLOP/s", flops)}
    return {"bandwidth": Rate("B/s", 2 * size if name == "copy" else size / 2)}


BENCHMARKS = ("ceilings", "copy-size", "matmul-size", "transfer-size", "timing-mistakes")


def write(record: Record, folder: Path) -> Record:
    """Write a record where a folder of records has it."""
    return records.write(record, folder / record.device / f"{record.benchmark}.json")


def write_all(folder: Path, device: tuple[str, str] = PUBLISHED, slower: float = 1.0) -> list[Record]:
    """Write a record of each benchmark below ``folder``."""
    return [write(record(name, cases_of(name, slower), device), folder) for name in BENCHMARKS]
