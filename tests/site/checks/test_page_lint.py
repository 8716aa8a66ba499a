"""Every rule for pages fires on the page that breaks it, names its line and a remedy, and leaves a good page alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_site import cell

from gpuguide.site.checks import page_lint
from gpuguide.site.checks.page_lint.__main__ import main

ROOT = Path(__file__).parents[3]
TEMPLATE = (ROOT / "tutorials" / "template.md").read_text(encoding="utf-8")
END = "## Further reading"
SENTENCE = next(line for line in TEMPLATE.splitlines() if line.startswith("You will copy"))
HAND_DRAWN = "def line(ax):\n    ax.plot(r)\n\n\ndef plot(figure, theme):\n    line(figure.subplots())"
LONG = "\n".join(f"x = {number}" for number in range(26))


def with_text(text: str) -> Callable[[str], str]:
    """Return what puts a text before the last heading of a page."""
    return lambda page: page.replace(END, f"{text}\n\n{END}")


def with_cell(code: str, tags: str = "") -> Callable[[str], str]:
    """Return what puts a cell before the last heading of a page."""
    return with_text(cell(code, tags).strip())


def without(old: str, new: str = "") -> Callable[[str], str]:
    """Return what takes something out of a page, or puts another thing in its place."""

    def change(page: str) -> str:
        assert old in page
        return page.replace(old, new)

    return change


def with_takeaway(text: str) -> Callable[[str], str]:
    """Return what puts another sentence into a takeaway."""
    return without("Count 2 bytes of traffic for each byte of a copy.", text)


def swapped(first: str, second: str) -> Callable[[str], str]:
    """Return what lets two headings change places."""
    return lambda page: page.replace(first, "##").replace(second, first).replace("##\n", f"{second}\n")


def with_words(count: int) -> Callable[[str], str]:
    """Return what puts a long paragraph into a section that teaches."""
    return without("Starting a *kernel*", "word " * count + "starting a *kernel*")


DRAWING = "pictures.memories.memories_of_a_gpu()"
SHOWN = ":show: eager-waits launch-overhead-5-20us fewer-launches-speedup"
CLAIMS = f"```{{claims}} launches\n{SHOWN}\n```\n"
TABLE = TEMPLATE[TEMPLATE.index("| bytes of both") : TEMPLATE.index("```{code-cell} ipython3\n:tags: [snippet]")]

TABS = TEMPLATE.index("```{code-cell} ipython3\n:tags: [snippet]")
PYTORCH = TEMPLATE[TABS : TEMPLATE.index("```{code-cell}", TABS + 1)]
OWN_TAB = TEMPLATE[TABS + len(PYTORCH) : TEMPLATE.index("% What the drawing shows")]

LAST_TAKEAWAY = ":::{takeaway}\nMake each piece at least 1 MiB large, and only then look for a faster kernel.\n:::\n"
QUERIES = TEMPLATE[TEMPLATE.index("  queries:") : TEMPLATE.index("jupytext:")]
SYMPTOM = TEMPLATE[TEMPLATE.index(":::{symptom}") : TEMPLATE.index(":::\n", TEMPLATE.index(":::{symptom}")) + 4]

BREAKS: dict[str, list[tuple[Callable[[str], str], str]]] = {
    # rule: what breaks it, and the text of the line that is named
    "cell-length": [(with_cell(LONG), "```{code-cell} ipython3")],
    "typed-gpu": [
        (with_text("An H100 copies at {measured}`ceilings/copy:bandwidth`."), "An H100"),
        (with_text("An H100 reads at {ceiling}`read`."), "An H100"),
        (with_text("The H200: {holds}`fast | measurement('ceilings/copy:bandwidth').p25 > 1`."), "The H200"),
        (with_cell("plotting.show(draw, alt='A line.', caption=f'A line, {x} on an H100.')"), "plotting.show"),
    ],
    "holds": [
        (with_text("It is {holds}`slow | measurement('ceilings/copy:bandwidth').p75 < 1e9`."), "It is {holds}"),
        (with_text("It is {holds}`slow | 1 > 2`."), "It is {holds}"),
        (with_text("It is {holds}`slow`."), "It is {holds}"),
    ],
    "asserted-words": [(with_cell("assert 1 > 0", "remove-cell"), "assert 1 > 0")],
    "cell-width": [(with_cell("x = '" + 90 * "x" + "'"), "x = 'xxxx")],
    "pyplot-state": [
        (with_cell("import matplotlib.pyplot as plt"), "import matplotlib.pyplot"),
        (with_cell("from matplotlib import pyplot"), "from matplotlib import pyplot"),
    ],
    "magic": [(with_cell("%timeit 1"), "%timeit"), (with_cell("!ls"), "!ls"), (with_cell("%pip install x"), "%pip")],
    "unseeded": [
        (without("torch.manual_seed(0)", "pass"), "torch.randn"),
        (with_cell("import numpy as np\n\nnp.random.rand(3)"), "np.random.rand"),
        (with_cell("import numpy as np\n\nnp.random.default_rng()"), "default_rng()"),
        (with_cell("import random\n\nrandom.shuffle([1])"), "random.shuffle"),
        (with_cell("import random\n\nrandom.Random()"), "random.Random()"),
    ],
    "unknown-tag": [(with_cell("1", "hide-inputs"), "```{code-cell}")],
    "parameters": [
        (with_cell("depth = 3", "parameters"), "```{code-cell}"),
        (without("count = 1000", "count = len('x')"), "count = len"),
        (without("count = 1000", "print(1000)"), "print(1000)"),
    ],
    "skipped-cell": [(with_cell("print(1)", "skip-execution"), "```{code-cell}")],
    "glue-import": [
        (with_cell("import myst_nb"), "import myst_nb"),
        (with_cell("from myst_nb import glue as show"), "from myst_nb"),
    ],
    "undeclared-benchmark": [(with_cell("store.load_published('softmax')"), "store.load_published('softmax')")],
    "figure-text": [
        (with_cell("plotting.show(draw, caption='A line.')"), "plotting.show"),
        (with_cell("plotting.show(draw, alt='A line.', caption='')"), "plotting.show"),
        (with_cell("plotting.show(draw, alt='images/line.png', caption='A line.')"), "plotting.show"),
    ],
    "own-records": [
        (
            with_cell(HAND_DRAWN + "\n\n\nplotting.show(plot, alt='A line.', caption='A line.', records=[r])"),
            "plotting.show",
        ),
    ],
    "hand-typed": [(with_text("It ran at 3 TB/s."), "It ran at")],
    "one-line-paragraph": [(with_text("One line\nand another."), "One line"), (with_text("- One\n  more."), "- One")],
    "plain-words": [
        (with_text("You simply copy it."), "You simply"),
        (with_text("A blazing-fast copy."), "A blazing"),
        (with_text("Done \U0001f680."), "Done"),
        (with_text(":::{note}\nObviously.\n:::"), "Obviously."),
    ],
    "percent": [
        (with_text("It is 12 % of it."), "It is"),
        (with_text("A share of {given}`12` %."), "A share"),
        (with_text("As 12\u00a0% of it."), "As 12"),
        (with_text("It was {given}`12 %` before."), "It was"),
    ],
    "raw-html": [
        (with_text("A <b>bold</b> word."), "A <b>"),
        (with_text("<div>\nText\n</div>"), "<div>"),
        (with_text("```{raw} html\n<hr>\n```"), "```{raw}"),
    ],
    "code-block": [
        (with_text("```\nmake\n```"), "```"),
        (with_text(":::{code-cell} ipython3\n1\n:::"), ":::{code-cell}"),
        (with_text("::::{note}\n:::{note}\n```{code-cell} ipython3\n1\n```\n:::\n::::"), ""),
    ],
    "front-matter": [
        (without("  name: python3", "  name: python"), "kernelspec:"),
        (without("kernelspec:", "author: me\nkernelspec:"), "author: me"),
        (lambda page: re.sub(r"gpuguide:\n(  .*\n)+", "", page), "---"),
    ],
    "topics": [
        (without("  topics: [ceilings, launches]\n"), "gpuguide:"),
        (without("[ceilings, launches]", "[ceilings, lunches]"), "  topics:"),
    ],
    "gpu": [
        (without("benchmarks: [ceilings,", "gpu: nvidia-b200\n  benchmarks: [ceilings,"), "  gpu:"),
        (without("benchmarks: [ceilings,", "gpu: nvidia-h100-80gb-hbm3\n  benchmarks: [decode, ceilings,"), "  gpu:"),
    ],
    "benchmarks": [
        (without("transfer-size]", "transfer-size, softmax]"), "  benchmarks:"),
        (without("transfer-size]", "transfer-size, copysize]"), "  benchmarks:"),
        (without(DRAWING, "print()"), "  benchmarks:"),
    ],
    "opening": [
        (without("You will copy", "We begin. You will copy"), "We begin."),
        (without(SENTENCE), "# Predict"),
    ],
    "cost-card": [(without("```{cost-card}\n```\n"), "---")],
    "skeleton": [
        (without("## Explain: what", "## Why"), "---"),
        (swapped("## Exercises", "## Claims checked"), "---"),
    ],
    "equality": [
        (without("assert torch.equal(fast, source)\nassert torch.equal(copied_by_hand(source), fast)\n"), "## Build"),
    ],
    "claims": [(without(CLAIMS), "## Claims checked")],
    "in-short": [
        (without("## In short", "## At length"), "## At length"),
        (swapped("## In short", "## Where the bytes go"), "## Where the bytes go"),
        (without("A large copy takes", "word " * 120 + "A large copy takes"), "## In short"),
        (without(TABLE), "## In short"),
        (without(":tags: [snippet]\n"), "## In short"),
        (with_cell("print(1)", "snippet"), "## In short"),
        (without("array = torch.zeros", "\n".join(f"x = {n}" for n in range(9)) + "\narray = torch.zeros"), "```{code"),
    ],
    "tabs": [
        (without(PYTORCH), "```{code-cell}"),
        (without("\n" + OWN_TAB, "\nText.\n\n" + OWN_TAB), "```{code-cell}"),
        (without(":tab: PyTorch\n", ":tab:\n"), "```{code-cell}"),
        (without(":tab: gpuguide\n", ":tab: pytorch\n"), "```{code-cell}"),
        (without(":tags: [snippet]\n:tab: PyTorch\n", ":tab: PyTorch\n"), "```{code-cell}"),
        (without("bandwidth = 3.35e12", "from gpuguide import costs"), "```{code-cell}"),
        (without("bandwidth = 3.35e12", "import gpuguide.costs as costs"), "```{code-cell}"),
    ],
    "queries": [
        (without(QUERIES), "gpuguide:"),
        (without("    - torch clone slow for small tensors\n"), "  queries:"),
        (without(QUERIES, QUERIES + "".join(f"    - copy {n}\n" for n in range(4))), "  queries:"),
        (without("torch clone slow", "Torch clone slow"), "  queries:"),
        (without("- torch clone slow for small tensors", '- ""'), "  queries:"),
        (without("torch clone slow for small tensors", "memory bandwidth of a copy"), "  queries:"),
        (without("# Predict how long a copy takes", "# What to do in your work"), "# What to do"),
    ],
    "worked-example": [(without("### Worked example: the", "### The"), "---")],
    "symptom": [(without(SYMPTOM), "## In your own code")],
    "symptom-form": [
        (without(":::{symptom} A copy takes much longer than its bytes", ":::{symptom}"), ":::{symptom}"),
        (without(SYMPTOM, ":::{symptom} It is slow\nLook → do.\n:::\n"), ":::{symptom}"),
        (without(" → Copy it once into a contiguous array."), "2. The strides"),
        (without(" → Copy it once into a contiguous array.", " →"), "2. The strides"),
        (with_text(":::{symptom} It is slow\n1. → Do this.\n:::"), "1. → Do this."),
    ],
    "takeaway-form": [
        (with_takeaway("A copy of {given}`8 KiB` is slow."), ":::{takeaway}"),
        (with_takeaway("For copies of {given}`8 KiB`, nothing helps."), ":::{takeaway}"),
        (with_takeaway("Make each piece large, and use int8."), ":::{takeaway}"),
    ],
    "private-words": [
        (with_text("A thin product of {given}`3`."), "A thin"),
        (with_text("Decode waits for memory."), "Decode waits"),
        (with_text("| what | how |\n|---|---|\n| Reading the prompt | fast |"), "| Reading"),
    ],
    "reading-time": [
        (with_words(2600), "---"),
        (without("1. Move few large", "Word. " * 1000 + "\n\n1. Move few large"), "---"),
    ],
    "something-to-look-at": [(with_words(700), "word word")],
    "drawing": [
        (without(DRAWING, "print()"), "| bytes of both"),
        (lambda page: without(TABLE)(without(DRAWING, "print()")(page)), "```{code-cell}"),
        (without("A large copy takes", "word " * 80 + "A large copy takes"), "```{code-cell}"),
        (without("## In short", "## At length"), SENTENCE),
    ],
    "takeaway": [
        (without(LAST_TAKEAWAY), "## In your own code"),
        (without(LAST_TAKEAWAY, f"{LAST_TAKEAWAY}\nAnd more.\n"), "## In your own code"),
    ],
    "numbers-in-a-paragraph": [
        (with_text("It is " + "{measured}`ceilings/copy:bandwidth` and " * 4 + "so on."), "It is"),
        (with_text("It is {given}`3 ms`, {given}`4 ms`, {given}`5 ms` and {datasheet}`h100-sxm l2`."), "It is"),
    ],
    "three-claims": [
        (without(":show: eager-waits ", ":show: "), "## Claims checked"),
        (without(f"\n{SHOWN}"), "## Claims checked"),
    ],
    "your-records": [(without("```{your-records}\n```\n"), "---")],
    "exercises": [
        (without("**2. In place.**", "In place."), "## Exercises"),
        (with_text("**4. One more.** Why?"), "## Exercises"),
    ],
    "notebook-markdown": [(with_text("```{eval-rst}\n.. note:: x\n```"), "```{eval-rst}")],
}
ALLOWED = {
    "a cell of 25 lines": with_cell("\n".join(LONG.splitlines()[:25])),
    "a seeded generator": with_cell("import random\n\nrandom.Random(0).random()"),
    "a generator that is handed over": without(
        "torch.manual_seed(0)\nsource = torch.randn(count)", "source = torch.randn(count, generator=torch.Generator())"
    ),
    "a magic in a string": with_cell('x = """\na % b\n"""'),
    "a skipped cell with a dated reason": with_text(
        cell("1", "skip-execution").replace(":tags:", ":not-run: it needs two GPUs (2026-01-31)\n:tags:").strip()
    ),
    "a figure whose function draws own records through another": with_cell(
        HAND_DRAWN.replace("ax.plot(r)", "plotting.load_published_and_mine(r)")
        + "\n\n\nplotting.show(plot, alt='A line.', caption='A line.', records=[r])"
    ),
    "the import of glue": with_cell("from myst_nb import glue"),
    "a GPU beside no measurement": with_text("From the H100 on there are clusters."),
    "a GPU that is meant whichever was measured": with_text(
        "An {given}`H100` has {datasheet}`h100-sxm sms`, and ours copies at {measured}`ceilings/copy:bandwidth`."
    ),
    "words that hold": with_text("It is {holds}`fast | measurement('ceilings/copy:bandwidth').p25 > 1e12`."),
    "an assert that names its words": with_cell("assert 1 > 0, 'one is more than nothing'", "remove-cell"),
    "a given quantity": with_text("It takes {given}`3 ms`."),
    "a word in code": with_text("The function `simply`."),
    "an image with a text": with_text("![A curve that rises](line.png)"),
    "an image directive with a text": with_text("```{image} line.png\n:alt: A curve that rises\n```"),
    "a comment": with_text("<!-- a note -->\n\n% another"),
    "a link that says where it leads": with_text("See [the list of tutorials](index.md)."),
    "a code block with a language": with_text("```sh\nmake site\n```"),
    "arrows and marks": with_text("From left → right, 2 × 3 ≥ 5."),
    "a glossary": with_text("```{glossary}\nterm\n  Its first line\n  and its second.\n```"),
    "an extra section": with_text("## Use this tomorrow\n\n:::{takeaway}\nUse 2 of it.\n:::"),
    "cells that are folded beside each other, which become one": with_text(
        cell("x = 1", "hide-input") + "\n" + cell("y = 1", "hide-input").strip()
    ),
    "folds with text between": with_text(
        "Words.\n\n:::{folded} One\nText.\n:::\n\nWords.\n\n:::{folded} Two\nText.\n:::"
    ),
    "three tabs, with a note and a comment between them": without(
        OWN_TAB,
        OWN_TAB
        + "% A note.\n\n"
        + OWN_TAB.replace(":tab: gpuguide", ":tab: NumPy").replace(
            "from gpuguide.measure import measured_ceilings\n", ""
        ),
    ),
    "one snippet without tabs": without(PYTORCH + OWN_TAB, OWN_TAB.replace(":tab: gpuguide\n", "")),
    "many words of code": with_cell("x = [\n" + 20 * "    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,\n" + "]"),
    "a title that shares a plural": without("# Predict how long a copy takes", "# Predict copies"),
    "six searches": without(QUERIES, QUERIES + "".join(f"    - copy {n}\n" for n in range(3))),
    "a second symptom with arrows in its items": with_text(":::{symptom} It is `NaN`\n1. Look → there → do that.\n:::"),
    "a takeaway whose number is in a formula": with_takeaway("Divide by $2 b$."),
    "a takeaway whose number a cell computed": with_takeaway("Below 4 KiB, never copy: it takes {glue:text}`x`."),
    "an everyday word that we use in another sense": with_text("Write it, sum it up, and leave room for a product."),
    "many words in a fold": with_text("Words.\n\n:::{folded} Profiles\n" + "word " * 3000 + "\n:::"),
    "many numbers in a list": with_text("\n".join("- {measured}`ceilings/copy:bandwidth`" for _ in range(5))),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a page into a folder of tutorials, or another."""

    def written(text: str, name: str = "tutorials/07-copies.md") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return written


def broken(paths: list[Path]) -> set[str]:
    return {finding.rule for finding in page_lint.findings(paths)}


CASES = [(rule, change, place) for rule, cases in BREAKS.items() for change, place in cases]


@pytest.mark.parametrize(("rule", "change", "place"), CASES, ids=[case[0] for case in CASES])
def test_a_rule_fires_with_line_and_remedy(
    write: Callable[..., Path], rule: str, change: Callable[[str], str], place: str
) -> None:
    assert change(TEMPLATE) != TEMPLATE
    path = write(change(TEMPLATE))
    found = [finding for finding in page_lint.findings([path]) if finding.rule == rule]
    assert found, "the rule does not fire"
    lines = path.read_text(encoding="utf-8").splitlines()
    assert any(lines[finding.line - 1].startswith(place) or place in lines[finding.line - 1] for finding in found)
    for finding in found:
        assert re.fullmatch(rf"{re.escape(str(path))}:\d+: (warning: )?\[{rule}\] \S.*[.:)}}\]`] \S.+", str(finding)), (
            str(finding)
        )


@pytest.mark.parametrize("name", ALLOWED)
def test_no_rule_fires_on_a_good_page(write: Callable[..., Path], name: str) -> None:
    assert ALLOWED[name](TEMPLATE) != TEMPLATE
    assert page_lint.findings([write(ALLOWED[name](TEMPLATE))]) == []


def test_every_rule_is_tried_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    rules = page_lint.sentences()
    assert set(rules) == {*BREAKS, "file-name", "duplicate-label", "topic-gpu", "notebook-name"}
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^  ([a-z-]+): .", capsys.readouterr().out, re.MULTILINE)
    assert listed == list(rules)


# --- several pages, and pages that are no tutorials --------------------------------------------------------


@pytest.mark.parametrize("name", ["copies.md", "7-copies.md", "07-Copies.md", "07_copies.md"])
def test_a_tutorial_is_named_by_number_and_title(write: Callable[..., Path], name: str) -> None:
    (finding,) = page_lint.findings([write(TEMPLATE, f"tutorials/{name}")])
    assert (finding.rule, finding.line) == ("file-name", 1)
    assert "NN-short-title.md" in finding.remedy


def test_the_template_needs_no_number(write: Callable[..., Path]) -> None:
    assert page_lint.findings([write(TEMPLATE, "tutorials/template.md")]) == []


def test_a_label_stands_once_on_the_site(write: Callable[..., Path]) -> None:
    one = write("# One\n\n(where)=\n## Here\n", "docs/one.md")
    two = write(
        "# Two\n\nText.\n\n(where)=\n## There\n\n```{image} a.png\n:alt: A line\n:name: Where\n```\n", "docs/two.md"
    )
    first, second = page_lint.findings([one, two])
    assert str(first).startswith(f"{two}:5: [duplicate-label] The label 'where' stands at {one}:3 already. Choose")
    assert second.line == 8
    assert broken([one]) == set()


def test_the_pages_of_a_topic_speak_of_one_gpu(write: Callable[..., Path]) -> None:
    other = TEMPLATE.replace("benchmarks: [ceil", "gpu: nvidia-h100-80gb-hbm3\n  benchmarks: [ceil", 1)
    one, another = write(TEMPLATE, "tutorials/07-copies.md"), write(other, "tutorials/08-copies.md")
    found = [finding for finding in page_lint.findings([one, another]) if finding.rule == "topic-gpu"]
    assert {(finding.path, finding.line) for finding in found} == {(another, 4)}
    assert all(str(one) in finding.problem and "nvidia-h100-80gb-hbm3" in finding.problem for finding in found)
    assert "topic-gpu" not in broken([another])


def test_a_notebooks_name_is_its_own(write: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    one, other = write(TEMPLATE, "tutorials/07-copies.md"), tmp_path / "more" / "tutorials" / "07-copies.md"
    other.parent.mkdir()
    other.write_text(TEMPLATE, encoding="utf-8")
    (finding,) = [found for found in page_lint.findings([one, other]) if found.rule == "notebook-name"]
    assert "has the name of that of" in finding.problem
    assert finding.remedy == "Rename one of them."
    assert finding.line == 1
    module = write(TEMPLATE, "tutorials/torch.md")
    assert "notebook-name" in broken([module])


def test_pages_of_text_need_no_skeleton(write: Callable[..., Path]) -> None:
    assert page_lint.findings([write("# A page\n\nText.\n", "docs/page.md")]) == []
    assert page_lint.findings([write("# Tutorials\n\nText.\n", "tutorials/index.md")]) == []
    assert broken([write("Text.\n\n![](a.png) simply\n", "docs/page.md")]) == {"plain-words"}


def test_a_cell_that_nobody_sees_may_be_wide_and_long(write: Callable[..., Path]) -> None:
    code = LONG + "\nx = '" + 90 * "x" + "'"
    page = f"# A page\n\n{cell(code, 'remove-input')}"
    assert page_lint.findings([write(page, "docs/page.md")]) == []
    assert {"cell-width", "cell-length"} <= broken([write(page)]), "a tutorial's downloads show it"


def test_a_front_matter_that_cannot_be_read_is_named(write: Callable[..., Path]) -> None:
    path = write("---\ngpuguide: [a]\n---\n# Title\n", "docs/page.md")
    (finding,) = page_lint.findings([path])
    assert str(finding).startswith(f"{path}:1: [front-matter] The entry gpuguide of the front matter is ['a']")


# --- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """What runs the command in a folder and returns its status and what it prints."""

    def called(*words: str, folder: Path = ROOT) -> tuple[int, str, str]:
        monkeypatch.chdir(folder)
        return (main(words), *capsys.readouterr())

    return called


def test_a_warning_is_printed_and_fails_nothing(write: Callable[..., Path], run: Callable[..., Any]) -> None:
    many = with_text("It is " + "{measured}`ceilings/copy:bandwidth` and " * 4 + "so on.")
    status, out, _ = run(str(write(many(TEMPLATE))))
    assert status == 0
    assert re.search(r":\d+: warning: \[numbers-in-a-paragraph\] The paragraph has 4 numbers\.", out)


def test_our_own_pages_pass(run: Callable[..., Any]) -> None:
    assert run() == (0, "", ""), "warnings too are mended before they are merged"


def test_the_command_prints_findings_and_fails(
    write: Callable[..., Path], tmp_path: Path, run: Callable[..., Any]
) -> None:
    path = write("# A page\n\nYou simply read.\n", "docs/page.md")
    status, out, err = run(folder=tmp_path)
    assert status == 1
    assert out.startswith("docs/page.md:3: [plain-words] 'simply' adds nothing.")
    assert "1 found" in err
    assert run(str(path))[1].startswith(f"{path}:3: ")
    assert run("no-such-page.md") == (2, "", "There is no page no-such-page.md.\n")


def test_make_lint_runs_it() -> None:
    assert "python -m gpuguide.site.checks.page_lint" in (ROOT / "Makefile").read_text(encoding="utf-8")
