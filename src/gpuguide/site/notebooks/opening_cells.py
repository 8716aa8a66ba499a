"""The first two cells of every notebook: what it is and costs, and the library that it needs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nbformat import v4
from packaging.requirements import Requirement

import gpuguide
from gpuguide.measure import page_gpu

INSTALL = """\
# Installs {what}.
# PyTorch and the other libraries that gpuguide needs come with it.
import importlib.util

wanted = []
if importlib.util.find_spec("gpuguide") is None:
    from pathlib import Path

    wheel = "{wheel}"
    script = Path(globals().get("__file__", "notebook")).resolve()  # a notebook has no file name
    folders = [Path.cwd(), Path.cwd().parent, script.parent]  # where the zip puts the wheel
    found = [folder / wheel for folder in folders if (folder / wheel).is_file()]
{elsewhere}
    wanted = [f"gpuguide{extras} @ {{address}}"]
{further}if wanted:
    import shlex
    import subprocess
    import sys

    command = [sys.executable, "-m", "pip", "install", "--quiet", *wanted]
    if subprocess.run(command).returncode != 0:
        message = "pip could not install what this needs. Try it in a terminal: "
        raise RuntimeError(message + shlex.join(command))
    importlib.invalidate_caches()"""
FROM_SITE = '''\
    address = found[0].as_uri() if found else "{address}"'''
FROM_ZIP_ONLY = """\
    if not found:
        message = f"gpuguide is not installed. Put {wheel}, which is in the zip, beside this file."
        raise FileNotFoundError(message)
    address = found[0].as_uri()"""
FURTHER = """\
else:
    from importlib import metadata

    def is_missing(package):
        try:
            metadata.version(package)
        except metadata.PackageNotFoundError:
            return True
        return False

    needed = {needed}
    wanted = [text for package, text in needed.items() if is_missing(package)]
"""
GPU = '''

# The published numbers are those of this GPU.
import os

os.environ["{variable}"] = "{gpu}"'''


def summary(heading: str, purpose: str, facts: Mapping[str, str | Sequence[str]]) -> str:
    """Return the first cell: the title, one sentence, and a list of what one wants to know before one starts.

    Parameters
    ----------
    heading : str
        The page's title as a Markdown heading.
    purpose : str
        What the reader will do, in Markdown.
    facts : mapping of str to str or sequence of str
        Name to Markdown; several values become a list below the name.
    """
    lines = []
    for name, value in facts.items():
        lines += [f"- **{name}:** {value}"] if isinstance(value, str) else [f"- **{name}:**", *_below(value)]
    return "\n\n".join([heading, purpose, "\n".join(lines)])


def install(wheel: str, address: str | None, extras: Mapping[str, Sequence[str]], gpu: str = "") -> str:
    """Return the second cell, which installs the library and the page's extras where they are missing.

    Parameters
    ----------
    wheel : str
        The wheel's file name. Beside the notebook, or one folder up, it is found without a network.
    address : str or None
        Where the site offers the wheel, if it is known where the site is.
    extras : mapping of str to sequence of str
        The extras that the page needs, and what pip calls for in each; see :func:`requirements`.
    gpu : str
        The GPU that the page names, which the library then takes published records of; empty for the default.
    """
    elsewhere = FROM_SITE.format(address=address) if address else FROM_ZIP_ONLY
    needed = {Requirement(text).name: text for texts in extras.values() for text in texts}
    return INSTALL.format(
        what=f"gpuguide{' and what this needs beside it, unless they are' if needed else ', unless it is'} here",
        wheel=wheel,
        elsewhere=elsewhere,
        extras=f"[{','.join(extras)}]" if extras else "",
        further=FURTHER.format(needed=_mapping(needed)) if needed else "",
    ) + (GPU.format(variable=page_gpu.VARIABLE, gpu=gpu) if gpu else "")


def requirements(project: Path, extras: Sequence[str]) -> dict[str, list[str]]:
    """Return what each of some extras brings, as ``pyproject.toml`` in the folder ``project`` says.

    Raises
    ------
    KeyError
        If there is no such extra.
    """
    with (project / "pyproject.toml").open("rb") as file:
        known = tomllib.load(file)["project"]["optional-dependencies"]
    return {extra: known[extra] for extra in extras}


def _mapping(needed: Mapping[str, str]) -> str:
    lines = [f"        {package!r}: {text!r},\n".replace("'", '"') for package, text in needed.items()]
    return "{\n" + "".join(lines) + "    }"


def cells(summary: str, install: str) -> list[Any]:
    """Return both cells."""
    folded = {"jupyter": {"source_hidden": True}}
    return [v4.new_markdown_cell(summary, id="about"), v4.new_code_cell(install, id="install", metadata=folded)]


def hardware(measuring: int) -> str:
    """Return what a notebook needs to run on, of which so many cells measure the machine."""
    if not measuring:
        return "any computer; it needs no GPU."
    who = "one cell measures" if measuring == 1 else f"{measuring} cells measure"
    return f"any computer; {who} the machine that runs the notebook, and what needs an NVIDIA GPU says so without one."


def origin(page: str | None) -> str:
    """Return where a notebook comes from, and under which licences: ``page`` is the address of its page."""
    version = f"gpuguide {gpuguide.__version__}"
    known = f"[a page]({page}) of {version}" if page else version
    return f"{known}. The code is under the MIT licence, text and figures under CC BY 4.0."


def _below(values: Sequence[str]) -> list[str]:
    return [f"  - {value}" for value in values]
