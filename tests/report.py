"""Where the time of the tests goes: what `make test` prints when it ends.

Seconds are those of the processes that run the tests, added up. Nothing fails for them: a machine may be slow.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[1] / "_build" / ".jupyter_cache"
VIEWS, RUNS, BUILDS = "views of a page", "runs of a notebook", "builds of small sites"
SLOWEST = 10

_counted: list[tuple[str, str]] = []


def count(what: str, of: str = "all tests") -> None:
    """Note that the test that runs now has opened a page, run a notebook, or built a small site."""
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

    def __init__(self) -> None:
        self.seconds_of_files: dict[str, float] = defaultdict(float)
        self.seconds_of_pages: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.counts: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of a test: setting up, running, or taking down."""
        self.seconds_of_files[report.nodeid.split("::")[0]] += report.duration
        counted = [(what, of) for what, of in report.user_properties if what in (VIEWS, RUNS, BUILDS)]
        self.counts.update(what for what, _ in counted)
        for what, page in {(what, Path(of).stem) for what, of in counted}:
            if page[:2].isdigit() and report.when == "call":
                self.seconds_of_pages[page][what] += report.duration

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
        write(", ".join(f"{times} {what}" for what, times in sorted(self.counts.items())))
        write(f"All tests: {whole:.0f} s, {shared:.0f} of them shared. A page: {tests:.0f} s, and {build:.0f} to run.")


def seconds_built() -> dict[str, float]:
    """Return how long each page ran when it was last executed for the site."""
    from jupyter_cache import get_cache

    if not CACHE.is_dir():
        return {}
    records = sorted(get_cache(str(CACHE)).list_cache_records(), key=lambda record: record.created)
    return {Path(record.uri).stem: float(record.data.get("execution_seconds", 0)) for record in records}
