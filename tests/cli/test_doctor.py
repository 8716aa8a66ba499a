from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gpuguide.measure import benchmark as declarations
from gpuguide.measure import libraries

Run = Callable[..., tuple[int, str, str]]


def test_doctor_says_what_is_here(gpuguide: Run, monkeypatch: pytest.MonkeyPatch, overlay: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, out, err = gpuguide("doctor")
    assert (status, err) == (0, "")
    assert torch.__version__ in out
    assert re.search(r"no +CUDA GPU +PyTorch sees none", out)
    assert str(overlay) in "".join(out.split())  # a long path is broken over lines


def test_doctor_fails_where_something_required_is_missing(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuguide.hardware import doctor

    missing = doctor.Finding("PyTorch", False, "needed by everything", True)
    monkeypatch.setattr(doctor, "torch_build", lambda: missing)
    status, out, _ = gpuguide("doctor")
    assert status == 1
    assert "needed by everything" in out


def test_doctor_says_which_peers_are_here(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"liger-kernel": "0.8.5"}
    monkeypatch.setattr(libraries, "find_installed_version", lambda packages: next(map(here.get, packages), None))
    _, out, _ = gpuguide("doctor")
    assert re.search(r"yes +liger-kernel +0\.8\.5", out)
    assert re.search(r"no +quack-kernels +not installed: .*pip install quack-kernels", out)
    assert re.search(r"no +flashinfer +not installed: .*pip install\s+flashinfer-python", out)


def test_every_peer_is_called_by_a_contender() -> None:
    benchmarks = map(declarations.get, declarations.names())
    called = {name for each in benchmarks for contender in each.contenders.values() for name in contender.libraries}
    assert set(libraries.PEERS) <= called
