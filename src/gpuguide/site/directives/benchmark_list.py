"""The directive ``benchmark-list``: what can be measured, the question of each, where we did, and how long it took."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gpuguide.measure import digest, folders, reference_gpu, store
from gpuguide.site.directives.cost_card import duration
from gpuguide.site.execution import faults, watching
from gpuguide.site.pages.tables import Cell, table

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("benchmark-list", BenchmarkList)


class BenchmarkList(SphinxDirective):
    """A table of all benchmarks."""

    def run(self) -> list[Node]:
        """Return the table."""
        rows: list[list[Cell]] = []
        for folder in folders.record_folders()[:1]:
            watching.note_folder(self.env, folder)
        with faults.report_errors(self.get_location()):
            for name, texts in list_declarations().items():
                self.env.note_dependency(str(texts["path"]))
                own = [record for record in store.load_all_published() if record.benchmark == name]
                devices = ", ".join(record.device_name.removeprefix("NVIDIA ") for record in own) or "nothing yet"
                ours = [record for record in own if reference_gpu.is_reference(record)]
                elapsed = duration(sum(run.elapsed for run in ours[0].runs)) if ours else "not measured"
                rows.append([nodes.literal("", name), texts["question"], devices, elapsed])
            header = ["benchmark", "its question", "measured on", f"time on our {reference_gpu.short()}"]
            return [table(header, rows)]
        return []


def list_declarations() -> dict[str, dict[str, str]]:
    """Return title, question and file of every benchmark, read from the source so that nothing heavy is imported."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted({digest.module_path(module) for module in digest.benchmark_modules().values()}):
        found.update(_list_declarations_in(path))
    return found


def _list_declarations_in(path: Path) -> dict[str, dict[str, str]]:
    found = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Benchmark":
            texts = {k.arg: str(k.value.value) for k in node.keywords if k.arg and isinstance(k.value, ast.Constant)}
            found[texts["name"]] = {"title": texts["title"], "question": texts["question"], "path": str(path)}
    return found
