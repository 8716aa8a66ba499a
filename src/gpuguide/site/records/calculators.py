"""The directives ``will-it-fit`` and ``what-is-the-limit``: a calculator, its data, and a worked example.

A calculator is a script that mirrors a cost model of the library, on data which the library exports into the page.
Without scripts the example stands in its place, computed here.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gpuguide.costs import limits, memory, presets
from gpuguide.hardware import datasheet
from gpuguide.hardware.machines import FORMATS, Ceiling, Machine
from gpuguide.measure import digest, machines, reference_gpu, store
from gpuguide.measure.units import format_quantity, significant
from gpuguide.site.execution import faults, watching
from gpuguide.site.pages.tables import Cell, table
from gpuguide.site.records.hardware_table import cited, note_datasheet

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx

SCRIPTS = {
    "will-it-fit": ("memory.js", "calculator.js", "will-it-fit.js"),
    "what-is-the-limit": ("memory.js", "limits.js", "calculator.js", "what-is-the-limit.js"),
}
"""Scripts of each calculator, in the order in which they build on each other"""

MODEL = "llama-3.1-8b"
"""What a calculator shows at first"""
SETUP = memory.Setup(batch=1, seq_len=4096)
SHAPE_LABELS = {
    "layers": "Layers",
    "hidden": "Hidden size",
    "heads": "Attention heads",
    "kv_heads": "Heads of keys and values",
    "head_dim": "Length of a head",
    "intermediate": "Inner width",
    "vocab": "Vocabulary",
    "context": "Longest sequence",
    "gated": "gated feed-forward",
    "tied": "head is the embedding",
    "learned_positions": "learned positions",
    "bias": "Biases",
    "layer_norm": "LayerNorm, not RMSNorm",
    "norms": "Norms a layer",
    "qk_norm": "norms of queries and keys",
}
PART_NAMES = {
    "weights": "weights",
    "copies": "copies of weights",
    "gradients": "gradients",
    "optimizer": "optimizer states",
    "cache": "key and value cache",
    "activations": "activations",
    "logits": "logits and loss",
    "temporary": "temporary",
    "workspace": "library workspace",
}
OPERATIONS = {
    "matmul": "matrix product",
    "attention": "attention, forward",
    "decode": "one token of generation",
    "all_reduce": "all-reduce",
    "scan": "scan of a table",
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "matmul": {"rows": 8192, "inner": 8192, "columns": 8192, "format": "bf16"},
    "attention": {
        "batch": 4,
        "heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "seq_len": 4096,
        "causal": True,
        "format": "bf16",
    },
    "decode": {"model": MODEL, "batch": 1, "context": 4096, "weights": "bf16", "cache": "bf16"},
    "all_reduce": {"size": 2**30, "gpus": 8, "format": "bf16"},
    "scan": {"rows": 100_000_000, "columns": 4, "element_size": 8, "place": "memory"},
}
"""What the fields of each operation hold at first"""
LABELS = {
    "rows": "Rows",
    "inner": "Inner size",
    "columns": "Columns",
    "batch": "Sequences at a time",
    "heads": "Attention heads",
    "kv_heads": "Heads of keys and values",
    "head_dim": "Length of a head",
    "seq_len": "Tokens a sequence",
    "context": "Tokens in the cache",
    "size": "Bytes on each GPU",
    "gpus": "GPUs",
    "element_size": "Bytes a value",
}
CHANNELS = {"memory": "memory", "link": "the link between GPUs", "host": "the connection to the host"}


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("will-it-fit", WillItFit)
    app.add_directive("what-is-the-limit", WhatIsTheLimit)
    app.add_directive("model-shapes", ModelShapes)
    app.connect("html-page-context", add_scripts)


def add_scripts(app: Sphinx, docname: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Load a calculator's scripts on the pages that have one, and on no other."""
    used = app.env.metadata.get(docname, {}).get("gpuguide_calculators", "")
    for script in dict.fromkeys(name for calculator in used.split() for name in SCRIPTS[calculator]):
        app.add_js_file(script, loading_method="defer")


class _Calculator(SphinxDirective):
    """What both directives share: the example, and the place that a script fills."""

    name_of_calculator: str

    def run(self) -> list[Node]:
        """Return the example and the calculator's place with its data."""
        note_datasheet(self)
        for module in ("gpuguide.costs.limits", "gpuguide.costs.memory", "gpuguide.costs.presets"):
            self.env.note_dependency(str(digest.module_path(module)))
        self.env.note_dependency(str(digest.module_path("gpuguide.costs.presets").with_suffix(".toml")))
        watching.note_folder(self.env, store.published_folder())
        used = self.env.metadata[self.env.docname].get("gpuguide_calculators", "")
        self.env.metadata[self.env.docname]["gpuguide_calculators"] = f"{used} {self.name_of_calculator}".strip()
        with faults.reporting(self.get_location()):
            example = nodes.container("", *self.example(), classes=["gg-worked"])
            data = json.dumps(self.data(), ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
        name = self.name_of_calculator
        place = (
            f'<div class="gg-calculator pst-js-only" id="gg-{name}"></div>'
            f'<script type="application/json" id="gg-{name}-data">{data}</script>'
        )
        return [example, nodes.raw("", place, format="html")]

    def example(self) -> list[Node]:
        """Return what stands there without scripts."""
        raise NotImplementedError

    def data(self) -> dict[str, Any]:
        """Return what the script needs to know."""
        raise NotImplementedError


class WillItFit(_Calculator):
    """``{will-it-fit}``: the calculator of a model's memory."""

    name_of_calculator = "will-it-fit"

    def example(self) -> list[Node]:
        """Return the memory of the first example as a table, and the call that computes it."""
        preset, gpu = presets.get(MODEL), reference_gpu.sheet()
        prediction = memory.predict(preset.shape, SETUP)
        total, capacity = prediction.total, gpu.figures["memory"].value
        words = {"fits": "fits", "tight": "is tight", "too large": "does not fit"}[memory.judge(total, capacity)]
        lead = nodes.paragraph(
            "",
            f"An example, as the calculator needs scripts: to train all weights of {preset.name} in mixed precision, "
            f"one sequence of {SETUP.seq_len} tokens at a time, takes {gib(total)}. On {gpu.name}, with "
            f"{gib(capacity)} as its data sheet prints it, it {words}.",
        )
        highest = prediction.highest
        rows = [[PART_NAMES[part], gib(size)] for part, size in highest.parts.items() if size]
        shown = table([f"at the highest moment ({highest.name})", "memory"], [*rows, ["in all", gib(total)]])
        return [
            lead,
            shown,
            python_call(
                "from gpuguide.costs import memory, presets\n\n"
                f"setup = memory.Setup(batch={SETUP.batch}, seq_len={SETUP.seq_len})\n"
                f'memory.predict(presets.get("{MODEL}").shape, setup).total'
            ),
        ]

    def data(self) -> dict[str, Any]:
        """Return what the script needs to know."""
        return fit_data()


class WhatIsTheLimit(_Calculator):
    """``{what-is-the-limit}``: the calculator of an operation's time at a GPU's ceilings."""

    name_of_calculator = "what-is-the-limit"

    def example(self) -> list[Node]:
        """Return the limit of one operation as a table, and the call that computes it."""
        values = EXAMPLES["matmul"]
        machine = machines.machine(reference_gpu.sheet().id)
        found = limits.limit(limits.matmul(**values), machine)
        size = values["rows"]
        lead = nodes.paragraph(
            "",
            f"An example, as the calculator needs scripts: the product of two {size} × {size} matrices in "
            f"{values['format']} takes {format_quantity(found.time, 's')} at the ceilings of {machine.name}, bound by "
            f"{found.bound}.",
        )
        rows = [
            ["operations", format_quantity(found.operation.flops, "FLOP")],
            ["bytes that move", gib(found.operation.moved)],
            ["arithmetic at its ceiling", format_quantity(found.arithmetic_time, "s")],
            ["movement at its ceiling", format_quantity(found.moving_time, "s")],
            [f"rate of arithmetic, {found.rate.origin}", format_quantity(found.rate.value, "FLOP/s")],
            [f"bandwidth, {found.bandwidth.origin}", format_quantity(found.bandwidth.value, "B/s")],
        ]
        words = ", ".join(f"{name}={value!r}" for name, value in values.items())
        return [
            lead,
            table(["quantity", "value"], rows),
            python_call(
                "from gpuguide.costs import limits\nfrom gpuguide.measure import machines\n\n"
                f"operation = limits.matmul({words})\n"
                f'limits.limit(operation, machines.machine("{machine.id}")).time'
            ),
        ]

    def data(self) -> dict[str, Any]:
        """Return what the script needs to know."""
        return limit_data()


class ModelShapes(SphinxDirective):
    """``{model-shapes}``: the models that the calculators know, and where their shapes were read."""

    def run(self) -> list[Node]:
        """Return a table, and the sources below it."""
        self.env.note_dependency(str(digest.module_path("gpuguide.costs.presets").with_suffix(".toml")))
        numbers = {key: number for number, key in enumerate(presets.sources(), start=1)}
        rows: list[list[Cell]] = []
        for preset in presets.load().values():
            shape = preset.shape
            name = nodes.reference("", preset.name, refuri=preset.config)
            heads = str(shape.heads) if shape.heads == shape.kv_heads else f"{shape.heads}, {shape.kv_heads} of keys"
            sizes = [f"{preset.parameters:,}".replace(",", "\u202f"), str(shape.layers), str(shape.hidden), heads]
            rows.append([name, *sizes, str(shape.context), f"[{numbers[preset.source]}]"])
        header = ["model", "parameters", "layers", "hidden", "heads", "context", "source"]
        listed = nodes.enumerated_list(enumtype="arabic")
        for source in presets.sources().values():
            listed += nodes.list_item("", cited(source))
        return [table(header, rows, classes=["gg-datasheet"]), listed]


def fit_data() -> dict[str, Any]:
    """Return models, GPUs, constants and first values."""
    defaults = {
        field.name: field.default for field in fields(memory.Shape) if isinstance(field.default, bool | int | str)
    }
    return {
        "memory": memory_constants(),
        "models": [model_data(preset) for preset in presets.load().values()],
        "gpus": [
            {"id": gpu.id, "name": gpu.name.removeprefix("NVIDIA "), "memory": gpu.figures["memory"].value}
            for gpu in datasheet.load().values()
        ],
        "first": {"model": MODEL, "gpu": reference_gpu.sheet().id},
        "setup": asdict(SETUP),
        "setup_defaults": asdict(memory.Setup()),
        "shape_defaults": defaults,
        "shape_labels": SHAPE_LABELS,
        "part_names": PART_NAMES,
    }


def limit_data() -> dict[str, Any]:
    """Return GPUs with their ceilings, models, constants and first values."""
    return {
        "memory": memory_constants(),
        "limits": limit_constants(),
        "models": [model_data(preset) for preset in presets.load().values()],
        "machines": [machine_data(machines.machine(gpu)) for gpu in datasheet.load()],
        "first": {"operation": "matmul", "gpu": reference_gpu.sheet().id},
        "operations": OPERATIONS,
        "fields": {name: list(values) for name, values in EXAMPLES.items()},
        "examples": EXAMPLES,
        "labels": LABELS,
        "channels": CHANNELS,
    }


def memory_constants() -> dict[str, Any]:
    """Return the constants of the cost model of memory, so that they stand in one place."""
    return {
        "element_size": memory.ELEMENT_SIZE,
        "state_copies": memory.STATE_COPIES,
        "workspace": memory.LIBRARY_WORKSPACE,
        "safe_share": memory.SAFE_SHARE,
        "largest": memory.LARGEST,
        "parts": memory.PARTS,
        "purposes": memory.PURPOSES,
        "training_precisions": memory.TRAINING_PRECISIONS,
        "weight_formats": memory.WEIGHT_FORMATS,
        "optimizers": memory.OPTIMIZERS,
        "caches": memory.CACHE_FORMATS,
        "biases": memory.BIASES,
    }


def limit_constants() -> dict[str, Any]:
    """Return the constants of the cost model of limits."""
    return {
        "element_size": limits.ELEMENT_SIZE,
        "stored": memory.ELEMENT_SIZE,
        "formats": list(FORMATS),
        "weights": limits.WEIGHTS,
        "caches": limits.CACHES,
        "places": limits.PLACES,
        "largest": limits.LARGEST,
    }


def model_data(preset: presets.Preset) -> dict[str, Any]:
    """Return a model for the scripts."""
    return {"id": preset.id, "name": preset.name, "family": preset.family, "shape": asdict(preset.shape)}


def machine_data(machine: Machine) -> dict[str, Any]:
    """Return a GPU's ceilings for the scripts."""

    def ceiling(found: Ceiling) -> dict[str, Any]:
        return {"value": found.value, "origin": found.origin}

    return {
        "id": machine.id,
        "name": machine.name.removeprefix("NVIDIA "),
        "arithmetic": {name: ceiling(found) for name, found in machine.arithmetic.items()},
        "bandwidth": {name: ceiling(found) for name, found in machine.bandwidth.items()},
        "launch": ceiling(machine.launch) if machine.launch else None,
        "link_name": machine.link_name,
    }


def gib(size: float) -> str:
    """Write bytes in GiB."""
    return f"{significant(size / 2**30)} GiB"


def python_call(text: str) -> nodes.literal_block:
    """Return code to copy."""
    return nodes.literal_block(text, text, language="python")
