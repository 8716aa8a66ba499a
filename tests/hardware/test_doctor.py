from __future__ import annotations

import importlib.util
import shutil
from importlib import metadata
from typing import Any

import pytest
import torch

from gpuguide.errors import GpuguideError
from gpuguide.hardware import device as devices
from gpuguide.hardware import doctor
from gpuguide.hardware.device import Device
from gpuguide.hardware.doctor import Finding
from gpuguide.hardware.monitor import DriverState

H100 = Device("NVIDIA H100 80GB HBM3", "cuda", "cuda:0", 80 * 2**30, 50 * 2**20, (9, 0), devices.supported((9, 0)))


def found(findings: list[Finding]) -> dict[str, tuple[bool, str]]:
    return {finding.name: (finding.present, finding.detail) for finding in findings}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the machine have a GPU and a driver, or none."""

    def have(gpu: Device | None, state: DriverState) -> dict[str, tuple[bool, str]]:
        def current() -> Device:
            if gpu is None:
                raise GpuguideError("no GPU")
            return gpu

        monkeypatch.setattr(devices, "current", current)
        monkeypatch.setattr(doctor, "read_driver", lambda: state)
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


def test_a_gpu_is_described(machine: Any) -> None:
    findings = machine(H100, DriverState("580.1", 1.98e9, 2.6e9, 310.0, 700.0, 45.0, 4))
    assert findings == {
        "NVIDIA driver": (True, "580.1"),
        "CUDA GPU": (True, "NVIDIA H100 80GB HBM3, 80 GiB, compute capability 9.0"),
        "Number formats": (True, "bf16, fp16, fp8, tf32"),
        "Datasheet": (True, "NVIDIA H100 SXM"),
        "Clock and power readings": (True, "sm_clock, power, temperature"),
    }


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
    unknown = Device("NVIDIA Future 9000", "cuda", "cuda:0", 2**37, 0, (15, 0), devices.supported((15, 0)))
    present, detail = machine(unknown, DriverState(driver="900"))["Datasheet"]
    assert not present
    assert "not in the table" in detail


def test_missing_libraries_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    findings = found(doctor.optional_libraries())
    assert not any(present for present, _ in findings.values())
    assert "extra 'cuda12' or 'cuda13'" in findings["cudf"][1]
    assert "extra 'cuda12' or 'cuda13'" in findings["nvidia-ml-py"][1]
    assert "extra 'peers'" in findings["transformers"][1]
    assert "extra 'site'" in findings["sphinx"][1]
    torch_found = doctor.torch_build()
    assert (torch_found.present, torch_found.required) == (False, True)


def test_every_extra_that_is_named_exists() -> None:
    extras = set(metadata.metadata("gpuguide").get_all("Provides-Extra") or ())
    assert {"cuda12", "cuda13", "peers", "site"} <= extras


def test_a_library_without_a_version_is_present(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.library("json", "surely-no-such-package", "").detail == "installed, version unknown"
    assert doctor.library("pytest", "pytest", "").detail == pytest.__version__


def test_a_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert doctor.compiler().detail == "needed by Triton and torch.compile"
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/clang" if name == "clang" else None)
    assert doctor.compiler().present
