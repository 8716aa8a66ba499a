from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_devices import on

from gpuguide.hardware import datasheet
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import digest, records, runner
from gpuguide.measure.benchmark import (
    Benchmark,
    Contender,
    Work,
    find_missing_feature,
    find_skip_reason,
    powers_of_two,
    too_large,
)
from gpuguide.measure.records import Record
from gpuguide.systems import ceilings

KIB, MIB, GIB = 2**10, 2**20, 2**30
MACHINE = [
    name
    for name, module in digest.benchmark_modules().items()
    if module in ("gpuguide.benchmarks.ceilings", "gpuguide.benchmarks.timing")
]
"""The benchmarks of a machine's ceilings and of timing. Those of a topic have a test file of their own."""
LADDER = [8, 16, 24, 48, 80, 141]
"""GB of device memory"""
every_benchmark = pytest.mark.parametrize("name", declarations.names())


@pytest.fixture(autouse=True)
def fast_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the garbage collection after each case, which takes longer than everything else here."""
    monkeypatch.setattr(runner.case, "release_memory", lambda device: None)


@every_benchmark
def test_each_is_described_in_a_title_and_one_question(name: str) -> None:
    benchmark = declarations.get(name)
    assert benchmark.title
    assert benchmark.question.count("?") == 1
    assert benchmark.question.endswith("?")


@every_benchmark
def test_all_cases_have_the_same_keys_and_none_stands_twice(name: str) -> None:
    for device in (on(80), devices.cpu()):
        cases = declarations.get(name).cases(device)
        assert len({tuple(keys) for keys in cases}) <= 1
        assert len({tuple(keys.items()) for keys in cases}) == len(cases)
    assert declarations.get(name).cases(on(80))


@every_benchmark
def test_a_processor_has_fewer_and_smaller_cases(name: str) -> None:
    benchmark = declarations.get(name)
    here, on_gpu = benchmark.cases(devices.cpu()), benchmark.cases(on(80))
    assert len(here) <= len(on_gpu)
    assert max(map(benchmark.memory, here), default=0) <= max(map(benchmark.memory, on_gpu))


def test_a_processor_is_spared_what_would_take_minutes() -> None:
    cpu = devices.cpu()
    assert max(keys["size"] for keys in declarations.get("matmul-size").cases(cpu)) == 4096  # type: ignore[type-var]
    assert max(keys["working_set"] for keys in declarations.get("copy-size").cases(cpu)) == 512 * MIB  # type: ignore[type-var]
    assert declarations.get("timing-mistakes").cases(cpu) == []
    assert declarations.get("sustained-matmul").cases(cpu) == []


def run_everything(device: Device, folder: Path) -> dict[str, Record]:
    outcome = runner.run([declarations.get(name) for name in MACHINE], device, folder, commit="c0ffee")
    assert outcome.not_reached == 0
    return {record.benchmark: records.read(record.path or Path()) for record in outcome.records}


@pytest.mark.parametrize("gigabytes", LADDER)
def test_what_does_not_fit_a_device_is_known_beforehand(gigabytes: int) -> None:
    """The largest products of all formats together take 13 bytes a number, three matrices of 16384²: 10.5 GB."""
    device = on(gigabytes)
    skipped = {
        (name, *keys.values())
        for name in MACHINE
        for keys in declarations.get(name).cases(device)
        if too_large(declarations.get(name), keys, device)
    }
    assert skipped == ({("matmul-size", 16384)} if gigabytes == 8 else set())


def test_what_does_not_fit_is_skipped_with_its_reason_and_the_rest_is_measured(tmp_path: Path) -> None:
    found = run_everything(on(8), tmp_path)
    skipped = [case for record in found.values() for case in record.cases if case.status != "ok"]
    assert [(case.keys, case.contender) for case in skipped] == [
        ({"size": 16384}, name) for name in declarations.get("matmul-size").contenders
    ]
    assert {case.status for case in skipped} == {"skipped"}
    assert {case.reason for case in skipped} == {"needs 9.8 GiB, and 90 % of this device's memory is 6.7 GiB"}


@every_benchmark
def test_everything_runs_on_a_fake_device_or_says_why_not(tmp_path: Path, name: str) -> None:
    """On eight H200 every contender has a case at least, and an old GPU has its reasons."""
    benchmark, device = declarations.get(name), replace(devices.fake("h200"), count=8)
    (record,) = runner.run([benchmark], device, tmp_path, commit="c0ffee").records
    assert record.simulated
    assert not records.read(record.path or Path()).stale
    assert len(record.cases) == len(benchmark.cases(device)) * len(benchmark.contenders)
    assert all(case.status == ("skipped" if case.reason else "ok") for case in record.cases)
    assert {case.contender for case in record.cases if case.status == "ok"} == set(benchmark.contenders)
    old = devices.fake("t4")
    for keys in benchmark.cases(old):
        assert all(find_skip_reason(benchmark, contender, keys, old) != "" for contender in benchmark.contenders)


@pytest.mark.parametrize(
    ("gpu", "lacks"), [("t4", {"matmul-bf16", "matmul-tf32", "matmul-fp8"}), ("a100-sxm-40gb", {"matmul-fp8"})]
)
def test_formats_that_a_gpu_lacks_are_not_measured(tmp_path: Path, gpu: str, lacks: set[str]) -> None:
    for name, record in run_everything(devices.fake(gpu), tmp_path).items():
        for case in record.cases:
            bf16_only = name in ("timing-mistakes", "sustained-matmul") and "matmul-bf16" in lacks
            assert (case.status == "skipped") == (case.contender in lacks or bf16_only)


@pytest.fixture
def unreal_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give bytes in host memory a size and no content, as those of a fake device."""
    on_device = ceilings.random_bytes
    monkeypatch.setattr(ceilings, "random_bytes", lambda size, device, pinned=False: on_device(size, "meta"))


@pytest.mark.usefixtures("unreal_bytes")
def test_declared_memory_covers_the_tensors_that_are_set_up() -> None:
    """Count the bytes of the tensors that all contenders of a case hold together."""
    device = on(141)
    for name in ("copy-size", "transfer-size", "matmul-size", "ceilings"):
        benchmark = declarations.get(name)
        keys = benchmark.cases(device)[-1]
        held = 0
        for title, contender in benchmark.contenders.items():
            if title == "launch-graph":  # it captures a graph, and holds next to nothing
                continue
            for call in contender.build(device, keys).calls:
                parts = (
                    vars(call).values() if hasattr(call, "left") else [c.cell_contents for c in call.__closure__ or ()]
                )
                held += sum(part.nbytes for part in parts if hasattr(part, "nbytes") and part.numel() > 1)
        host = {"transfer-size": 0.5, "ceilings": 0.85}.get(name, 1.0)  # of transfers one side is the host's
        rotated = 5 * 2 * device.l2 if "matmul" in name or name == "ceilings" else 0
        assert held * host <= benchmark.memory(keys) * 1.02 + rotated, name
        assert held >= 0.5 * benchmark.memory(keys), name


@pytest.mark.usefixtures("unreal_bytes")
def test_the_work_is_counted_as_the_roofline_does() -> None:
    device = on(80)
    matmul = declarations.get("matmul-size").contenders["matmul-bf16"].build(device, {"size": 1024})
    assert matmul.rates["throughput"].per_call == 2 * 1024**3
    assert matmul.footprint == 3 * 1024**2 * 2
    copy = declarations.get("copy-size").contenders["copy"].build(device, {"working_set": 2 * MIB})
    assert copy.rates["bandwidth"].per_call == 2 * MIB  # half is read, half is written
    assert copy.timing == "warm"
    transfer = declarations.get("transfer-size").contenders["h2d-pinned"].build(device, {"bytes": 4 * KIB})
    assert transfer.rates["bandwidth"].per_call == 4 * KIB
    assert transfer.timing == "wall"
    skinny = declarations.get("timing-mistakes").contenders["right"].build(device, {"shape": "skinny"})
    assert skinny.rates["throughput"].per_call == 2 * 16 * 4096 * 4096


def test_inputs_that_would_stay_in_the_cache_are_many() -> None:
    device = on(80)
    for size in (256, 1024, 4096):
        work = declarations.get("matmul-size").contenders["matmul-bf16"].build(device, {"size": size})
        assert work.footprint * len(work.calls) >= 2 * device.l2
    inside = declarations.get("timing-mistakes").contenders["inside-l2"].build(device, {"shape": "skinny"})
    assert len(inside.calls) == 1
    assert inside.footprint < device.l2


@pytest.mark.parametrize(("name", "key"), [("copy-size", "working_set"), ("matmul-size", "size")])
def test_the_smallest_case_runs_on_this_machine_and_is_correct(name: str, key: str) -> None:
    outcome = runner.run([declarations.get(name)], devices.cpu(), None, quick=True, commit="c0ffee")
    (record,) = outcome.records
    good = [case for case in record.cases if case.status == "ok"]
    assert "matmul-fp32" in record.contenders or name == "copy-size"
    assert {case.correct for case in good} == {"yes"}
    assert len({case.keys[key] for case in record.cases}) == 1
    assert {case.status for case in record.cases} <= {"ok", "skipped"}
    assert all(case.metrics for case in good)


# --- what a declaration says of a device -----------------------------------------------------------------


def work(device: Device, keys: object) -> Work:
    return Work([])


def declared(memory: Callable[[object], float]) -> Benchmark:
    return Benchmark("b", "", "", {"c": Contender(work)}, lambda device: [{}], memory=memory)


def test_what_a_contender_needs() -> None:
    cpu = Device("A processor", "cpu", "cpu", GIB, 0, None, frozenset({"bf16"}))
    assert find_missing_feature(frozenset(), cpu) is None
    assert find_missing_feature(frozenset({"bf16"}), cpu) is None
    assert find_missing_feature(frozenset({"gpu", "fp8"}), cpu) == "needs a GPU"
    assert find_missing_feature(frozenset({"fp8"}), cpu) == "needs fp8, which A processor lacks"
    everything = frozenset({"gpu", *datasheet.FEATURES})
    assert find_missing_feature(everything, devices.fake("h100-sxm")) is None
    assert "needs bf16 and flash-attention" in (find_missing_feature(everything, devices.fake("t4")) or "")


@pytest.mark.parametrize(("needed", "fits"), [(0, True), (0.9 * GIB, True), (0.91 * GIB, False), (2 * GIB, False)])
def test_a_tenth_of_the_memory_is_left_free(needed: float, fits: bool) -> None:
    device = Device("A processor", "cpu", "cpu", GIB, 0, None, frozenset())
    reason = too_large(declared(lambda keys: needed), {}, device)
    assert (reason is None) is fits
    assert reason is None or reason.endswith("90 % of this device's memory is 0.9 GiB")


@pytest.mark.parametrize(
    ("first", "last", "step", "expected"),
    [(1, 8, 1, [1, 2, 4, 8]), (256, 4096, 2, [256, 1024, 4096]), (4, 4, 1, [4]), (1, 8, 2, [1, 4]), (8, 4, 1, [])],
)
def test_powers_of_two(first: int, last: int, step: int, expected: list[int]) -> None:
    assert powers_of_two(first, last, step) == expected
