"""``gpuguide new``: what it writes, what it registers, and what it refuses."""

from __future__ import annotations

import ast
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuguide.claims import pages
from gpuguide.cli import new
from gpuguide.errors import GpuguideError

Run = Callable[..., tuple[int, str, str]]

ROOT = Path(__file__).resolve().parents[2]
PAGE = ("--title", "Drop activations in one kernel", "--topic", "sampling")
BENCHMARK = ("--topic", "dropout", "--question", "How fast is dropout?")
REGISTERS = (
    "tutorials/index.md",
    "tutorials/template.md",
    "tutorials/12-sampling.md",
    "docs/api/index.md",
    "src/gpuguide/claims/claims.toml",
    "src/gpuguide/plotting/palette.py",
)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository of the files that new things are registered in."""
    for name in REGISTERS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    monkeypatch.setattr(pages, "repository", lambda: tmp_path)
    return tmp_path


def test_a_page_touches_three_files_at_most(gpuguide: Run, repository: Path) -> None:
    status, out, _ = gpuguide("new", "page", "26-dropout", *PAGE, "--benchmark", "sample-token")
    assert status == 0
    assert len(out.splitlines()) <= 3
    page = (repository / "tutorials/26-dropout.md").read_text()
    front = {"topics": ["sampling"], "benchmarks": ["sample-token"], "queries": []}
    assert pages.front_matter(page)["gpuguide"] == front, "what it answers, its author has to say"
    assert "\n# Drop activations in one kernel\n" in page
    assert "25-sampling-in-one-read>\n26-dropout\n```" in (repository / "tutorials/index.md").read_text()


def test_a_topic_with_a_benchmark_touches_eight_files_at_most(gpuguide: Run, repository: Path) -> None:
    status, topic, _ = gpuguide("new", "topic", "dropout", "--title", "Dropout")
    assert status == 0
    status, benchmark, _ = gpuguide(
        "new", "benchmark", "dropout", *BENCHMARK, "--contender", "torch", "--contender", "dropped"
    )
    assert status == 0
    files = {*topic.splitlines(), *benchmark.splitlines()}
    assert len(files) <= 8
    for name in files:
        text = (repository / name).read_text()
        if name.endswith(".py"):
            ast.parse(text)
    ledger = tomllib.loads((repository / "src/gpuguide/claims/claims.toml").read_text())
    assert ledger["topics"]["dropout"] == "Dropout"
    assert "\ndropout\n" in (repository / "docs/api/index.md").read_text()
    assert '    "dropped": Style("' in (repository / "src/gpuguide/plotting/palette.py").read_text()


def test_the_benchmark_that_it_writes_runs_and_is_correct(gpuguide: Run, repository: Path) -> None:
    from gpuguide.hardware import device
    from gpuguide.measure.benchmark import Benchmark

    gpuguide("new", "benchmark", "dropout", "--topic", "logits", *BENCHMARK[2:], "--contender", "torch")
    names: dict[str, object] = {}
    exec((repository / "src/gpuguide/benchmarks/logits.py").read_text(), names)
    declared = names["DROPOUT"]
    assert isinstance(declared, Benchmark)
    work = declared.contenders["torch"].build(device.cpu(), declared.cases(device.cpu())[0])
    assert work.check is not None
    work.check()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("page", "12-sampling", *PAGE), "12-sampling"),
        (("page", "12-dropout", *PAGE), "12"),
        (("page", "dropout", *PAGE), "'dropout'"),
        (("page", "96-dropout", *PAGE), "90 to 99"),
        (("page", "26-dropout", "--title", "The cost of dropout", "--topic", "sampling"), "The cost of dropout"),
        (("page", "26-dropout", *PAGE[:2], "--topic", "samplin"), "sampling"),
        (("page", "26-dropout", *PAGE, "--benchmark", "sample-tokn"), "sample-token"),
        (("topic", "sampling", "--title", "Sampling"), "'sampling'"),
        (("topic", "Sampling", "--title", "Sampling"), "'Sampling'"),
        (("benchmark", "sample-token", *BENCHMARK, "--contender", "torch"), "'sample-token'"),
        (("benchmark", "dropout", "--topic", "sampling", *BENCHMARK[2:]), "--contender torch"),
        (("benchmark", "dropout", *BENCHMARK, "--contender", "torch"), "'dropout'"),
        (("benchmark", "dropout", "--topic", "sampling", "--question", "Speed.", "--contender", "a"), "'Speed.'"),
    ],
)
def test_what_cannot_be_made_is_said_and_nothing_is_written(
    gpuguide: Run, repository: Path, words: tuple[str, ...], named: str
) -> None:
    before = {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()}
    status, out, message = gpuguide("new", *words)
    assert status in (1, 2)
    assert out == ""
    assert named in message.replace("\n", " ")
    assert {path: path.read_bytes() for path in repository.rglob("*") if path.is_file()} == before


def test_the_titles_that_there_are_begin_with_a_verb() -> None:
    for path in sorted((ROOT / "tutorials").glob("[0-9]*.md")):
        title = next(line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
        new.check_title(title.removeprefix("# "))
    for title in ("", "The loss", "Introduction to dropout", "Sampling"):
        with pytest.raises(GpuguideError, match="verb"):
            new.check_title(title)
