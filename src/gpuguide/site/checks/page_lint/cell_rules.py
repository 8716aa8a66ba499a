"""Rules for code cells."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from gpuguide.site.checks.page_lint.rules import Findings, rule
from gpuguide.site.checks.page_lint.source import LintedPage, dotted_name
from gpuguide.site.execution import declared_records
from gpuguide.site.pages import skipped_cells
from gpuguide.site.pages.page_source import CodeCell

LONGEST = 25
WIDEST = 88
TAGS = {
    "hide-input",
    "hide-output",
    "hide-cell",
    "remove-input",
    "remove-output",
    "remove-cell",
    "skip-execution",
    "parameters",
    "snippet",
    "nbval-ignore-output",
    "raises-exception",
}
NOT_SHOWN = {"remove-input", "remove-cell"}
MEASURING = {"here", "time_call", "perf_counter", "perf_counter_ns", "Event", "do_bench", "timeit", "bench"}
"""Calls after whose names a cell evidently times the machine that it runs on"""
DRAWS_OWN = {"curves", "bars", "trace", "trace_panel", "load_published_and_mine", "collect_rows"}
SEEDS = {"torch": "torch.manual_seed(0)", "numpy": "rng = numpy.random.default_rng(0)", "random": "random.seed(0)"}
_TORCH_RANDOM = re.compile(
    r"torch\.(rand|randn|randint|randperm|rand_like|randn_like|randint_like|normal|bernoulli|multinomial|poisson)"
)
_NUMPY_RANDOM = re.compile(r"(np|numpy)\.random\.(?!default_rng|Generator|SeedSequence|PCG64)(\w+)")
_PYTHON_RANDOM = re.compile(
    r"random\.(random|randint|randrange|choices?|shuffle|sample|uniform|gauss|normalvariate|randbytes)"
)


def list_visible_cells(source: LintedPage) -> list[CodeCell]:
    """Return the cells that readers see: on a tutorial all of them, because its downloads have them all."""
    return [cell for cell in source.cells if source.is_tutorial or not NOT_SHOWN & set(cell.tags)]


@rule("cell-length")
def cell_length(source: LintedPage) -> Findings:
    """A code cell has at most 25 lines."""
    for cell in list_visible_cells(source):
        count = len(cell.code.strip().splitlines())
        if count > LONGEST:
            yield (
                cell.line,
                f"The cell has {count} lines of code.",
                f"Split it where its second idea begins: {LONGEST}.",
            )


@rule("cell-width")
def cell_width(source: LintedPage) -> Findings:
    """A line of a code cell has at most 88 columns, which a page shows without scrolling."""
    for cell in list_visible_cells(source):
        for number, line in enumerate(cell.code.splitlines(), start=1):
            if len(line) > WIDEST:
                yield number, f"The line has {len(line)} columns.", f"Break it: at most {WIDEST} fit the page."


@rule("pyplot-state")
def pyplot_state(source: LintedPage) -> Findings:
    """Figures are drawn with `fig, ax` and `gpuguide.plotting`, without pyplot, which keeps a state."""
    for _, node in source.nodes():
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if any("pyplot" in f"{module}.{name}" or name == "pylab" for name in names):
            yield (
                getattr(node, "lineno", 1),
                "The cell imports pyplot.",
                "Draw on the figure that gpuguide.plotting.show hands to your function: ax = figure.subplots().",
            )


@rule("magic")
def magic(source: LintedPage) -> Findings:
    """There is no magic and no shell command but `%pip` in the first cell."""
    for position, cell in enumerate(source.cells):
        last = cell.line + 1
        while last <= len(source.lines) and not source.lines[last - 1].startswith("```"):
            text = source.lines[last - 1].strip()
            if re.match(r"[%!]\S", text) and not (position == 0 and text.startswith("%pip ")):
                yield last, f"{text.split()[0]!r} is no Python.", "Write it in Python; only %pip, in the first cell."
            last += 1


@rule("unseeded")
def missing_seed(source: LintedPage) -> Findings:
    """Random numbers have a seed, so that every run of the page gives the same outputs."""
    seeded: set[str] = set()
    calls = sorted(source.calls(), key=lambda found: (found[1].lineno, found[1].col_offset))
    for _, call, name in calls:
        keywords = {keyword.arg for keyword in call.keywords}
        if name in ("torch.manual_seed", "random.seed", "np.random.seed", "numpy.random.seed"):
            seeded.add({"np": "numpy"}.get(name.partition(".")[0], name.partition(".")[0]))
        library = _library_of_random(name)
        if library and library not in seeded and "generator" not in keywords:
            yield call.lineno, f"{name} is called without a seed.", f"Put {SEEDS[library]} before it."
        elif name.endswith(("default_rng", "random.Random")) and not call.args and not call.keywords:
            yield call.lineno, f"{name}() takes its seed from the clock.", f"Give it one: {name}(0)."


def _library_of_random(name: str) -> str:
    """Return whose generator a call draws from, empty if it draws from none."""
    patterns = {"torch": _TORCH_RANDOM, "numpy": _NUMPY_RANDOM, "random": _PYTHON_RANDOM}
    found = next((library for library, pattern in patterns.items() if pattern.fullmatch(name)), "")
    return "" if name.endswith("random.seed") else found


@rule("unknown-tag")
def unknown_tag(source: LintedPage) -> Findings:
    """A cell has only tags that the site and the downloads know."""
    for cell in source.cells:
        for tag in cell.tags:
            if tag not in TAGS:
                yield cell.line, f"Nothing knows the tag {tag!r}.", f"Take one of {', '.join(sorted(TAGS))}."


@rule("parameters")
def parameters(source: LintedPage) -> Findings:
    """At most one cell is tagged `parameters`, and it holds plain `name = value` lines."""
    tagged = [(cell, tree) for cell, tree in source.code if "parameters" in cell.tags]
    for cell, _ in tagged[1:]:
        yield cell.line, "A second cell is tagged 'parameters'.", "papermill looks at one: join them."
    for _, tree in tagged:
        for statement in tree.body:
            plain = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
            if not plain or not _is_literal(getattr(statement, "value", None)):
                yield (
                    statement.lineno,
                    "A cell of parameters holds something else than name = value.",
                    "Move it to the next cell; values are numbers, text, and lists of them.",
                )


def _is_literal(value: ast.expr | None) -> bool:
    try:
        ast.literal_eval(value or ast.Name("none"))
    except ValueError:
        return False
    return True


@rule("skipped-cell")
def skipped_cell(source: LintedPage) -> Findings:
    """A cell that does not run either times the machine, or says why and since when (`not-run`)."""
    calls = {(cell.line, name.rpartition(".")[2]) for cell, _, name in source.calls()}
    for cell in source.cells:
        measures = any((cell.line, name) in calls for name in MEASURING)
        if skipped_cells.TAG not in cell.tags or measures:
            continue
        if not skipped_cells.is_dated(str(cell.options.get("not-run", ""))):
            yield (
                cell.line,
                "The cell is not run, although it times nothing.",
                "Let it run, or give the reason and the day in its options: not-run: it needs two GPUs (2026-01-31).",
            )


@rule("glue-import")
def glue_import(source: LintedPage) -> Findings:
    """`from myst_nb import glue` stands alone on its line; the downloads replace it."""
    for _, node in source.nodes():
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        line = source.lines[node.lineno - 1].strip()
        if (module or "").partition(".")[0] == "myst_nb" and line != "from myst_nb import glue":
            yield node.lineno, f"{line!r} is not what the downloads replace.", "Write: from myst_nb import glue"


@rule("undeclared-benchmark")
def undeclared_benchmark(source: LintedPage) -> Findings:
    """A record that a cell reads is declared in the front matter."""
    for line, name in declared_records.find_undeclared(source.text):
        remedy = f"Add it to the front matter: gpuguide: {{benchmarks: [{name}]}}."
        yield line, f"The cell reads the record {name!r}, which the page does not declare.", remedy


@rule("figure-text")
def figure_text(source: LintedPage) -> Findings:
    """Every figure has an alternative text that says what one sees, and a caption that says what it means."""
    for _, call, name in source.calls():
        if name not in ("plotting.show", "gpuguide.plotting.show"):
            continue
        texts = {keyword.arg: keyword.value for keyword in call.keywords}
        for wanted in ("alt", "caption"):
            value = texts.get(wanted)
            if value is None and None not in texts:
                yield call.lineno, f"The figure has no {wanted}.", f"Pass {wanted}='…' to plotting.show."
            elif isinstance(value, ast.Constant) and not _says_something(str(value.value)):
                yield value.lineno, f"The figure's {wanted} says nothing.", "Write a sentence: what one sees in it."


@rule("own-records")
def own_records(source: LintedPage) -> Findings:
    """A figure of records shows a reader's own: by `curves`, `bars`, `trace` or `load_published_and_mine`."""
    functions: dict[str, list[ast.FunctionDef]] = {}
    for _, node in source.nodes():
        if isinstance(node, ast.FunctionDef):
            functions.setdefault(node.name, []).append(node)
    for _, call, name in source.calls():
        named = {keyword.arg for keyword in call.keywords}
        if name != "plotting.show" or "records" not in named or not call.args:
            continue
        before = {key: [each for each in found if each.lineno < call.lineno] for key, found in functions.items()}
        if not _reaches(dotted_name(call.args[0]), {key: found[-1] for key, found in before.items() if found}, set()):
            yield (
                call.lineno,
                "The figure shows published records and never a reader's own.",
                "Loop over plotting.load_published_and_mine(…) there, and style lines with plotting.stroke.",
            )


def _reaches(name: str, functions: Mapping[str, ast.FunctionDef], seen: set[str]) -> bool:
    """Return whether a function of the page calls one that draws own records too, itself or through others."""
    if name in seen or name not in functions:
        return False
    calls = {dotted_name(node.func) for node in ast.walk(functions[name]) if isinstance(node, ast.Call)}
    if any(called.rpartition(".")[2] in DRAWS_OWN for called in calls):
        return True
    return any(_reaches(called, functions, seen | {name}) for called in calls)


def _says_something(text: str) -> bool:
    """Return whether a text is more than one word and no file name."""
    return len(text.split()) > 1 and not re.search(r"\.(png|svg|jpe?g|gif|webp)$", text.strip(), re.IGNORECASE)
