"""The directives ``claims`` and ``all-claims``: the most surprising rows of the ledger, and all of them by topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx import addnodes
from sphinx.util.docutils import SphinxDirective

from gpuguide import claims as ledger
from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware.sources import NOT_VERIFIED
from gpuguide.measure import digest, reference_gpu, store
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
    "conditional": "True under a condition",
    "misleading": "Misleading",
    "false": "False",
    "outdated": "Outdated",
}
MEANINGS = {
    "true": "It holds as stated.",
    "conditional": "It holds only if the stated condition is met.",
    "misleading": "It is partly right, but leads to a wrong conclusion.",
    "false": "It does not hold.",
    "outdated": "It held for earlier hardware or software.",
}
SURPRISING = ("false", "misleading", "outdated", "conditional", "true")
SHOWN = 3
"""How many claims a tutorial shows"""
CLAIMS_PAGE = "docs/claims"


def connect(app: Sphinx) -> None:
    """Register this part with Sphinx."""
    app.add_directive("claims", Claims)
    app.add_directive("all-claims", AllClaims)
    app.add_node(verdict_filter, html=(open_filter, close_filter))
    app.add_js_file("unfold.js", defer="defer")


class verdict_filter(nodes.General, nodes.Element):
    """A choice of one verdict, with ``counts`` by verdict. The style sheet does the rest: it needs no script."""


def open_filter(translator: Any, node: verdict_filter) -> None:
    """Write the choice."""
    counts: Mapping[str, int] = node["counts"]
    choices = {"all": ("all", sum(counts.values()))} | {name: (VERDICTS[name].lower(), counts[name]) for name in counts}
    marks = [
        f'<label><input type="radio" name="gg-filter" id="gg-filter-{name}"{" checked" * (name == "all")}> '
        f"{text} ({count})</label>"
        for name, (text, count) in choices.items()
    ]
    translator.body.append(f'<fieldset class="gg-filter"><legend>Show</legend>{"".join(marks)}</fieldset>')
    raise nodes.SkipNode


def close_filter(translator: Any, node: verdict_filter) -> None:
    """Write nothing: all has been written."""


class _Ledger(SphinxDirective):
    """What both directives share: the blocks of claims."""

    def blocks(self, claims: Iterable[ledger.Claim]) -> list[nodes.Element]:
        """Return one block a claim, and report those that cannot be worded with the place where they stand."""
        found: list[nodes.Element] = []
        for claim in claims:
            with faults.report_errors(self.get_location()):
                try:
                    found.append(self.block(claim))
                except GpuguideError as error:
                    raise GpuguideError(
                        f"The claim {claim.id!r} ({claim.place}) cannot be worded: {error} "
                        "Correct the row, or measure again what it reads."
                    ) from error
        return found

    def block(self, claim: ledger.Claim) -> nodes.Element:
        """Return what one hears, the verdict, what is right, and in a fold how we know."""
        heard = nodes.paragraph("", "", *self.quote_with_verdict(claim), classes=["gg-heard"])
        known = self.evidence(claim)
        fold = folds.fold("", *known, summary="How we know", classes=["gg-how"])
        right = self.parse_text_to_nodes(render_claim(ledger.right, claim))
        return nodes.container("", heard, *right, fold, classes=["gg-claim"], ids=[f"claim-{claim.id}"])

    def quote_with_verdict(self, claim: ledger.Claim) -> list[Node]:
        """Return what one hears with its verdict; the page is read again when what that rests on changes."""
        for function in claim.functions:
            for path in digest.files_reached(function):
                self.env.note_dependency(str(path))
        watching.note_reference(self.env)
        with claim.speaking():
            for name in claim.benchmarks:
                watching.note_record(self.env, store.load_published(name))
        shown: list[Node] = [nodes.Text(f"“{claim.claim}” "), verdict(claim.verdict)]
        if ledger.unread(claim):
            shown += [nodes.Text(" "), nodes.emphasis("", f"source {NOT_VERIFIED}")]
        if render_claim(why_not, claim):
            shown += [nodes.Text(" "), nodes.inline("", "not confirmed by its check", classes=["gg-stale"])]
        return shown

    def evidence(self, claim: ledger.Claim) -> list[Node]:
        """Return the evidence, after what contradicts the row where its check fails."""
        found: list[Node] = []
        if failure := render_claim(why_not, claim):
            found.append(
                nodes.paragraph("", "", nodes.Text("The check of this claim fails: "), nodes.literal("", failure))
            )
        return [*found, *self.parse_text_to_nodes(render_claim(ledger.how_we_know, claim))]

    def page(self, docname: str, title: str = "") -> nodes.Node:
        """Return a link to a page, with its own title unless one is given; the name alone where there is none."""
        if docname not in self.env.found_docs:
            return nodes.literal("", docname)
        return self.reference("doc", f"/{docname}", title)

    def reference(self, kind: str, target: str, title: str) -> nodes.Node:
        """Return a link to a page (``doc``) or a label (``ref``), which is found when all pages have been read."""
        return addnodes.pending_xref(
            "",
            nodes.inline("", title, classes=["std", f"std-{kind}"]),
            refdomain="std",
            reftype=kind,
            reftarget=target,
            refdoc=self.env.docname,
            refexplicit=bool(title),
            refwarn=True,
        )

    def note_ledger(self) -> None:
        """Read the page again when any file of the ledger changes, or a new one appears."""
        watching.note_folder(self.env, ledger.LEDGER.parent)
        with faults.report_errors(self.get_location()):
            watching.note_gpus(self.env)


def render_claim(words: Callable[[ledger.Claim], str], claim: ledger.Claim) -> str:
    """Return what is said of a claim; what only the library's source decides is remembered between builds.

    Such claims call functions of topics, whose imports take longer than all else that a changed word asks for.
    """
    if claim.lookups:
        return words(claim)
    return str(remembered.answer(f"{words.__name__} {claim}", lambda: words(claim)))


def why_not(claim: ledger.Claim) -> str:
    """Return what the check of a claim found against it, or nothing if it holds."""
    (outcome,) = ledger.check([claim])
    return "" if outcome.ok else outcome.detail


class Claims(_Ledger):
    """``{claims} NAME``: the three most surprising claims of a page or a topic, and the way to the others.

    The option ``show`` names them by their ids; without it, they are taken in the order of :data:`SURPRISING`.
    """

    required_arguments = 1
    option_spec: ClassVar = {"show": directives.unchanged_required}

    def run(self) -> list[Node]:
        """Return the claims, and after them where the others stand."""
        self.note_ledger()
        claims: list[ledger.Claim] = []
        shown: list[ledger.Claim] = []
        with faults.report_errors(self.get_location()):
            claims = load_claims_of(self.arguments[0])
            shown = (
                select_claims(self.options["show"].split(), claims)
                if "show" in self.options
                else most_surprising(claims)
            )
            check_gpu(shown)
        found: list[Node] = [*self.blocks(shown)]
        if claims and CLAIMS_PAGE in self.env.found_docs:
            found.append(self.others(claims, len(claims) - len(shown)))
        return found

    def others(self, claims: Sequence[ledger.Claim], count: int) -> nodes.paragraph:
        """Return a sentence that leads to the topics of these claims on the page of all."""
        titles = ledger.topics()
        begin = f"{format_count(count, 'more claim')} on this subject" if count else "All claims on this subject"
        line = nodes.paragraph("", f"{begin}, each with its evidence: ", classes=["gg-more"])
        for number, name in enumerate(ledger.group_by_topic(claims)):
            line += [nodes.Text(", ")] * (number > 0)
            line += self.reference("ref", f"topic-{name}", titles[name])
        line += nodes.Text(".")
        return line


class AllClaims(_Ledger):
    """``{all-claims}``: how many claims got which verdict, a choice of verdict, and a section a topic."""

    def run(self) -> list[Node]:
        """Return a table of verdicts, the choice, and the sections with one fold a claim."""
        self.note_ledger()
        claims: list[ledger.Claim] = []
        with faults.report_errors(self.get_location()):
            claims = ledger.load()
        titles = ledger.topics() if claims else {}
        self.usual = ""
        sections = (self.topic(name, titles[name], own) for name, own in ledger.group_by_topic(claims).items())
        counts = Counter(claim.verdict for claim in claims)
        return [*overview(claims), verdict_filter(counts={name: counts[name] for name in VERDICTS}), *sections]

    def block(self, claim: ledger.Claim) -> nodes.Element:
        """Return what one hears and the verdict, and folded, under its own address, all else.

        The address is that of the content: a browser opens a fold by itself for what it holds, and not for the fold.
        """
        identifier = f"claim-{claim.id}"
        domain = cast("StandardDomain", self.env.get_domain("std"))
        domain.note_hyperlink_target(identifier, self.env.docname, identifier, claim.claim)
        address = nodes.reference("", "#", refid=identifier, reftitle="Link to this claim", classes=["headerlink"])
        content = nodes.container("", classes=["gg-evidence"], ids=[identifier])
        title = folds.fold_title("", "", *self.quote_with_verdict(claim))
        content += self.parse_text_to_nodes(render_claim(ledger.right, claim))
        content += nodes.container("", *self.evidence(claim), classes=["gg-how"])
        for code in content.findall(nodes.literal):  # else each word of it becomes an element: a fifth of this page
            code["classes"].append("code")
            code["language"] = "none"
        if claim.taught and claim.taught != self.usual:
            settled: list[Node] = [nodes.Text("Settled in "), self.page(f"tutorials/{claim.taught}"), nodes.Text(". ")]
            content += nodes.paragraph("", "", *settled, address)
        else:
            content += nodes.paragraph("", "", address)
        return folds.fold("", title, content, classes=["gg-claim", f"gg-is-{claim.verdict}"])

    def topic(self, name: str, title: str, claims: list[ledger.Claim]) -> nodes.section:
        """Return the section of one topic."""
        identifier = f"topic-{name}"
        domain = cast("StandardDomain", self.env.get_domain("std"))
        domain.note_hyperlink_target(identifier, self.env.docname, identifier, title)
        count = nodes.paragraph("", f"{format_count(len(claims), 'claim')}: {tally(claims)}", classes=["gg-more"])
        self.usual = usual_page(claims)
        if self.usual:
            others = {claim.taught for claim in claims} != {self.usual}
            count += [nodes.Text(". Settled in "), self.page(f"tutorials/{self.usual}")]
            count += nodes.Text(", unless another page is named." if others else ".")
        return nodes.section(
            "", nodes.title("", title), count, *self.blocks(claims), ids=[identifier], names=[identifier]
        )


def check_gpu(claims: Iterable[ledger.Claim]) -> None:
    """Raise if a claim reads records of another GPU than that of which the page speaks."""
    here = reference_gpu.slug()
    for claim in claims:
        if claim.benchmarks and (there := claim.gpu or reference_gpu.default_slug()) != here:
            raise GpuguideError(
                f"The claim {claim.id!r} is checked on {there}, the GPU of its topic {claim.topic!r}, and this page "
                f"speaks of {here}: a page never mixes two GPUs. Name {there} in the page's front matter, or show "
                "another claim."
            )


def most_surprising(claims: Sequence[ledger.Claim]) -> list[ledger.Claim]:
    """Return the claims that a page shows unless it chooses: what is false surprises more than what is true."""
    return sorted(claims, key=lambda claim: SURPRISING.index(claim.verdict))[:SHOWN]


def select_claims(ids: Sequence[str], claims: Sequence[ledger.Claim]) -> list[ledger.Claim]:
    """Return the claims with these ids, in this order, or raise if one is not among them."""
    known = {claim.id: claim for claim in claims}
    for identifier in ids:
        if identifier not in known:
            raise unknown("claim of this page or topic", identifier, known)
    return [known[identifier] for identifier in ids]


def load_claims_of(name: str) -> list[ledger.Claim]:
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
        f"{format_count(len(claims), 'claim')}: {kinds['computed']} are checked by a computation, "
        f"{kinds['measured']} against our measurements, {kinds['cited']} rest on sources alone. "
    )
    verdicts = Counter(claim.verdict for claim in claims)
    rows: list[list[Cell]] = [[verdict(name), str(verdicts[name]), MEANINGS[name]] for name in VERDICTS]
    return [
        nodes.paragraph("", "", nodes.Text(text), *list_unverified_sources(claims)),
        table(["verdict", "claims", "it means"], rows),
    ]


def list_unverified_sources(claims: list[ledger.Claim]) -> list[Node]:
    """Return, as a sentence with a link to each, which claims name a source that nobody could look at."""
    found = [claim for claim in claims if ledger.unread(claim)]
    if not found:
        return [nodes.Text("Every source that is named was looked at.")]
    listed: list[Node] = [nodes.Text(f"{format_count(len(found), 'claim')} with a source that is {NOT_VERIFIED}: ")]
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


def usual_page(claims: Sequence[ledger.Claim]) -> str:
    """Return the page that settles most claims of a topic, to be named once; none where one is settled nowhere."""
    pages = Counter(claim.taught for claim in claims)
    return "" if "" in pages else pages.most_common(1)[0][0]


def format_count(number: int, thing: str) -> str:
    """Write a number of things: ``1 claim``, ``2 claims``."""
    return f"{number} {thing}{'s' * (number != 1)}"
