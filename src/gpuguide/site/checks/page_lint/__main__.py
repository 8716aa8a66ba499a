"""``python -m gpuguide.site.checks.page_lint [--rules] [PAGE]...``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gpuguide.site.checks import page_lint


def main(arguments: Sequence[str]) -> int:
    """Print each finding on a line, or the rules, and return 1 if there is a finding that is more than a warning."""
    if list(arguments) == ["--rules"]:
        for name, sentence in page_lint.sentences().items():
            print(f"- `{name}`: {sentence}")
        return 0
    missing = [name for name in arguments if not Path(name).is_file()]
    if missing:
        print(f"There is no page {missing[0]}.", file=sys.stderr)
        return 2
    found = page_lint.findings(map(Path, arguments) if arguments else page_lint.page_files(Path()))
    for finding in found:
        print(finding)
    if found:
        print(f"{len(found)} found; CONTRIBUTING.md lists the rules.", file=sys.stderr)
    return 1 if any(not finding.is_warning for finding in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
