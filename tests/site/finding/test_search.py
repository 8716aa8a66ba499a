"""The search box in a browser: what it finds, by the keyboard, from a file, and what happens without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import barriers
import pytest
import small_site

SITE = Path(__file__).parents[3] / "_build" / "html"
ENTRIES = "search-entries.js"
EXPECTED = {
    "4090": "docs/hardware.html#gpu-rtx-4090",
    "rtx 4090": "docs/hardware.html#gpu-rtx-4090",
    "A100 80GB": "docs/hardware.html#gpu-a100-sxm-80gb",
    "h200": "docs/hardware.html#gpu-h200",
    "b200 memory": "docs/hardware.html#gpu-b200",
    "KV cache": "docs/glossary.html#term-KV-cache",
    "kvcache": "docs/glossary.html#term-KV-cache",
    "perplexity": "docs/glossary.html#term-perplexity",
    "pinned memory": "docs/glossary.html#term-pinned-memory",
    "tf32": "docs/glossary.html#term-TF32",
    "ridge": "docs/glossary.html#term-ridge",
    "temperature": "docs/glossary.html#term-temperature-sampling",
    "flash attention": "docs/glossary.html#term-FlashAttention",
    "nucleus sampling": "docs/glossary.html#term-top-p",
    "what is a good all-reduce bandwidth": "docs/glossary.html#term-bus-bandwidth",
    "allreduce": "docs/glossary.html#term-all-reduce",
    "bandwith": "docs/glossary.html#term-bandwidth",
    "logits": "docs/glossary.html#term-logits",
    "SM": "docs/glossary.html#term-SM",
    "h100 bandwidth": "docs/hardware.html#measured-nvidia-h100-80gb-hbm3",
    "h200 product in bf16": "docs/hardware.html#measured-nvidia-h200",
    "copy-size": "docs/measurements.html#copy-size",
    "softmax benchmark": "docs/measurements.html#softmax",
    "transfer size h100": "docs/measurements.html#record-nvidia-h100-80gb-hbm3-transfer-size",
    "time_floor": "docs/api/costs.html#gpuguide.costs.roofline.time_floor",
    "gpuguide.logits.keep_top_p": "docs/api/logits.html#gpuguide.logits.keep_top_p",
    "cuda_graph": "docs/api/measure.html#gpuguide.measure.timing.cuda_graph",
    "Tokenizer.encode": "docs/api/models.html#gpuguide.models.tokenizer.Tokenizer.encode",
    "how we measure": "docs/how-we-measure.html",
    "measure my gpu": "docs/measure-your-gpu.html",
    "colab": "docs/run-the-tutorials.html#in-colab",
    "no warm-up": "tutorials/00-measure-a-gpu.html#no-warm-up-what-the-first-call-pays-for",
    "claims": "docs/claims.html",
    "model card": "docs/model-card.html",
    "will it fit": "docs/will-it-fit.html",
    "what is the limit": "docs/what-is-the-limit.html",
    "logit lens": "docs/glossary.html#term-logit-lens",
    "vocabulary of 50257": "tutorials/01-logits.html#a-vocabulary-of-50257",
    "sampling without a sort": "tutorials/03-sampling.html",
    "gumbel-max": "docs/glossary.html#term-exponential-race",
    "repetition penalty": "docs/glossary.html#term-repetition-penalty",
    "philox": "docs/glossary.html#term-counter-based-random-numbers",
    "sample_token": "docs/api/logits.html#gpuguide.sampling.sample_token",
    "sample-token benchmark": "docs/measurements.html#sample-token",
    "largest of each group": "tutorials/03-sampling.html#a-bound-from-the-largest-of-each-group",
    "calibration": "docs/glossary.html#term-calibration",
    "label smoothing": "docs/glossary.html#term-label-smoothing",
    "z-loss": "docs/glossary.html#term-z-loss",
    "padded vocabulary": "tutorials/02-cross-entropy.html#a-padded-vocabulary",
    "fit_temperature": "docs/api/cross-entropy.html#gpuguide.cross_entropy.calibration.fit_temperature",
    "online softmax": "docs/glossary.html#term-online-softmax",
    "attention without storing the scores": "tutorials/07-flash-attention.html",
    "choosing a backend": "tutorials/07-flash-attention.html#choosing-a-backend-in-pytorch-today",
    "gpu utilisation": "docs/glossary.html#term-GPU-utilisation",
    "throttle reason": "docs/glossary.html#term-clock-limit",
    "sm activity": "docs/glossary.html#term-SM-activity",
    "dcgm": "docs/glossary.html#term-DCGM",
    "cuda context": "docs/glossary.html#term-CUDA-context",
    "power limit": "docs/glossary.html#term-power-limit",
    "allocated reserved used": "tutorials/10-gpu-metrics.html#memory-allocated-reserved-used",
    "peaks that no reading shows": "tutorials/10-gpu-metrics.html#peaks-that-no-reading-shows",
    "how late is a reading": "tutorials/10-gpu-metrics.html#pauses-and-how-late-a-reading-is",
    "gpu metrics h100": "docs/measurements.html#record-nvidia-h100-80gb-hbm3-gpu-metrics",
    "tensor memory accelerator": "docs/glossary.html#term-TMA",
    "dataframe on a gpu": "tutorials/16-cudf.html",
    "without a change of code": "tutorials/16-cudf.html#the-gpu-without-a-change-of-code",
    "crossover": "docs/glossary.html#term-crossover-dataframes",
    "radix sort": "docs/glossary.html#term-radix-sort",
    "where_to_run": "docs/api/dataframes.html#gpuguide.dataframes.cost.where_to_run",
    "frame-transfer": "docs/measurements.html#frame-transfer",
    "stale": "docs/how-we-measure.html#when-a-number-is-stale",
}

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SITE / "index.html").is_file(), reason="the site is not built; run `make site`, or `make test`, which does"
    ),
]


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page two folders deep, opened from its file."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto((SITE / "docs" / "api" / "costs.html").as_uri())
    yield page
    context.close()


def ask(page: Any, query: str) -> list[str]:
    """Type a query into the open box and return the addresses of what it lists, from the site's root."""
    page.locator("#pst-search-dialog input").fill(query)
    addresses = page.locator("#search-box-results [role=option]").evaluate_all("all => all.map(each => each.href)")
    return [address.removeprefix(f"{SITE.as_uri()}/") for address in addresses]


def open_box(page: Any) -> None:
    page.keyboard.press("Control+k")
    page.wait_for_function("searchBox.entries")


def test_what_is_sought_is_among_the_first_three(page: Any) -> None:
    open_box(page)
    missed = {query: found for query, wanted in EXPECTED.items() if wanted not in (found := ask(page, query)[:3])}
    assert len(EXPECTED) >= 30
    assert missed == {}


def test_the_list_is_loaded_when_the_box_is_opened(page: Any) -> None:
    scripts = page.locator(f"script[src$='{ENTRIES}']")
    assert scripts.count() == 0
    open_box(page)
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    assert scripts.count() == 1


def test_by_the_keyboard_and_for_a_screen_reader(page: Any) -> None:
    open_box(page)
    field = page.get_by_role("combobox", name="Search")
    assert field.get_attribute("aria-expanded") == "false"
    page.keyboard.type("ridge")
    assert field.get_attribute("aria-expanded") == "true"
    options = page.get_by_role("option").all()
    assert len(options) >= 3
    assert page.get_by_role("group", name="Glossary").is_visible()
    count = len(options) - 1  # the last leads to the search page
    assert page.locator("#search-box-status").inner_text() == f"{count} results"

    def chosen() -> int:
        (index,) = [index for index, option in enumerate(options) if option.get_attribute("aria-selected") == "true"]
        assert field.get_attribute("aria-activedescendant") == options[index].get_attribute("id")
        return index

    assert chosen() == 0
    page.keyboard.press("ArrowDown")
    assert chosen() == 1
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert chosen() == count
    page.keyboard.press("ArrowDown")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.url.endswith("docs/glossary.html#term-ridge")


def test_escape_closes_the_box(page: Any) -> None:
    open_box(page)
    page.keyboard.type("softmax")
    page.keyboard.press("Escape")
    assert not page.locator("#pst-search-dialog").is_visible()


def test_what_nothing_has_as_a_name_is_asked_of_the_search_page(page: Any) -> None:
    open_box(page)
    (only,) = ask(page, "zzyzx <b>")
    assert only == "search.html?q=zzyzx%20%3Cb%3E"
    assert page.locator("#search-box-status").inner_text() == "No results"
    assert page.get_by_role("option").inner_text() == "Search all text for “zzyzx <b>”"


def test_without_the_list_enter_asks_the_search_page(page: Any) -> None:
    page.evaluate("searchBox.loading = true")  # so it never comes
    page.keyboard.press("Control+k")
    page.keyboard.type("softmax")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert page.url.endswith("search.html?q=softmax")


def test_the_open_box_has_no_barriers_and_fits_a_phone(page: Any) -> None:
    open_box(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 700})
            ask(page, "bandwidth")
            assert not (found := barriers.found(page)), f"{scheme}, {width} px: {found}"
            box = page.locator("#search-box-results").bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
            assert box["y"] + box["height"] <= 700


@pytest.mark.slow
def test_the_search_page_keeps_the_index_entries_of_pages_that_are_not_written_again(tmp_path: Path) -> None:
    made = small_site.start(tmp_path)
    made.page("index", "```{toctree}\none\ntwo\n```", runs=False)
    made.page("one", "```{index} coalescing\n```\n\nNeighbours read neighbours.", runs=False)
    made.page("two", "A page.", runs=False)
    assert made.build().status == 0
    first = (made.html / "searchindex.js").read_text(encoding="utf-8")
    assert '"coalescing"' in first
    made.page("two", "A page.", runs=False)
    (made.root / "two.md").touch()
    second = made.build()
    assert (second.status, second.read) == (0, {"two"})
    assert (made.html / "searchindex.js").read_text(encoding="utf-8") == first
