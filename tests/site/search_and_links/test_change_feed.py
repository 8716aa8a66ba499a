"""The change log: its feed, the day at the foot of every page, and entries that are not as they must be."""

from __future__ import annotations

import datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bs4 import BeautifulSoup
from small_site import Project, start

from gpuguide.site.search_and_links import change_feed
from gpuguide.site.search_and_links.change_feed import FeedEntry

pytestmark = pytest.mark.random_order(disabled=True)  # later tests change the site that all of them share

ADDRESS = "https://example.org/guide/"
ATOM = "{http://www.w3.org/2005/Atom}"
NEW = FeedEntry(datetime.date(2026, 2, 1), "Copies & sums", "copies-sums", "<p>1 &lt; 2</p>")
OLD = FeedEntry(datetime.date(2026, 1, 31), "A beginning", "a-beginning", "<p>All.</p>")
LOG = """
What changed.

## 2026-02-01

### Copies & sums

That 1 < 2 holds.

## 2026-01-31

### A beginning

All of it.
"""

API = """
```{eval-rst}
.. automodule:: gpuguide.costs.roofline
   :members:
```
"""
SOURCE = "_modules/gpuguide/costs/roofline.html"


def entries(text: str) -> list[ElementTree.Element]:
    return ElementTree.fromstring(text.encode()).findall(f"{ATOM}entry")


def said(entry: ElementTree.Element, name: str) -> str:
    found = entry.find(f"{ATOM}{name}")
    assert found is not None
    return found.get("href") or found.text or ""


def test_the_feed_has_what_readers_of_feeds_need() -> None:
    text = change_feed.feed([NEW, OLD], ADDRESS, "docs/changes.html")
    root = ElementTree.fromstring(text.encode())
    assert root.findtext(f"{ATOM}updated") == "2026-02-01T00:00:00+00:00"
    assert {link.get("href") for link in root.findall(f"{ATOM}link")} == {
        f"{ADDRESS}docs/changes.html",
        f"{ADDRESS}changes.atom",
    }
    first, second = entries(text)
    assert [said(first, name) for name in ("title", "link", "updated", "summary")] == [
        "Copies & sums",
        f"{ADDRESS}docs/changes.html#copies-sums",
        "2026-02-01T00:00:00+00:00",
        "<p>1 &lt; 2</p>",
    ]
    assert len({said(first, "id"), said(second, "id"), root.findtext(f"{ATOM}id")}) == 3


def test_an_entry_keeps_its_name_wherever_the_site_is() -> None:
    there, here = (entries(change_feed.feed([OLD], base, "docs/changes.html"))[0] for base in (ADDRESS, ""))
    assert said(there, "id") == said(here, "id")
    assert said(here, "link") == "docs/changes.html#a-beginning"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = start(tmp_path_factory.mktemp("site"))
    conf = made.root / "conf.py"
    text = conf.read_text(encoding="utf-8").replace('["*.md", ', '["*.md", "docs/*", ')
    text = text.replace("html_theme_options = {", 'html_theme_options = {"footer_end": ["version"], ')
    more = "extensions += ['sphinx.ext.autodoc', 'sphinx.ext.viewcode']"
    conf.write_text(f"{text}\nhtml_baseurl = '{ADDRESS}'\nrelease = '1.2'\n{more}\n", encoding="utf-8")
    made.page("index", f"You will see.\n\n{API}\n\n```{{toctree}}\ndocs/changes\n```", runs=False)
    made.page("docs/changes", LOG, runs=False)
    build = made.build()
    assert build.status == 0, build.output
    return made


def page(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


@pytest.mark.slow
def test_every_page_says_version_and_day_and_leads_to_the_feed(project: Project) -> None:
    for name, up in (("index.html", ""), ("docs/changes.html", "../")):
        made = page(project.html / name)
        foot = made.select_one(".gg-version")
        assert foot is not None
        assert foot.get_text(" ", strip=True) == "Version 1.2, last changed on 1 February 2026 Feed"
        assert foot.select("time[datetime='2026-02-01']")
        assert [link["href"] for link in made.select("link[type='application/atom+xml']")] == [f"{up}changes.atom"]
    first = entries((project.html / "changes.atom").read_text(encoding="utf-8"))[0]
    assert said(first, "summary") == "<p>That 1 &lt; 2 holds.</p>"
    anchor = said(first, "link").partition("#")[2]
    assert page(project.html / "docs" / "changes.html").find(id=anchor) is not None


@pytest.mark.slow
def test_a_new_entry_changes_the_foot_of_pages_that_are_not_read_again(project: Project) -> None:
    entry = "## 2026-03-09\n\n### More\n\nMuch more.\n\n## 2026-02-01"
    project.page("docs/changes", LOG.replace("## 2026-02-01", entry), runs=False)
    build = project.build()
    assert build.status == 0, build.output
    assert build.read == {"docs/changes"}
    for name in ("index.html", SOURCE):
        assert "9 March 2026" in page(project.html / name).select_one(".gg-version").text  # type: ignore[union-attr]
    written = (project.html / SOURCE).stat().st_mtime_ns
    assert project.build().status == 0
    assert (project.html / SOURCE).stat().st_mtime_ns == written, "and pages of source are not made anew without need"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (LOG.replace("2026-01-31", "In January"), "In January", "'In January' is no day"),
        (LOG.replace("2026-01-31", "2026-12-31"), "2026-12-31", "2026-12-31 stands below an older or the same day"),
        (LOG.replace("### A beginning", ""), "2026-01-31", "2026-01-31 has no entry"),
    ],
)
def test_a_day_that_is_not_as_it_must_be_is_named(project: Project, text: str, line: str, message: str) -> None:
    project.page("docs/changes", text, runs=False)
    build = project.build()
    assert build.status != 0
    number = project.line_of("docs/changes", f"## {line}")
    assert [report for report in build.output.splitlines() if f"docs/changes.md:{number}: WARNING: {message}" in report]
