"""What Lighthouse says of the built site.

``python -m gpuguide.site.checks.lighthouse _build/html`` measures it and keeps it.

Lighthouse is no dependency of the project: it is an npm package that ``npx`` fetches, or that ``LIGHTHOUSE`` names. It
drives an installed Chromium, which ``CHROME_PATH`` may name, and a server of ours that compresses, as those of
published sites do. The result stands in :data:`~gpuguide.site.records.lighthouse_table.FILE`, and the status
page shows it. By hand, because Lighthouse CI would leave most of this: the medians of the status page are not in its
reports, and the tests need the server too.
"""

from __future__ import annotations

import datetime
import gzip
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gpuguide.errors import GpuguideError
from gpuguide.site.records.lighthouse_table import CATEGORIES, FILE

PAGES = ("index.html", "tutorials/00-measure-a-gpu.html", "docs/will-it-fit.html", "docs/hardware.html")
"""The pages that are measured: the first, a tutorial, and one of each other kind"""
RUNS = 3
"""Of each page and device; the median counts"""
_COMPRESSED = {".html", ".css", ".js", ".svg", ".json", ".xml", ".txt"}


class Compressing(SimpleHTTPRequestHandler):
    """Serves files, compressed where that helps, and writes no log."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send a file."""
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() else path
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Cache-Control", "max-age=600")  # as the hosts of static sites say
        if path.suffix in _COMPRESSED and "gzip" in self.headers.get("Accept-Encoding", ""):
            content = gzip.compress(content, mtime=0)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder on this machine, and give its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Compressing, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def measured(site: Path, command: Sequence[str]) -> dict[str, Any]:
    """Return what is kept of all pages, measured with this command."""
    pages: dict[str, Any] = {}
    report: dict[str, Any] = {}
    with served(site) as address:
        for page in PAGES:
            pages[page] = {}
            for device in ("desktop", "mobile"):
                reports = [one_run(command, f"{address}/{page}", device) for _ in range(RUNS)]
                pages[page][device] = scores(reports)
                report = reports[-1]
                print(page, device, pages[page][device], file=sys.stderr)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "lighthouse": report["lighthouseVersion"],
        "browser": browser(report["environment"]["hostUserAgent"]),
        "runs": RUNS,
        "pages": pages,
    }


def one_run(command: Sequence[str], address: str, device: str) -> dict[str, Any]:
    """Return Lighthouse's report on one page.

    Raises
    ------
    GpuguideError
        If it cannot be started, or gives no report.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        options = ["--quiet", "--output=json", f"--output-path={path}", f"--only-categories={','.join(CATEGORIES)}"]
        options += ["--chrome-flags=--headless=new --no-sandbox --disable-gpu"]
        options += ["--preset=desktop"] if device == "desktop" else []
        try:
            done = subprocess.run([*command, address, *options], capture_output=True, text=True, check=False)
        except OSError as error:
            raise GpuguideError(f"Cannot start {command[0]} ({error}). Install Node.js, or set LIGHTHOUSE.") from error
        if done.returncode or not path.exists():
            raise GpuguideError(f"Lighthouse gave no report on {address}: {done.stderr.strip()[-500:]}")
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return report


def scores(reports: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return the median of each category's score, from 0 to 100.

    >>> scores([{"categories": {name: {"score": s} for name in CATEGORIES}} for s in (0.5, 0.9, 1.0)])["seo"]
    90
    """
    found = {name: [report["categories"][name]["score"] or 0 for report in reports] for name in CATEGORIES}
    return {name: round(100 * statistics.median(values)) for name, values in found.items()}


def browser(user_agent: str) -> str:
    """Return the name and the main version of a browser.

    >>> browser("Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 HeadlessChrome/140.0.0.0 Safari/537.36")
    'Chrome 140'
    """
    version = user_agent.partition("Chrome/")[2].partition(".")[0]
    return f"Chrome {version}" if version else "an unknown browser"


def main(arguments: Sequence[str]) -> int:
    """Measure the site in the folder that is given, and keep the result."""
    if len(arguments) != 1 or not (Path(arguments[0]) / PAGES[0]).is_file():
        print(
            "Name the folder of the built site: python -m gpuguide.site.checks.lighthouse _build/html", file=sys.stderr
        )
        return 2
    command = shlex.split(os.environ.get("LIGHTHOUSE", "npx --yes lighthouse@12"))
    try:
        kept = measured(Path(arguments[0]), command)
    except GpuguideError as error:
        print(error, file=sys.stderr)
        return 1
    FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
