"""The feed of the change log, and the day of its newest entry, which stands at the foot of every page.

The page ``docs/changes`` is the only source: a section an entry, whose heading is the day (ISO 8601) and a title.
Sphinx's extensions for feeds make an entry of every page and not of a section, so the sections are read here; the
feed itself is written by feedgenerator.
"""

from __future__ import annotations

import datetime
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util import logging
from sphinx.util.i18n import format_date

from gpuguide.site.pages.addresses import Addresses

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.config import Config

PAGE = "docs/changes"
FILE = "changes.atom"
TITLE = "gpuguide: what changed"
_HEADING = re.compile(r"(\d{4}-\d\d-\d\d): (\S.*)")
_NEWEST = re.compile(r"^## (\d{4}-\d\d-\d\d): ", re.MULTILINE)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeedEntry:
    """An entry of the change log."""

    day: datetime.date
    title: str
    anchor: str
    text: str
    """As HTML"""


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_config_value("gpuguide_changed", "", "html", str)  # all pages are written again when it changes
    app.connect("config-inited", note_newest)
    app.connect("doctree-read", check)
    app.connect("html-page-context", show_newest)
    app.connect("build-finished", write)


def note_newest(app: Sphinx, config: Config) -> None:
    """Read the day of the newest entry, before any page is."""
    path = Path(app.srcdir, f"{PAGE}.md")
    days = _NEWEST.findall(path.read_text(encoding="utf-8")) if path.is_file() else []
    config.gpuguide_changed = max(days, default="")


def check(app: Sphinx, doctree: nodes.document) -> None:
    """Refuse an entry without a day, and one below an older one."""
    if app.env.docname != PAGE:
        return
    above = ""
    for section in sections(doctree):
        title = section[0].astext()
        heading = _HEADING.fullmatch(title)
        if heading is None:
            logger.warning("%r is no entry: write a day and a title, as '2026-01-31: Title'.", title, location=section)
        elif above and heading[1] > above:
            logger.warning("%r stands below an older entry: the newest comes first.", title, location=section)
        above = heading[1] if heading else above


def sections(doctree: nodes.document) -> list[nodes.section]:
    """Return the sections of a page's second level."""
    return [section for section in doctree.findall(nodes.section) if isinstance(section.parent, nodes.section)]


def show_newest(app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object) -> None:
    """Give the template the version, the day of the newest entry, and the addresses of page and feed."""
    if app.config.gpuguide_changed:
        day = datetime.date.fromisoformat(app.config.gpuguide_changed)
        context["changed"] = {"day": day.isoformat(), "words": words(day), "page": PAGE, "feed": FILE, "title": TITLE}


def words(day: datetime.date) -> str:
    """Write a day for readers.

    >>> words(datetime.date(2026, 11, 2))
    '2 November 2026'
    """
    moment = datetime.datetime.combine(day, datetime.time(), datetime.UTC)
    return format_date("%-d %B %Y", date=moment, language="en")


def changes(doctree: nodes.document) -> list[FeedEntry]:
    """Return the entries of the change log."""
    found = []
    for section in sections(doctree):
        if heading := _HEADING.fullmatch(section[0].astext()):
            text = "".join(f"<p>{escape(part.astext())}</p>" for part in section.children[1:])
            day = datetime.date.fromisoformat(heading[1])
            found.append(FeedEntry(day, heading[2], section["ids"][0], text))
    return found


def write(app: Sphinx, exception: Exception | None) -> None:
    """Write the feed, with whole addresses where the site's address is known, and else from the feed's place."""
    if exception is not None or app.builder.format != "html" or PAGE not in app.env.all_docs:
        return
    page = app.builder.get_target_uri(PAGE)
    found = changes(app.env.get_and_resolve_doctree(PAGE, app.builder))
    text = feed(found, Addresses.from_config(app.config).base, page)
    Path(app.outdir, FILE).write_text(text, encoding="utf-8", newline="\n")


def feed(found: Iterable[FeedEntry], base: str, page: str) -> str:
    """Return the entries as an Atom feed. Its identifiers are the same wherever the site is."""
    from feedgenerator import Atom1Feed

    made = Atom1Feed(
        TITLE,
        base + page,
        None,
        language="en",
        author_name="The gpuguide authors",
        feed_url=base + FILE,
        feed_guid=identifier(""),
    )
    for change in found:
        day = datetime.datetime.combine(change.day, datetime.time(), datetime.UTC)
        made.add_item(
            change.title,
            f"{base}{page}#{change.anchor}",
            change.text,
            pubdate=day,
            updateddate=day,
            unique_id=identifier(change.anchor),
        )
    return str(made.writeString("utf-8"))


def identifier(anchor: str) -> str:
    """Return the name of the feed, or of an entry, by which a reader knows what it has seen."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"gpuguide/{PAGE}#{anchor}").urn
