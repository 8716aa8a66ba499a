"""What a sentence says against what its evidence holds: faults are found, and right rows pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuguide import claims
from gpuguide.claims import Claim
from gpuguide.claims.agreement import disagreements

ROWS = claims.load()

COMPUTED = Claim(
    id="a-row",
    topic="timing",
    note="000",
    claim="One hears 7 GB.",
    verdict="true",
    right="It is {2 * 3} of them.",
    kind="computed",
    expression="2 * 3",
    value=6.0,
)


def computed(right: str, expression: str = "2 * 3", value: float = 6, **fields: object) -> list[str]:
    row = replace(COMPUTED, right=right, expression=expression, value=value)
    return disagreements(replace(row, **fields))  # type: ignore[arg-type]


def measured(right: str, predicate: str) -> list[str]:
    return disagreements(replace(COMPUTED, kind="measured", right=right, expression=predicate, value=()))


@pytest.mark.parametrize("claim", ROWS, ids=lambda claim: str(claim.id))
def test_the_sentences_of_the_ledger_name_what_their_evidence_holds(claim: Claim) -> None:
    with claim.speaking():
        assert not disagreements(claim)


# --- numbers that are typed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "right",
    [
        "It is {2 * 3} of them.",
        "2 times 3 of them.",  # both stand in the expression
        "Of 7 GB, as the claim has it.",
        "FP16 and GPT-2 on an H100 end in figures that are no numbers, as do 16 bits and 32-bit numbers.",
        "3,000 of a thousand each are 3 K.",
    ],
)
def test_numbers_that_stand_in_the_evidence_may_be_typed(right: str) -> None:
    assert computed(right, "2 * 3 + 0 * 3000", 6) == []


@pytest.mark.parametrize("number", ["8", "5.5", "1,000", "8 GB", "40 %", "8B", "1e-5"])
def test_a_number_out_of_nowhere_is_found(number: str) -> None:
    (fault,) = computed(f"It is {number} of them.")
    assert "is typed in 'right' and stands neither" in fault
    assert computed(f"It is {number} of them.", given=(number,)) == []


def test_what_the_row_computes_is_never_typed_and_no_declaration_helps() -> None:
    for given in ((), ("It is 36",)):
        (fault,) = computed("It is 36 of them.", "6 * 6", 36, given=given)
        assert "the row computes it" in fault


@pytest.mark.parametrize("rate", ["7.5 GB/s", "312 TFLOP/s"])
def test_a_rate_is_never_given(rate: str) -> None:
    (fault,) = computed(f"It ran at {rate}.", given=(rate,))
    assert fault == f"{rate} is given; take a rate from a record or a data sheet"
    assert computed(f"It ran at {rate}, as they say.", claim=f"A GPU reaches {rate}.") == []


def test_a_declaration_that_gives_nothing_is_found() -> None:
    assert computed("It is {2 * 3} of them.", given=("8",)) == ["'8' in 'given' gives no number that needs it"]
    assert computed("Of 2 and 3.", given=("2 and",)) == ["'2 and' in 'given' gives no number that needs it"]


def test_a_premise_with_a_prefix_or_as_a_share_is_that_of_the_expression() -> None:
    assert computed("Of 5.5M, 8 KiB and 40 %.", "5.5e6 + 8192 + 0.4", 5508192.4) == []


def test_the_keys_of_a_case_are_evidence() -> None:
    row = "ratio('attention/naive/sdpa-flash:time pass=forward head_dim=64 seq_len=512 causal=true heads=32')"
    assert measured(f"With 512 tokens it takes {{{row}}} times as long.", f"{row}.p25 > 4") == []


def test_a_factor_that_writes_a_prefix_is_no_premise() -> None:
    (fault,) = computed("It is 100 of them.", "100 * 2 / 4", 50)
    assert "'100' is typed" in fault


# --- units -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["GB", "GiB", "s", "%", "nats", "TFLOP/s"])
def test_no_unit_is_typed_behind_an_expression(unit: str) -> None:
    (fault,) = computed(f"It is {{2 * 3}} {unit}.")
    assert f"quantity(…, {unit!r})" in fault
    assert computed(f"It is {{quantity(2 * 3, {unit!r})}}.") == []


@pytest.mark.parametrize("word", ["times", "million", "tokens"])
def test_words_that_are_no_units_stand_behind_an_expression(word: str) -> None:
    assert computed(f"It is {{2 * 3}} {word}.") == []


def test_the_unit_of_a_row_is_named_by_its_sentence() -> None:
    assert computed("It is {quantity(2 * 3, 'bytes')}.", unit="B") == []
    assert computed("It is {quantity(2 * 3, 'kB')}.", unit="B") == []
    assert computed("It is 2 MB.", unit="B") == []
    (unnamed,) = computed("It is {quantity(2 * 3, 's')}.", unit="B")
    assert unnamed == "the row's unit is B, and the sentence names nothing in it"
    memory = "datasheet('h100-sxm', 'memory')"
    (other,) = computed("It is {quantity(2 * 3, 's')}.", memory, 8e10, unit="s")
    assert other == "the row's unit is s, and its expression gives B"


# --- measurements ----------------------------------------------------------------------------------------

TIMES = "ratio('timing-mistakes/zeros/right:time shape=square')"
TIME = "measurement('timing-mistakes/zeros:time shape=square')"
COPY = "measurement('ceilings/copy:bandwidth')"


def test_what_is_shown_is_tested() -> None:
    assert measured(f"It took {{{TIMES}}} times as long.", f"{TIMES}.p25 > 1") == []
    assert measured(f"It took {{{TIME}}}.", f"{TIMES}.p25 > 1") == []
    (untested,) = measured(f"It took {{{TIMES}}} times as long, at {{{COPY}}}.", f"{TIMES}.p25 > 1")
    assert untested == "the sentence shows 'ceilings/copy:bandwidth', which the predicate does not read"
    (computed_only,) = computed(f"A copy has {{{COPY}}}.")
    assert "which the expression does not read" in computed_only


def test_another_metric_or_case_is_another_measurement() -> None:
    (metric,) = measured(f"It took {{{TIME}}}.", f"{TIMES.replace(':time', ':throughput')}.p25 > 1")
    (case,) = measured(f"It took {{{TIME}}}.", f"{TIMES.replace('square', 'skinny')}.p25 > 1")
    assert "which the predicate does not read" in metric
    assert "which the predicate does not read" in case


def test_of_every_benchmark_that_is_tested_a_number_is_shown() -> None:
    (unshown,) = measured(f"It took {{{TIMES}}} times as long.", f"{TIMES}.p25 > 1 and {COPY}.p25 > 1e12")
    assert unshown == "the predicate reads 'ceilings', of which the sentence shows no number"


def test_the_words_around_a_number_are_those_of_its_metric() -> None:
    assert measured(f"It is {{{TIMES}}} times.", f"{TIMES}.p25 > 1") == []
    (fast,) = measured(f"It is {{{TIMES}}} times as fast.", f"{TIMES}.p25 > 1")
    assert "is a ratio of time, and 'as fast' is said of throughput and bandwidth" in fast
    (taken,) = measured(f"It took {{{COPY}}}.", f"{COPY}.p25 > 1")
    assert "is a rate" in taken
    (reached,) = measured(f"It ran at {{{TIME}}}.", f"{TIME}.p25 > 0")
    assert "is a time" in reached


def test_the_name_of_the_measured_gpu_comes_from_the_record() -> None:
    for name, faults in (("an H100", 1), ("an RTX 4090", 1), ('{gpu("a short")}', 0), ("a GPU", 0)):
        found = measured(f"On {name} it took {{{TIME}}}.", f"{TIME}.p25 > 0")
        assert sum("is typed in a row that reads records" in fault for fault in found) == faults, found
    assert computed("On an H100 it is {2 * 3}.") == []
    sheet = "datasheet('h100-sxm', 'memory_bandwidth')"
    assert measured(f"An H100 has {{{sheet}}}, a copy {{{COPY}}}.", f"{COPY}.p25 < {sheet}") == []
