"""An engine in a process of its own, which times itself.

``cudf.pandas`` is switched on for a whole process, before pandas is imported, and pandas is then no longer pandas
there. To measure both beside each other takes two processes. The other one makes the same frame from the same seed,
and is asked for one time after another, so that both are still measured in turn.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib import metadata
from typing import Any, TextIO

from gpuguide.dataframes import data, operations
from gpuguide.dataframes.libraries import library
from gpuguide.errors import GpuguideError

ACCELERATED = "cudf-pandas"


class SeparateProcess:
    """A Python process with one engine. It ends with this object, or with the process that started it."""

    def __init__(self, engine: str) -> None:
        self.engine = engine
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"import {__name__} as other; other.serve()", engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def set_up(self, operation: str, rows: int, transfer: str) -> None:
        """Make a frame, check the engine's results, and get ready to time calls.

        Raises
        ------
        GpuguideError
            If the other process cannot; the message is its own.
        AssertionError
            If a result is wrong.
        """
        answer = self._ask({"operation": operation, "rows": rows, "transfer": transfer})
        assert "wrong" not in answer, answer["wrong"]

    def seconds(self) -> float:
        """Return the time of one call, taken by the other process."""
        return float(self._ask({})["seconds"])

    def close(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def _ask(self, question: dict[str, object]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise GpuguideError(f"The process of the engine {self.engine} ended; its messages stand above.")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise GpuguideError(answer["error"])
        return answer


# --- the other process -----------------------------------------------------------------------------------


def serve() -> None:
    """Answer questions on standard input until there are no more; what libraries print goes to standard error."""
    name = sys.argv[1]
    unable = None
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        if name == ACCELERATED:
            try:
                accelerate()
            except GpuguideError as error:
                unable = str(error)
        answer_all(name, sys.stdin, answers, unable)


def accelerate() -> None:
    """Switch ``cudf.pandas`` on in this process, with memory from the driver's pool, as cuDF has it in the other.

    Otherwise it would take four fifths of the free memory at once, as managed memory, and leave the other process none.

    Source: cudf, ``python/cudf/cudf/pandas/__init__.py``, which reads this variable.

    Raises
    ------
    GpuguideError
        If it cannot be switched on, for instance with a pandas that is newer than cuDF.
    """
    os.environ.setdefault("CUDF_PANDAS_RMM_MODE", "async")
    accelerator = library("cudf.pandas")
    try:
        accelerator.install()
    except Exception as error:
        raise GpuguideError(
            f"cudf.pandas cannot be switched on ({type(error).__name__}: {error}). "
            f"pandas {metadata.version('pandas')} is here, and cuDF needs {read_required_pandas()}; install that."
        ) from error


def read_required_pandas() -> str:
    """Return which pandas the installed cuDF says it needs."""
    for package in ("cudf-cu12", "cudf-cu13", "cudf"):
        try:
            needed = metadata.requires(package) or []
        except metadata.PackageNotFoundError:
            continue
        for requirement in needed:
            if requirement.startswith("pandas"):
                return requirement
    return "another version"


def answer_all(name: str, questions: TextIO, answers: TextIO, unable: str | None = None) -> None:
    """Answer each question with one line of JSON, which says why if this process is unable to do anything."""
    sample: Callable[[], float] | None = None
    for line in questions:
        question = json.loads(line)
        answer: dict[str, object]
        try:
            if unable is not None:
                answer = {"error": unable}
            elif question:
                sample = None  # lets go of the frame before the next is made
                sample = prepare_timer(name, **question)
                answer = {}
            elif sample is None:
                answer = {"error": "Nothing was set up to be timed."}
            else:
                answer = {"seconds": sample()}
        except AssertionError as error:
            answer = {"wrong": str(error)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def prepare_timer(name: str, operation: str, rows: int, transfer: str) -> Callable[[], float]:
    """Return a timer of one call, after the engine's results were checked and it was called once.

    Under the accelerator, falling back to pandas is an error.
    """
    from gpuguide.dataframes import engines
    from gpuguide.dataframes.engines.pandas_like import fell_back, no_fallback

    engine = engines.engine(name)
    asked = operations.get(operation)
    table = data.frame(rows, columns=asked.columns)
    lookup = data.lookup(rows) if asked.has_lookup else None
    with no_fallback() if name == ACCELERATED else nullcontext():
        engines.check(engine, operation)
        call = engines.call_with_transfer(engine, operation, table, lookup, transfer)
        if fell_back(call()):
            raise GpuguideError(f"The operation {operation!r} was done by pandas, to which the accelerator fell back.")

    def sample() -> float:
        engine.wait()
        begun = time.perf_counter_ns()
        call()
        engine.wait()
        return (time.perf_counter_ns() - begun) * 1e-9

    return sample
