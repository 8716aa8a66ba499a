"""The project's own promises: one version, a complete lock, small and clean files, commands that exist."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gpuguide
from gpuguide import cli

ROOT = Path(__file__).resolve().parents[2]
LOCKED_EXTRAS = ("site", "test", "dev")
# What torch's CUDA build pins for itself, and what other packages need on another system only.
NOT_LOCKED = re.compile(r"nvidia-(?!ml-py$)|cuda-|appnope$|colorama$|pywin")


def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def tracked_files() -> list[Path]:
    """Files that are in git, or would be after `git add`."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


# --- versions and dependencies -------------------------------------------------------------------------


def test_one_version() -> None:
    version = project()["version"]
    assert gpuguide.__version__ == version
    assert importlib.metadata.version("gpuguide") == version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version


def locked() -> dict[str, str]:
    pins: dict[str, str] = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        requirement = line.partition("#")[0].strip()
        if requirement:
            pin = re.fullmatch(r"([\w.-]+)==([\w.]+)( *;.*)?", requirement)
            assert pin, f"not an exact pin without a local version or a hash: {line!r}"
            pins[canonicalize_name(pin[1])] = pin[2]
    return pins


def test_lock_satisfies_the_project() -> None:
    pins = locked()
    extras = project()["optional-dependencies"]
    wanted = [*project()["dependencies"], *(line for extra in LOCKED_EXTRAS for line in extras[extra])]
    for requirement in map(Requirement, wanted):
        name = canonicalize_name(requirement.name)
        assert name in pins, f"{requirement} is not in requirements.lock"
        assert requirement.specifier.contains(pins[name]), f"{requirement}, but the lock has {pins[name]}"


def test_lock_is_complete() -> None:
    """Every installed package that the project needs, directly or not, is pinned."""
    pins = locked()
    seen: set[tuple[str, tuple[str, ...]]] = set()
    waiting: list[tuple[str, tuple[str, ...]]] = [("gpuguide", LOCKED_EXTRAS)]
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen or NOT_LOCKED.match(name):
            continue
        seen.add((name, extras))
        assert name == "gpuguide" or name in pins, f"{name} is needed but not in requirements.lock"
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            if not needed.marker or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((canonicalize_name(needed.name), tuple(sorted(needed.extras))))


def test_what_a_test_may_need_comes_with_an_extra() -> None:
    source = (ROOT / "tests" / "conftest.py").read_text(encoding="utf-8")
    (table,) = [
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXTRAS"
    ]
    known = project()["optional-dependencies"]
    for package, extras in ast.literal_eval(table).items():
        assert set(re.split(", | or ", extras)) <= set(known), package


# --- files ---------------------------------------------------------------------------------------------


def test_tracked_files_are_small() -> None:
    sizes = {path: path.stat().st_size for path in tracked_files()}
    largest = sorted(sizes, key=lambda path: -sizes[path])[:5]
    total = sum(sizes.values())
    assert total < 32.6e6, f"{total / 1e6:.1f} MB, the largest: {[str(path.relative_to(ROOT)) for path in largest]}"


def test_files_name_no_machine_and_no_registry() -> None:
    machine_paths = [r"(?<![\w.-])/(?:root|work)/\w", r"(?<![\w.-])/home/\w+/", r"(?<![\w.-])/Users/\w+/"]
    registries = [
        r"pypi\.org",
        r"pythonhosted\.",
        r"download\.pytorch",
        r"npmjs\.",
        r"deb\.debian",
        r"/simple/",
    ]
    forbidden = re.compile("|".join([*machine_paths, *registries]))
    found = []
    for path in tracked_files():
        if path == Path(__file__):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in forbidden.finditer(text)]
    assert not found


def test_no_notebooks_and_no_modules_of_odds_and_ends() -> None:
    names = [path.relative_to(ROOT) for path in tracked_files()]
    assert not [path for path in names if path.suffix == ".ipynb"]
    assert not [path for path in names if path.stem in ("utils", "util", "helpers", "helper", "misc", "common")]


def test_wheel_holds_the_data_files(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(ROOT)], check=True, timeout=1200)
    (wheel,) = tmp_path.glob("*.whl")
    listing = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(wheel)], check=True, capture_output=True, text=True
    ).stdout
    source = ROOT / "src" / "gpuguide"
    data = [path for path in tracked_files() if source in path.parents and path.suffix != ".py"]
    assert data
    assert not [path for path in data if str(path.relative_to(source.parent)) not in listing]


# --- make and continuous integration -------------------------------------------------------------------


def make_targets() -> set[str]:
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    return set(phony.split())


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=ROOT,
        env={**os.environ, "MAKEFLAGS": "", **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_help_lists_every_target() -> None:
    listed = set(re.findall(r"^  ([\w-]+)  +\S", make("help").stdout, flags=re.MULTILINE))
    assert listed == make_targets()
    assert make().stdout == make("help").stdout


def test_an_old_python_is_named(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\ncase "$*" in *version_info*) exit 1;; -V) echo "Python 3.9.6";; esac\n')
    old.chmod(0o755)
    done = make("site", f"VENV={tmp_path / 'venv'}", f"PYTHON={old}")
    assert done.returncode != 0
    assert "needs Python 3.11 or newer" in done.stderr
    assert "Python 3.9.6" in done.stderr


def test_a_missing_python_is_named(tmp_path: Path) -> None:
    done = make("site", f"VENV={tmp_path / 'venv'}", "PYTHON=no-such-python")
    assert done.returncode != 0
    assert "There is no no-such-python" in done.stderr


def test_an_unknown_page_lists_the_known_ones() -> None:
    done = make("page", "P=no-such-page", f"VENV={Path(sys.prefix)}", "READY=")
    assert done.returncode != 0
    assert "There is no tutorials/no-such-page.md" in done.stderr
    assert "make page P=00-measure-a-gpu" in done.stderr


def test_continuous_integration() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert "make test" in script.read_text()
    workflow = (ROOT / ".github" / "workflows" / "site.yml").read_text()
    jobs = yaml.safe_load(workflow)["jobs"]
    assert all("permissions" in job for job in jobs.values())
    actions = re.findall(r"uses: (\S+)", workflow)
    assert actions
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in actions)


# --- documented commands -------------------------------------------------------------------------------


def documented_commands() -> Iterator[list[str]]:
    """Every command of README, CONTRIBUTING and docs/ that begins with make or gpuguide, in words."""
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        text = path.read_text(encoding="utf-8")
        blocks = "\n".join(re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL))
        inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        for line in [*blocks.splitlines(), *inline]:
            words = shlex.split(line.partition("#")[0].strip(" ")) if re.search(r"\b(make|gpuguide) ", line) else []
            while words and "=" in words[0]:
                words.pop(0)
            if words and words[0] in ("make", "gpuguide"):
                yield words


def test_documented_make_targets_exist() -> None:
    used = {word for words in documented_commands() if words[0] == "make" for word in words[1:] if "=" not in word}
    assert {"site", "test", "measure"} <= used
    assert used <= make_targets()


def test_documented_gpuguide_commands_exist(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    commands = {tuple(words[1:]) for words in documented_commands() if words[0] == "gpuguide"}
    assert ("doctor",) in commands
    helps: dict[tuple[str, ...], str] = {}
    for words in commands - {("COMMAND", "--help")}:
        path = tuple(words[: 2 if words[0] in ("bench", "records", "claims", "new") else 1])
        if path not in helps:
            monkeypatch.setattr("sys.argv", ["gpuguide", *path, "--help"])
            with pytest.raises(SystemExit) as done:
                cli.main()
            said = capsys.readouterr()
            assert not done.value.code, f"gpuguide {' '.join(path)} --help: {said.err}"
            helps[path] = said.out
        for option in (word for word in words if word.startswith("--")):
            assert option in helps[path], f"gpuguide {' '.join(path)} has no {option}"
