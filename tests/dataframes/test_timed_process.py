"""A process that answers by a deadline."""

from __future__ import annotations

import io
import json
import sys
import textwrap
import time
from collections.abc import Iterator

import pytest

from gpuguide.dataframes.query import timed_process
from gpuguide.dataframes.query.timed_process import TimedProcess
from gpuguide.errors import GpuguideError

PROGRAM = textwrap.dedent(
    """
    import os, time
    from gpuguide.dataframes.query.timed_process import serve

    def answer(question):
        if question["do"] == "hang":
            time.sleep(600)
        if question["do"] == "die":
            os._exit(3)
        if question["do"] == "fill":
            raise MemoryError("too small")
        print("what a library says")
        return {"twice": 2 * question["number"]}

    serve(answer)
    """
)


@pytest.fixture
def process() -> Iterator[TimedProcess]:
    started = TimedProcess([sys.executable, "-c", PROGRAM])
    yield started
    started.close()


def test_questions_are_answered_in_turn(process: TimedProcess) -> None:
    assert [process.ask({"do": "double", "number": number}, 60)["twice"] for number in (1, 2)] == [2, 4]
    assert process.is_running()


def test_a_call_that_never_returns_is_ended_at_the_deadline(process: TimedProcess) -> None:
    process.ask({"do": "double", "number": 1}, 60)
    begun = time.monotonic()
    with pytest.raises(GpuguideError, match=r"not done after 0\.5 s"):
        process.ask({"do": "hang"}, 0.5)
    assert time.monotonic() - begun < 30
    assert not process.is_running()


@pytest.mark.parametrize(
    ("question", "error", "message"),
    [
        ("fill", MemoryError, "^too small$"),
        ("die", GpuguideError, "exit code 3"),
        ("double", GpuguideError, "KeyError"),
    ],
)
def test_what_fails_there_is_raised_here(
    process: TimedProcess, question: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        process.ask({"do": question}, 60)
    assert process.is_running() == (error is MemoryError)


def test_a_line_is_answered_with_a_line() -> None:
    def answer(question: dict[str, int]) -> dict[str, object]:
        if not question:
            raise MemoryError("full")
        if "other" in question:
            raise GpuguideError("Ask for a number.")
        return {"half": question["number"] // 2}

    answers = io.StringIO()
    timed_process.answer_all(answer, io.StringIO('{"number": 4}\n{}\n{"other": 1}\n{"no": 1}\n'), answers)
    said = [json.loads(line) for line in answers.getvalue().splitlines()]
    errors = [{"error": "Ask for a number."}, {"error": "KeyError: 'number'"}]
    assert said == [{"half": 2}, {"out_of_memory": "full"}, *errors]
