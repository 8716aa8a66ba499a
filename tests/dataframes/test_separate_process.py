from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from types import SimpleNamespace

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


def test_an_accelerator_that_cannot_be_switched_on_is_told_once_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what cuDF 26.10 does where pandas is 3.1."""

    def install() -> None:
        raise AttributeError("module 'pandas.core.window.rolling' has no attribute 'RollingGroupby'")

    needed = ["cachetools", "pandas<3.1.0,>=3.0.0", "pyarrow>=19.0.0"]
    monkeypatch.setattr(separate_process, "library", lambda name: SimpleNamespace(install=install))
    monkeypatch.setattr(separate_process.metadata, "requires", lambda package: needed)
    monkeypatch.delenv("CUDF_PANDAS_RMM_MODE", raising=False)
    with pytest.raises(
        GpuguideError, match=r"'RollingGroupby'\).* cuDF needs pandas<3\.1\.0,>=3\.0\.0; install"
    ) as told:
        separate_process.accelerate()
    answers = io.StringIO()
    separate_process.answer_all("cudf-pandas", io.StringIO('{"operation": "sort"}\n{}\n'), answers, str(told.value))
    assert [json.loads(line) for line in answers.getvalue().splitlines()] == [{"error": str(told.value)}] * 2


@pytest.mark.parametrize("asked", [None, "managed"])
def test_the_accelerator_takes_memory_from_the_pool_unless_told_otherwise(
    asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def install() -> None:
        found.append(os.environ["CUDF_PANDAS_RMM_MODE"])

    monkeypatch.setattr(separate_process, "library", lambda name: SimpleNamespace(install=install))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    os.environ.pop("CUDF_PANDAS_RMM_MODE", None)
    if asked is not None:
        os.environ["CUDF_PANDAS_RMM_MODE"] = asked
    separate_process.accelerate()
    assert found == [asked or "async"]


def test_without_cudf_nobody_knows_which_pandas_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(package: str) -> list[str]:
        raise separate_process.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(separate_process.metadata, "requires", requires)
    assert separate_process.read_required_pandas() == "another version"
