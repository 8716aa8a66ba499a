from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from gpuguide import __version__, cli
from gpuguide.errors import GpuguideError
from gpuguide.measure import reference_gpu

OURS = reference_gpu.slug()
HEADER = "device,benchmark,contender,case,metric,unit,n,p5,p25,median,p75,p95,correct,measured_at,commit,stale"
Run = Callable[..., tuple[int, str, str]]


def commands(command: Any = None, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = command or typer.main.get_command(cli.app)
    yield name, command
    for inner, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*name, inner))


GROUPS = [name for name, command in commands() if hasattr(command, "commands")]
COMMANDS = [name for name, command in commands() if not hasattr(command, "commands")]


def test_the_commands_of_the_contract_are_there() -> None:
    assert set(COMMANDS) >= {
        ("doctor",),
        ("generate",),
        *[("bench", name) for name in ("list", "run", "compare")],
        *[("records", name) for name in ("list", "show", "verify", "import")],
        ("claims", "check"),
    }


@pytest.mark.parametrize("command", GROUPS + COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_that_is_a_command(gpuguide: Run, command: tuple[str, ...]) -> None:
    status, out, err = gpuguide(*command, "--help")
    assert (status, err) == (0, "")
    (example,) = re.findall(r"^  Example: gpuguide ?(.*)$", out, re.MULTILINE)  # on a line of its own, to be copied
    assert tuple(example.split()[: len(command)]) == command


@pytest.mark.parametrize("command", GROUPS, ids=" ".join)
def test_a_command_without_its_second_word_shows_what_there_is(gpuguide: Run, command: tuple[str, ...]) -> None:
    status, out, err = gpuguide(*command)
    assert status == 2
    assert "Commands" in out + err


@pytest.mark.parametrize(
    "words",
    [
        ["bnech"],
        ["bench", "rum"],
        ["bench", "run", "--qiuck"],
        ["bench", "run", "--time-limit", "soon"],
        ["bench", "run", "--time-limit", "-1"],
        ["records", "list", "--format", "xml"],
        ["records", "show"],
        ["records", "import"],
        ["claims", "check", "--format", "xml"],
    ],
    ids=" ".join,
)
def test_a_command_that_is_written_wrongly_has_status_2_and_says_so_on_standard_error(
    gpuguide: Run, words: list[str]
) -> None:
    status, out, err = gpuguide(*words)
    assert (status, out) == (2, "")
    assert "Usage: " in err
    assert words[-1] in err or words[-2] in err or "Missing argument" in err


def test_the_version(gpuguide: Run) -> None:
    assert gpuguide("--version") == (0, f"{__version__}\n", "")


def test_the_module_is_the_command() -> None:
    words = [sys.executable, "-m", "gpuguide", "--version"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == f"{__version__}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["bench", "run", "copysize"], r"no benchmark named 'copysize'\. Did you mean copy-size"),
        (["bench", "run", "ceilings", "matmul"], "Did you mean matmul-size"),
        (["bench", "run", "--device", "gpus", "--quick"], r"no device named 'gpus'\. Did you mean gpu"),
        (["bench", "compare", "nvidia-h100"], f"named 'nvidia-h100'.*Did you mean .*{OURS}"),
        (["records", "show", "ceiling"], r"no benchmark named 'ceiling'\. Did you mean ceilings"),
        (["records", "show", "ceilings", "--device", "nvidia-h100"], f"Did you mean .*{OURS}"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_unknown_name_lists_the_near_ones(gpuguide: Run, words: list[str], says: str) -> None:
    status, out, err = gpuguide(*words)
    assert (status, out) == (2, "")
    assert err.startswith("gpuguide: ")
    assert err.count("\n") == 1  # one sentence, no traceback
    assert re.search(says, err)


def test_a_setting_without_records_is_said_once(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_gpu, "slug", lambda: "nvidia-b200")
    status, out, err = gpuguide("claims", "check")
    assert (status, out) == (1, "")
    assert re.fullmatch(r"gpuguide: .* 'nvidia-b200', of which there are no published records\. .*\n", err)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["records", "verify", "no/such/folder"], "no file or folder no/such/folder"),
        (["records", "import", "--publish", "no/such.json"], r"There is no record at no/such\.json"),
    ],
)
def test_a_file_that_is_not_there_is_named(gpuguide: Run, words: list[str], says: str) -> None:
    status, out, err = gpuguide(*words)
    assert (status, out) == (1, "")
    assert re.search(says, err)


def test_output_can_be_cut_off(tmp_path: Path) -> None:
    """As in ``gpuguide records list --format csv | head -1``."""
    words = [sys.executable, "-m", "gpuguide", "records", "list", "--format", "csv"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == f"{HEADER}\n"
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    assert process.wait(60) in (0, 1)
    process.stderr.close()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed(closed: str) -> None:
    """As in a job of cron or systemd; what nobody can read is lost, and nothing else happens."""
    words = [sys.executable, "-m", "gpuguide", "generate", "--model", "draft", "--device", "cpu", "--tokens", "3"]
    shell = f'"$@" --prompt "def f" {closed}'
    done = subprocess.run(["sh", "-c", shell, "sh", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert bool(done.stdout) == (closed == "2>&-")


def test_an_error_of_ours_needs_no_traceback(monkeypatch: pytest.MonkeyPatch, gpuguide: Run) -> None:
    def fail() -> None:
        raise GpuguideError("There is [no] reason, see /a/b.")

    monkeypatch.setattr(cli, "app", fail)
    assert gpuguide() == (1, "", "gpuguide: There is [no] reason, see /a/b.\n")


def test_nothing_heavy_is_imported_for_a_list(tmp_path: Path) -> None:
    code = (
        "import sys; from gpuguide import cli; sys.argv = ['gpuguide', 'records', 'list'];\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules, 'torch'"
    )
    environment = {**os.environ, "GPUGUIDE_RECORDS": ""}
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, env=environment)
