"""The roles ``measured``, ``ratio``, ``ceiling``, ``datasheet`` and ``given``: numbers in prose, and their origin.

The first three are read from records each time the site is built, the fourth from the table of GPUs. The last one marks
what was chosen or assumed; it shows its text, and tells the lint that nobody measured it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxRole

from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware import datasheet
from gpuguide.measure import citation, folders, measured_ceilings, reference_gpu
from gpuguide.measure.citation import CitedMeasurement, CitedRatio
from gpuguide.site.directives import hardware_table
from gpuguide.site.execution import faults, watching
from gpuguide.units import format_bytes, format_quantity, significant

if TYPE_CHECKING:
    from docutils.nodes import Node, system_message
    from sphinx.application import Sphinx


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_role("measured", MeasuredRole())
    app.add_role("ratio", RatioOf())
    app.add_role("ceiling", CeilingOf())
    app.add_role("datasheet", DatasheetRole())
    app.add_role("given", Given())
    app.add_node(number, override=True)
    app.connect("doctree-resolved", link_numbers)


class number(nodes.inline):
    """A number: ``provenance`` says where it comes from, ``target`` is the label of its record or of its GPU.

    ``stamp`` stays on what replaces it: the GPU and its software.
    """


def link_numbers(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Make each number a link to its record or to its GPU's figures, where the site lists them."""
    labels = app.env.domains.standard_domain.anonlabels
    for node in list(doctree.findall(number)):
        shown: nodes.Element
        if node["target"] in labels:
            page, anchor = labels[node["target"]][:2]
            uri = f"{app.builder.get_relative_uri(docname, page)}#{anchor}"
            shown = nodes.reference("", "", *node.children, refuri=uri, reftitle=node["provenance"], internal=True)
        else:
            shown = nodes.abbreviation("", "", *node.children, explanation=node["provenance"])
        shown["classes"].append("gg-number")
        if "stamp" in node:  # a datasheet's figure has none
            shown["stamp"] = node["stamp"]
        node.replace_self(shown)


def stamps(doctree: nodes.document) -> list[str]:
    """Return the GPUs and software behind the numbers of a page that is ready to be written, each once."""
    return list(dict.fromkeys(node["stamp"] for node in doctree.findall(nodes.Element) if "stamp" in node))


class _Reference(SphinxRole):
    """What both roles share: look the number up, show it, and say where it comes from."""

    def look_up(self) -> CitedMeasurement | CitedRatio:
        raise NotImplementedError

    def run(self) -> tuple[list[Node], list[system_message]]:
        found: CitedMeasurement | CitedRatio | None = None
        with faults.report_errors(self.get_location()):
            try:
                found = self.look_up()
            except GpuguideError as error:
                raise GpuguideError(f"{{{self.name}}}`{self.text}`: {error}") from error
        if found is None:
            return [nodes.literal(self.text, self.text)], []
        watching.note_record(self.env, found.record)
        label = f"record-{found.record.device}-{found.record.benchmark}"
        shown = number("", found.text, provenance=provenance(found), target=label, stamp=found.run.stamp())
        if found.record.stale:
            shown += nodes.inline("", "stale", classes=["gg-stale"])
        return [shown], []


class MeasuredRole(_Reference):
    """``{measured}`copy-size/copy:bandwidth working_set=65536```: the median of one case."""

    def look_up(self) -> CitedMeasurement:
        """Return the one case that the role's text names."""
        return citation.quotable(citation.measurement(self.text))


class RatioOf(_Reference):
    """``{ratio}`timing-mistakes/zeros/right:throughput```: one contender over another, from paired samples."""

    def look_up(self) -> CitedRatio:
        """Return the ratio that the role's text names."""
        return citation.quotable(citation.ratio(self.text))


class CeilingOf(SphinxRole):
    """``{ceiling}`read```: the most that our records of the GPU that prose speaks of hold, or else its data sheet says.

    ``copy``, ``read``, ``host``, ``link``; ``bf16`` and other formats, ``bf16 sustained``; ``launch``; ``capacity``.
    """

    def run(self) -> tuple[list[Node], list[system_message]]:
        """Return the value with its unit; it names its measurement to those who point, and leads to the record."""
        watching.note_reference(self.env)
        watching.note_folder(self.env, folders.published_folder())
        with faults.report_errors(self.get_location()):
            try:
                found, unit = measured_ceilings.find_quoted_ceiling(self.text.strip())
            except GpuguideError as error:
                raise GpuguideError(f"{{ceiling}}`{self.text}`: {error}") from error
            text = format_bytes(found.value) if unit == "B" else format_quantity(found.value, unit)
            if not found.reference:
                words = f"From the data sheet of {reference_gpu.name()}"
                return [number("", text, provenance=words, target=hardware_table.anchor(reference_gpu.sheet()))], []
            measured = citation.measurement(found.reference)
            label = f"record-{measured.record.device}-{measured.record.benchmark}"
            words = f"The best of our records, {found.reference}; {measured.stamp}"
            return [number("", text, provenance=words, target=label, stamp=measured.run.stamp())], []
        return [nodes.literal(self.text, self.text)], []


class DatasheetRole(SphinxRole):
    """``{datasheet}`h100-sxm memory_bandwidth```: one figure of the table of GPUs.

    ``reference`` in place of an id is the GPU that prose speaks of.
    """

    def run(self) -> tuple[list[Node], list[system_message]]:
        """Return the figure with its unit; it names its document to those who point, and leads to its GPU's figures."""
        watching.note_reference(self.env)
        with faults.report_errors(self.get_location()):
            name, _, key = self.text.strip().partition(" ")
            gpu = reference_gpu.sheet(name)
            if key not in gpu.figures:
                raise unknown(f"datasheet figure of {name}", key, gpu.figures)
            figure, document = gpu.figures[key], datasheet.sources()[gpu.figures[key].source]
            text = f"From a data sheet: {document.title}, {document.publisher} ({document.verification})"
            return [
                number(
                    "", hardware_table.format_figure(key, figure), provenance=text, target=hardware_table.anchor(gpu)
                )
            ], []
        return [nodes.literal(self.text, self.text)], []


class Given(SphinxRole):
    """``{given}`40 µs```: a quantity that is chosen or assumed, and that nobody measured."""

    def run(self) -> tuple[list[Node], list[system_message]]:
        """Return the text."""
        return [nodes.Text(self.text)], []


def provenance(found: CitedMeasurement | CitedRatio) -> str:
    """Return what a reader sees when pointing at a number: spread, count, GPU, software, date."""
    s = found.summary
    spread = ""
    if s.p25 is not None and s.p75 is not None:
        low, high = _text(s.p25, found), _text(s.p75, found)
        spread = f"; half of the samples lie between {low} and {high}"
    unpaired = found.unpaired if isinstance(found, CitedRatio) else ""
    pairs = f"; samples are paired in their order, because {unpaired}" if unpaired else ""
    stale = "; stale: the code that measured this has changed since" if found.record.stale else ""
    return f"Median of {s.n} sample{'s' * (s.n > 1)}{spread}{pairs}; {found.stamp}{stale}"


def _text(value: float, found: CitedMeasurement | CitedRatio) -> str:
    if isinstance(found, CitedMeasurement):
        return format_quantity(value, found.metric.unit)
    return significant(value)
