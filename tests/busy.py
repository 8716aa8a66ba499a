"""Busy loops beside the tests: what passes on an idle machine must also pass on one that has other things to do."""

from __future__ import annotations

import os
import subprocess
import sys

LOOP = """
import os, sys

while os.getppid() == int(sys.argv[1]):  # it ends with the process that started it
    sum(range(1_000_000))
"""


def start(count: int) -> list[subprocess.Popen[bytes]]:
    """Start as many processes, each of which keeps a core busy."""
    return [subprocess.Popen([sys.executable, "-c", LOOP, str(os.getpid())]) for _ in range(count)]


def stop(loops: list[subprocess.Popen[bytes]]) -> None:
    """End them."""
    for loop in loops:
        loop.kill()
        loop.wait()
