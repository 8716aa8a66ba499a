"""The directive ``claims``: the rows of the ledger that a page settles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from gpuguide.claims import ledger
from gpuguide.errors import unknown
from gpuguide.measure import digest, store
from gpuguide.site import faults, folds, watching

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx

VERDICTS = {
    "true": "True",
    "conditional": "True on a condition",
    "misleading": "Misleading",
    "false": "False",
    "outdated": "Outdated",
}


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("claims", Claims)


class Claims(SphinxDirective):
    """``{claims} NAME``: all claims that the page NAME settles, or all of a topic of that name."""

    required_arguments = 1

    def run(self) -> list[Node]:
        """Return one block a claim: what one hears, the verdict, what is right, how we know."""
        for file in ledger.files():
            self.env.note_dependency(str(file))
        blocks: list[Node] = []
        with faults.reporting(self.get_location()), watching.site_reads():
            for claim in chosen(self.arguments[0]):
                blocks.append(self.block(claim))
        return blocks

    def block(self, claim: ledger.Claim) -> nodes.container:
        """Return one claim."""
        for function in claim.functions:
            self.env.note_dependency(str(digest.module_path(function.rpartition(".")[0])))
        for name in claim.benchmarks:
            watching.note_record(self.env, store.published(name))
        verdict = nodes.inline("", VERDICTS[claim.verdict], classes=["gg-verdict", f"gg-verdict-{claim.verdict}"])
        heard = nodes.paragraph("", "", nodes.Text(f"“{claim.claim}” "), verdict, classes=["gg-heard"])
        block = nodes.container("", heard, classes=["gg-claim"], ids=[f"claim-{claim.id}"])
        block += self.parse_text_to_nodes(ledger.right(claim))
        known = self.parse_text_to_nodes(ledger.how_we_know(claim))
        block += folds.fold("", *known, summary="How we know", classes=["gg-how"])
        return block


def chosen(name: str) -> list[ledger.Claim]:
    """Return the claims of a page or a topic, or raise if there is neither."""
    claims = ledger.load()
    found = [claim for claim in claims if name in (claim.taught, claim.topic)]
    if not found:
        names = {name for claim in claims for name in (claim.taught, claim.topic)}
        raise unknown("page or topic with claims", name, names)
    return found
