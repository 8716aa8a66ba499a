"""Rules that look at several pages at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from gpuguide.measure import reference_gpu
from gpuguide.site.checks.page_lint.rules import LintFinding
from gpuguide.site.checks.page_lint.source import TEMPLATE, LintedPage
from gpuguide.site.notebooks import downloads

SENTENCES = {
    "duplicate-label": "A label stands once on the whole site.",
    "topic-gpu": "The pages of a topic speak of one GPU, on which the topic's claims are checked.",
    "notebook-name": "No two tutorials have one name, and none has the name of a Python module.",
}


def duplicate_labels(sources: Sequence[LintedPage]) -> Iterator[LintFinding]:
    """Yield each label that stands on a page although it stands elsewhere already."""
    taken: dict[str, str] = {}
    for source in sources:
        for line, label in sorted(_labels(source)):
            place = f"{source.path}:{line}"
            if label in taken:
                problem = f"The label {label!r} stands at {taken[label]} already."
                yield LintFinding(source.path, line, "duplicate-label", problem, "Choose another name for one of them.")
            taken.setdefault(label, place)


def _labels(source: LintedPage) -> Iterator[tuple[int, str]]:
    for line, token in source.tokens:
        if token.type == "myst_target":
            yield line, token.content.lower()
    for directive in source.directives:
        if found := re.search(r"^[ \t]*:?name:[ \t]*(\S+)", directive.options, re.MULTILINE):
            yield directive.line, found[1].lower()


def gpus_of_topics(sources: Sequence[LintedPage]) -> Iterator[LintFinding]:
    """Yield each page that speaks of another GPU than a page before it on the same topic."""
    taken: dict[str, tuple[LintedPage, str]] = {}
    for source in sources:
        page = source.page
        device = page.gpu or reference_gpu.default_slug()
        speaks = bool(page.gpu or page.benchmarks) and source.path.stem != TEMPLATE
        for topic in page.topics if speaks else ():
            first, other = taken.setdefault(topic, (source, device))
            if other != device:
                problem = f"On the topic {topic!r} it speaks of {device}, and {first.path} of {other}."
                line = source.front_line("gpu" if page.gpu else "topics")
                yield LintFinding(source.path, line, "topic-gpu", problem, "Name one GPU on all pages of a topic.")


def notebook_names(sources: Sequence[LintedPage]) -> Iterator[LintFinding]:
    """Yield each tutorial whose downloads would have the name of another's, or of a module."""
    tutorials = {source.path.with_suffix("").as_posix(): source for source in sources if source.is_tutorial}
    paths = {name: str(source.path) for name, source in tutorials.items()}
    for name, problem, remedy in downloads.find_wrong_names(paths):
        problem = problem[0].upper() + problem[1:]
        yield LintFinding(tutorials[name].path, 1, "notebook-name", problem, remedy)


RULES: tuple[Callable[[Sequence[LintedPage]], Iterator[LintFinding]], ...] = (
    duplicate_labels,
    gpus_of_topics,
    notebook_names,
)
