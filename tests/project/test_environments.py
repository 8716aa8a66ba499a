"""The files of envs/, the dev container, the page on environments, and the runner with a GPU: that they agree, and run.

What takes a network or minutes runs with `make test-thoroughly`: pip resolves every file, papermill runs a notebook.
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]
ENVS = ROOT / "envs"
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
DOCKERFILE = (ENVS / "Dockerfile").read_text(encoding="utf-8")
DEV_CONTAINER: dict[str, Any] = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FILES = sorted(path.name for path in ENVS.glob("requirements-*.txt"))


def lines(name: str) -> list[str]:
    """Return what a requirements file asks for, without comments."""
    text = (ENVS / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def pins(name: str) -> list[Requirement]:
    return [Requirement(line) for line in lines(name) if not line.startswith("-")]


# --- requirements and conda ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_a_requirements_file_says_how_it_is_used_and_names_what_there_is(name: str) -> None:
    text = (ENVS / name).read_text(encoding="utf-8")
    assert text.startswith(f"# In the folder envs: python -m pip install -r {name}\n")
    (library,) = [line for line in lines(name) if line.startswith("-e ")]
    extras = re.fullmatch(r"-e \.\.\[([\w,]+)\]", library)
    assert extras
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
    assert all((ENVS / line.removeprefix("-r ")).is_file() for line in lines(name) if line.startswith("-r "))


@pytest.mark.parametrize("name", FILES)
def test_versions_fit_what_the_project_asks_for(name: str) -> None:
    lists = (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    wanted = {need.name: need.specifier for need in map(Requirement, itertools.chain.from_iterable(lists))}
    for pin in pins(name):
        (exact,) = pin.specifier
        assert exact.operator == "==", f"{pin} names no version"
        assert wanted[pin.name].contains(exact.version.replace("*", "99")), pin


def test_the_file_for_cuda_13_has_pytorch_of_the_lock() -> None:
    locked = re.findall(r"^torch==\S+$", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE)
    assert [line for line in lines("requirements-cuda13.txt") if line.startswith("torch==")] == locked
    assert "-r ../requirements.lock" in lines("requirements-cpu.txt")


def conda() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ENVS / "environment.yml").read_text(encoding="utf-8"))
    return found


def test_conda_brings_pip_and_pip_a_file_that_there_is() -> None:
    (pip,) = [each["pip"] for each in conda()["dependencies"] if isinstance(each, dict)]
    assert [line.removeprefix("-r ") in FILES for line in pip] == [True]
    assert "pip" in conda()["dependencies"]
    assert f"conda activate {conda()['name']}" in PAGE


def test_one_version_of_python() -> None:
    (of_conda,) = re.findall(r"python=(\S+)", str(conda()["dependencies"])[:-1].replace("'", " "))
    (of_image,) = re.findall(r"^ARG BASE=python:([\d.]+)-", DOCKERFILE, flags=re.MULTILINE)
    assert of_conda == of_image
    assert SpecifierSet(PROJECT["requires-python"]).contains(of_image)
    assert f"Programming Language :: Python :: {of_image}" in PROJECT["classifiers"]


# --- containers ----------------------------------------------------------------------------------------


def test_the_image_has_one_port_one_user_and_one_environment() -> None:
    (port,) = re.findall(r"^EXPOSE (\d+)$", DOCKERFILE, flags=re.MULTILINE)
    assert f'"--port={port}"' in DOCKERFILE
    assert DEV_CONTAINER["forwardPorts"] == [int(port)]
    assert set(re.findall(r"--publish \S*?(\d+):(\d+) ", PAGE + DOCKERFILE)) == {(port, port)}
    (number, user) = re.findall(r"useradd .*--uid (\d+) .*? (\w+) \\$", DOCKERFILE, flags=re.MULTILINE)[0]
    assert re.findall(r"^USER (\S+)$", DOCKERFILE, flags=re.MULTILINE) == [number]
    assert DEV_CONTAINER["remoteUser"] == user
    (home,) = re.findall(r"VIRTUAL_ENV=(\S+)", DOCKERFILE)
    assert (
        DEV_CONTAINER["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"] == f"{home}/bin/python"
    )
    assert 'CMD ["gpuguide", "doctor"]' in DOCKERFILE


def test_the_dev_container_is_made_from_the_image() -> None:
    build = DEV_CONTAINER["build"]
    assert (ROOT / ".devcontainer" / build["dockerfile"]).resolve() == ENVS / "Dockerfile"
    assert (ROOT / ".devcontainer" / build["context"]).resolve() == ROOT
    assert set(build["args"]) <= set(re.findall(r"^ARG (\w+)", DOCKERFILE, flags=re.MULTILINE))
    assert f"requirements-{build['args']['REQUIREMENTS']}.txt" in FILES
    options = DEV_CONTAINER["runArgs"]
    assert options[options.index("--gpus") + 1] == "all"
    assert f"--shm-size {options[options.index('--shm-size') + 1]}" in PAGE


def test_every_choice_of_the_image_has_a_file() -> None:
    (chosen,) = re.findall(r"^ARG REQUIREMENTS=(\w+)$", DOCKERFILE, flags=re.MULTILINE)
    named = {chosen, *re.findall(r"REQUIREMENTS=(\w+)", DOCKERFILE + PAGE)}
    assert {f"requirements-{name}.txt" for name in named} <= set(FILES)


# --- the page ------------------------------------------------------------------------------------------


def test_the_page_names_every_file_and_no_other() -> None:
    named = set(re.findall(r"requirements-\w+\.txt", PAGE))
    assert named == set(FILES)
    paths = set(re.findall(r"(?<![\w/])((?:envs|\.ci|\.devcontainer|\.github)/[\w./-]*\w)", PAGE))
    assert paths
    assert {path for path in paths if not (ROOT / path).exists()} == set()
    workflow = (ROOT / ".github" / "workflows" / "gpu.yml").read_text(encoding="utf-8")
    assert "self-hosted" in workflow


def test_the_page_says_of_every_place_how_it_was_tested() -> None:
    (table,) = re.findall(r"^\| where \| command .*?\n\n", PAGE, flags=re.MULTILINE | re.DOTALL)
    rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.strip().splitlines()[2:]]
    assert len(rows) >= 10
    for place, _, tested in rows:
        assert re.search(r"not run|20\d\d-\d\d-\d\d|at every push|a test runs", tested), place


def test_a_module_that_was_imported_stays_old_until_the_process_ends(tmp_path: Path) -> None:
    """What the page says of packages that pip replaces under a running kernel."""
    module = tmp_path / "replaced.py"
    module.write_text("version = 1\n")
    code = (
        "import pathlib, replaced; pathlib.Path('replaced.py').write_text('version = 22\\n');"
        "import importlib; importlib.invalidate_caches(); import replaced; print(replaced.version)"
    )
    said = [
        subprocess.run([sys.executable, "-c", line], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        for line in (code, "import replaced; print(replaced.version)")
    ]
    assert said == ["1\n", "22\n"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_only_its_availability_can_be_asked() -> None:
    for ask in (torch.cuda.get_device_name, torch.cuda.get_device_properties):
        with pytest.raises((AssertionError, RuntimeError)):
            ask(0)
    assert torch.cuda.device_count() == 0


def test_the_pages_program_runs_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(program, {})
    assert torch.__version__ in capsys.readouterr().out


# --- the runner with a GPU -----------------------------------------------------------------------------


def test_the_runner_with_a_gpu_starts_by_hand_or_label_and_never_for_a_fork() -> None:
    text = (ROOT / ".github" / "workflows" / "gpu.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow[True] == {"workflow_dispatch": None, "pull_request": {"types": ["labeled"]}}  # YAML reads `on` so
    assert "secrets" not in text.replace("No secret", "")
    assert workflow["permissions"] == {}
    (job,) = workflow["jobs"].values()
    assert job["permissions"] == {"contents": "read"}
    assert "github.event.pull_request.head.repo.full_name == github.repository" in job["if"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/gpu"]
    actions = re.findall(r"uses: (\S+)", text)
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in actions)


@pytest.mark.slow
def test_without_a_gpu_the_runner_says_so_and_fails() -> None:
    done = subprocess.run(
        [str(ROOT / ".ci" / "gpu")],
        env={**os.environ, "PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert "PyTorch sees no NVIDIA GPU here, so nothing was tested" in done.stderr
    assert "CUDA GPU" in done.stderr
    assert done.stdout == ""


def test_the_runner_measures_benchmarks_that_there_are() -> None:
    from gpuguide.measure import benchmark

    (names,) = re.findall(r"gpuguide bench run (.*) --quick$", (ROOT / ".ci" / "gpu").read_text(), flags=re.MULTILINE)
    assert set(names.split()) <= set(benchmark.names())


# --- nightly -------------------------------------------------------------------------------------------

LINUX = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="CUDA's wheels are for Linux on x86-64"
)
INSTALLED = [
    "-r requirements-cpu.txt",
    pytest.param("-r requirements-cuda12.txt", marks=LINUX),
    pytest.param("-r requirements-cuda13.txt", marks=LINUX),
    ".. nvidia-ml-py",
    "papermill jupyterlab",
]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("wanted", INSTALLED)
def test_pip_finds_versions_that_fit(tmp_path: Path, wanted: str) -> None:
    venv.create(tmp_path, with_pip=True)
    pip = [str(tmp_path / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--upgrade", "pip"], check=True, timeout=600)
    done = subprocess.run([*pip, "--dry-run", *shlex.split(wanted)], cwd=ENVS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.thorough
def test_papermill_takes_its_options_first_in_the_middle_and_last(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "papermill", "ipykernel"], check=True, timeout=900)
    cell = nbformat.v4.new_code_cell("x = 0", metadata={"tags": ["parameters"]})
    notebook = nbformat.v4.new_notebook(
        cells=[cell, nbformat.v4.new_code_cell("print(x)")],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
    )
    nbformat.write(notebook, tmp_path / "in.ipynb")
    orders = ("-p x 1 in.ipynb out.ipynb", "in.ipynb -p x 1 out.ipynb", "in.ipynb out.ipynb -p x 1")
    for order in orders:
        subprocess.run([python, "-m", "papermill", *order.split()], cwd=tmp_path, check=True, timeout=300)
        done = nbformat.read(tmp_path / "out.ipynb", as_version=4)
        assert [output.text for output in done.cells[-1].outputs] == ["1\n"], order
        (tmp_path / "out.ipynb").unlink()
