"""A small site in a temporary folder, with a copy of the library of its own, so that tests may change both."""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import synthetic_records as synthetic
from report import count

from gpuguide.measure import digest, records

CONF = """
extensions = ["gpuguide.site.extension", "myst_nb"]
include_patterns = ["*.md", "tutorials/**.md"]
exclude_patterns = ["_build", "README.md"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
html_math_renderer = "mathml"
html_theme = "pydata_sphinx_theme"
html_theme_options = {"article_footer_items": ["repository-links"]}
nb_execution_mode = "cache"
nb_execution_cache_path = "_build/.jupyter_cache"
nb_execution_timeout = 600
"""
DIGESTS = Path("_build", "doctrees", "source.json")
"""Where a site built as ``make site`` does it keeps what it has found out about the library's source"""
BUILT = digest.PACKAGE_FOLDER.parents[1] / DIGESTS
"""Where the site that stands has kept it"""
FRONT = """---
gpuguide:
  benchmarks: [{benchmarks}]
jupytext:
  text_representation:
    extension: .md
    format_name: myst
    format_version: 0.13
kernelspec:
  display_name: Python 3
  name: python3
---
"""


@dataclass(frozen=True)
class Build:
    """What one build did."""

    status: int
    output: str

    @property
    def executed(self) -> set[str]:
        """The pages whose code ran."""
        return {Path(found).stem for found in re.findall(r"^(\S+\.md) (?:ran|failed)\b", self.output, re.MULTILINE)}

    @property
    def read(self) -> set[str]:
        """The pages that were read."""
        return set(re.findall(r"reading sources\.\.\. \[ *\d+%\] (\S+)", self.output))


@dataclass(frozen=True)
class Project:
    """A site of a few pages."""

    root: Path

    @property
    def library(self) -> Path:
        """The copy of the library that this site uses."""
        return self.root / "src" / "gpuguide"

    @property
    def html(self) -> Path:
        """Where the pages are built."""
        return self.root / "_build" / "html"

    def page(
        self, name: str, body: str, *, benchmarks: str = "", topics: str = "", gpu: str = "", runs: bool = True
    ) -> None:
        """Write a page, as a notebook if it ``runs``."""
        said = {"topics": f"[{topics}]" if topics else "", "gpu": gpu}
        more = "".join(f"  {key}: {value}\n" for key, value in said.items() if value)
        front = FRONT.format(benchmarks=benchmarks).replace("jupytext:", f"{more}jupytext:") + "\n" if runs else ""
        path = self.root / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{front}# {path.stem}\n\n{body}\n", encoding="utf-8")

    def line_of(self, name: str, text: str) -> int:
        """Return the line of a page, counted from one, on which ``text`` stands first."""
        lines = (self.root / f"{name}.md").read_text(encoding="utf-8").splitlines()
        return next(number for number, line in enumerate(lines, start=1) if text in line)

    def edit(self, module: str, old: str, new: str) -> None:
        """Change the source of a module of this site's library."""
        path = self.library / module
        text = path.read_text(encoding="utf-8")
        assert old in text
        path.write_text(text.replace(old, new), encoding="utf-8")

    def record(
        self,
        benchmark: str,
        slower: float = 1.0,
        *,
        stale: bool = False,
        device: tuple[str, str] = synthetic.PUBLISHED,
    ) -> Path:
        """Publish a synthetic record in this site's library."""
        made = synthetic.record(benchmark, synthetic.cases_of(benchmark, slower), device, stale=stale)
        return _write(made, self.library / "records")

    def reference(self, device: str) -> None:
        """Name the GPU whose records prose speaks of."""
        (self.library / "records" / "reference.toml").write_text(f'device = "{device}"\n', encoding="utf-8")

    def python(self, code: str, *, where: Path | None = None, **settings: str) -> str:
        """Run Python with this site's library, and return what it prints."""
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src"), "GPUGUIDE_RECORDS": "", **settings}
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, cwd=where or self.root, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    def own_record(self, benchmark: str) -> Path:
        """Put a record of another device into the reader's own folder."""
        made = synthetic.record(benchmark, synthetic.cases_of(benchmark, 3.0), synthetic.OWN)
        return _write(made, self.root / "own")

    def start_command(self, *options: str) -> subprocess.Popen[str]:
        """Start the command behind ``make site`` in a process of its own."""
        count("builds of small sites")
        return subprocess.Popen(
            [sys.executable, "-m", "gpuguide.site.build", *options],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root / "src"), "GPUGUIDE_RECORDS": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A shell that runs the tests in the background has them ignore Ctrl-C, which the build would inherit.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def command(self, *options: str) -> Build:
        """Build the site as ``make site`` does."""
        count("builds of small sites")
        environment = {**os.environ, "PYTHONPATH": str(self.root / "src"), "GPUGUIDE_RECORDS": ""}
        return self._run("gpuguide.site.build", [*options], environment)

    def build(
        self, *, own: bool = False, own_folder: str | None = None, settings: Mapping[str, str] | None = None
    ) -> Build:
        """Build the site in a process of its own, with these settings over those of its configuration.

        The reader's own records are in ``own_folder`` as it is written there, or in the folder of :meth:`own_record`.
        """
        count("builds of small sites")
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.root / "src"),
            "GPUGUIDE_RECORDS": own_folder if own_folder is not None else str(self.root / "own") if own else "",
            "NO_COLOR": "1",
        }
        options = [f"-D{name}={value}" for name, value in (settings or {}).items()]
        arguments = ["-b", "html", "-d", "_build/doctrees", "-W", "--keep-going", *options, ".", "_build/html"]
        return self._run("sphinx", arguments, environment)

    def _run(self, module: str, arguments: list[str], environment: dict[str, str]) -> Build:
        """Run a module in a process of its own: a fork of one that has imported Sphinx, where that is safe."""
        self._take_digests()
        if sys.platform == "linux":
            build = _run_in_fork(module, arguments, environment, self.root)
        else:
            command = [sys.executable, "-m", module, *arguments]
            done = subprocess.run(command, cwd=self.root, env=environment, capture_output=True, text=True, check=False)
            build = Build(done.returncode, done.stdout + done.stderr)
        self._leave_digests()
        return build

    def _take_digests(self) -> None:
        """Take over what is known about the library, of which this site has a copy: from the site that stands,
        if it was built since the library changed, or else from an earlier site of this process.
        """
        digests = self.root / DIGESTS
        known = next(filter(Path.exists, (_digests(), BUILT)), None)
        if known and not digests.exists() and not digests.parent.is_symlink():
            digests.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(known, digests)

    def _leave_digests(self) -> None:
        digests = self.root / DIGESTS
        if digests.exists() and not _digests().exists():
            shutil.copy(digests, _digests())


@functools.cache
def _digests() -> Path:
    """Return where this process keeps what its first site has found out about the library."""
    folder = tempfile.mkdtemp(prefix="digests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder) / DIGESTS.name


@functools.cache
def _server() -> subprocess.Popen[str]:
    program = Path(__file__).with_name("build_server.py")
    server = subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    atexit.register(server.kill)
    return server


def _run_in_fork(module: str, arguments: list[str], environment: dict[str, str], folder: Path) -> Build:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile("r", encoding="utf-8", errors="replace") as log:
        job = {"module": module, "arguments": arguments, "environment": environment}
        server.stdin.write(json.dumps({**job, "folder": str(folder), "log": log.name}) + "\n")
        status = int(server.stdout.readline())
        return Build(status, log.read())


def start(root: Path) -> Project:
    """Make a site without pages."""
    ignored = shutil.ignore_patterns("nvidia*", "cpu", "*x-*")  # what Python has compiled comes along, and stays valid
    shutil.copytree(digest.PACKAGE_FOLDER, root / "src" / "gpuguide", ignore=ignored)
    (root / "src" / "gpuguide" / "records").mkdir(exist_ok=True)
    Project(root).reference(synthetic.PUBLISHED[0])
    (root / "conf.py").write_text(CONF, encoding="utf-8")
    for name in ("pyproject.toml", "README.md", "LICENSE"):  # what the library's wheel is made of
        shutil.copy(digest.PACKAGE_FOLDER.parents[1] / name, root)
    return Project(root)


def _write(record: records.Record, folder: Path) -> Path:
    path = folder / record.device / f"{record.benchmark}.json"
    return records.write(replace(record, path=None), path).path or path


def cell(code: str, tags: str = "") -> str:
    """Return a code cell."""
    options = f":tags: [{tags}]\n\n" if tags else ""
    return f"```{{code-cell}} ipython3\n{options}{code}\n```\n"
