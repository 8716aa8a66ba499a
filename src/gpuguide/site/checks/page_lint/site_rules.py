"""Rules that look at several pages at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpuguide.site.checks.page_lint.rules import Finding
from gpuguide.site.checks.page_lint.source import Source
from gpuguide.site.notebooks import downloads

SENTENCES = {
    "duplicate-label": "A label stands once on the whole site.",
    "notebook-name": "No two tutorials have one name, and none has the name of a Python module.",
}


def duplicate_labels(sources: Sequence[Source]) -> Iterator[Finding]:
    """Yield each label that stands on a page although it stands elsewhere already."""
    taken: dict[str, str] = {}
    for source in sources:
        for line, label in sorted(_labels(source)):
            place = f"{source.path}:{line}"
            if label in taken:
                problem = f"The label {label!r} stands at {taken[label]} already."
                yield Finding(source.path, line, "duplicate-label", problem, "Choose another name for one of them.")
            taken.setdefault(label, place)


def _labels(source: Source) -> Iterator[tuple[int, str]]:
    for line, token in source.tokens:
        if token.type == "myst_target":
            yield line, token.content.lower()
    for directive in source.directives:
        if found := re.search(r"^[ \t]*:?name:[ \t]*(\S+)", directive.options, re.MULTILINE):
            yield directive.line, found[1].lower()


def notebook_names(sources: Sequence[Source]) -> Iterator[Finding]:
    """Yield each tutorial whose downloads would have the name of another's, or of a module."""
    tutorials = {source.path.with_suffix("").as_posix(): source for source in sources if source.is_tutorial}
    paths = {name: str(source.path) for name, source in tutorials.items()}
    for name, problem, remedy in downloads.wrong_names(paths):
        problem = problem[0].upper() + problem[1:]
        yield Finding(tutorials[name].path, 1, "notebook-name", problem, remedy)
