"""A Python environment as a reader's: the heavy libraries are there, gpuguide only if it has been installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

HIDDEN = ("PYTHONPATH", "GPUGUIDE_SITE_BUILD", "GPUGUIDE_DECLARED", "GPUGUIDE_FAKE_DEVICE")


@dataclass(frozen=True)
class Environment:
    """A virtual environment that sees the libraries of the one that runs the tests, its editable gpuguide excepted."""

    root: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return self.root / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def run(self, *arguments: str, folder: Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run Python in a folder, without a network and without what the tests' own environment sets."""
        kept = {name: value for name, value in os.environ.items() if name not in HIDDEN}
        settings = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "NO_COLOR": "1"}
        settings |= {"GPUGUIDE_RECORDS": "", "GPUGUIDE_QUICK": "1"}
        return subprocess.run(
            [str(self.python), *arguments],
            cwd=folder,
            env={**kept, **settings},
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    def home_of_gpuguide(self, folder: Path) -> str:
        """Return the file that ``import gpuguide`` finds when Python runs in ``folder``, or nothing."""
        code = "import importlib.util as u; found = u.find_spec('gpuguide'); print(found.origin if found else '')"
        return self.run("-c", code, folder=folder).stdout.strip()


def shared(root: Path, install: Callable[[Environment], None]) -> Environment:
    """Return the environment in a folder that all processes of a run share; the first that comes makes it."""
    ready = root / "ready"
    with FileLock(f"{root}.lock"):
        if ready.exists():
            return Environment(root)
        made = make(root)
        install(made)
        ready.touch()
    return made


def make(root: Path) -> Environment:
    """Make an environment; path files such as that of an editable installation are not followed through another."""
    venv.create(root, with_pip=False)
    made = Environment(root)
    library = sysconfig.get_path("purelib", vars={"base": str(root), "platbase": str(root)})
    (Path(library) / "libraries.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return made


if __name__ == "__main__":
    print(make(Path(sys.argv[1])).python)
