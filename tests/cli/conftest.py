"""The command line, run in this process, and a machine for it to measure."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuguide import cli
from gpuguide.measure import digest, folders, records, reference_gpu, runner, store

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gpuguide(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line and return its exit status, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["gpuguide", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        status = stop.value.code
        assert "Traceback" not in captured.err
        return status if isinstance(status, int) else 0, captured.out, captured.err

    return run


@pytest.fixture
def overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "overlay"
    monkeypatch.setenv("GPUGUIDE_RECORDS", str(folder))
    return folder


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> str:
    """Measure a made-up RTX 4090, whose records go to its slug."""
    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "rtx-4090")
    monkeypatch.setattr(runner.case, "release_memory", lambda device: None)
    return "nvidia-geforce-rtx-4090"


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Publish the reference GPU's records, each as if today's code had measured it."""
    folder = tmp_path / "published"
    for record in store.load_all_published():
        if reference_gpu.is_reference(record):
            code = digest.benchmark_digest(record.benchmark)
            today = replace(record, code_digest=code, harness_version=records.HARNESS_VERSION)
            records.write(today, folder / record.device / f"{record.benchmark}.json")
    monkeypatch.setattr(folders, "published_folder", lambda: folder)
    return folder
