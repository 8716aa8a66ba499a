"""Where the time of the tests goes, and how often they do what is dear: what `make test` prints when it ends.

Seconds are those of the processes that run the tests, added up; nothing fails because a machine is slow. A page may
not be viewed, and a notebook not run, more often than is declared here. Builds of small sites are only counted: there
are as many as there are tests that need one.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[1] / "_build" / ".jupyter_cache"
VIEWS, RUNS, BUILDS = "views of a page", "runs of a notebook", "builds of small sites"
MOST = {VIEWS: 3, RUNS: 1}
"""How often each page may be opened and each notebook be run"""
COUNTED = {*MOST, BUILDS}
MORE = {
    (
        VIEWS,
        "tutorials/00-measure-a-gpu.html",
    ): 4,  # a phone, weak colours, all of its texts measured
    (VIEWS, "index.html"): 5,  # a phone, the keyboard and the search box
    (VIEWS, "docs/claims.html"): 5,  # a phone, addresses of claims, with and without scripts
}
"""What tests that take one page as their example add to that"""
SLOWEST = 10

_counted: list[tuple[str, str]] = []


def count(what: str, of: str = "all tests") -> None:
    """Note that the test that runs now has opened a page, run a notebook, or built a small site."""
    assert what in COUNTED
    _counted.append((what, of))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Send what was counted along with the report, for another process may be the one that adds up."""
    report: pytest.TestReport = yield  # type: ignore[assignment,misc]
    report.user_properties.extend(_counted)
    _counted.clear()
    return report  # type: ignore[return-value]


class Report:
    """Adds up what all tests took."""

    def __init__(self, thorough: bool) -> None:
        self.thorough = thorough
        self.seconds_of_files: dict[str, float] = defaultdict(float)
        self.seconds_of_pages: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.counts: Counter[tuple[str, str]] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of a test: setting up, running, or taking down."""
        self.seconds_of_files[report.nodeid.split("::")[0]] += report.duration
        counted = [(what, of) for what, of in report.user_properties if what in COUNTED]
        self.counts.update(counted)
        for what, page in {(what, Path(of).stem) for what, of in counted}:
            if page[:2].isdigit() and report.when == "call":
                self.seconds_of_pages[page][what] += report.duration

    def excess(self) -> list[str]:
        """Return what was done more often than declared, which thorough tests may."""
        if self.thorough:
            return []
        bounded = {(what, of): times for (what, of), times in self.counts.items() if what in MOST}
        allowed = {(what, of): MOST[what] + MORE.get((what, of), 0) for what, of in bounded}
        return [
            f"{of}: {times} {what}, of which {allowed[what, of]} are declared in tests/report.py"
            for (what, of), times in sorted(bounded.items())
            if times > allowed[what, of]
        ]

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Fail if something was done too often, unless tests have failed anyway."""
        if self.excess() and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the slowest files and the seconds of each page."""
        write = terminalreporter.write_line
        if len(self.seconds_of_pages) < 2 or terminalreporter.config.getoption("collectonly"):
            return
        terminalreporter.section("seconds of the processes that ran the tests")
        for file, seconds in sorted(self.seconds_of_files.items(), key=lambda each: -each[1])[:SLOWEST]:
            write(f"{seconds:8.0f}  {file}")
        built = seconds_built()
        write(f"{'page':36}{'built':>8}{'runs':>8}{'views':>8}")
        for page, parts in sorted(self.seconds_of_pages.items()):
            row = (built.get(page, 0.0), parts[RUNS], parts[VIEWS])
            write(f"{page:36}" + "".join(f"{seconds:8.0f}" for seconds in row))
        whole, pages = sum(self.seconds_of_files.values()), len(self.seconds_of_pages)
        # The median, for single pages serve as examples in further tests.
        tests = statistics.median(sum(parts.values()) for parts in self.seconds_of_pages.values())
        build = statistics.median(built.get(page, 0.0) for page in self.seconds_of_pages)
        shared = whole - tests * pages
        write(f"All tests: {whole:.0f} s, {shared:.0f} of them shared. A page: {tests:.0f} s, and {build:.0f} to run.")
        write(f"{sum(times for (what, _), times in self.counts.items() if what == BUILDS)} {BUILDS}")

    def pytest_unconfigure(self) -> None:
        """Say last what was done too often, for this alone can fail a run in which every test passed."""
        for line in self.excess():
            print(f"Too often: {line}", file=sys.stderr)


def seconds_built() -> dict[str, float]:
    """Return how long each page ran when it was last executed for the site."""
    from jupyter_cache import get_cache

    if not CACHE.is_dir():
        return {}
    records = sorted(get_cache(str(CACHE)).list_cache_records(), key=lambda record: record.created)
    return {Path(record.uri).stem: float(record.data.get("execution_seconds", 0)) for record in records}
