"""The feed of the change log, and the day of its newest entry, which stands at the foot of every page.

The page ``docs/changes`` is the only source: a section for each day, under its date (ISO 8601), with a section for
each entry.
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
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_NEWEST = re.compile(rf"^## ({_DAY.pattern})$", re.MULTILINE)

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
    """Refuse a section that is no day, a day below an older one, and a day without entries."""
    if app.env.docname != PAGE:
        return
    above = ""
    for section in list_days(doctree):
        day = section[0].astext()
        if not _DAY.fullmatch(day):
            logger.warning("%r is no day: write one, as '2026-01-31', and its entries below.", day, location=section)
            continue
        if not list_entries(section):
            logger.warning("%s has no entry: give each one a heading of the third level.", day, location=section)
        if above and day >= above:
            logger.warning("%s stands below an older or the same day: the newest comes first.", day, location=section)
        above = day


def list_days(doctree: nodes.document) -> list[nodes.section]:
    """Return the sections of a page's second level."""
    return [day for top in doctree.children for day in top.children if isinstance(day, nodes.section)]


def list_entries(day: nodes.section) -> list[nodes.section]:
    """Return the sections of a day."""
    return [entry for entry in day.children if isinstance(entry, nodes.section)]


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
    for day in list_days(doctree):
        for entry in list_entries(day) if _DAY.fullmatch(day[0].astext()) else []:
            text = "".join(f"<p>{escape(part.astext())}</p>" for part in entry.children[1:])
            date = datetime.date.fromisoformat(day[0].astext())
            found.append(FeedEntry(date, entry[0].astext(), entry["ids"][0], text))
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
