"""The command behind `make site`: what it prints, and what it does when something stops it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from small_site import Project, cell, start

pytestmark = pytest.mark.slow

DIVIDES = """
def divide(n):
    return 1 / n


divide(x - 1)
"""

WAITS = """
from pathlib import Path
import os, time

Path({note!r}).write_text(str(os.getpid()))
while Path({note!r}).exists():
    time.sleep(0.05)
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = start(tmp_path)
    made.page("index", "```{toctree}\n:glob:\n\n[a-z]*\n```", runs=False)
    return made


def wait_for(path: Path) -> int:
    """Return the process number in a file, when it is there."""
    while not path.exists() or not path.read_text():
        time.sleep(0.05)
    return int(path.read_text())


def wait_until_gone(pid: int) -> None:
    """Return when a process has ended."""
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.05)


def test_pages_run_apart_and_leave_nothing(project: Project, tmp_path: Path) -> None:
    notes = {name: tmp_path / f"{name}.txt" for name in ("one", "two")}
    for name, note in notes.items():
        leaves = [
            "import os, subprocess, torch",
            "from pathlib import Path",
            f"Path('same.txt').write_text({name!r})",
            "left = [subprocess.Popen(['sleep', '600'], start_new_session=own).pid for own in (False, True)]",
            f"Path({str(note)!r}).write_text(' '.join(map(str, [*left, os.getcwd()])))",
        ]
        looks = "print(Path('same.txt').read_text() * 2, torch.get_num_threads(), os.environ['GPUGUIDE_SITE_BUILD'])"
        project.page(name, cell("\n".join(leaves)) + "\n" + cell(looks))
    done = project.command()
    assert done.status == 0, done.output
    assert done.executed == {"one", "two"}
    assert "open _build/html/index.html. Log: _build/build.log" in done.output
    assert len(done.output.splitlines()) <= 7
    for name, note in notes.items():
        first, second, folder = note.read_text().split()
        assert f"{name}{name} 1 1" in (project.html / f"{name}.html").read_text(encoding="utf-8")
        wait_until_gone(int(first))
        wait_until_gone(int(second))
        assert not Path(folder).exists()
    log = (project.root / "_build" / "build.log").read_text(encoding="utf-8")
    assert "Executing notebook" not in log, "MyST-NB found every page in the cache"


def test_every_failing_cell_is_said_on_a_line_every_time(project: Project) -> None:
    with (project.root / "conf.py").open("a", encoding="utf-8") as conf:
        conf.write("\nnb_execution_timeout = 2\n")
    project.page("fails", cell("x = 1") + "\n" + cell(DIVIDES, "hide-input"))
    project.page("dies", cell("import os, signal\n\nos.kill(os.getpid(), signal.SIGKILL)"))
    project.page("sleeps", cell("import time\n\ntime.sleep(60)"))
    project.page("works", cell("1 + 1"))
    faults = [
        f"dies.md:{project.line_of('dies', 'import os')}: cell 1: the kernel died (signal 9, Killed)",
        f"fails.md:{project.line_of('fails', 'divide(x - 1)')}: cell 2: ZeroDivisionError: division by zero",
        f"sleeps.md:{project.line_of('sleeps', 'import time')}: cell 1: not done after 2 s, which is the limit "
        "(nb_execution_timeout in conf.py)",
    ]
    first, second = project.command(), project.command()
    for build in (first, second):
        assert build.status == 1
        assert [line for line in build.output.splitlines() if ": cell" in line] == faults
        assert "Traceback" not in build.output
    assert first.executed == {"fails", "dies", "sleeps", "works"}
    assert second.executed == {"fails", "dies", "sleeps"}
    assert "return 1 / n" in (project.root / "_build" / "build.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_build_that_is_stopped_keeps_what_ran_and_leaves_no_kernel(
    project: Project, tmp_path: Path, how: signal.Signals
) -> None:
    note = tmp_path / "note"
    project.page("quick", cell("1 + 1"))
    project.page("waits", cell(WAITS.format(note=str(note))))
    stopped = project.start_command()
    assert stopped.stdout is not None
    while "quick.md ran" not in stopped.stdout.readline():
        pass
    kernel = wait_for(note)
    refused = project.command()
    assert refused.status == 3
    assert refused.output == f"Another build is at work in {project.root}. Wait until it is done, or end it.\n"
    os.kill(stopped.pid, how)
    rest, _ = stopped.communicate()
    wait_until_gone(kernel)
    if how != signal.SIGKILL:
        assert stopped.returncode == 130
        assert rest.splitlines()[-1] == "Stopped. Pages that have run need not run again."
    note.unlink()
    resumed = project.start_command()
    wait_for(note)
    note.unlink()
    output, _ = resumed.communicate()
    assert resumed.returncode == 0, output
    assert "waits.md ran" in output
    assert "quick.md" not in output


def test_a_page_is_named_with_its_ending_or_without_and_one_that_is_not_there_is_refused(project: Project) -> None:
    project.page("page", cell("1 + 1"))
    for name in ("page", "page.md"):
        built = project.command("--page", name)
        assert built.status == 0, built.output
        assert "The page is built" in built.output
    missing = project.command("--page", "pages")
    assert missing.status == 2
    assert "There is no page pages.md here" in missing.output


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here, a disk that is always full")
def test_a_full_disk_stops_the_build_and_leaves_nothing_half_done(project: Project) -> None:
    project.page("page", "Text.", runs=False)
    written = project.root / "_build" / "doctrees" / "page.doctree"
    written.parent.mkdir(parents=True)
    written.symlink_to("/dev/full")
    for _ in range(2):
        full = project.command()
        assert full.status == 1
        assert "No space left on device" in full.output
    written.unlink()
    mended = project.command()
    assert mended.status == 0, mended.output
    assert "Text." in (project.html / "page.html").read_text(encoding="utf-8")


def test_a_warning_fails_every_build_and_a_mended_page_alone_is_read(project: Project) -> None:
    project.page("page", "A [link](nowhere.md).", runs=False)
    project.page("other", cell("1 + 1"))
    for _ in range(2):
        warned = project.command()
        assert warned.status == 1
        assert f"page.md:{project.line_of('page', 'link')}: WARNING: " in warned.output
        assert "1 warning, and a site with warnings is not to be published." in warned.output
    project.page("page", "No link.", runs=False)
    assert project.command().status == 0
    project.page("page", cell("1 / 0"))
    assert project.command().status == 1
    project.page("page", "No link.", runs=False)
    mended = project.command()
    assert mended.status == 0, mended.output
    assert "Reading 1 page\n" in mended.output
