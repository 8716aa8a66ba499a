"""The roles ``gpu``, ``holds``, ``record`` and ``claim``: words that records and the ledger decide.

``gpu`` is what the reference GPU is called, ``holds`` a comparison with the predicate that makes it true, ``record`` a
link to a record of the reference GPU, and ``claim`` one to a claim of the ledger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import SphinxError
from sphinx.util.docutils import ReferenceRole, SphinxRole

from gpuguide import claims
from gpuguide.claims import assertion
from gpuguide.errors import GpuguideError, unknown
from gpuguide.measure import folders, reference_gpu, store
from gpuguide.site.execution import faults, watching

if TYPE_CHECKING:
    from docutils.nodes import Node, system_message
    from sphinx.application import Sphinx


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_role("gpu", GpuWord())
    app.add_role("holds", Holds())
    app.add_role("record", RecordLink())
    app.add_role("claim", ClaimLink())
    app.connect("builder-inited", check_reference)


def check_reference(app: Sphinx) -> None:
    """Stop the build if the reference GPU has no records although others have."""
    if any(folders.published_folder().glob("*/*.json")):
        try:
            reference_gpu.check_records()
        except GpuguideError as error:
            raise SphinxError(str(error)) from error


class GpuWord(SphinxRole):
    """``{gpu}`short```: what the reference GPU is called; the forms are those of :func:`reference_gpu.word`."""

    def run(self) -> tuple[list[Node], list[system_message]]:
        """Return the word."""
        watching.note_reference(self.env)
        with faults.report_errors(self.get_location()):
            return [nodes.Text(reference_gpu.word(self.text.strip()))], []
        return [nodes.literal(self.text, self.text)], []


class Holds(SphinxRole):
    """``{holds}`faster than the copy | ratio("…").p25 > 1```: the words, if the records say so."""

    def run(self) -> tuple[list[Node], list[system_message]]:
        """Return the words, and read the page again when a record changes that they rest on."""
        words = self.text
        with faults.report_errors(self.get_location()):
            found = assertion.read(self.text)
            words = found.words
            for reading in assertion.check(found):
                watching.note_record(self.env, reading.record)
        return [nodes.Text(words)], []


class RecordLink(ReferenceRole):
    """``{record}`the benchmark ceilings <ceilings>```: a link to the record of the reference GPU."""

    def run(self) -> tuple[list[Node], list[system_message]]:
        """Return the link."""
        watching.note_reference(self.env)
        with faults.report_errors(self.get_location()):
            try:
                record = store.load_published(self.target)
            except GpuguideError as error:
                raise GpuguideError(f"{{record}}`{self.text}`: {error}") from error
            return [link(self, f"record-{record.device}-{record.benchmark}")], []
        return [nodes.literal(self.text, self.text)], []


class ClaimLink(ReferenceRole):
    """``{claim}`a busy GPU <gpu-util-95-saturated>```: a link to a claim, where all of them are listed."""

    def run(self) -> tuple[list[Node], list[system_message]]:
        """Return the link."""
        watching.note_folder(self.env, claims.LEDGER.parent)
        with faults.report_errors(self.get_location()):
            known = {claim.id for claim in claims.load()}
            if self.target not in known:
                raise unknown("claim", self.target, known)
            return [link(self, f"claim-{self.target}")], []
        return [nodes.literal(self.text, self.text)], []


def link(role: ReferenceRole, label: str) -> addnodes.pending_xref:
    """Return a link to something that has a label, with the words of the role."""
    return addnodes.pending_xref(
        "",
        nodes.inline("", role.title, classes=["std", "std-ref"]),
        refdomain="std",
        reftype="ref",
        reftarget=label,
        refdoc=role.env.docname,
        refexplicit=True,
        refwarn=True,
    )
