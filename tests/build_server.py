"""Builds small sites in forks of one process that has imported Sphinx, so that a build need not import it again.

Reads a job a line from its standard input and answers with the exit status a line. The library is none of what has been
imported: every fork imports the copy of its own site.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import runpy
import sys
import tempfile
import traceback
from typing import Any

import jinja2

READY = (
    "sphinx.cmd.build",
    "sphinx.builders.html",
    "sphinx.ext.autosummary",
    "myst_nb.sphinx_ext",
    "jupyter_cache.cache.db",
    "pydata_sphinx_theme",
    "nbformat",
    "jupytext",
    "numpy",
    "bs4",
    "tinycss2",
    "fontTools.subset",
    "psutil",
)
"""What a build imports, gpuguide aside"""


def serve() -> None:
    """Run the jobs of standard input, one after the other; templates that one has compiled are there for the next."""
    for name in READY:
        importlib.import_module(name)
    assert "gpuguide" not in sys.modules
    gc.freeze()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    with tempfile.TemporaryDirectory() as folder:
        templates = jinja2.FileSystemBytecodeCache(folder)
        create = functools.partialmethod(jinja2.Environment.__init__, bytecode_cache=templates)
        jinja2.Environment.__init__ = create
        for line in sys.stdin:
            job = json.loads(line)
            child = os.fork()
            if child == 0:
                os._exit(run(job))
            answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")


def run(job: dict[str, Any]) -> int:
    """Run a module as ``python -m`` does, with the job's arguments, folder and environment; return the exit status."""
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    sys.path.insert(0, job["environment"]["PYTHONPATH"])
    importlib.invalidate_caches()
    sys.argv = [job["module"], *job["arguments"]]
    try:
        runpy.run_module(job["module"], run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as done:
        status = done.code if isinstance(done.code, int) else int(done.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    serve()
