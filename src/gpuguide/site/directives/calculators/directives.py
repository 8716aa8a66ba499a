"""The directives of the calculators, such as ``will-it-fit``: a calculator, its data, and a worked example.

A calculator is a script that computes the formulas of a cost model of the library, which the library exports into the
page together with its data. Without scripts the example stands in its place, computed here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gpuguide.costs import failures, limits, memory, presets, published, transfers
from gpuguide.hardware import capacities, links
from gpuguide.measure import digest, folders, measured_ceilings, reference_gpu
from gpuguide.site.directives.calculators import step_drawing
from gpuguide.site.directives.calculators.data import (
    EXAMPLES,
    MODEL,
    SETUP,
    fit_data,
    lever_data,
    limit_data,
    move_data,
    save_data,
    short,
)
from gpuguide.site.directives.hardware_table import cite, note_datasheet
from gpuguide.site.execution import faults, watching
from gpuguide.site.pages.tables import Cell, table
from gpuguide.units import format_bytes, format_quantity

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx

SCRIPTS = {
    "will-it-fit": ("formulas.js", "memory.js", "calculator.js", "memory-over-step.js", "will-it-fit.js"),
    "memory-levers": ("formulas.js", "memory.js", "calculator.js", "memory-over-step.js", "memory-levers.js"),
    "what-is-the-limit": ("formulas.js", "limits.js", "calculator.js", "what-is-the-limit.js"),
    "how-long-to-move": ("formulas.js", "transfers.js", "calculator.js", "how-long-to-move.js"),
    "how-often-to-save": ("formulas.js", "failures.js", "calculator.js", "how-often-to-save.js"),
}
"""Scripts of each calculator, in the order in which they build on each other"""
DATA_FILES = (
    "gpuguide.costs.presets",
    "gpuguide.costs.limits",
    "gpuguide.costs.transfers",
    "gpuguide.costs.failures",
    "gpuguide.costs.memory.model",
    "gpuguide.hardware.capacities",
    "gpuguide.hardware.links",
)
"""Modules whose formulas or figures stand in a TOML file of the same name"""

WAYS_TO_SAVE = failures.FIELDS["saving"].words or {}
MINUTE, DAY = 60, 86_400


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("will-it-fit", WillItFit)
    app.add_directive("memory-levers", MemoryLevers)
    app.add_directive("fit-question", FitQuestion)
    app.add_directive("what-is-the-limit", WhatIsTheLimit)
    app.add_directive("how-long-to-move", HowLongToMove)
    app.add_directive("how-often-to-save", HowOftenToSave)
    app.add_directive("links", LinkRates)
    app.add_directive("model-shapes", ModelShapes)
    app.add_directive("capacities", Capacities)
    app.add_directive("published-memory", PublishedMemory)
    app.connect("html-page-context", add_scripts)


def add_scripts(app: Sphinx, docname: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Load a calculator's scripts on the pages that have one, and on no other."""
    used = app.env.metadata.get(docname, {}).get("gpuguide_calculators", "")
    for script in dict.fromkeys(name for calculator in used.split() for name in SCRIPTS[calculator]):
        app.add_js_file(script, loading_method="defer")


class _Calculator(SphinxDirective):
    """What the calculators share: the example, and the place that a script fills."""

    name_of_calculator: str

    def run(self) -> list[Node]:
        """Return the example and the calculator's place with its data."""
        note_datasheet(self)
        for module in DATA_FILES:
            self.env.note_dependency(str(digest.module_path(module)))
            self.env.note_dependency(str(digest.module_path(module).with_suffix(".toml")))
        watching.note_folder(self.env, folders.published_folder())
        used = self.env.metadata[self.env.docname].get("gpuguide_calculators", "")
        self.env.metadata[self.env.docname]["gpuguide_calculators"] = f"{used} {self.name_of_calculator}".strip()
        with faults.report_errors(self.get_location()):
            example = nodes.container("", *self.example(), classes=["gg-worked"])
            data = json.dumps(self.data(), ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
        name = self.name_of_calculator
        place = (
            f'<div class="gg-calculator pst-js-only" id="gg-{name}"></div>'
            f'<script type="application/json" id="gg-{name}-data">{data}</script>'
        )
        return [example, nodes.raw("", place, format="html", gg_site_only=True)]

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
        preset, gpu = presets.get(MODEL), measured_ceilings.load(reference_gpu.sheet().id)
        prediction = memory.predict(preset.shape, SETUP)
        total = prediction.total
        words = {"fits": "fits", "tight": "is tight", "too large": "does not fit"}[memory.judge(total, gpu.capacity)]
        lead = nodes.paragraph(
            "",
            f"The calculator needs JavaScript; here is an example: to train all weights of {preset.name} in mixed "
            f"precision, one sequence of {SETUP.seq_len} tokens at a time, takes {format_bytes(total)}. "
            f"On {gpu.name}, whose driver reports {format_bytes(gpu.capacity)}, it {words}.",
        )
        drawing = step_drawing.figure(prediction, gpu.capacity, short(gpu.name))
        highest = prediction.highest
        names = memory.PART_NAMES
        rows = [[names[part], format_bytes(size)] for part, size in highest.parts.items() if size]
        shown = table([f"at the highest moment ({highest.name})", "memory"], [*rows, ["in all", format_bytes(total)]])
        return [
            lead,
            nodes.raw("", drawing, format="html"),
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


class MemoryLevers(_Calculator):
    """``{memory-levers}``: memory over one step, with each way to save memory as a switch."""

    name_of_calculator = "memory-levers"

    def example(self) -> list[Node]:
        """Return the drawing of the first example; notebooks have its sentence alone."""
        label, (model, setup) = next(iter(EXAMPLES.items()))
        gpu = measured_ceilings.load(reference_gpu.sheet().id)
        prediction = memory.predict(presets.shape(model), memory.Setup(**setup))
        drawing = step_drawing.figure(prediction, gpu.capacity, short(gpu.name))
        peak = f"{format_bytes(prediction.total)} in {step_drawing.MOMENT_WORDS[prediction.highest.name]}"
        sentence = f"The switches need the site and JavaScript. The first example, {label}, reaches its peak of {peak}."
        return [nodes.paragraph("", sentence), nodes.raw("", drawing, format="html", gg_site_only=True)]

    def data(self) -> dict[str, Any]:
        """Return what the script needs to know."""
        return lever_data()


class FitQuestion(SphinxDirective):
    """``{fit-question} PAGE``: the calculator's question in three choices, answered there."""

    required_arguments = 1
    CHOICES = ("train", "generate")

    def run(self) -> list[Node]:
        """Return a form whose fields are those of the calculator's address."""
        note_datasheet(self)
        for module in DATA_FILES:
            self.env.note_dependency(str(digest.module_path(module).with_suffix(".toml")))
        with faults.report_errors(self.get_location()):
            known = fit_data()
        purpose = next(field for field in known["memory"]["setup"] if field["name"] == "purpose")
        first = {**known["first"], "purpose": self.CHOICES[0]}
        choices = {
            "model": ("Model", [(model["id"], model["name"]) for model in known["models"]]),
            "gpu": ("GPU", [(gpu["id"], f"{gpu['name']}, {format_bytes(gpu['memory'])}") for gpu in known["gpus"]]),
            "purpose": ("Purpose", [(name, purpose["words"][name]) for name in self.CHOICES]),
        }
        fields = "".join(_select(name, label, options, first[name]) for name, (label, options) in choices.items())
        page = self.env.app.builder.get_relative_uri(self.env.docname, self.arguments[0])
        form = f'<form class="gg-fit-question" action="{escape(page)}" method="get">{fields}'
        return [nodes.raw("", f'{form}<button type="submit">Does it fit?</button></form>', format="html")]


def _select(name: str, label: str, options: Sequence[tuple[str, str]], chosen: str) -> str:
    items = "".join(
        f'<option value="{escape(value)}"{" selected" * (value == chosen)}>{escape(text)}</option>'
        for value, text in options
    )
    return f'<label>{escape(label)} <select name="{name}">{items}</select></label>'


class WhatIsTheLimit(_Calculator):
    """``{what-is-the-limit}``: the calculator of an operation's time at a GPU's ceilings."""

    name_of_calculator = "what-is-the-limit"

    def example(self) -> list[Node]:
        """Return the limit of one operation as a table, and the call that computes it."""
        values = limits.OPERATIONS["matmul"]["first"]
        machine = measured_ceilings.load(reference_gpu.sheet().id)
        found = limits.limit(limits.matmul(**values), machine)
        size = values["rows"]
        lead = nodes.paragraph(
            "",
            f"The calculator needs JavaScript; here is an example: the product of two {size} × {size} matrices in "
            f"{values['format']} takes {format_quantity(found.time, 's')} at the ceilings of {machine.name}, bound by "
            f"{found.bound}.",
        )
        rows = [
            ["operations", format_quantity(found.operation.flops, "FLOP")],
            ["bytes that move", format_bytes(found.operation.moved)],
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
                "from gpuguide.costs import limits\nfrom gpuguide.measure import measured_ceilings\n\n"
                f"operation = limits.matmul({words})\n"
                f'limits.limit(operation, measured_ceilings.load("{machine.id}")).time'
            ),
        ]

    def data(self) -> dict[str, Any]:
        """Return what the script needs to know."""
        return limit_data()


class HowLongToMove(_Calculator):
    """``{how-long-to-move}``: the calculator of a transfer's time over a link."""

    name_of_calculator = "how-long-to-move"

    def example(self) -> list[Node]:
        """Return the time to move a model's weights over each link as a table, and the call that computes it."""
        preset = presets.get(MODEL)
        what = transfers.model_weights(preset.shape)
        lead = nodes.paragraph(
            "",
            f"The calculator needs JavaScript; here is an example: the weights of {preset.name} in 16 bits are "
            f"{format_bytes(what.moved)}. At the full rate of each link, in one direction, they take at least:",
        )
        rows = [
            [
                link.name,
                format_quantity(link.per_direction.value, "B/s"),
                format_quantity(transfers.time_to_move(what, link), "s"),
            ]
            for link in links.load().values()
        ]
        return [
            lead,
            table(["link", "rate, one way", "time"], rows),
            python_call(
                "from gpuguide.costs import presets\n"
                "from gpuguide.interconnect import model_weights, time_to_move\n\n"
                f'what = model_weights(presets.shape("{MODEL}"), weights="bf16")\n'
                'time_to_move(what, "pcie-5-x16")'
            ),
        ]

    def data(self) -> dict[str, Any]:
        """Return what the script needs to know."""
        return move_data()


class HowOftenToSave(_Calculator):
    """``{how-often-to-save}``: the calculator of the interval between checkpoints."""

    name_of_calculator = "how-often-to-save"

    def example(self) -> list[Node]:
        """Return what a large model loses with each way to save as a table, and the call that computes it."""
        first = failures.FIRST
        plans = {words: failures.plan_saves(**{**first, "saving": way}) for way, words in WAYS_TO_SAVE.items()}
        mean = next(iter(plans.values())).mean_time_between_failures
        lead = nodes.paragraph(
            "",
            f"The calculator needs JavaScript; here is an example: {first['failures']} of 1,000 GPUs fail in a year. A "
            f"job on {first['gpus']} of them fails every {mean / DAY:.1f} days, and restarts in "
            f"{first['restart'] / MINUTE:.0f} minutes. It saves {first['state']} GB, written at {first['rate']} GB/s.",
        )
        rows = [
            [
                words,
                f"{plan.interval / MINUTE:.0f} min",
                f"{plan.saves:.1%}",
                f"{plan.repeated:.1%}",
                f"{plan.lost:.1%}",
            ]
            for words, plan in plans.items()
        ]
        words = ", ".join(f"{name}={value!r}" for name, value in first.items())
        return [
            lead,
            table(["training waits", "save every", "lost to saves", "lost to failures", "lost in all"], rows),
            python_call(f"from gpuguide.costs import failures\n\nfailures.plan_saves({words}).interval"),
        ]

    def data(self) -> dict[str, Any]:
        """Return what the script needs to know."""
        return save_data()


class LinkRates(SphinxDirective):
    """``{links}``: what each link carries on the wire, after coding and for data, and where that stands."""

    def run(self) -> list[Node]:
        """Return a table, and the sources below it."""
        self.env.note_dependency(str(digest.module_path("gpuguide.hardware.links").with_suffix(".toml")))
        numbers = {key: number for number, key in enumerate(links.sources(), start=1)}
        rows: list[list[Cell]] = []
        for link in links.load().values():
            rates = [link.raw, link.per_direction.value, link.per_lane, link.payload]
            total = link.printed_total.value if link.printed_total else None
            shown = [format_quantity(rate, "B/s") if rate else "–" for rate in (*rates, total)]
            found = (link.signalling, link.coding, link.per_direction, link.per_link, link.protocol, link.printed_total)
            cited_here = dict.fromkeys(f"[{numbers[figure.source]}]" for figure in found if figure)
            rows.append([link.name, *shown, " ".join(cited_here)])
        header = [
            "link",
            "on the wire",
            "after coding",
            "of one lane",
            "for data",
            "printed, both ways",
            "source",
        ]
        listed = nodes.enumerated_list(enumtype="arabic")
        for source in links.sources().values():
            listed += nodes.list_item("", cite(source))
        return [table(header, rows, classes=["gg-datasheet"]), listed]


class Capacities(SphinxDirective):
    """``{capacities}``: the published reports from which memory was taken."""

    def run(self) -> list[Node]:
        """Return a list: the source, and what it says of which card."""
        self.env.note_dependency(str(digest.module_path("gpuguide.hardware.capacities").with_suffix(".toml")))
        listed = nodes.bullet_list()
        for card in capacities.load_capacities().values():
            name = card.name or measured_ceilings.load(card.id).name
            note = f"; {card.note}" if card.note else ""
            what = nodes.paragraph("", f"{name}: {format_bytes(card.bytes)}{note}. ")
            what += cite(card.source).children
            listed += nodes.list_item("", what)
        return [listed]


class PublishedMemory(SphinxDirective):
    """``{published-memory}``: what others measured, beside the prediction."""

    def run(self) -> list[Node]:
        """Return a table, and the sources below it."""
        for module in ("gpuguide.costs.presets", "gpuguide.costs.memory.model"):
            self.env.note_dependency(str(digest.module_path(module).with_suffix(".toml")))
        self.env.note_dependency(str(digest.module_path("gpuguide.costs.memory.model").with_name(published.PUBLISHED)))
        sources = {case.source.key: case.source for case in published.cases()}
        numbers = {key: number for number, key in enumerate(sources, start=1)}
        rows: list[list[Cell]] = []
        for case in published.cases():
            remarks = "; ".join(
                text
                for text in (
                    case.differs and f"not comparable: {case.differs}",
                    case.assumed and f"assumed: {case.assumed}",
                )
                if text
            )
            sizes = [format_bytes(case.measured), format_bytes(case.predicted_bytes), percent(case.error)]
            rows.append([case.name, *sizes, remarks, f"[{numbers[case.source.key]}]"])
        listed = nodes.enumerated_list(enumtype="arabic")
        for source in sources.values():
            listed += nodes.list_item("", cite(source))
        header = ["case", "published", "predicted", "error", "remark", "source"]
        return [table(header, rows, classes=["gg-published"]), listed]


class ModelShapes(SphinxDirective):
    """``{model-shapes}``: the models that the calculators know, and where their shapes were read."""

    def run(self) -> list[Node]:
        """Return a table, and the sources below it."""
        self.env.note_dependency(str(digest.module_path("gpuguide.costs.presets").with_suffix(".toml")))
        numbers = {key: number for number, key in enumerate(presets.sources(), start=1)}
        rows: list[list[Cell]] = []
        for preset in presets.load().values():
            shape = preset.shape
            name: nodes.Element = nodes.reference("", preset.name, refuri=preset.config)
            if shape.experts > 1:
                name = nodes.inline("", "", name, nodes.Text(f", {shape.experts_used} of {shape.experts} experts"))
            heads = str(shape.heads) if shape.heads == shape.kv_heads else f"{shape.heads}, {shape.kv_heads} of keys"
            sizes = [f"{preset.parameters:,}".replace(",", "\u202f"), str(shape.layers), str(shape.hidden), heads]
            rows.append([name, *sizes, str(shape.context), f"[{numbers[preset.source]}]"])
        header = ["model", "parameters", "layers", "hidden", "heads", "context", "source"]
        listed = nodes.enumerated_list(enumtype="arabic")
        for source in presets.sources().values():
            listed += nodes.list_item("", cite(source))
        return [table(header, rows, classes=["gg-datasheet"]), listed]


def percent(error: float) -> str:
    """Write a share with its sign, as whole percent."""
    return f"{round(100 * error):+d}%".replace("-", "−").replace("+0", "0")


def python_call(text: str) -> nodes.literal_block:
    """Return code to copy."""
    return nodes.literal_block(text, text, language="python")
