"""What stands in the way of a release: stale records, claims that fail, pages and cells that were not run.

``make release-check`` builds the site and runs ``python -m gpuguide.site.checks.release _build/html``. A page or cell
that cannot be run where the site is built needs a reason that ends with the day on which somebody decided so; a cell
that times the machine it runs on is the usual case, and needs none.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuguide import claims as ledger
from gpuguide.claims import quoted
from gpuguide.claims.pages import TEMPLATE
from gpuguide.errors import GpuguideError
from gpuguide.measure import citation, store
from gpuguide.measure.records import Record
from gpuguide.site.directives import status
from gpuguide.site.execution import page_gpus
from gpuguide.site.pages import page_source, skipped_cells

_ROLE = re.compile(r"\{(?:measured|ratio)\}`([^`]+)`")
_NOT_RUN = re.compile(r"\bnot-run:")


@dataclass(frozen=True)
class Blocker:
    """One thing that has to be put right before a release."""

    place: str
    """A file, with its line where there is one"""
    problem: str
    remedy: str

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.place}: {self.problem} {self.remedy}"


def blockers(repository: Path, site: Path) -> list[Blocker]:
    """Return all that stands in the way of a release.

    Parameters
    ----------
    repository : Path
        Where the sources of the pages are.
    site : Path
        The built site, ``_build/html``.

    Raises
    ------
    GpuguideError
        If the site is not built.
    """
    sources = {path: path.read_text(encoding="utf-8") for path in page_files(repository)}
    stale = [record for record in quoted.select_quoted(store.load_all_published()) if record.stale]
    executed = {page.page: page for page in status.read(site)}
    return [
        *stale_records(stale),
        *stale_numbers(stale, sources),
        *failing_claims(),
        *not_run(repository, sources, executed),
    ]


def page_files(repository: Path) -> list[Path]:
    """Return the sources of all pages."""
    found = [repository / "index.md", *repository.glob("docs/**/*.md"), *repository.glob("tutorials/*.md")]
    return sorted(path for path in found if path.is_file() and path.name != TEMPLATE)


def stale_records(stale: Sequence[Record]) -> Iterator[Blocker]:
    """Yield each of these records, whose benchmarks' code has changed since.

    A record that prose does not speak of, of another GPU, is drawn as what it is and stands in nobody's way.
    """
    for record in stale:
        yield Blocker(
            str(record.path),
            f"The record {record.benchmark!r} of {record.device_name} is stale: its code has changed since "
            f"commit {status.commits(record)}.",
            f"Measure it again there with `gpuguide bench run {record.benchmark} --out DIR`, and take it in with "
            "`gpuguide records import --publish DIR`.",
        )


def stale_numbers(stale: Sequence[Record], sources: Mapping[Path, str]) -> Iterator[Blocker]:
    """Yield each number in a page's prose that is read from a stale record."""
    known = {(record.device, record.benchmark) for record in stale}
    for path, source in sources.items():
        page = page_source.read(source)
        for role in _ROLE.finditer(source):
            try:
                name, *_, device = citation.parse(role[1])
                with page_gpus.use_gpu_of(page):
                    record = store.load_published(name, device)
            except GpuguideError:
                continue  # the build reports it
            if (record.device, name) in known:
                yield Blocker(
                    f"{path}:{line_of(source, role.start())}",
                    f"{role[0]} is read from a stale record.",
                    f"Measure {name!r} again, or leave the number out.",
                )


def failing_claims() -> Iterator[Blocker]:
    """Yield each claim of the ledger that does not hold."""
    for outcome in ledger.check():
        if not outcome.ok:
            yield Blocker(
                outcome.claim.place,
                f"The claim {outcome.claim.id!r} fails: {outcome.detail.rstrip('.')}.",
                "Correct the row, or measure again what it reads.",
            )


def not_run(
    repository: Path, sources: Mapping[Path, str], executed: Mapping[str, status.PageStatus]
) -> Iterator[Blocker]:
    """Yield each page with code that was not executed, and each cell left out, without a dated reason."""
    for path, source in sources.items():
        page = page_source.read(source)
        name = path.relative_to(repository).with_suffix("").as_posix()
        ran = name in executed and executed[name].executed
        if page.code.strip() and not ran and not skipped_cells.is_dated(page.not_run):
            yield Blocker(
                f"{path}:{line_of_reason(source)}",
                "The page was not executed when the site was built, and gives no dated reason.",
                'Let it run, or add to its front matter: gpuguide: {not-run: "it needs two GPUs (2026-01-31)"}.',
            )
        for cell in skipped_cells.find_skipped_cells(source):
            if cell.reason != skipped_cells.REASON and not skipped_cells.is_dated(cell.reason):
                yield Blocker(
                    f"{path}:{cell.line}",
                    f"The cell is not run for a reason without a day: {cell.reason!r}.",
                    "End the reason with the day in parentheses, as in: it needs two GPUs (2026-01-31).",
                )


def line_of_reason(source: str) -> int:
    """Return the line of a page's front matter that says why it is not run, or else its first line."""
    found = _NOT_RUN.search(source.partition("\n---\n")[0])
    return line_of(source, found.start() if found else 0)


def line_of(source: str, position: int) -> int:
    """Return the line of a position in a text, counted from one."""
    return source.count("\n", 0, position) + 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what stands in the way of a release, a line each, and return 1 if there is anything.

    Parameters
    ----------
    arguments : sequence of str, optional
        The folder of the built site; ``_build/html`` without one. The repository is the current folder.
    """
    named = list(sys.argv[1:] if arguments is None else arguments)
    try:
        found = blockers(Path.cwd(), Path(named[0] if named else "_build/html"))
    except GpuguideError as error:
        print(f"release check: {error}", file=sys.stderr)
        return 1
    for blocker in found:
        print(blocker)
    print(f"{len(found) or 'Nothing'} in the way of a release.", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
