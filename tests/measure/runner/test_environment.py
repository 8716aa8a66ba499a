from __future__ import annotations

import getpass
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from scripted_runs import fails, statuses, stored

from gpuguide.measure import digest, runner

pytestmark = pytest.mark.usefixtures("known_code")
COMMIT = "c0ffee"


def test_no_record_names_a_host_a_user_or_a_path(
    measure: Any, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER", "alice-the-user")
    monkeypatch.setattr(platform, "node", lambda: "the-host-name")
    home = "/home/alice-the-user"
    monkeypatch.setattr(
        sys, "argv", [f"{home}/bin/gpuguide", "-f", f"{home}/kernel.json", "--out", "alice-the-user", f"--out={home}/r"]
    )
    lost = FileNotFoundError(2, "No such file or directory", f"{home}/.triton/cache/a.json")
    windows = RuntimeError(r"cannot open 'C:\Users\alice-the-user\a.cu' at 12 GB/s and/or 1/2 of it")
    measure(
        scripted(at=fails("build fast 1", lost)).benchmark,
        scripted("other", at=fails("build fast 1", windows)).benchmark,
    )
    text = (tmp_path / "cpu" / "scripted.json").read_text() + (tmp_path / "cpu" / "other.json").read_text()
    for word in ("alice", "the-host-name", "/home", "Users", str(tmp_path), getpass.getuser() + "@"):
        assert word not in text
    record = stored(tmp_path)
    assert record.runs[0].command == "gpuguide -f DIR --out DIR --out=DIR"
    reason = statuses(record)[1, "fast"][1]
    assert reason.startswith("FileNotFoundError: [Errno 2] No such file or directory")
    assert "12 GB/s and/or 1/2 of it" in statuses(stored(tmp_path, "other"))[1, "fast"][1]


def test_a_run_tells_its_circumstances(measure: Any, scripted: Any, tmp_path: Path) -> None:
    measure(scripted().benchmark)
    (run,) = stored(tmp_path).runs
    assert run.device_name == "A processor"
    assert run.python == platform.python_version()
    assert run.versions["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"gpuguide", "numpy"} <= set(run.versions)
    assert run.commit == COMMIT
    assert run.started_at < run.finished_at
    assert run.elapsed >= 0
    assert run.cuda is run.driver is run.before.power is None
    assert not run.simulated


def repository(folder: Path, *files: str) -> None:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c"]):
        subprocess.run(["git", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let gpuguide seem to run from a checkout of its own."""
    package = tmp_path / "checkout" / "src" / "gpuguide"
    repository(
        tmp_path / "checkout", "src/gpuguide/measure/runner/session.py", "src/gpuguide/costs/roofline.py", "README.md"
    )
    monkeypatch.setattr(digest, "PACKAGE_FOLDER", package)
    return tmp_path / "checkout"


def test_the_commit_is_that_of_the_checkout(checkout: Path) -> None:
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    assert runner.environment.commit_of_checkout() == head.stdout.strip()
    (checkout / "README.md").write_text("What is measured does not depend on this.")
    (checkout / "src/gpuguide/records/cpu").mkdir(parents=True)
    (checkout / "src/gpuguide/records/cpu/ceilings.json").write_text("Nor on this.")
    assert runner.environment.commit_of_checkout() == head.stdout.strip()


@pytest.mark.parametrize("file", ["roofline.py", "measure/runner/session.py", "benchmarks/new.py"])
def test_a_checkout_with_changes_is_marked(checkout: Path, file: str) -> None:
    path = checkout / "src" / "gpuguide" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("changed = True\n")
    assert str(runner.environment.commit_of_checkout()).endswith("-modified")


def test_a_project_that_merely_has_gpuguide_installed_is_not_its_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(tmp_path, "project.py")
    package = tmp_path / ".venv" / "gpuguide"
    (package / "measure" / "runner").mkdir(parents=True)
    (package / "measure" / "runner" / "session.py").write_text("")
    monkeypatch.setattr(digest, "PACKAGE_FOLDER", package)
    assert runner.environment.commit_of_checkout() is None


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert runner.environment.commit_of_checkout() is None
