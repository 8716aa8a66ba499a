"""A site of a few pages: where names are used, terms, path, newest records, sitemap; and the same on the built site."""

from __future__ import annotations

import itertools
import json
import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bs4 import BeautifulSoup
from built_pages import parsed
from small_site import Project, cell, start

from gpuguide.site.search_and_links import navigation

pytestmark = pytest.mark.random_order(disabled=True)  # later tests change the site that all of them share

ROOT = Path(__file__).parents[3]
SITE = ROOT / "_build" / "html"
ADDRESS = "https://example.org/guide/"
MORE = f"""
extensions += ["sphinx.ext.autodoc"]
include_patterns = ["*.md", "docs/**.md", "tutorials/**.md"]
myst_enable_extensions = ["attrs_block", "colon_fence", "dollarmath"]
html_baseurl = "{ADDRESS}"
"""
INDEX = """
```{learning-path}
```

{.gg-timed}
- [A roofline?](tutorials/00-first.md) is the question.
- [All of them](tutorials/index.md)

```{newest-records} 1
```

```{toctree}
tutorials/index
docs/api/attention
docs/glossary
```
"""
PARTS = """
```{learning-path}
:whole:
```

```{toctree}
:caption: The machine
:hidden:

00-first
```

```{toctree}
:caption: Nothing at all
:glob:
:hidden:

01-*
```
"""
GLOSSARY = """
```{glossary}
roofline
  A model of the best speed. It is simple.

ridge (GPU)
  Where both ceilings meet.
```
"""
API = """
What there is.

```{eval-rst}
.. automodule:: gpuguide.costs.roofline
   :members:
```
"""
RIDGE = cell("from gpuguide.costs import roofline\n\nprint(roofline.ridge(1e12, 1e11))")
USED = "a.gg-code-link[href$='#gpuguide.costs.roofline.ridge']"

built = pytest.mark.skipif(
    not (SITE / "index.html").is_file(), reason="the site is not built; run `make site`, or `make test`, which does"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = start(tmp_path_factory.mktemp("site"))
    conf = made.root / "conf.py"
    conf.write_text(conf.read_text(encoding="utf-8") + MORE, encoding="utf-8")
    made.record("copy-size")
    made.page("index", INDEX, runs=False)
    made.page("docs/glossary", GLOSSARY, runs=False)
    made.page("docs/api/attention", API, runs=False)
    made.page("tutorials/index", PARTS, runs=False)
    made.page("tutorials/00-first", f"You will draw a roofline, and its ridge, for a GPU.\n\n## Do it\n\n{RIDGE}")
    made.page("tutorials/01-second", f"You will do nothing.\n\n{cell('print(1)')}")
    build = made.build()
    assert build.status == 0, build.output
    return made


def read(project: Project, name: str) -> BeautifulSoup:
    return BeautifulSoup((project.html / name).read_text(encoding="utf-8"), "html.parser")


@pytest.mark.slow
def test_the_path_has_the_parts_of_the_tables_of_contents(project: Project) -> None:
    for name, folder in (("index.html", "tutorials/"), ("tutorials/index.html", "")):
        parts = read(project, name).select("section.gg-part")
        assert [part.select_one("h2, h3").text.rstrip("#") for part in parts] == ["The machine", "Nothing at all"]
        links = [[link["href"] for link in part.select("ul.gg-path a")] for part in parts]
        assert links == [[f"{folder}00-first.html"], [f"{folder}01-second.html"]]
        assert len({part["id"] for part in parts}) == 2


@pytest.mark.slow
def test_sidebar_and_zip_show_parts(project: Project) -> None:
    parts, titles = ["The machine", "Nothing at all"], ["00-first", "01-second"]
    for page in ("tutorials/index.html", "tutorials/01-second.html"):
        sidebar = read(project, page).select_one("nav.bd-docs-nav")
        assert sidebar
        assert [caption.text.strip() for caption in sidebar.select("p.caption")] == parts
        assert [link.text.strip() for link in sidebar.select("li > a")] == titles
    with zipfile.ZipFile(project.html / "notebooks" / "gpuguide-tutorials.zip") as archive:
        read_me = archive.read("gpuguide-tutorials/README.md").decode()
    assert "## The machine\n\n- `00-first`: 00-first\n\n## Nothing at all\n\n- `01-second`: 01-second\n" in read_me


@pytest.mark.slow
def test_a_page_of_the_path_says_its_minutes_and_in_whole_its_sentence(project: Project) -> None:
    short, whole = (
        " ".join(read(project, name).select("ul.gg-path > li")[0].get_text(" ").split())
        for name in ("index.html", "tutorials/index.html")
    )
    assert short == "00-first 1 min"
    assert re.fullmatch(
        r"00-first 1 min You will draw a roofline, and its ridge, for a GPU\. Runs in \d+ s on a CPU\.", whole
    )


@pytest.mark.slow
def test_a_line_may_end_before_how_long_a_page_takes(project: Project) -> None:
    """What is never broken begins with a word: a space at its beginning would tie it to the word before it."""
    for name in ("index.html", "tutorials/index.html"):
        times = read(project, name).select(".gg-path-time")
        assert times
        for time in times:
            assert time.text == time.text.strip()
            assert str(time.previous_sibling).endswith(" ")


@pytest.mark.slow
def test_the_glossary_has_a_link_to_the_first_term_of_each_letter(project: Project) -> None:
    page = read(project, "docs/glossary.html")
    links = page.select(".gg-letters a")
    assert [link.text for link in links] == ["R"]
    assert links[0]["href"] == f"#{page.select_one('dl.glossary dt')['id']}"


@pytest.mark.slow
def test_a_list_that_asks_for_it_says_how_long_its_pages_take(project: Project) -> None:
    items = [" ".join(item.get_text(" ").split()) for item in read(project, "index.html").select("ul.gg-timed > li")]
    assert items == ["A roofline? 1 min is the question.", "All of them"], "a list of pages takes no time to read"


@pytest.mark.slow
def test_the_newest_record_leads_to_where_it_is_described(project: Project) -> None:
    (row,) = read(project, "index.html").select("table tbody tr")
    assert row.select_one("a")["href"] == "docs/measurements.html#record-nvidia-h100-80gb-hbm3-copy-size"


@pytest.mark.slow
def test_terms_are_linked_on_the_page_and_in_its_notebook(project: Project) -> None:
    links = read(project, "tutorials/00-first.html").select("a.gg-term")
    assert [(link.text, link["href"], link["title"]) for link in links] == [
        ("roofline", "../docs/glossary.html#term-roofline", "A model of the best speed."),
        ("ridge", "../docs/glossary.html#term-ridge-GPU", "Where both ceilings meet."),
    ]
    notebook = json.loads((project.html / "notebooks" / "00-first.ipynb").read_text(encoding="utf-8"))
    text = "".join("".join(part["source"]) for part in notebook["cells"] if part["cell_type"] == "markdown")
    assert f"[roofline]({ADDRESS}docs/glossary.html#term-roofline)" in text


@pytest.mark.slow
def test_the_sitemap_lists_all_pages_at_their_addresses(project: Project) -> None:
    tree = ElementTree.parse(project.html / "sitemap.xml")
    listed = [place.text for place in tree.iter("{http://www.sitemaps.org/schemas/sitemap/0.9}loc")]
    pages = [path.relative_to(project.html).as_posix() for path in project.html.glob("**/*.html")]
    own = {"404.html", "search.html", "genindex.html", "py-modindex.html"}
    assert listed == sorted(ADDRESS + page for page in pages if page not in own and not page.startswith("_"))


@pytest.mark.slow
def test_the_path_says_what_a_tutorial_says_now(project: Project) -> None:
    project.page("tutorials/01-second", f"You will do next to nothing.\n\n{cell('print(1)')}")
    assert project.build().read == {"tutorials/01-second"}
    assert "You will do next to nothing." in read(project, "tutorials/index.html").select("ul.gg-path > li")[1].text


@pytest.mark.slow
def test_what_other_pages_say_of_it_follows_a_change(project: Project) -> None:
    def uses() -> list[str]:
        return [link["href"] for link in read(project, "docs/api/attention.html").select("dd .gg-used-in a")]

    first, second = "../../tutorials/00-first.html#do-it", "../../tutorials/01-second.html#second"
    assert uses() == [first]
    below_the_title = read(project, "docs/api/attention.html").select_one("p + p.gg-used-in")
    assert "Tutorials that use what is here: 00-first" in below_the_title.text

    project.page("tutorials/01-second", f"You will do the same.\n\n{RIDGE}")
    project.page("docs/glossary", GLOSSARY.replace("roofline", "GPU"), runs=False)
    build = project.build()
    assert build.status == 0, build.output
    assert "tutorials/01-second" in build.read
    assert "docs/api/attention" not in build.read
    assert uses() == [first, second]
    page = read(project, "tutorials/00-first.html")
    assert [link.text for link in page.select("a.gg-term")] == ["ridge", "GPU"]
    assert page.select(USED), "a page that is written for another reason than its own text keeps the links in its code"


# --- the built site ----------------------------------------------------------------------------------------


@built
def test_the_path_leads_from_page_to_page() -> None:
    """From the landing page, "next" passes all tutorials in the order of the path; "previous" leads back."""

    def step(page: Path, way: str) -> Path:
        link = parsed(page).select_one(f".prev-next-area a.{way}")
        assert link, f"{page.name} has no link {way}"
        return (page.parent / str(link["href"])).resolve()

    start = SITE / "tutorials" / "index.html"
    tutorials = [start.parent / str(link["href"]) for link in parsed(start).select("ul.gg-path a[href]")]
    assert {*tutorials} == {*SITE.glob("tutorials/[0-9]*.html")}, "every tutorial has its place"
    path = [SITE / "index.html", start, *tutorials]
    for here, there in itertools.pairwise(path):
        assert step(here, "right-next") == there.resolve()
        assert step(there, "left-prev") == here.resolve()


QUESTIONS = {
    "how fast is attention": "tutorials/22-flash-attention.html",
    "will a model fit": "docs/will-it-fit.html",
    "measure your gpu": "docs/measure-your-gpu.html",
    "all tutorials": "tutorials/index.html",
}
"""What a reader comes for, as the words of a link of the first page, and where that leads"""


@built
@pytest.mark.parametrize("words", QUESTIONS)
def test_the_first_page_answers_what_readers_come_for(words: str) -> None:
    links = parsed(SITE / "index.html").select("article a[href]")
    assert QUESTIONS[words] in {str(link["href"]) for link in links if words in link.get_text().lower()}


@built
def test_the_first_page_leads_to_a_record_and_to_a_claim() -> None:
    trust = parsed(SITE / "index.html").select("ul.gg-trust a[href]")
    addresses = [str(link["href"]) for link in trust]
    assert len([address for address in addresses if address.startswith("docs/measurements.html#record-")]) == 1
    assert len([address for address in addresses if address.startswith("docs/claims.html#claim-")]) == 1


@built
def test_the_guide_shows_every_page_in_its_group() -> None:
    guide = parsed(SITE / "docs" / "index.html")
    groups = [part.select_one("h2, h3").text.rstrip("#") for part in guide.select("section.gg-part")]
    assert groups[0] == navigation.CALCULATORS, "which the header leads to"
    listed = {str(link["href"]) for link in guide.select("ul.gg-path a")}
    assert listed == {path.name for path in SITE.glob("docs/*.html")} - {"index.html"} | {"api/index.html"}
    assert [text.text for text in guide.select(".bd-sidebar-primary p.caption")] == groups, "and so does the sidebar"


@built
def test_every_term_has_a_unit_and_a_place() -> None:
    definitions = parsed(SITE / "docs" / "glossary.html").select("dl.glossary > dd")
    assert len(definitions) >= 40
    for definition in definitions:
        assert re.search(r"Unit: \S.*Where: \S", definition.get_text(" ", strip=True).replace("\n", " ")), definition


@built
def test_every_page_of_names_says_which_tutorials_use_them() -> None:
    pages = [page for page in SITE.glob("docs/api/*.html") if page.name != "index.html"]
    assert pages
    for page in pages:
        above_the_names = page.read_text(encoding="utf-8").partition('<dl class="py')[0]
        assert BeautifulSoup(above_the_names, "html.parser").select_one("article > section > p.gg-used-in"), page.name


@built
def test_each_way_into_the_site_begins_with_a_picture() -> None:
    landing = parsed(SITE / "index.html")
    ways = landing.select("ul.gg-ways > li")
    pictures = [{image["src"] for image in way.select(".gg-small-drawing img[alt]")} for way in ways]
    assert [len(each) for each in pictures] == [2, 2, 2], "one for each scheme"
    assert len(set.union(*pictures)) == sum(map(len, pictures))
    assert all((SITE / address).is_file() for address in set.union(*pictures))
