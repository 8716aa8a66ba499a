"""The pages of claims and of status, on a small site: what they say, and what happens when a claim's benchmark goes."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace

import pytest
from bs4 import BeautifulSoup
from small_site import Project, cell, start

from gpuguide import claims as ledger
from gpuguide.measure.digest import equivalent
from gpuguide.measure.digest.equivalent import Equivalence
from gpuguide.site.directives.claims_table import usual_page
from gpuguide.site.pages import ages

pytestmark = pytest.mark.random_order(disabled=True)  # later tests change the site that all of them share

LEDGER = """
[topics]
speed = "How fast"
sizes = "How large"

[sources.unread]
title = "A standard"
publisher = "A body"
url = "https://example.org/standard"
looked_at = "not verified"
"""
SIZES = """
[[claims]]
id = "a-kibibyte"
topic = "sizes"
note = "000"
claim = "A kibibyte is 1000 bytes."
verdict = "false"
right = "It is {2**10} times a byte."
kind = "computed"
expression = "2**10"
value = 1024
sources = ["unread"]
"""
SPEED = """
[[claims]]
id = "copies-are-fast"
topic = "speed"
note = "000"
claim = "A copy runs at over 1 TB/s."
verdict = "true"
right = "It ran at {measurement('copy-size/copy:bandwidth working_set=1073741824')}."
kind = "measured"
predicate = "measurement('copy-size/copy:bandwidth working_set=1073741824').p25 > 1e12"
taught = "00-copies"
"""
STATUS = """
```{status}
```

```{page-status}
```

```{record-status}
```

```{equivalences}
```

```{toctree}
docs/claims
tutorials/00-copies
tutorials/01-gone
```
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = start(tmp_path_factory.mktemp("site"))
    for path in (made.library / "claims").glob("*.toml"):
        path.unlink()
    for name, text in (("claims", LEDGER), ("sizes", SIZES), ("speed", SPEED)):
        (made.library / "claims" / f"{name}.toml").write_text(text, encoding="utf-8")
    made.record("copy-size")
    made.record("ceilings", stale=True)
    row = Equivalence("copy-size", "sha256:" + "a" * 64, "sha256:" + "b" * 64, "c" * 40, "A parameter was renamed.")
    equivalent.write(made.library / "records", [row])
    for folder in ("docs", "tutorials"):
        (made.root / folder).mkdir()
    conf = made.root / "conf.py"
    conf.write_text(conf.read_text(encoding="utf-8").replace('["*.md", ', '["*.md", "docs/*", '))
    made.page("index", STATUS, runs=False)
    made.page("docs/claims", "```{all-claims}\n```", runs=False)
    body = (
        "You will copy.\n\n```{claims} 00-copies\n```\n\n"
        "A card promises {datasheet}`h100-sxm memory_bandwidth`, say {given}`40 µs`.\n\n"
        "See {claim}`how fast copies are <copies-are-fast>`.\n\n" + cell("1") + "\n" + cell("2", "skip-execution")
    )
    made.page("tutorials/00-copies", body, benchmarks="copy-size")
    made.page("tutorials/01-gone", "You will divide.\n\n" + cell("1 / 0"), benchmarks="ceilings")
    path = made.root / "tutorials" / "01-gone.md"
    text = path.read_text(encoding="utf-8")
    for old, new in (
        ("  benchmarks:", "  not-run: it divides (2026-01-31)\n  benchmarks:"),
        ("kernelspec:", "mystnb:\n  execution_mode: 'off'\nkernelspec:\n  language: python"),
    ):
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    build = made.build()
    assert build.status == 0, build.output
    return made


def page(project: Project, name: str) -> BeautifulSoup:
    return BeautifulSoup((project.html / f"{name}.html").read_text(encoding="utf-8"), "html.parser")


def words(found: object) -> str:
    return " ".join(found.get_text(" ").split())  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_claims_page_counts_verdicts_and_lets_one_choose(project: Project) -> None:
    claims = page(project, "docs/claims")
    text = words(claims)
    assert "2 claims: 1 are checked by a computation, 1 against our measurements, 0 rest on sources alone." in text
    assert "1 claim with a source that is not verified: a-kibibyte ." in text
    assert [[words(entry) for entry in row.select("td")][:2] for row in claims.select("table tbody tr")] == [
        ["True", "1"],
        ["True under a condition", "0"],
        ["Misleading", "0"],
        ["False", "1"],
        ["Outdated", "0"],
    ]
    sections = claims.select("section[id^=topic-]")
    assert [section["id"] for section in sections] == ["topic-speed", "topic-sizes"]
    counts = [words(section.select_one("p.gg-more")) for section in sections]
    assert counts == ["1 claim: 1 true. Settled in 00-copies .", "1 claim: 1 false"]
    link = sections[0].select_one("p.gg-more a")
    assert link is not None
    assert link["href"] == "../tutorials/00-copies.html"
    choices = [words(label) for label in claims.select(".gg-filter label")]
    assert choices == [
        "all (2)",
        "true (1)",
        "true under a condition (0)",
        "misleading (0)",
        "false (1)",
        "outdated (0)",
    ]


@pytest.mark.slow
def test_a_claim_is_a_line_that_opens_to_its_evidence_and_where_it_is_taught(project: Project) -> None:
    claims = page(project, "docs/claims")
    speed, sizes = (claims.find(id=f"claim-{name}") for name in ("copies-are-fast", "a-kibibyte"))
    lines = [words(line) for line in claims.select("details.gg-claim:not([open]) > summary")]
    assert lines == ["“A copy runs at over 1 TB/s.” True", "“A kibibyte is 1000 bytes.” False source not verified"]
    assert [fold["class"] for fold in claims.select("details.gg-claim")] == [
        ["gg-claim", "gg-is-true"],
        ["gg-claim", "gg-is-false"],
    ]
    assert speed.find_parent("details") is not None, "a browser opens the fold around what an address names"
    assert "TB/s" in words(speed)
    assert "NVIDIA H100 80GB HBM3" in words(speed)
    assert "It is 1,024 times a byte." in words(sizes)
    assert "A body (not verified)" in words(sizes)
    assert "not verified" not in words(speed)
    links = {words(link): link["href"] for link in speed.select("a")}  # type: ignore[union-attr]
    assert links == {"#": "#claim-copies-are-fast"}, "the page that settles it is named once, above"
    assert "Settled in" not in words(sizes)


def test_the_page_that_settles_most_claims_is_named_once_if_each_is_settled() -> None:
    first, second, third = ledger.load()[:3]
    here, there = (replace(each, taught="00-here") for each in (first, second)), replace(third, taught="01-there")
    assert usual_page([*here, there]) == "00-here"
    assert usual_page([there, replace(first, taught="")]) == ""


@pytest.mark.slow
def test_a_tutorial_leads_to_all_claims(project: Project) -> None:
    link = page(project, "tutorials/00-copies").select_one(".gg-more a")
    assert link is not None
    assert link["href"] == "../docs/claims.html#topic-speed"
    assert words(link.find_parent("p")) == "All claims on this subject, each with its evidence: How fast ."


@pytest.mark.slow
def test_a_link_to_a_claim_leads_to_it(project: Project) -> None:
    links = page(project, "tutorials/00-copies").select("p a")
    assert [link["href"] for link in links if link.text == "how fast copies are"] == [
        "../docs/claims.html#claim-copies-are-fast"
    ]
    assert page(project, "docs/claims").find(id="claim-copies-are-fast") is not None


@pytest.mark.slow
def test_figures_of_datasheets_and_given_ones_in_prose(project: Project) -> None:
    paragraph = next(p for p in page(project, "tutorials/00-copies").select("p") if "A card promises" in p.text)
    assert paragraph.text == "A card promises 3.35 TB/s, say 40 µs."
    figure = paragraph.select_one("abbr.gg-number")
    assert figure is not None
    assert "NVIDIA H100 SXM and PCIe" in figure["title"]


@pytest.mark.slow
def test_the_status_page_tells_pages_and_records(project: Project) -> None:
    status = page(project, "index")
    assert "2 records on 1 device. Text speaks of those of NVIDIA H100 80GB HBM3 and of a processor, 1 stale." in words(
        status
    )
    assert "2 claims checked, all of them hold." in words(status)
    tables = [[[words(td) for td in row.select("td")] for row in t.select("tbody tr")] for t in status.select("table")]
    pages, records, _ = tables
    ran, left = pages
    assert ran[0] == "00-copies"
    assert ran[1].endswith("in 1 s") or " s" in ran[1]
    assert ran[2] == "1 that times the machine"
    assert ran[3].startswith("NVIDIA H100 80GB HBM3")
    assert ran[3].endswith("copy-size")
    assert left[1] == "never. it divides (2026-01-31)"
    assert left[3].endswith("ceilings stale")
    age = ages.age(ages.day_of(1767323645.0))
    assert records == [
        ["ceilings", "NVIDIA H100 80GB HBM3", "2026-01-02", age, "00000000", "stale", "JSON CSV"],
        ["copy-size", "NVIDIA H100 80GB HBM3", "2026-01-02", age, "00000000", "fresh", "JSON CSV"],
    ]


@pytest.mark.slow
def test_the_status_page_lists_changes_that_measure_the_same(project: Project) -> None:
    (row,) = [row for row in page(project, "index").select("tbody tr") if "A parameter was renamed." in words(row)]
    assert [words(cell) for cell in row.select("td")][:4] == ["copy-size", "a" * 8, "b" * 8, "c" * 8]


@pytest.mark.slow
def test_a_page_that_is_not_run_says_why_under_its_cells(project: Project) -> None:
    notes = [words(note) for note in page(project, "tutorials/01-gone").select(".gg-not-run")]
    assert notes == ["Not run here: it divides (2026-01-31). Run it on yours."]


@pytest.mark.slow
def test_the_status_file_says_the_same(project: Project) -> None:
    content = json.loads((project.html / "status.json").read_text(encoding="utf-8"))
    assert [(entry["page"], entry["executed"]) for entry in content["pages"]] == [
        ("tutorials/00-copies", True),
        ("tutorials/01-gone", False),
    ]
    assert [(entry["benchmark"], entry["stale"]) for entry in content["records"]] == [
        ("ceilings", True),
        ("copy-size", False),
    ]


@pytest.mark.slow
def test_on_another_day_the_page_with_ages_is_read_again(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=40)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(later.timestamp())))
    assert [project.build().read, project.build().read] == [{"index"}, set()]
    age = f"{(later.date() - datetime.date(2026, 1, 2)).days} days"
    assert words(page(project, "index").select("table")[1]).count(f" {age} ") == 2


@pytest.mark.slow
def test_a_claim_that_its_check_contradicts_says_so(project: Project) -> None:
    project.record("copy-size", slower=50.0)
    assert project.build().status == 0
    lines = [words(line) for line in page(project, "docs/claims").select("details.gg-claim > summary")]
    assert lines[0] == "“A copy runs at over 1 TB/s.” True not confirmed by its check"
    speed, sizes = (page(project, "docs/claims").find(id=f"claim-{name}") for name in ("copies-are-fast", "a-kibibyte"))
    assert "does not hold" in words(speed)
    assert "Checked: a.p25 > 1e12 , which does not hold." in words(speed)
    assert "does not hold" not in words(sizes)
    marks = page(project, "tutorials/00-copies").select(".gg-claim .gg-heard .gg-stale")
    assert [words(mark) for mark in marks] == ["not confirmed by its check"]
    assert "do not hold: copies-are-fast" in words(page(project, "index"))


@pytest.mark.slow
def test_a_claim_whose_benchmark_is_gone_fails_every_build(project: Project) -> None:
    path = project.library / "claims" / "speed.toml"
    path.write_text(SPEED.replace("copy-size/", "copy-sizes/"), encoding="utf-8")
    for _ in range(2):
        build = project.build()
        assert build.status != 0
        place = f"{path}:3"
        line = project.line_of("docs/claims", "{all-claims}")
        reported = [text for text in build.output.splitlines() if f"docs/claims.md:{line}:" in text]
        assert reported, build.output
        assert f"The claim 'copies-are-fast' ({place}) cannot be worded" in reported[0]
        assert "copy-size" in reported[0]
        assert "Correct the row, or measure again what it reads." in reported[0]


@pytest.mark.slow
def test_a_page_that_is_not_run_is_offered_as_a_notebook_all_the_same(project: Project) -> None:
    notebook = json.loads((project.html / "notebooks" / "01-gone.ipynb").read_text(encoding="utf-8"))
    sources = ["".join(cell_["source"]) for cell_ in notebook["cells"]]
    assert "1 / 0" in sources
    assert "not known: it divides (2026-01-31)." in sources[0]
    assert all(not cell_.get("outputs") for cell_ in notebook["cells"])
