"""``python -m gpuguide.site.checks.page_lint [PAGE]...``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpuguide.site.checks import page_lint


def main(arguments: Sequence[str]) -> int:
    """Print each finding on a line, and return 1 if there is a finding that is more than a warning."""
    rules = "\n".join(f"  {name}: {sentence}" for name, sentence in page_lint.sentences().items())
    parser = argparse.ArgumentParser(
        prog="python -m gpuguide.site.checks.page_lint",
        description="Check pages against the rules below, and print file, line, rule, problem and remedy.",
        epilog=f"rules:\n{rules}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="a page (default: all pages)")
    pages = parser.parse_args(arguments).pages
    missing = [path for path in pages if not path.is_file()]
    if missing:
        print(f"There is no page {missing[0]}.", file=sys.stderr)
        return 2
    found = page_lint.findings(pages or page_lint.page_files(Path()))
    for finding in found:
        print(finding)
    if found:
        print(f"{len(found)} found; the option --help lists the rules.", file=sys.stderr)
    return 1 if any(not finding.is_warning for finding in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
