from __future__ import annotations

import io
import json
from collections.abc import Iterator

import pytest

from gpuguide.dataframes import engines, separate_process
from gpuguide.dataframes.separate_process import SeparateProcess
from gpuguide.errors import GpuguideError


@pytest.fixture(scope="module")
def pandas() -> Iterator[SeparateProcess]:
    process = SeparateProcess("pandas")
    yield process
    process.close()
    assert process.process.returncode == 0


def test_another_process_times_itself(pandas: SeparateProcess) -> None:
    for operation, transfer in (("sort", "none"), ("join", "in-out")):
        pandas.set_up(operation, 1000, transfer)
        assert all(0 < pandas.seconds() < 60 for _ in range(2))


def test_its_errors_are_ours_and_it_goes_on(pandas: SeparateProcess) -> None:
    with pytest.raises(GpuguideError, match="no operation named 'sorted'"):
        pandas.set_up("sorted", 1000, "none")
    with pytest.raises(GpuguideError, match="Nothing was set up"):
        pandas.seconds()
    pandas.set_up("sort", 1000, "in")
    assert pandas.seconds() > 0


def test_a_process_that_ended_is_told() -> None:
    process = SeparateProcess("pandas")
    process.process.kill()
    process.process.wait()
    with pytest.raises(GpuguideError, match="The process of the engine pandas ended"):
        process.set_up("sort", 10, "none")


def test_a_wrong_result_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = engines.engine("pandas")
    monkeypatch.setattr(wrong, "sort", wrong.filter)
    monkeypatch.setattr(engines, "engine", lambda name: wrong)
    answers = io.StringIO()
    separate_process.answer_all(
        "pandas", io.StringIO('{"operation": "sort", "rows": 9, "transfer": "none"}\n'), answers
    )
    assert json.loads(answers.getvalue())["wrong"].startswith("sort on pandas: there are")
