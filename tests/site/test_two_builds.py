"""Two builds from one execution cache give the same bytes, whatever Python's hashes are, and ask for no network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "_build" / "html"
OFFLINE = """
import os, socket

LOCAL = ("127.0.0.1", "::1", "localhost", "")
connect, look_up = socket.socket.connect, socket.getaddrinfo


def refuse(host):
    with open(os.environ["ATTEMPTS"], "a") as file:
        file.write(f"{host}\\n")
    raise OSError(f"This test has no network: {host}")


def local_connect(self, address):
    if isinstance(address, tuple) and address[0] not in LOCAL:
        refuse(address[0])
    return connect(self, address)


def local_look_up(host, *rest, **options):
    return look_up(host, *rest, **options) if host in (None, *LOCAL) else refuse(host)


socket.socket.connect, socket.getaddrinfo = local_connect, local_look_up
"""
"""A module that Python imports when it starts: it notes and refuses every connection to another machine"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SITE / "index.html").is_file(), reason="the site is not built; run `make site`, or `make test`, which does"
    ),
]


def build(folder: Path, seed: str) -> dict[str, bytes]:
    """Build the site anew and return its files."""
    (folder / "offline").mkdir(parents=True)
    (folder / "offline" / "sitecustomize.py").write_text(OFFLINE, encoding="utf-8")
    attempts = folder / "attempts"
    settings = {
        "ATTEMPTS": str(attempts),
        "GPUGUIDE_RECORDS": "",
        "PYTHONHASHSEED": seed,
        "PYTHONPATH": os.pathsep.join([str(folder / "offline"), str(ROOT / "src")]),
        "SOURCE_DATE_EPOCH": "1800000000",
    }
    out = folder / "html"
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "--fail-on-warning"]
    done = subprocess.run(
        [*command, "-d", str(folder / "doctrees"), str(ROOT), str(out)],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not attempts.exists(), attempts.read_text(encoding="utf-8")
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.timeout(300)
def test_two_builds_are_identical_and_need_no_network(tmp_path: Path) -> None:
    first, second = build(tmp_path / "one", "1"), build(tmp_path / "two", "2")
    assert first.keys() == second.keys()
    assert [name for name, content in first.items() if content != second[name]] == []
    suffixes = {Path(name).suffix for name in first}
    assert {".html", ".ipynb", ".py", ".whl", ".zip", ".svg", ".arrow", ".woff2"} <= suffixes
