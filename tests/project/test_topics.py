"""One name a topic: the registry in claims.toml against modules, benchmarks, claims, tests and pages.

Names have hyphens in data and on pages, and underscores in Python: ``cross-entropy`` is ``gpuguide.cross_entropy``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from rooms import MAY_IMPORT, PACKAGE, modules, room

from gpuguide import claims
from gpuguide.measure import digest
from gpuguide.site.pages import page_source
from gpuguide.site.pages.page_source import PageSource

ROOT = Path(__file__).resolve().parents[2]
SHARED = {"inputs"}
"""Files beside the benchmarks that belong to no topic"""
OTHER_TESTS = {"declarations"}
"""Tests of all benchmarks together"""


def slug(name: str) -> str:
    """Return a topic's name as data and pages have it."""
    return name.replace("_", "-")


def names_in(folder: Path) -> set[str]:
    """Return the names of the Python files and folders in a folder, its face aside."""
    files = {path.stem for path in folder.glob("*.py")}
    folders = {path.parent.name for path in folder.glob("*/*.py")}
    return {slug(name) for name in (files | folders) - {"__init__", "conftest"}}


def pages() -> dict[str, PageSource]:
    """Return the pages that name topics or benchmarks, or should."""
    paths = [*ROOT.glob("tutorials/*.md"), *ROOT.glob("docs/*.md")]
    return {path.stem: page_source.read(path.read_text(encoding="utf-8")) for path in paths}


def topic_of(benchmark: str) -> str:
    """Return the topic whose file or folder declares a benchmark."""
    return slug(digest.benchmark_modules()[benchmark].split(".")[2])


TOPICS = set(claims.topics())
PAGES = pages()


def test_modules_bear_the_names_of_topics() -> None:
    of_library = {slug(name.split(".")[1]) for name in modules() if room(name) == "topic"}
    assert of_library <= TOPICS
    assert {"attention", "cross-entropy", "dataframes", "logits", "sampling"} <= of_library


def test_benchmarks_bear_the_names_of_topics() -> None:
    assert names_in(PACKAGE / "benchmarks") - SHARED <= TOPICS
    assert {topic_of(name) for name in digest.benchmark_modules()} == names_in(PACKAGE / "benchmarks") - SHARED


def test_claims_bear_the_names_of_topics() -> None:
    files = {path.stem for path in (PACKAGE / "claims").rglob("*.toml")} - {"claims"}
    assert files <= TOPICS


def test_tests_bear_the_names_of_topics() -> None:
    """A folder of tests is that of a topic or of a room; tests of benchmarks lie as the benchmarks do."""
    folders = {slug(path.name) for path in (ROOT / "tests").iterdir() if any(path.glob("*.py"))}
    assert folders <= TOPICS | set(map(slug, MAY_IMPORT)) | {"project"}
    of_benchmarks = {name.removeprefix("test-") for name in names_in(ROOT / "tests" / "benchmarks")}
    assert of_benchmarks <= TOPICS | OTHER_TESTS


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if page.topics])
def test_a_page_names_topics_that_there_are(name: str) -> None:
    assert set(PAGES[name].topics) <= TOPICS


def test_every_tutorial_names_its_topics() -> None:
    tutorials = {path.stem for path in ROOT.glob("tutorials/*.md")} - {"index"}
    assert {name for name in tutorials if not PAGES[name].topics} == set()


def test_a_page_names_the_topics_of_the_claims_that_it_settles() -> None:
    for claim in claims.load():
        if claim.taught:
            assert claim.topic in PAGES[claim.taught].topics, claim.place


@pytest.mark.parametrize("benchmark", sorted(digest.benchmark_modules()))
def test_a_benchmark_is_read_by_a_page_on_its_topic(benchmark: str) -> None:
    """Other pages may read it too: every page reads the ceilings."""
    readers = [name for name, page in PAGES.items() if benchmark in page.benchmarks]
    assert any(topic_of(benchmark) in PAGES[name].topics for name in readers), readers
