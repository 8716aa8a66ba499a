from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpuguide.errors import GpuguideError
from gpuguide.hardware import device as devices
from gpuguide.hardware import doctor
from gpuguide.hardware.device import Device
from gpuguide.hardware.doctor import Finding
from gpuguide.hardware.monitor import BoardState, DriverState

PLUGGED = BoardState()
H100 = Device(
    "NVIDIA H100 80GB HBM3", "cuda", "cuda:0", 80 * 2**30, 50 * 2**20, (9, 0), devices.list_supported_features((9, 0))
)


def found(findings: list[Finding]) -> dict[str, tuple[bool, str]]:
    return {finding.name: (finding.present, finding.detail) for finding in findings}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the machine have a GPU and a driver, or none."""

    def have(
        gpu: Device | None, state: DriverState, board: BoardState = PLUGGED, chip: Any = None
    ) -> dict[str, tuple[bool, str]]:
        def current() -> Device:
            if gpu is None:
                raise GpuguideError("no GPU")
            return gpu

        monkeypatch.setattr(devices, "current", current)
        monkeypatch.setattr(doctor, "read_driver", lambda uuid=None: state)
        monkeypatch.setattr(doctor, "read_board", lambda uuid=None: board)
        monkeypatch.setattr(doctor, "properties", lambda gpu: chip)
        return found(doctor.gpu())

    return have


def test_this_machine_has_what_is_required() -> None:
    findings = doctor.examine()
    assert all(finding.present for finding in findings if finding.required)
    assert len({finding.name for finding in findings}) == len(findings)
    assert all(finding.detail for finding in findings)
    assert torch.__version__ in found(findings)["PyTorch"][1]


def test_without_a_gpu_it_is_said_what_can_be_done(machine: Any) -> None:
    findings = machine(None, DriverState())
    assert findings["NVIDIA driver"][0] is False
    assert "run on the CPU" in findings["NVIDIA driver"][1]
    assert findings["CUDA GPU"][0] is False
    assert "--device cpu" in findings["CUDA GPU"][1]


def test_a_driver_without_a_gpu_that_pytorch_sees(machine: Any) -> None:
    """The usual mistake: PyTorch's build for the CPU on a machine with a GPU."""
    findings = machine(None, DriverState(driver="580.1"))
    assert findings["NVIDIA driver"] == (True, "580.1")
    assert findings["CUDA GPU"][0] is False


@pytest.mark.parametrize(
    ("driver", "cuda", "said"),
    [
        ("550.90.07", "13.0", "too old for PyTorch's build for CUDA 13.0, which needs 580 or newer"),
        ("450.80.02", "12.8", "which needs 525 or newer"),
        ("580.65.06", "13.0", None),
        ("550.90.07", "12.8", None),
        ("550.90.07", None, None),
        (None, "13.0", None),
    ],
)
def test_a_driver_that_is_too_old_for_pytorchs_cuda_is_told(
    machine: Any, monkeypatch: pytest.MonkeyPatch, driver: str | None, cuda: str | None, said: str | None
) -> None:
    monkeypatch.setattr(torch.version, "cuda", cuda)
    present, detail = machine(None, DriverState(driver=driver))["NVIDIA driver"]
    assert present is (driver is not None and said is None)
    assert ("too old" in detail) is (said is not None)
    assert (said or "") in detail


def test_cuda_12_is_named_where_the_driver_can_run_it() -> None:
    assert "the extra 'cuda12'" in (doctor.explain_old_driver("550.90.07", "13.0") or "")
    assert "cuda12" not in (doctor.explain_old_driver("470.1", "13.0") or "")
    assert "cuda12" not in (doctor.explain_old_driver("470.1", "12.8") or "")


@pytest.mark.parametrize(("size", "present"), [(64 * 2**20, False), (2**34, True)])
def test_little_shared_memory_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, present: bool
) -> None:
    """A container of Docker's has 64 MiB unless it is told otherwise."""
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=size))
    (finding,) = doctor.shared_memory(tmp_path)
    assert finding.present is present
    assert ("--shm-size" in finding.detail) is not present
    assert not list(doctor.shared_memory(tmp_path / "none"))


def test_a_gpu_is_described(machine: Any) -> None:
    findings = machine(H100, DriverState("580.1", 1.98e9, 2.6e9, 310.0, 700.0, 45.0, 4))
    assert findings == {
        "NVIDIA driver": (True, "580.1"),
        "CUDA GPU": (True, "NVIDIA H100 80GB HBM3, 80 GiB, compute capability 9.0"),
        "Number formats": (True, "bf16, fp16, fp8, tf32"),
        "Datasheet": (True, "NVIDIA H100 SXM"),
        "Clock and power readings": (True, "sm_clock, power, temperature"),
    }


def test_of_a_board_is_told_how_it_is_plugged_in_and_shared(machine: Any) -> None:
    chip = SimpleNamespace(uuid="1234", multi_processor_count=132)
    findings = machine(H100, DriverState("580.1"), BoardState(5, 5, 16, 16, False, 70 * 2**30), chip)
    assert findings["CUDA GPU"][1] == "NVIDIA H100 80GB HBM3, 80 GiB, 132 multiprocessors, compute capability 9.0"
    assert findings["Free GPU memory"][1] == "70.0 GiB"
    assert findings["PCIe link"][1] == "generation 5, 16 lanes"
    assert findings["MIG mode"][1] == "off"
    findings = machine(H100, DriverState("580.1"), BoardState(1, 5, 16, 16, True))
    lower = "now generation 1, 16 lanes, of at most generation 5, 16 lanes; an idle GPU may lower the generation"
    assert findings["PCIe link"] == (True, lower)
    assert "'gpuguide links' measures this one" in findings["What links carry"][1]
    assert findings["MIG mode"][1].startswith("on; PyTorch sees one instance")
    assert "Free GPU memory" not in findings


def test_a_link_with_fewer_lanes_than_the_board_allows_is_a_fault(machine: Any) -> None:
    findings = machine(H100, DriverState("580.1"), BoardState(5, 5, 8, 16))
    found, said = findings["PCIe link"]
    assert found is False
    assert "has 8 of the 16 lanes that the board allows, so it carries 50%" in said
    assert "What links carry" not in findings


def test_the_gpu_that_pytorch_sees_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """It need not be the driver's first."""
    asked: list[tuple[str, str | None]] = []
    monkeypatch.setattr(devices, "current", lambda: H100)
    monkeypatch.setattr(doctor, "properties", lambda gpu: SimpleNamespace(uuid="1234", multi_processor_count=1))
    for name, answer in (("read_driver", DriverState()), ("read_board", BoardState())):
        monkeypatch.setattr(
            doctor, name, lambda uuid=None, name=name, answer=answer: asked.append((name, uuid)) or answer
        )
    doctor.gpu()
    assert asked == [("read_driver", "1234"), ("read_board", "1234")]


@pytest.mark.parametrize(
    ("content", "present", "detail"),
    [
        ("__version__ = '25.10.00'", True, "25.10.00"),
        ("raise RuntimeError('no CUDA here\\nand more')", False, "importing it fails: RuntimeError: no CUDA here"),
    ],
)
def test_cudf_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, present: bool, detail: str
) -> None:
    (tmp_path / "cudf.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cudf", raising=False)
    found = doctor.cudf()
    assert (found.present, found.detail.endswith(detail)) == (present, True)
    monkeypatch.delitem(sys.modules, "cudf", raising=False)


def test_the_processor_is_named_with_the_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2}, raising=False)
    assert doctor.processor().detail == f"{devices.processor_name()}, 3 of 16 cores for this process"


def test_a_driver_without_readings_is_no_fault(machine: Any) -> None:
    findings = machine(H100, DriverState(driver="580.1", temperature=40.0))
    assert findings["Clock and power readings"] == (True, "temperature")
    findings = machine(H100, DriverState(driver="580.1"))
    assert findings["Clock and power readings"][0] is False
    assert "records will lack them" in findings["Clock and power readings"][1]


def test_a_gpu_that_works_has_a_driver_even_if_its_version_is_not_known(machine: Any) -> None:
    """Without nvidia-ml-py nothing can ask the driver for its version."""
    present, detail = machine(H100, DriverState())["NVIDIA driver"]
    assert present
    assert "nvidia-ml-py" in detail


def test_a_gpu_that_no_table_knows_can_be_measured(machine: Any) -> None:
    unknown = Device(
        "NVIDIA Future 9000", "cuda", "cuda:0", 2**37, 0, (15, 0), devices.list_supported_features((15, 0))
    )
    present, detail = machine(unknown, DriverState(driver="900"))["Datasheet"]
    assert not present
    assert "not in the table" in detail


def test_missing_libraries_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    findings = found(doctor.optional_libraries())
    assert not any(present for present, _ in findings.values())
    assert "extra 'cuda12' or 'cuda13'" in doctor.cudf().detail
    assert "extra 'cuda12' or 'cuda13'" in findings["nvidia-ml-py"][1]
    assert "extra 'peers'" in findings["transformers"][1]
    assert "extra 'site'" in findings["sphinx"][1]
    torch_found = doctor.torch_build()
    assert (torch_found.present, torch_found.required) == (False, True)


def test_every_extra_that_is_named_exists() -> None:
    extras = set(metadata.metadata("gpuguide").get_all("Provides-Extra") or ())
    assert {"cuda12", "cuda13", "peers", "site"} <= extras


def test_a_folder_with_the_name_of_a_library_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nosuchlibrary").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert importlib.util.find_spec("nosuchlibrary") is not None
    assert not doctor.library("nosuchlibrary", "nosuchlibrary", "nothing").present


def test_a_library_without_a_version_is_present(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.library("json", "surely-no-such-package", "").detail == "installed, version unknown"
    assert doctor.library("pytest", "pytest", "").detail == pytest.__version__


def test_a_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert doctor.compiler().detail == "needed by Triton and torch.compile"
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/clang" if name == "clang" else None)
    assert doctor.compiler().present
