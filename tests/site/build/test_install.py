"""The installation: few lines on the screen, all that pip says in a log, and its end where pip fails."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from gpuguide.site.build import install


def test_a_failed_installation_shows_the_end_of_the_log(tmp_path: Path) -> None:
    wanted = tmp_path / "requirements.txt"
    wanted.write_text("# pinned\ngpuguide-has-no-such-package==1\n", encoding="utf-8")
    log = tmp_path / "_build" / "install.log"
    command = [sys.executable, install.__file__, str(log), "--no-index", "-r", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"The installation failed. The end of {log}:")
    assert "gpuguide-has-no-such-package" in done.stderr
    assert "gpuguide-has-no-such-package" in log.read_text(encoding="utf-8")


def test_few_lines_say_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    log = io.StringIO()
    lines = [f"Collecting package{number}==1.0 (from -r requirements.lock)\n" for number in range(100)]
    install.follow([*lines, "Installing collected packages: many\n"], log, 100)
    assert log.getvalue().splitlines()[:100] == [line.strip() for line in lines]
    said = capsys.readouterr().out.splitlines()
    assert said == [*(f"  {n} of 100 packages are here" for n in (25, 50, 75, 100)), "  Unpacking them"]


def test_packages_are_counted_without_options_and_comments(tmp_path: Path) -> None:
    wanted = tmp_path / "requirements.lock"
    wanted.write_text("# one\n--extra-index-url x\n\na==1\nb==2\n", encoding="utf-8")
    assert install.count(["--quiet", "-r", str(wanted)]) == 2
