"""Starts the process that runs pages, and waits for a page when Sphinx comes to read it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TextIO

from sphinx.errors import SphinxError
from sphinx.util import logging

from gpuguide.measure import page_declaration, page_gpu
from gpuguide.site.execution import cell_faults, declared_records, outputs_cache, page_gpus
from gpuguide.site.pages import page_source

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

    from gpuguide.site.execution.side_by_side import Job

logger = logging.getLogger(__name__)
noise = logging.getLogger("gpuguide.site.execution.kernels")
"""What is for the log, and not for the screen"""

PROGRAM = "from gpuguide.site.execution.side_by_side import main; main()"


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_config_value("gpuguide_pages_at_once", 0, "", [int])  # 0: as many as there are cores
    app.connect("env-before-read-docs", start)
    app.connect("source-read", wait_for_page)
    app.connect("build-finished", end)


def start(app: Sphinx, env: BuildEnvironment, docnames: list[str]) -> None:
    """Have the pages run that are read and whose outputs are not in the cache; read the other pages first."""
    digests: Mapping[str, str] = vars(env)["gpuguide_digests"]
    docnames.sort(key=lambda docname: docname in digests)
    jobs = list(jobs_for(app, [docname for docname in docnames if docname in digests]))
    vars(app)["gpuguide_running"] = PageRuns(app, jobs) if jobs else None


def wait_for_page(app: Sphinx, docname: str, source: list[str]) -> None:
    """Before a page is parsed: its outputs are in the cache, or the build stops and says why."""
    running: PageRuns | None = vars(app).get("gpuguide_running")
    if running is not None and docname in running.jobs:
        running.wait_for(docname)


def end(app: Sphinx, error: Exception | None) -> None:
    """End the process that runs pages, if the build stopped before it was done."""
    running: PageRuns | None = vars(app).get("gpuguide_running")
    if running is not None:
        running.stop()


def jobs_for(app: Sphinx, docnames: Iterable[str]) -> Iterator[Job]:
    """Yield what has to run, with its checks done: the pages that are not in the cache."""
    from jupyter_cache import get_cache

    from gpuguide.site.execution.side_by_side import Job

    env, cache = app.env, None
    for docname in docnames:
        path = Path(env.doc2path(docname))
        if any(PurePosixPath(path.as_posix()).match(each) for each in app.config.nb_execution_excludepatterns):
            continue
        source = path.read_text(encoding="utf-8")
        page = page_source.read(source)
        with page_gpus.use_gpu_of(page):
            declared_records.check(path, source)
        notebook = outputs_cache.notebook(env, docname)
        config = {**vars(vars(env)["mystnb_config"]), **notebook.metadata.get("mystnb", {})}
        if config["execution_mode"] == "off":
            continue
        cache = cache or get_cache(outputs_cache.folder(env))
        if not outputs_cache.holds(cache, notebook):
            yield Job(docname, str(path), notebook, config["execution_timeout"], settings_of(page), libraries_in(page))


def settings_of(page: page_source.PageSource) -> dict[str, str]:
    """Return what is added to the environment of a page's kernel: what it declares, and its GPU."""
    declared = ",".join(page.benchmarks)
    return {"GPUGUIDE_SITE_BUILD": "1", page_declaration.DECLARED_VARIABLE: declared, page_gpu.VARIABLE: page.gpu}


def libraries_in(page: page_source.PageSource) -> tuple[str, ...]:
    """Return the heavy libraries that a page uses. A cell that is no Python will say so when it runs."""
    from gpuguide.site.execution import kernels

    with contextlib.suppress(SyntaxError):
        return tuple(sorted(kernels.libraries_of(page.code)))
    return ()


class PageRuns:
    """The process that runs pages, and what it has said of them so far."""

    def __init__(self, app: Sphinx, jobs: Iterable[Job]) -> None:
        self.jobs = {job.name: job for job in jobs}
        self._root = Path(app.srcdir)
        self._said: dict[str, Mapping[str, Any]] = {}
        self._changed = threading.Condition()
        self._ended = False
        at_once = app.config.gpuguide_pages_at_once or cores()
        count = min(at_once, len(self.jobs))
        logger.info("%d page%s to run, %d at a time", len(self.jobs), "s" * (len(self.jobs) > 1), count)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the build, which ends this one
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        request = {
            "cache": outputs_cache.folder(app.env),
            "at_once": at_once,
            "libraries": sorted(set().union(*(job.libraries for job in self.jobs.values()))),
            "jobs": [job.as_json() for job in self.jobs.values()],
        }
        for listen, stream in ((self._hear, self._process.stdout), (self._log, self._process.stderr)):
            threading.Thread(target=listen, args=(stream,), daemon=True).start()
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def wait_for(self, docname: str) -> None:
        """Wait until a page has run; if it failed, wait for all, so that every fault is said."""
        if "fault" not in self._wait(docname):
            return
        faults = [self._sentence(name) for name in sorted(self.jobs) if "fault" in self._wait(name)]
        raise SphinxError("\n".join(faults))

    def stop(self) -> None:
        """End the process with its kernels; what pages printed stays in the cache."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _wait(self, docname: str) -> Mapping[str, Any]:
        with self._changed:
            self._changed.wait_for(lambda: docname in self._said or self._ended)
        if docname not in self._said:
            raise SphinxError(f"{docname}: the process that runs pages ended before it ran this one. Build again.")
        return self._said[docname]

    def _sentence(self, docname: str) -> str:
        job = self.jobs[docname]
        fault = cell_faults.CellError(**self._said[docname]["fault"])
        path = Path(job.path)
        return cell_faults.format_error(self._place(job), path.read_text(encoding="utf-8"), fault)

    def _place(self, job: Job) -> str:
        return os.path.relpath(job.path, self._root)

    def _hear(self, stream: TextIO) -> None:
        for line in stream:
            event = json.loads(line)
            if "note" in event:
                logger.info("%s", event["note"])
                continue
            place = self._place(self.jobs[event["page"]])
            if "fault" in event:
                logger.info("%s failed", place)
                noise.info("%s", event["fault"]["details"])
            else:
                logger.info("%s ran in %.1f s", place, event["seconds"])
            with self._changed:
                self._said[event["page"]] = event
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _log(self, stream: TextIO) -> None:
        for line in stream:
            noise.info("kernels: %s", line.rstrip())


def cores() -> int:
    """Return how many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
