"""Names of the library in code: what is found, where, and the links around it."""

from __future__ import annotations

import textwrap
from types import SimpleNamespace

import pytest
from bs4 import BeautifulSoup
from sphinx.highlighting import PygmentsBridge

from gpuguide.site.search_and_links.code_links import add_links, names_in, where_described
from gpuguide.site.search_and_links.code_names import Reader, definition

RECORD = "gpuguide.measure.records.record.Record"
STORE = "from gpuguide.measure import store\n"


def found(source: str, reader: Reader | None = None) -> list[tuple[str, str]]:
    """Return what code uses: the text as it stands there, and the full name."""
    lines = source.split("\n")
    uses = names_in(source, reader or Reader())
    return [(lines[use.line - 1][use.start : use.end], use.name) for use in uses]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import gpuguide\ngpuguide.device()", ("gpuguide.device", "gpuguide.device")),
        ("import gpuguide.costs.roofline as r\nr.ridge(1, 2)", ("r.ridge", "gpuguide.costs.roofline.ridge")),
        ("from gpuguide import plotting as p\np.show", ("p.show", "gpuguide.plotting.figure.show")),
        ("from gpuguide.costs.roofline import (\n    ridge,\n)", ("ridge", "gpuguide.costs.roofline.ridge")),
        (f"{STORE}store.load_published('x').median('y', 'z')", ("median", f"{RECORD}.median")),
        (f"{STORE}r = store.load_published('x')", ("r", RECORD)),
        (f"{STORE}é = store.load_published('x'); é.median", ("é.median", f"{RECORD}.median")),
        (f"{STORE}for r in store.load_mine('x'):\n    r.series", ("r.series", f"{RECORD}.series")),
        (f"{STORE}[r.series for r in store.load_mine('x')]", ("r.series", f"{RECORD}.series")),
        (f"{STORE}[c.run for r in store.load_mine('x') for c in r.cases]", ("r.cases", f"{RECORD}.cases")),
        (f"{STORE}store.load_mine('x')[0].stale", ("stale", f"{RECORD}.stale")),
        (f"%pip install x\n{STORE}store.load_mine", ("store.load_mine", "gpuguide.measure.store.load_mine")),
        (">>> from gpuguide.costs import roofline\n2\n>>> roofline.ridge(\n...     roofline.ridge)\n2",
         ("roofline.ridge", "gpuguide.costs.roofline.ridge")),
    ],
)  # fmt: skip
def test_what_code_uses_is_found_where_it_stands(source: str, expected: tuple[str, str]) -> None:
    assert expected in found(source)


@pytest.mark.parametrize(
    "source",
    [
        "store.load_published('x')",
        f"{STORE}store = {{}}\nstore.published",
        f"{STORE}def f(store):\n    store.load_published",
        f"{STORE}f = lambda store: store.load_published",
        f"{STORE}for store in []:\n    store.load_published",
        f"{STORE}store.load_mine('x').no_such_name",
        f"{STORE}store.load_published(",
        "from gpuguide.measure import published",
        "import torch\ntorch.zeros(1)",
    ],
)
def test_what_is_not_of_the_library_is_not_found(source: str) -> None:
    assert not [name for _, name in found(source) if name.endswith((".published", ".no_such_name"))]


def test_a_block_knows_what_the_blocks_above_it_import() -> None:
    reader = Reader()
    found(STORE, reader)
    assert found("store.load_mine", reader)[-1] == ("store.load_mine", "gpuguide.measure.store.load_mine")


def test_a_name_leads_to_its_definition_through_the_packages_that_pass_it_on() -> None:
    shown = definition("gpuguide.plotting.show")
    assert shown is not None
    assert (shown.name, shown.module) == ("gpuguide.plotting.figure.show", "gpuguide.plotting.figure")
    assert definition("gpuguide.measure.records.Record.nothing") is None
    assert definition("torch.nn") is None


def test_a_thing_is_described_by_the_name_that_a_package_passes_on() -> None:
    described = {"gpuguide.logits.softmax": SimpleNamespace(docname="docs/api/logits", node_id="it")}
    env = SimpleNamespace(domains=SimpleNamespace(python_domain=SimpleNamespace(objects=described)))
    ((_, name),) = [use for use in found("from gpuguide import logits\nlogits.softmax") if use[0] == "logits.softmax"]
    assert where_described(env)[name] == ("docs/api/logits", "it")  # type: ignore[arg-type]


def test_links_stand_around_the_longest_names_and_change_no_text() -> None:
    source = textwrap.dedent("""\
        from gpuguide.measure import store, timing

        text = f"{store.load_published('a<b').median}"  # store
        for row in (store.load_mine("x")
                    ):
            print(row.stale, store)
    """)
    highlighted = PygmentsBridge("html").highlight_block(source, "python")
    uses = names_in(source, Reader())
    linked = add_links(highlighted, {use: f"#{use.name}" for use in uses})
    page, before = (BeautifulSoup(text, "html.parser") for text in (linked, highlighted))
    assert page.get_text() == before.get_text()
    links = [(link.get_text(), str(link["href"])) for link in page.select("a")]
    assert links == [
        ("gpuguide.measure", "#gpuguide.measure"),
        ("store", "#gpuguide.measure.store"),
        ("timing", "#gpuguide.measure.timing"),
        ("store.load_published", "#gpuguide.measure.store.load_published"),
        ("median", f"#{RECORD}.median"),
        ("row", f"#{RECORD}"),
        ("store.load_mine", "#gpuguide.measure.store.load_mine"),
        ("row.stale", f"#{RECORD}.stale"),
        ("store", "#gpuguide.measure.store"),
    ]
