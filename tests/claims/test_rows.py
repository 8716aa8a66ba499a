"""The published ledger: every row is complete, points at things that exist, and holds."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from gpuguide import claims
from gpuguide import claims as ledger
from gpuguide.claims import Claim
from gpuguide.hardware import device
from gpuguide.measure import benchmark, citation

ROWS = claims.load()


def name_of(claim: Claim) -> str:
    return claim.id


def test_ids_are_unique_and_can_stand_in_an_address() -> None:
    ids = [row.id for row in ROWS]
    assert len(ids) == len(set(ids))
    for identifier in ids:
        assert identifier == identifier.lower()
        assert set(identifier) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_every_row_has_a_topic() -> None:
    assert set(claims.group_by_topic(ROWS)) <= set(claims.topics())


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
    references = [arguments[0] for function, arguments in claim.lookups if function in ("measurement", "ratio")]
    for text in references:
        name, contender, other, _, keys, _ = citation.parse(text)
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


FP16_ROWS = {
    "fp16-range-digits": [np.finfo(np.float16).max, 11 * np.log10(2)],
    "fp16-under-overflow": [float(np.nextafter(np.float16(0), np.float16(1))) / 2, 65520.0],
    "fp16-optimizer-instability": [np.float16(1) + np.float16(3e-4), np.float16(1) - np.float16(2e-4)],
    "fp16-range-low-6e-5": [np.finfo(np.float16).tiny, np.finfo(np.float16).smallest_subnormal],
    "fp16-1e-5-underflows": [np.float16(number) for number in (1e-5, 1e-6, 1e-7, 3e-8, 2.9e-8)],
    "fp16-1e-5-to-zero": [np.float16(1e-5), np.float16(1e-8), np.float16(1e-8 * 65536)],
    "scale-1024-example": [np.float16(512), 0.01024, np.float32(np.float16(0.01024)) / 1024],
    "amp-fp16-min-normal": [
        np.finfo(np.float32).tiny,
        np.finfo(np.float16).tiny,
        np.finfo(np.float32).smallest_subnormal,
        np.finfo(np.float16).smallest_subnormal,
    ],
    "fp32-range-digits": [np.finfo(np.float32).max, 24 * np.log10(2)],
}


@pytest.mark.parametrize("name", FP16_ROWS)
def test_rows_on_number_formats_agree_with_numpy(name: str) -> None:
    (claim,) = [row for row in ROWS if row.id == name]
    assert np.allclose(np.array(claim.value), np.array(FP16_ROWS[name], dtype=np.float64), rtol=1e-6, atol=0)


def test_where_fp16_overflows_numpy_agrees() -> None:
    below = np.nextafter(np.float32(65520), np.float32(0))
    assert np.isfinite(below.astype(np.float16))
    with np.errstate(over="ignore"):
        assert np.isinf(np.float32(65520).astype(np.float16))
