"""Code cells as a reader gets them: without what only this site understands, and all of them ready to run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any

from gpuguide.errors import GpuguideError
from gpuguide.plotting.figure import MIME
from gpuguide.plotting.tables import TABLE_MIME

GLUE_MIME = "application/papermill.record/"
GLUE_IMPORT = re.compile(r"^from myst_nb import glue$", re.MULTILINE)
GLUE_HERE = '''\
def glue(name, value, display=False):
    """Show a value that stands in the text of this page."""
    print(f"{name}: {value}")'''
"""On the site ``glue`` puts a value into the text. In a notebook the text is fixed, and the value is shown."""

_HIDDEN_INPUT = {"hide-input", "remove-input", "hide-cell", "remove-cell"}
_HIDDEN_OUTPUT = {"hide-output", "hide-cell", "remove-cell"}
_KEPT = re.compile(r"parameters|raises-exception|nbval-.+")


def measures_here(cell: Any) -> bool:
    """Return whether the cell is for the reader's machine: the site shows it and does not run it."""
    return "skip-execution" in tags_of(cell)


def tags_of(cell: Any) -> list[str]:
    """Return a cell's tags."""
    return list(cell.metadata.get("tags", []))


def source(cell: Any) -> str:
    """Return a cell's code, which needs nothing of the site's own software."""
    return GLUE_IMPORT.sub(lambda _: GLUE_HERE, cell.source)


def metadata(cell: Any) -> dict[str, Any]:
    """Return a cell's metadata: the tags that notebook tools know, and what is folded away.

    A cell that measures the reader's machine runs, and its outputs are compared with nothing.
    """
    tags = [tag for tag in tags_of(cell) if _KEPT.fullmatch(tag)]
    if measures_here(cell):
        tags.append("nbval-ignore-output")
    found: dict[str, Any] = {"tags": tags} if tags else {}
    folded = {}
    if _HIDDEN_INPUT.intersection(tags_of(cell)):
        folded["source_hidden"] = True
    if _HIDDEN_OUTPUT.intersection(tags_of(cell)):
        folded["outputs_hidden"] = True
    return {**found, "jupyter": folded} if folded else found


def outputs(cell: Any) -> list[dict[str, Any]]:
    """Return a cell's outputs as the download's own run gives them: figures as PNG, glued values as text.

    Raises
    ------
    GpuguideError
        If a glued value is neither text nor a number.
    """
    kept: list[dict[str, Any]] = []
    for output in cell.outputs:
        made = _format_value(output) if "scrapbook" in output.get("metadata", {}) else _remove_bundle(output)
        if made["output_type"] == "stream" and kept and kept[-1].get("name") == made["name"]:
            kept[-1]["text"] += made["text"]
        else:
            kept.append(made)
    return kept


def figures(cells: Iterable[Any]) -> int:
    """Return how many outputs of these cells are figures."""
    return sum("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)


def count_outputs(cells: Iterable[Any]) -> int:
    """Return how many of these cells have an output that is none."""
    return sum(any("image/png" not in output.get("data", {}) for output in cell.outputs) for cell in cells)


def _remove_bundle(output: Any) -> dict[str, Any]:
    """Return an output without the bundle that only this site's renderer reads."""
    made = {**output}
    if "data" in made:
        made["data"] = {kind: content for kind, content in output.data.items() if kind not in (MIME, TABLE_MIME)}
    return made


def _format_value(output: Any) -> dict[str, Any]:
    """Return what :data:`GLUE_HERE` prints for a glued value."""
    name = output.metadata["scrapbook"]["name"]
    text = output.data.get(f"{GLUE_MIME}text/plain", output.data.get("text/plain", ""))
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError) as error:
        raise GpuguideError(
            f"The glued value {name!r} is {text[:60]!r}, which a notebook cannot show as text. "
            "Glue a string or a number."
        ) from error
    return {"output_type": "stream", "name": "stdout", "text": f"{name}: {value}\n"}
