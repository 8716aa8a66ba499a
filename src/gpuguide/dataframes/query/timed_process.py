"""A process that answers questions, each by a deadline.

A query that never comes back cannot be stopped from inside its process, because its threads wait in C++. A process of
its own can be ended, and whoever asked goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from gpuguide.errors import GpuguideError

Answer = Callable[[dict[str, Any]], Mapping[str, object]]

GRACE = 10.0
"""Seconds for a process to end by itself, after which it is killed"""


class TimedProcess:
    """A process that answers each line of JSON on its standard input with one line on its standard output.

    Parameters
    ----------
    command : sequence of str
        A program and its arguments; the program calls :func:`serve`.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, question: Mapping[str, object], seconds: float) -> dict[str, Any]:
        """Return the answer to a question. After any error but a ``MemoryError``, the process is ended.

        Raises
        ------
        MemoryError
            If the process says that memory ran out.
        GpuguideError
            If there is no answer by then, the process ended, or it says that something else failed.
        """
        try:
            answer = self._exchange(question, seconds)
            if "error" in answer:
                raise GpuguideError(answer["error"])
        except Exception:
            self.kill()
            raise
        if "out_of_memory" in answer:
            raise MemoryError(answer["out_of_memory"])
        return answer

    def is_running(self) -> bool:
        """Return whether the process can be asked."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.wait()
        self._close_input()

    def close(self) -> None:
        """Let the process end by itself, and end it if it does not."""
        self._close_input()
        try:
            self.process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self.kill()

    def _close_input(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # what was not read of the last question
            self.process.stdin.close()

    def _exchange(self, question: Mapping[str, object], seconds: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            raise GpuguideError(f"It was not done after {seconds:g} s, and its process was ended.") from None
        except OSError:
            line = ""
        if not line:
            raise GpuguideError(f"Its process ended with exit code {self.process.wait(GRACE)}.")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read(self) -> None:
        """Pass on lines, and an empty one at the end."""
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(line)
        self.lines.put("")


# --- the other process -----------------------------------------------------------------------------------


def serve(answer: Answer) -> None:
    """Answer questions on standard input until there are no more; what libraries print goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        answer_all(answer, sys.stdin, answers)


def answer_all(answer: Answer, questions: TextIO, answers: TextIO) -> None:
    """Answer each question with a line of JSON, which says why if it cannot."""
    for line in questions:
        said: Mapping[str, object]
        try:
            said = answer(json.loads(line))
        except MemoryError as error:
            said = {"out_of_memory": str(error)}
        except GpuguideError as error:
            said = {"error": str(error)}
        except Exception as error:
            said = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(said) + "\n")
        answers.flush()
