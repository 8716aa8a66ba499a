from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

Run = Callable[..., tuple[int, str, str]]


def test_doctor_says_what_is_here(gpuguide: Run, monkeypatch: pytest.MonkeyPatch, overlay: Path) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    status, out, err = gpuguide("doctor")
    assert (status, err) == (0, "")
    assert torch.__version__ in out
    assert re.search(r"no +CUDA GPU +PyTorch sees none", out)
    assert str(overlay) in out


def test_doctor_fails_where_something_required_is_missing(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuguide.hardware import doctor

    missing = doctor.Finding("PyTorch", False, "needed by everything", True)
    monkeypatch.setattr(doctor, "torch_build", lambda: missing)
    status, out, _ = gpuguide("doctor")
    assert status == 1
    assert "needed by everything" in out
