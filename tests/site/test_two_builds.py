"""A new build gives the bytes of the site that stands, whatever Python's hashes are, and asks for no network."""

from __future__ import annotations

import os
import re
import shutil
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


UNVERSIONED = re.compile(rb"(mystnb\.[0-9a-f]+\.css)\?v=[0-9a-f]+")
"""MyST-NB copies its style sheet late: only the second build into a folder finds it there and adds its checksum"""
OF_SPHINX = (".buildinfo", ".buildinfo.bak")
"""Sphinx's own notes of how a folder was built, which no page shows"""


def files(folder: Path) -> dict[str, bytes]:
    """Return the files of a site."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: UNVERSIONED.sub(rb"\1", path.read_bytes()) for name, path in found.items() if name not in OF_SPHINX}


def last_commit() -> str:
    """Return the time from which dates and ages count in `make site`."""
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def build_again(folder: Path) -> dict[str, bytes]:
    """Build the site anew from its execution cache, and return its files.

    What the first build found out about the source is taken over: that digests do not depend on hashes, every record
    shows that is not stale.
    """
    (folder / "doctrees").mkdir()
    shutil.copy(ROOT / "_build" / "doctrees" / "source.json", folder / "doctrees")
    (folder / "offline").mkdir()
    (folder / "offline" / "sitecustomize.py").write_text(OFFLINE, encoding="utf-8")
    attempts = folder / "attempts"
    settings = {
        "ATTEMPTS": str(attempts),
        "GPUGUIDE_RECORDS": "",
        "PYTHONHASHSEED": "1234",
        "PYTHONPATH": os.pathsep.join([str(folder / "offline"), str(ROOT / "src")]),
        "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or last_commit(),
    }
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "--fail-on-warning"]
    done = subprocess.run(
        [*command, "-d", str(folder / "doctrees"), str(ROOT), str(folder / "html")],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not attempts.exists(), attempts.read_text(encoding="utf-8")
    return files(folder / "html")


def test_a_new_build_gives_the_same_bytes_and_needs_no_network(tmp_path: Path) -> None:
    """It stands for a second build: `make test` has just built the first, with hashes of its own.

    Figures and style sheets that pages used before may lie beside those that they use now: Sphinx leaves them.
    """
    first, second = files(SITE), build_again(tmp_path)
    left_behind = {name for name in first.keys() - second.keys() if not name.startswith(("_images/", "_static/"))}
    assert left_behind == set(), "of pages that are gone; `make clean` removes it"
    differing = [name for name, content in second.items() if content != first.get(name)]
    assert differing == [], "is the site that stands older than the last commit? `make site` builds it again"
    suffixes = {Path(name).suffix for name in second}
    assert {".html", ".ipynb", ".py", ".whl", ".zip", ".svg", ".arrow", ".woff2"} <= suffixes
