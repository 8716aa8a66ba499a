"""Build the site, or one page of it."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NoReturn, cast

import filelock

from gpuguide.site.build import half_done
from gpuguide.site.build.screen import BuildScreen
from gpuguide.site.execution import running


def main() -> int:
    """Build what the command line names; return the exit status."""
    arguments = parse()
    root, built = Path.cwd(), Path.cwd() / "_build"
    name = "page" if arguments.page else "site"
    out = arguments.out or built / ("page" if arguments.page else "html")
    doctrees = built / ("page-doctrees" if arguments.page else "doctrees")
    if arguments.page:
        os.environ["GPUGUIDE_PAGE"] = arguments.page  # conf.py executes no other
    signal.signal(signal.SIGTERM, _stop)
    try:
        with alone(built), BuildScreen(built / "build.log", root, only=arguments.page) as screen:
            return build(root, out, doctrees, screen, name, arguments.at_once)
    except filelock.Timeout:
        print(f"Another build is at work in {root}. Wait until it is done, or end it.", file=sys.stderr)
        return 3


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m gpuguide.site.build", description=__doc__)
    parser.add_argument("--page", default="", metavar="PAGE", help="one page, for example tutorials/00-measure-a-gpu")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to (default: _build/html, or _build/page)")
    parser.add_argument("--at-once", type=int, default=0, metavar="N", help="pages to run at a time (default: cores)")
    arguments = parser.parse_args()
    arguments.page = arguments.page.removesuffix(".md")
    if arguments.page and not Path(f"{arguments.page}.md").is_file():
        parser.error(f"There is no page {arguments.page}.md here; name one as in tutorials/00-measure-a-gpu.")
    return arguments


@contextmanager
def alone(built: Path) -> Iterator[None]:
    """Let no other build work in the same tree; a process that is killed lets go by itself."""
    built.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(built / ".lock", timeout=0):
        yield


def build(root: Path, out: Path, doctrees: Path, screen: BuildScreen, name: str, at_once: int) -> int:
    """Run Sphinx, and say how it went."""
    from sphinx.application import Sphinx
    from sphinx.errors import SphinxError
    from sphinx.util.console import nocolor
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    began = time.monotonic()
    gc.set_threshold(200_000, 20, 100)  # document trees are millions of objects, and to look through them takes long
    nocolor()
    settings = {"gpuguide_pages_at_once": at_once} if at_once else {}
    try:
        with patch_docutils(root), docutils_namespace(), half_done.protect_doctrees(doctrees) as mark:
            warnings = cast("IO[str]", screen)
            app = Sphinx(root, root, out, doctrees, "html", settings, status=screen.log, warning=warnings)
            screen.follow(app)
            app.connect("env-updated", lambda app, env: mark.touch(), priority=1000)  # half done from here on
            try:
                app.build()
            finally:
                running.end(app, None)  # Ctrl-C is no error that Sphinx tells
            if screen.warnings == 0:
                mark.unlink(missing_ok=True)
    except SphinxError as error:
        screen.say(f"{error}\n\nThe {name} is not built. {screen.where}")
        return 1
    except KeyboardInterrupt:
        screen.say("Stopped. Pages that have run need not run again.")
        return 130
    except Exception as error:
        screen.log.write(traceback.format_exc())
        screen.say(f"{type(error).__name__}: {error}\n\nThe {name} is not built: a fault of the build. {screen.where}")
        return 1
    if screen.warnings and name == "site":
        count = f"{screen.warnings} warning{'s' * (screen.warnings > 1)}"
        screen.say(f"\n{count}, and a site with warnings is not to be published. {screen.where}")
        return 1
    first = f"tutorials/{Path(screen.only).name}.html" if screen.only else "index.html"
    shown = os.path.relpath(out / first)
    screen.say(f"The {name} is built, in {time.monotonic() - began:.0f} s: open {shown}. {screen.where}")
    return 0


def _stop(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
