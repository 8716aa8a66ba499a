"""Reading a page's source: front matter, code, and the mark that the execution cache sees."""

from __future__ import annotations

import pytest

from gpuguide.errors import GpuguideError
from gpuguide.site.directives.cost_card import costs, duration
from gpuguide.site.pages import page_source
from gpuguide.site.theme import mathematics

SOURCE = """---
gpuguide:
  benchmarks: [ceilings, copy-size]
  extras: [peers]
kernelspec:
  display_name: Python 3
  name: python3
---

# Title

```{code-cell} ipython3
:tags: [hide-input]

%pip install gpuguide
from gpuguide.costs import roofline
```

```python
import not_a_cell
```

```{code-cell} ipython3
---
tags: [remove-output]
mystnb:
  image: {}
---
x = 1
```
"""


def test_a_page_tells_what_it_reads_and_runs() -> None:
    page = page_source.read(SOURCE)
    assert page.executed
    assert page.benchmarks == ("ceilings", "copy-size")
    assert page.extras == ("peers",)
    compile(page.code, "page", "exec")
    assert "from gpuguide.costs import roofline" in page.code
    assert "x = 1" in page.code
    for absent in ("not_a_cell", "pip", "tags", "mystnb"):
        assert absent not in page.code


def test_extras_stand_in_the_cost_card_and_those_for_a_gpu_as_a_choice() -> None:
    page = page_source.read("---\ngpuguide: {extras: [dataframes], gpu-extras: [cuda12, cuda13]}\n---\n")
    assert (page.extras, page.gpu_extras) == (("dataframes",), ("cuda12", "cuda13"))
    card = costs(page, [])
    assert card["Extras to install"] == "gpuguide[dataframes]"
    assert card["Extras to measure a GPU"] == "gpuguide[cuda12] or gpuguide[cuda13]"
    assert "Extras to measure a GPU" not in costs(page_source.read(SOURCE), [])


def test_a_page_without_front_matter_runs_nothing() -> None:
    assert not page_source.read("# Title\n").executed


def test_marking_keeps_every_line_where_it_is() -> None:
    marked = page_source.mark_digest(SOURCE, "abc")
    assert marked.splitlines()[5] == "  display_name: Python 3 abc"
    assert marked.replace(" abc", "") == SOURCE


@pytest.mark.parametrize(
    ("front", "message"),
    [
        ("gpuguide: [a]", "gpuguide"),
        ("gpuguide:\n  bench: [a]", "bench"),
        ("gpuguide:\n  benchmarks: ceilings", "list of names"),
        ("gpuguide: {queries: how fast}", "list of names"),
        ("gpuguide: {queries: [3.1, llama]}", "list of names"),
        ("gpuguide: {", "not YAML"),
    ],
)
def test_a_wrong_front_matter_is_named(front: str, message: str) -> None:
    with pytest.raises(GpuguideError, match=message):
        page_source.read(f"---\n{front}\n---\n# Title\n")


def test_a_page_without_a_display_name_cannot_be_marked() -> None:
    with pytest.raises(GpuguideError, match="display_name"):
        page_source.mark_digest("---\nkernelspec: {name: python3}\n---\n", "abc")


@pytest.mark.parametrize(
    ("tex", "expected"),
    [
        (r"\mathbb{R}", "ℝ"),
        (r"\mathbf{x}", "𝐱"),
        (r"\boldsymbol{\theta}", "𝜽"),
        (r"\mathcal{L}", "ℒ"),
    ],
)
def test_styled_letters_are_characters(tex: str, expected: str) -> None:
    (found,) = mathematics.render([(tex, False)])
    assert expected in mathematics.adapt_to_browsers(found["ok"])


def test_what_stands_under_a_word_is_in_a_row_that_browsers_lay_out() -> None:
    (found,) = mathematics.render([(r"\underset{t \times v}{\text{logits}}", True)])
    mathml = mathematics.adapt_to_browsers(found["ok"])
    assert "<mi><munder>" in found["ok"]
    assert "<mrow><munder><mrow><mtext>logits</mtext></mrow>" in mathml


def test_a_wrong_formula_says_what_is_wrong() -> None:
    (found,) = mathematics.render([(r"\frac{1}{", False)])
    assert "error" in found


def test_the_font_has_the_characters_that_formulas_need() -> None:
    from io import BytesIO

    from fontTools.ttLib import TTFont

    content = mathematics.font_subset(mathematics.italic_too("abhx+∑∫√ℝ𝜽⟨"))
    assert len(content) < 40_000
    font = TTFont(BytesIO(content))
    assert "MATH" in font
    assert {ord(letter) for letter in "a+∑∫√ℝ𝑥ℎ𝜽⟨"} <= set(font.getBestCmap())
    assert content == mathematics.font_subset(mathematics.italic_too("abhx+∑∫√ℝ𝜽⟨"))


def test_the_font_has_the_sign_of_a_root_which_no_formula_holds() -> None:
    (found,) = mathematics.render([(r"\frac{1}{\sqrt d}", True)])
    mathml = mathematics.adapt_to_browsers(found["ok"])
    assert "<msqrt>" in mathml
    assert "√" not in mathml  # a browser draws it
    assert "√" in mathematics.ALWAYS


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "1 s"), (59.4, "59 s"), (60, "1 min"), (3900, "1 h 5 min")])
def test_a_duration_reads_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text
