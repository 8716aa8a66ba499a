"""The published ledger: every row is complete, points at things that exist, and holds."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gpuguide import claims
from gpuguide.claims import Claim, ledger
from gpuguide.hardware import device
from gpuguide.measure import benchmark, reference

ROWS = claims.load()


def name_of(claim: Claim) -> str:
    return claim.id


def test_ids_are_unique_and_can_stand_in_an_address() -> None:
    ids = [row.id for row in ROWS]
    assert len(ids) == len(set(ids)) >= 66
    for identifier in ids:
        assert identifier == identifier.lower()
        assert set(identifier) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_every_topic_has_rows() -> None:
    assert set(claims.by_topic(ROWS)) == set(claims.topics())


def test_rows_stand_in_the_file_of_their_topic() -> None:
    for file in ledger.files():
        rows = tomllib.loads(file.read_text(encoding="utf-8")).get("claims", [])
        assert {row["topic"] for row in rows} == (set() if file == ledger.LEDGER else {file.stem})


def test_every_source_is_used() -> None:
    declared = set(tomllib.loads(ledger.LEDGER.read_text(encoding="utf-8"))["sources"])
    assert declared == {source.key for row in ROWS for source in row.sources}


@pytest.mark.parametrize("claim", [row for row in ROWS if row.taught], ids=name_of)
def test_a_row_is_taught_on_a_page_that_exists(claim: Claim, repository: Path) -> None:
    assert (repository / "tutorials" / f"{claim.taught}.md").exists()


@pytest.mark.parametrize("claim", ROWS, ids=name_of)
def test_texts_are_sentences_on_one_line(claim: Claim) -> None:
    for text in (claim.claim, claim.right):
        assert text == text.strip()
        assert "\n" not in text
        assert text.endswith(".")


@pytest.mark.parametrize("claim", [row for row in ROWS if row.benchmarks], ids=name_of)
def test_references_name_declared_benchmarks_contenders_and_cases(claim: Claim) -> None:
    """A reference that can never be measured is found without any record."""
    h100 = device.fake("h100-sxm")
    references = [arguments[0] for function, arguments in claim.lookups if function != "datasheet"]
    for text in references:
        name, contender, other, _, keys, _ = reference.parse(text)
        declared = benchmark.get(name)
        assert contender in declared.contenders
        assert other is None or other in declared.contenders
        matching = [case for case in declared.cases(h100) if keys.items() <= case.items()]
        assert len(matching) == 1, f"{text} matches {len(matching)} cases"


@pytest.mark.parametrize("claim", ROWS, ids=name_of)
def test_a_claim_holds(claim: Claim) -> None:
    (outcome,) = claims.check([claim])
    assert outcome.ok, outcome.detail
    assert claims.right(claim)
    assert claims.how_we_know(claim)
