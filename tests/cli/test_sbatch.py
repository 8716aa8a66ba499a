"""``gpuguide sbatch``: batch scripts, and what is printed of their faults."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguide.cli import sbatch
from gpuguide.clusters.checking import check

Run = Callable[..., tuple[int, str, str]]
RIGHT = "#!/bin/bash\n#SBATCH --output=%j.out\nhostname\n"
WRONG = "#!/bin/bash\n#SBATCH --job-name=$USER\n#SBATCH --requeue\nhostname\n"
CORES = "#!/bin/bash\n#SBATCH -c 8\nsrun python train.py\n"


@pytest.fixture(autouse=True)
def no_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sbatch, "installed_version", lambda: None)


@pytest.fixture
def scripts(tmp_path: Path) -> dict[str, Path]:
    """Write a right script and a wrong one."""
    files = {}
    for name, text in {"right": RIGHT, "wrong": WRONG, "cores": CORES}.items():
        files[name] = tmp_path / f"{name}.sh"
        files[name].write_text(text, encoding="utf-8")
    return files


def test_each_fault_is_one_line_that_can_be_copied(gpuguide: Run, scripts: dict[str, Path]) -> None:
    status, out, err = gpuguide("sbatch", "check", scripts["right"], scripts["wrong"])
    assert (status, err) == (1, "")
    assert out.splitlines() == [
        f"{scripts['wrong']}:{fault.line}: {fault.what} → {fault.remedy}" for fault in check(WRONG)
    ]
    assert len(out.splitlines()) == 2


def test_without_a_fault_the_number_of_scripts_is_said(gpuguide: Run, scripts: dict[str, Path]) -> None:
    assert gpuguide("sbatch", "check", scripts["right"]) == (0, "", "no fault found in 1 script\n")
    two = gpuguide("sbatch", "check", scripts["right"], scripts["cores"])
    assert two == (0, "", "no fault found in 2 scripts\n")


def test_json_lists_every_field(gpuguide: Run, scripts: dict[str, Path]) -> None:
    status, out, _ = gpuguide("sbatch", "check", "--json", scripts["wrong"])
    assert status == 1
    faults = json.loads(out)
    assert [(fault["file"], fault["line"], fault["rule"]) for fault in faults] == [
        (str(scripts["wrong"]), 2, "variable-in-directive"),
        (str(scripts["wrong"]), 3, "log-begins-anew"),
    ]
    assert all(fault["what"] and fault["remedy"] and fault["source"] for fault in faults)
    assert json.loads(gpuguide("sbatch", "check", "--json", scripts["right"])[1]) == []


def test_standard_input_keeps_its_line_ends(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(RIGHT.replace("\n", "\r\n").encode())))
    status, out, _ = gpuguide("sbatch", "check", "-")
    assert status == 1
    assert out.startswith("-:1: sbatch refuses the script")


def test_the_version_of_slurm_decides(gpuguide: Run, scripts: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpuguide("sbatch", "check", "--slurm", "22.05.8", scripts["cores"])[0] == 1
    assert gpuguide("sbatch", "check", "--slurm", "23.11", scripts["cores"])[0] == 0
    monkeypatch.setattr(sbatch, "installed_version", lambda: (22, 5))
    assert gpuguide("sbatch", "check", scripts["cores"])[0] == 1
    status, _, err = gpuguide("sbatch", "check", "--slurm", "new", scripts["cores"])
    assert status == 2
    assert "'new'" in err


def test_the_version_is_that_of_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    program = tmp_path / "sbatch"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sbatch.installed_version() is None
    for says, version in (("echo slurm-wlm 22.05.8", (22, 5)), ("echo slurm 23.11.10", (23, 11)), ("exit 1", None)):
        program.write_text(f"#!/bin/sh\n{says}\n", encoding="utf-8")
        program.chmod(0o755)
        assert sbatch.installed_version() == version


def test_a_folder_for_logs_is_looked_for_where_the_command_runs(
    gpuguide: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --output=logs/%j.out\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert gpuguide("sbatch", "check", "job.sh")[0] == 1
    (tmp_path / "logs").mkdir()
    assert gpuguide("sbatch", "check", "job.sh")[0] == 0


@pytest.mark.parametrize(
    "content", [None, b"\x7fELF\0\0", "höchstens\n".encode("latin-1")], ids=["missing", "binary", "latin"]
)
def test_what_is_no_script_is_refused_in_a_sentence(gpuguide: Run, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "job.sh"
    if content is not None:
        file.write_bytes(content)
    status, out, err = gpuguide("sbatch", "check", file)
    assert (status, out) == (1, "")
    assert str(file) in err
    assert err.startswith("gpuguide: ")
    assert err.count("\n") == 1


def test_a_folder_is_refused(gpuguide: Run, tmp_path: Path) -> None:
    status, _, err = gpuguide("sbatch", "check", tmp_path)
    assert status == 1
    assert str(tmp_path) in err
