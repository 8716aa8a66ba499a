"""The directives ``claims`` and ``all-claims``: the rows of the ledger that a page settles, and all rows by topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from docutils import nodes
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

from gpuguide import claims as ledger
from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware.sources import NOT_VERIFIED
from gpuguide.measure import digest, store
from gpuguide.measure.digest import remembered
from gpuguide.site.execution import faults, watching
from gpuguide.site.pages import folds
from gpuguide.site.pages.tables import Cell, table

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx
    from sphinx.domains.std import StandardDomain

VERDICTS = {
    "true": "True",
    "conditional": "True on a condition",
    "misleading": "Misleading",
    "false": "False",
    "outdated": "Outdated",
}
MEANINGS = {
    "true": "It holds as it is said.",
    "conditional": "It holds where the condition is met that stands with it.",
    "misleading": "It is right in a part, and leads to a wrong conclusion.",
    "false": "It does not hold.",
    "outdated": "It held for earlier hardware or software.",
}
CLAIMS_PAGE = "docs/claims"


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("claims", Claims)
    app.add_directive("all-claims", AllClaims)
    app.add_node(whole_code, html=(open_code, close_code))
    app.add_js_file("unfold.js", defer="defer")


class whole_code(nodes.General, nodes.Inline, nodes.TextElement):
    """Code in a sentence, written as one piece: Sphinx marks up every word, which is a quarter of the claims page."""


def open_code(translator: Any, node: whole_code) -> None:
    """Write the beginning of the code."""
    translator.body.append('<code class="literal">')


def close_code(translator: Any, node: whole_code) -> None:
    """Write the end of the code."""
    translator.body.append("</code>")


class _Ledger(SphinxDirective):
    """What both directives share: the blocks of claims."""

    def blocks(self, claims: Iterable[ledger.Claim]) -> list[nodes.container]:
        """Return one block a claim, and report those that cannot be worded with the place where they stand."""
        found: list[nodes.container] = []
        for claim in claims:
            with faults.reporting(self.get_location()):
                try:
                    found.append(self.block(claim))
                except GpuguideError as error:
                    raise GpuguideError(
                        f"The claim {claim.id!r} ({claim.place}) cannot be worded: {error} "
                        "Correct the row, or measure again what it reads."
                    ) from error
        return found

    def block(self, claim: ledger.Claim) -> nodes.container:
        """Return what one hears, the verdict, what is right and how we know."""
        for function in claim.functions:
            for path in digest.files_reached(function):
                self.env.note_dependency(str(path))
        watching.note_reference(self.env)
        for name in claim.benchmarks:
            watching.note_record(self.env, store.published(name))
        heard = nodes.paragraph("", "", nodes.Text(f"“{claim.claim}” "), verdict(claim.verdict), classes=["gg-heard"])
        if ledger.unread(claim):
            heard += [nodes.Text(" "), nodes.emphasis("", f"source {NOT_VERIFIED}")]
        block = nodes.container("", heard, classes=["gg-claim"], ids=[f"claim-{claim.id}"])
        block += self.parse_text_to_nodes(worded(ledger.right, claim))
        known = self.parse_text_to_nodes(worded(ledger.how_we_know, claim))
        block += folds.fold("", *known, summary="How we know", classes=["gg-how"])
        return block

    def page(self, docname: str, title: str = "") -> nodes.Node:
        """Return a link to a page, with its own title unless one is given; the name alone where there is none."""
        if docname not in self.env.found_docs:
            return nodes.literal("", docname)
        return addnodes.pending_xref(
            "",
            nodes.inline("", title, classes=["std", "std-doc"]),
            refdomain="std",
            reftype="doc",
            reftarget=f"/{docname}",
            refdoc=self.env.docname,
            refexplicit=bool(title),
            refwarn=True,
        )

    def note_ledger(self) -> None:
        """Read the page again when any file of the ledger changes, or a new one appears."""
        watching.note_folder(self.env, ledger.LEDGER.parent)


def worded(words: Callable[[ledger.Claim], str], claim: ledger.Claim) -> str:
    """Return what is said of a claim; what only the library's source decides is remembered between builds.

    Such claims call functions of topics, whose imports take longer than all else that a changed word asks for.
    """
    if claim.lookups:
        return words(claim)
    return str(remembered.answer(f"{words.__name__} {claim}", lambda: words(claim)))


class Claims(_Ledger):
    """``{claims} NAME``: all claims that the page NAME settles, or all of a topic of that name."""

    required_arguments = 1

    def run(self) -> list[Node]:
        """Return the claims, and after them the way to all others."""
        self.note_ledger()
        claims: list[ledger.Claim] = []
        with faults.reporting(self.get_location()):
            claims = chosen(self.arguments[0])
        shown: list[Node] = [*self.blocks(claims)]
        if claims and CLAIMS_PAGE in self.env.found_docs:
            text = nodes.Text("What else one hears, on other topics, and what is right: ")
            shown.append(nodes.paragraph("", "", text, self.page(CLAIMS_PAGE), classes=["gg-more"]))
        return shown


class AllClaims(_Ledger):
    """``{all-claims}``: how many claims got which verdict, and then a section a topic with its claims folded."""

    def run(self) -> list[Node]:
        """Return a table of verdicts, and the sections."""
        self.note_ledger()
        claims: list[ledger.Claim] = []
        with faults.reporting(self.get_location()):
            claims = ledger.load()
        titles = ledger.topics() if claims else {}
        sections = (self.topic(name, titles[name], own) for name, own in ledger.by_topic(claims).items())
        return [*overview(claims), *sections]

    def block(self, claim: ledger.Claim) -> nodes.container:
        """Return the claim with its own address, and where it is taught."""
        block = super().block(claim)
        domain = cast("StandardDomain", self.env.get_domain("std"))
        domain.note_hyperlink_target(block["ids"][0], self.env.docname, block["ids"][0], claim.claim)
        address = nodes.reference("", "#", refid=block["ids"][0], reftitle="Link to this claim", classes=["headerlink"])
        block[0] += address
        for code in list(block.findall(nodes.literal)):
            code.replace_self(whole_code("", code.astext()))
        if claim.taught:
            block += nodes.paragraph("", "", nodes.Text("Settled in "), self.page(f"tutorials/{claim.taught}"))
        return block

    def topic(self, name: str, title: str, claims: list[ledger.Claim]) -> nodes.section:
        """Return the section of one topic."""
        identifier = f"topic-{name}"
        domain = cast("StandardDomain", self.env.get_domain("std"))
        domain.note_hyperlink_target(identifier, self.env.docname, identifier, title)
        summary = f"{counted(len(claims), 'claim')}: {tally(claims)}"
        fold = folds.fold("", *self.blocks(claims), summary=summary, classes=["gg-fold", "gg-claims"])
        return nodes.section("", nodes.title("", title), fold, ids=[identifier], names=[identifier])


def chosen(name: str) -> list[ledger.Claim]:
    """Return the claims of a page or a topic, or raise if there is neither."""
    claims = ledger.load()
    found = [claim for claim in claims if name in (claim.taught, claim.topic)]
    if not found:
        names = {name for claim in claims for name in (claim.taught, claim.topic) if name}
        raise unknown("page or topic with claims", name, names)
    return found


def overview(claims: list[ledger.Claim]) -> list[Node]:
    """Return how many claims there are and how they are checked, and a table of the verdicts."""
    kinds = Counter(claim.kind for claim in claims)
    text = (
        f"{counted(len(claims), 'claim')}: {kinds['computed']} are checked by a computation, "
        f"{kinds['measured']} against our measurements, {kinds['cited']} rest on sources alone. "
    )
    verdicts = Counter(claim.verdict for claim in claims)
    rows: list[list[Cell]] = [[verdict(name), str(verdicts[name]), MEANINGS[name]] for name in VERDICTS]
    return [
        nodes.paragraph("", "", nodes.Text(text), *unread(claims)),
        table(["verdict", "claims", "it means"], rows),
    ]


def unread(claims: list[ledger.Claim]) -> list[Node]:
    """Return, as a sentence with a link to each, which claims name a source that nobody could look at."""
    found = [claim for claim in claims if ledger.unread(claim)]
    if not found:
        return [nodes.Text("Every source that is named was looked at.")]
    listed: list[Node] = [nodes.Text(f"{counted(len(found), 'claim')} with a source that is {NOT_VERIFIED}: ")]
    for number, claim in enumerate(found):
        listed += [nodes.Text(", ")] * (number > 0)
        listed.append(nodes.reference("", claim.id, refid=f"claim-{claim.id}"))
    return [*listed, nodes.Text(".")]


def verdict(name: str) -> nodes.inline:
    """Return a verdict as a mark."""
    return nodes.inline("", VERDICTS[name], classes=["gg-verdict", f"gg-verdict-{name}"])


def tally(claims: list[ledger.Claim]) -> str:
    """Return how many claims got which verdict, in words."""
    verdicts = Counter(claim.verdict for claim in claims)
    return ", ".join(f"{verdicts[name]} {VERDICTS[name].lower()}" for name in VERDICTS if verdicts[name])


def counted(number: int, thing: str) -> str:
    """Write a number of things: ``1 claim``, ``2 claims``."""
    return f"{number} {thing}{'s' * (number != 1)}"
