"""Benchmarks that measure several GPUs together: where their records go, and where they are left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from scripted_runs import stored

from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work

pytestmark = pytest.mark.usefixtures("known_code")
ONE, TWO = "nvidia-h200-sxm", "2x-nvidia-h200-sxm"


def together(scripted: Any, gpus: int = 2, name: str = "together") -> Benchmark:
    """Return a benchmark of several GPUs."""
    made: Benchmark = replace(scripted(name).benchmark, gpus=gpus)
    return made


def test_its_record_is_that_of_several_devices_beside_those_of_one(measure: Any, scripted: Any, tmp_path: Path) -> None:
    measure(scripted("alone").benchmark, together(scripted), scripted("last").benchmark, device=devices.fake("h200"))
    found = {path.stem: (path.parent.name, json.loads(path.read_text())) for path in tmp_path.glob("*/*.json")}
    assert {name: folder for name, (folder, _) in found.items()} == {"alone": ONE, "together": TWO, "last": ONE}
    for folder, fields in found.values():
        assert fields["device"] == folder
        assert fields["runs"][0]["device_name"] == "NVIDIA H200 SXM"
        assert len(fields["cases"]) == 6


def test_its_record_is_gone_on_with(measure: Any, scripted: Any, tmp_path: Path) -> None:
    h200 = devices.fake("h200")
    assert measure(together(scripted), device=h200).measured == 3
    before = stored(tmp_path, "together", TWO)
    outcome = measure(together(scripted), device=h200)
    assert (outcome.measured, outcome.already_fresh) == (0, 3)
    assert stored(tmp_path, "together", TWO) == before
    assert measure(together(scripted, gpus=4), device=h200).measured == 3  # four are another device
    assert stored(tmp_path, "together", TWO) == before


def test_cases_contenders_and_what_they_leave_out_are_told_how_many_there_are(measure: Any, tmp_path: Path) -> None:
    def cases(device: Device) -> list[Keys]:
        return [{"size": device.count}]

    def build(device: Device, keys: Keys) -> Work:
        raise ValueError("a fake device builds nothing")

    contenders = {
        "builds": Contender(build),
        "leaves-out": Contender(build, skip_reason=lambda device, keys: f"left out on {device.count}"),
    }
    benchmark = Benchmark("together", "Made up", "How many?", contenders, cases, gpus=8)
    (record,) = measure(benchmark, device=devices.fake("h200")).records
    assert {case.contender: (case.keys["size"], case.status, case.reason) for case in record.cases} == {
        "builds": (8, "ok", ""),
        "leaves-out": (8, "skipped", "left out on 8"),
    }


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["NVIDIA H200"], "It needs 2 GPUs, and PyTorch sees 1."),
        (["NVIDIA H200", "NVIDIA T400"], "It needs 2 GPUs of one kind, and the first are NVIDIA H200 and NVIDIA T400."),
    ],
    ids=["too few", "two kinds"],
)
@pytest.mark.parametrize("quick", [False, True])
def test_without_that_many_gpus_of_a_kind_it_is_left_out_with_the_reason_and_others_are_measured(
    measure: Any,
    scripted: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    why: str,
    quick: bool,
) -> None:
    gpus = [SimpleNamespace(name=name, uuid="1234") for name in names]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda where: gpus[0 if where == "cuda:0" else where])
    first = Device("NVIDIA H200", "cuda", "cuda:0", 141 * 10**9, 0, (9, 0), frozenset())
    bench, said, seen = scripted("together"), [], []
    outcome = measure(
        replace(bench.benchmark, gpus=2),
        scripted("alone").benchmark,
        device=first,
        quick=quick,
        say=said.append,
        report=seen.append,
    )
    (note,) = said
    assert note.startswith(f"together is left out: {why}")
    assert bench.steps == []
    assert [record.benchmark for record in outcome.records] == ["alone"]
    assert {progress.total for progress in seen} == {1 if quick else 3}  # it is not counted among what is to come
    assert (outcome.already_fresh, outcome.not_reached) == (0, 0)
    stored_here = [path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("*/*.json")]
    assert stored_here == ([] if quick else ["nvidia-h200/alone.json"])


def test_a_processor_stays_alone(measure: Any, scripted: Any, tmp_path: Path) -> None:
    measure(together(scripted))
    assert stored(tmp_path, "together", "cpu").device == "cpu"
