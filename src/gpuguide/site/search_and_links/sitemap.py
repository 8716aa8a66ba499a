"""``sitemap.xml``, for search engines, where the configuration says what the site's address is.

By hand, because sphinx-sitemap lists the pages that a build wrote, which are not all when only one has changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote
from xml.sax.saxutils import escape

from gpuguide.site.pages.addresses import Addresses

if TYPE_CHECKING:
    from sphinx.application import Sphinx

FILE = "sitemap.xml"


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.connect("build-finished", write)


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the addresses of all pages, or remove the file of an earlier build if the address is no longer known."""
    if exception is not None or app.builder.format != "html":
        return
    target, base = Path(app.outdir) / FILE, Addresses.from_config(app.config).base
    if not base:
        target.unlink(missing_ok=True)
        return
    pages = sorted(app.builder.get_target_uri(docname) for docname in app.env.found_docs)
    target.write_text(text(base, pages), encoding="utf-8", newline="\n")


def text(base: str, pages: list[str]) -> str:
    """Return a sitemap of these pages.

    >>> print(text("https://example.org/a&b/", ["index.html"]), end="")
    <?xml version="1.0" encoding="utf-8"?>
    <urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">
    <url><loc>https://example.org/a&amp;b/index.html</loc></url>
    </urlset>
    """
    lines = "".join(f"<url><loc>{escape(base + quote(page))}</loc></url>\n" for page in pages)
    head = '<?xml version="1.0" encoding="utf-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n'
    return f"{head}{lines}</urlset>\n"
