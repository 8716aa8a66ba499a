"""Installs the pinned packages, and says how far it is; what pip says goes to a log. Needs nothing but Python itself.

python install.py LOG ARGUMENTS-FOR-PIP
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

SHOWN = 20
"""Lines of the log that are shown when the installation fails"""
_PACKAGE = re.compile(r"^Collecting (\S+?)[=<>!~;\[]")


def main(log: Path, arguments: list[str]) -> int:
    """Run ``pip install`` with these arguments; return its exit status."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    with log.open("w", encoding="utf-8") as file:
        pip = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace"
        )
        assert pip.stdout is not None
        follow(pip.stdout, file, count(arguments))
        status = pip.wait()
    if status:
        print(f"The installation failed. The end of {log}:\n", file=sys.stderr)
        lines = log.read_text(encoding="utf-8").splitlines()
        print("\n".join(f"  {line}" for line in lines[-SHOWN:]), file=sys.stderr)
    return status


def count(arguments: list[str]) -> int:
    """Return how many packages the requirement files among the arguments name."""
    files = [Path(value) for option, value in itertools.pairwise(arguments) if option == "-r"]
    lines = [line.strip() for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return sum(bool(line) and not line.startswith(("#", "-")) for line in lines)


def follow(lines: Iterable[str], log: object, total: int) -> None:
    """Write what pip says to the log; say on the screen how many packages it has come to."""
    on_terminal = sys.stdout.isatty()
    found, said = 0, 0
    for line in lines:
        print(line, end="", file=log, flush=True)  # type: ignore[call-overload]
        package = _PACKAGE.match(line)
        if package:
            found += 1
            if on_terminal:
                print(f"\r\033[K  {found} of {total} packages: {package[1]}", end="", flush=True)
            elif total and 4 * found // total > said:
                said = 4 * found // total
                print(f"  {found} of {total} packages are here", flush=True)
        elif line.startswith("Installing collected packages"):
            print(f"{chr(13) + chr(27) + '[K' if on_terminal else ''}  Unpacking them", flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
