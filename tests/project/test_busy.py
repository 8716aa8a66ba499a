"""The busy loops that the nightly tests run beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import busy


def test_loops_run_until_they_are_stopped() -> None:
    loops = busy.start(2)
    assert [loop.poll() for loop in loops] == [None, None]
    busy.stop(loops)
    assert None not in [loop.poll() for loop in loops]


def test_a_loop_ends_with_the_process_that_started_it() -> None:
    folder = Path(busy.__file__).parent
    # A loop holds the pipe, so this waits for it.
    subprocess.run(
        [sys.executable, "-c", "import busy; busy.start(1)"], cwd=folder, stderr=subprocess.PIPE, timeout=300
    )
