"""Rules for words that records decide: what the GPU is called, and how measurements compare."""

from __future__ import annotations

import ast
import re

from gpuguide.claims import assertion
from gpuguide.errors import GpuguideError
from gpuguide.measure import page_gpu, reference_gpu, store
from gpuguide.site.checks.page_lint.rules import Findings, rule
from gpuguide.site.checks.page_lint.source import LintedPage

MEASURED = {"measured", "ratio", "ceiling", "holds", "glue:text"}
"""Roles of a paragraph that speaks of measurements"""


@rule("typed-gpu")
def typed_gpu(source: LintedPage) -> Findings:
    """The GPU that was measured is named by the role `gpu`; one that is meant whichever was measured, by `given`."""
    names = _measured_gpus()
    for line, children in source.inlines:
        roles = {child.meta["name"] for child in children if child.type == "myst_role"}
        typed = [found[0] for child in children if child.type == "text" for found in names.finditer(child.content)]
        if roles & MEASURED and typed:
            yield line, f"{typed[0]!r} stands beside a measurement and is typed by hand.", _REMEDY
    for _, call, name in source.calls():
        for keyword in call.keywords if name.rpartition(".")[2] == "show" else ():
            for node in ast.walk(keyword.value) if keyword.arg in ("alt", "caption") else ():
                if isinstance(node, ast.Constant) and (found := names.search(str(node.value))):
                    yield node.lineno, f"{found[0]!r} is typed by hand in the figure's {keyword.arg}.", _IN_CELLS


_REMEDY = (
    "Write {gpu}`short` or {gpu}`a short`; or {given}`NAME` where a data sheet or the hardware is meant and the "
    "sentence stays true when another GPU is measured."
)
_IN_CELLS = "Write {reference_gpu.word('a short')} in an f-string, from gpuguide.measure import reference_gpu."


def _measured_gpus() -> re.Pattern[str]:
    """Return what finds the names of all GPUs of which there are records."""
    known = {record.device_name for record in store.load_all_published() if record.device != page_gpu.CPU}
    names = sorted({reference_gpu.short_name(name) for name in known}, key=len, reverse=True)
    return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names)) or r'(?!)'})(?![\w-])")


@rule("holds")
def holds(source: LintedPage) -> Findings:
    """What stands in the role `holds` is what the records say."""
    for line, children in source.inlines:
        for child in children:
            if child.type == "myst_role" and child.meta["name"] == "holds":
                try:
                    assertion.check(assertion.read(child.content))
                except GpuguideError as error:
                    yield line, str(error), "Put the words or the predicate right."


@rule("asserted-words")
def asserted_words(source: LintedPage) -> Findings:
    """An assert in a cell that nobody sees says which words of the page rest on it, so that its failure names them."""
    for cell, node in source.nodes():
        if isinstance(node, ast.Assert) and node.msg is None and "remove-cell" in cell.tags:
            yield node.lineno, "The assert names no words of the page.", 'Write them behind it: assert …, "the words".'
