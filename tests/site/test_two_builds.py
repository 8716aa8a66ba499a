"""A new build gives the bytes of the first, whatever Python's hashes are, and asks for no network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_site import cell, start

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

CLAIMS = """
[topics]
speed = "How fast"

[sources.unread]
title = "A standard"
publisher = "A body"
url = "https://example.org/standard"
looked_at = "not verified"

[[claims]]
id = "copies-are-fast"
topic = "speed"
note = "000"
claim = "A copy runs at over 1 TB/s."
verdict = "true"
right = "On {gpu('a short')}: {measurement('ceilings/copy:bandwidth')}."
kind = "measured"
predicate = "measurement('ceilings/copy:bandwidth').p25 > 1e12"
"""

pytestmark = [pytest.mark.slow, pytest.mark.apart]


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


def build_again(root: Path, folder: Path, *options: str) -> dict[str, bytes]:
    """Build a site anew from its execution cache, and return its files.

    What the first build found out about the source is taken over: that digests do not depend on hashes, every record
    shows that is not stale.
    """
    (folder / "doctrees").mkdir(parents=True)
    shutil.copy(root / "_build" / "doctrees" / "source.json", folder / "doctrees")
    (folder / "offline").mkdir()
    (folder / "offline" / "sitecustomize.py").write_text(OFFLINE, encoding="utf-8")
    attempts = folder / "attempts"
    settings = {
        "ATTEMPTS": str(attempts),
        "GPUGUIDE_RECORDS": "",
        "PYTHONHASHSEED": "1234",
        "PYTHONPATH": os.pathsep.join([str(folder / "offline"), str(root / "src")]),
        "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH") or last_commit(),
    }
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", *options]
    done = subprocess.run(
        [*command, "-d", str(folder / "doctrees"), str(root), str(folder / "html")],
        cwd=root,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not attempts.exists(), attempts.read_text(encoding="utf-8")
    return files(folder / "html")


def compare(first: dict[str, bytes], second: dict[str, bytes]) -> None:
    """Compare a site with what was built anew.

    Figures and style sheets that pages used before may lie beside those that they use now: Sphinx leaves them.
    """
    left_behind = {name for name in first.keys() - second.keys() if not name.startswith(("_images/", "_static/"))}
    assert left_behind == set(), "of pages that are gone; `make clean` removes it"
    differing = [name for name, content in second.items() if content != first.get(name)]
    assert differing == [], "is the site that stands older than the last commit? `make site` builds it again"
    suffixes = {Path(name).suffix for name in second}
    assert {".html", ".ipynb", ".py", ".whl", ".zip", ".svg", ".arrow", ".woff2"} <= suffixes


@pytest.mark.thorough
@pytest.mark.skipif(
    not (SITE / "index.html").is_file(), reason="the site is not built; run `make site`, or `make test`, which does"
)
def test_the_site_is_built_again_as_it_stands(tmp_path: Path) -> None:
    """`make test` has just built the first, with hashes of its own."""
    compare(files(SITE), build_again(ROOT, tmp_path, "--fail-on-warning"))


PAGE = """
You will draw a roofline on {gpu}`a short`: a copy takes {measured}`ceilings/copy:bandwidth`, $2n$ bytes.

```{cost-card}
```

## Do it

"""
DRAW = """
from gpuguide import plotting
from gpuguide.costs import roofline

print(roofline.ridge(1e12, 1e11))


def draw(figure, theme):
    plotting.curves(figure.subplots(), "copy-size", x="working_set", metric="bandwidth", contenders=["copy"])


plotting.show(draw, alt="A curve that rises.", caption="A copy.")
"""
INDEX = """
```{learning-path}
```

```{newest-records} 1
```

```{toctree}
tutorials/index
docs/glossary
docs/api/costs
docs/records
docs/claims
docs/fits
docs/status
```
"""
OTHERS = {
    "tutorials/index": "```{learning-path}\n:whole:\n```\n\n```{toctree}\n:caption: All\n\n00-first\n```",
    "docs/glossary": "```{glossary}\nroofline\n  A model of the best speed.\n```",
    "docs/api/costs": "Costs.\n\n```{eval-rst}\n.. automodule:: gpuguide.costs.roofline\n   :members:\n```",
    "docs/records": "```{gpu-overview}\n```\n\n```{gpu-cards}\n```\n\n```{records}\n```\n\n```{benchmark-list}\n```",
    "docs/claims": "```{all-claims}\n```",
    "docs/fits": "```{will-it-fit}\n```",
    "docs/status": "```{status}\n```\n\n```{page-status}\n```\n\n```{record-status}\n```",
}
CONF = """
extensions += ["sphinx.ext.autodoc", "sphinx.ext.viewcode"]
include_patterns = ["*.md", "docs/**.md", "tutorials/**.md"]
html_baseurl = "https://example.org/guide/"
"""


def test_two_processes_with_other_hashes_build_the_same_small_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a page of every kind; `make test-thoroughly` compares the whole site."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", last_commit())
    project = start(tmp_path / "site")
    with (project.root / "conf.py").open("a", encoding="utf-8") as conf:
        conf.write(CONF)
    for benchmark in ("ceilings", "copy-size"):
        project.record(benchmark)
    for path in (project.library / "claims").glob("*.toml"):
        path.unlink()
    (project.library / "claims" / "claims.toml").write_text(CLAIMS, encoding="utf-8")
    project.page("index", INDEX, runs=False)
    project.page("tutorials/00-first", PAGE + cell(DRAW.strip()), benchmarks="ceilings, copy-size")
    for name, body in OTHERS.items():
        project.page(name, body, runs=False)
    build = project.build()
    assert build.status == 0, build.output
    compare(files(project.html), build_again(project.root, tmp_path / "again", "-j", "2"))
