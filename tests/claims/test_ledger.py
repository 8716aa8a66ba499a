"""Reading, checking and wording rows, on ledgers and records made here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import synthetic_records as synthetic

from gpuguide import claims
from gpuguide.claims import LedgerError, pages
from gpuguide.errors import GpuguideError
from gpuguide.measure import folders, records, reference_gpu
from gpuguide.measure.records import Case, Rate, Record

HEAD = """
[topics]
memory = "Memory"
timing = "Timing"

[sources.guide]
title = "A guide"
publisher = "A publisher"
url = "https://example.org/guide"
looked_at = "2026-11-21"

[sources.unread]
title = "A standard"
publisher = "A body"
url = "https://example.org/standard"
looked_at = "not verified"
"""

KIBIBYTE = "{quantity(2**10, 'bytes')}"
RIGHT = f'right = "It is {KIBIBYTE}."\n'
COMPUTED = f"""
[[claims]]
id = "a-kibibyte"
topic = "memory"
note = "000"
claim = "A kibibyte is 1000 bytes."
verdict = "false"
{RIGHT}kind = "computed"
expression = "2**10"
value = 1024
unit = "B"
taught = "00-measure-a-gpu"
"""

MEASURED = """
[[claims]]
id = "copies-are-fast"
topic = "timing"
note = "000"
claim = "A copy runs at over 2 TB/s."
verdict = "true"
right = "It ran at {measurement('copy-size/copy:bandwidth working_set=2147483648')}."
kind = "measured"
predicate = "measurement('copy-size/copy:bandwidth working_set=2147483648').p25 > 2e12"
taught = "00-measure-a-gpu"
"""

RATIO = """
[[claims]]
id = "zeros-are-slow"
topic = "timing"
note = "000"
claim = "Zeros take longer."
verdict = "true"
right = "They took {ratio('timing-mistakes/zeros/right:time shape=square')} times as long."
kind = "measured"
predicate = "ratio('timing-mistakes/zeros/right:time shape=square').median == 1.5"
taught = "00-measure-a-gpu"
"""

CITED = """
[[claims]]
id = "documented"
topic = "timing"
note = "000"
claim = "It is documented."
verdict = "true"
right = "In two places."
kind = "cited"
sources = ["guide", "unread"]
taught = "00-measure-a-gpu"
"""

Ledger = Callable[[str], Path]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Write a ledger with these rows."""

    def write(rows: str, head: str = HEAD) -> Path:
        path = tmp_path / "claims.toml"
        path.write_text(head + rows, encoding="utf-8")
        return path

    return write


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Record]:
    """Publish a record made here instead of the real ones. No page speaks of another GPU."""
    folder = tmp_path / "records"
    monkeypatch.setattr(folders, "published_folder", lambda: folder)
    monkeypatch.setattr(pages, "all_pages", list)

    def publish(benchmark: str, *cases: Case, stale: bool = False) -> Record:
        device = (reference_gpu.slug(), "NVIDIA H100 80GB HBM3")
        return synthetic.write(synthetic.record(benchmark, cases, device, stale=stale, simulated=False), folder)

    return publish


def copy_case(rate: float, *, samples: int = 5) -> Case:
    """Return a copy of 1 GiB whose rates spread by 1 % around ``rate`` (B/s)."""
    moved = 2**31
    times = [moved / (rate * (1 + 0.005 * (step - (samples - 1) / 2))) for step in range(samples)]
    return Case(
        keys={"working_set": 2**31},
        contender="copy",
        run=0,
        status="ok",
        correct="yes",
        measured={"time": records.metric("s", times)},
        rates={"bandwidth": Rate("B/s", moved)},
    )


def product_case(contender: str, *times: float) -> Case:
    return Case(
        keys={"shape": "square"},
        contender=contender,
        run=0,
        status="ok",
        correct="yes",
        measured={"time": records.metric("s", times)},
    )


# --- reading ---------------------------------------------------------------------------------------------


def test_rows_are_read_in_order(ledger: Ledger) -> None:
    rows = claims.load(ledger(COMPUTED + MEASURED + CITED))
    assert [row.id for row in rows] == ["a-kibibyte", "copies-are-fast", "documented"]
    assert [row.kind for row in rows] == ["computed", "measured", "cited"]
    assert rows[0].value == 1024
    assert rows[1].benchmarks == ["copy-size"]
    assert [source.is_verified for source in rows[2].sources] == [True, False]
    assert {topic: [row.id for row in group] for topic, group in claims.group_by_topic(rows).items()} == {
        "memory": ["a-kibibyte"],
        "timing": ["copies-are-fast", "documented"],
    }


def test_topics_have_titles(ledger: Ledger) -> None:
    assert claims.topics(ledger(COMPUTED)) == {"memory": "Memory", "timing": "Timing"}


def replaced(row: str, old: str, new: str) -> str:
    assert row.count(old) == 1
    return row.replace(old, new)


MALFORMED = {
    "duplicate id": (COMPUTED + COMPUTED, r"row 2.*'a-kibibyte' stands twice"),
    "unknown verdict": (replaced(COMPUTED, '"false"', '"wrong"'), "'a-kibibyte'.*verdict 'wrong'.*misleading"),
    "unknown kind": (replaced(COMPUTED, '"computed"', '"guessed"'), "'a-kibibyte'.*kind 'guessed'.*measured"),
    "unknown topic": (replaced(COMPUTED, '"memory"', '"memmory"'), "'a-kibibyte'.*topic 'memmory'.*memory"),
    "no id": (replaced(COMPUTED, 'id = "a-kibibyte"\n', ""), "row 1: the field 'id' is missing"),
    "id is a number": (replaced(COMPUTED, 'id = "a-kibibyte"', "id = 7"), "row 1: the field 'id' must be text"),
    "no kind": (replaced(COMPUTED, 'kind = "computed"\n', ""), "'a-kibibyte'.*'kind' is missing"),
    "no claim": (replaced(COMPUTED, 'claim = "A kibibyte is 1000 bytes."\n', ""), "'claim' is missing"),
    "no right": (replaced(COMPUTED, RIGHT, ""), "'right' is missing"),
    "empty right": (replaced(COMPUTED, RIGHT, 'right = " "\n'), "'right' must be text"),
    "no note": (replaced(COMPUTED, 'note = "000"\n', ""), "'note' is missing"),
    "empty taught": (replaced(COMPUTED, 'taught = "00-measure-a-gpu"', 'taught = ""'), "'taught' must be text"),
    "no value": (replaced(COMPUTED, "value = 1024\n", ""), "'a-kibibyte'.*'value' is missing"),
    "value is text": (replaced(COMPUTED, "value = 1024", 'value = "1024"'), "'value' must be a finite number"),
    "value is true": (replaced(COMPUTED, "value = 1024", "value = true"), "'value' must be a finite number"),
    "value is infinite": (replaced(COMPUTED, "value = 1024", "value = inf"), "'value' must be a finite number"),
    "a value is text": (replaced(COMPUTED, "value = 1024", 'value = [1, "a"]'), "'value' must be a finite"),
    "tolerance too large": (replaced(COMPUTED, "value = 1024", "value = 1024\ntolerance = 1"), "tolerance 1.0"),
    "no expression": (replaced(COMPUTED, 'expression = "2**10"\n', ""), "'expression' is missing"),
    "unknown name in the expression": (
        replaced(COMPUTED, '"2**10"', "\"__import__('os')\""),
        "'a-kibibyte'.*__import__",
    ),
    "unknown name in the text": (
        replaced(COMPUTED, KIBIBYTE, "{open('x')}"),
        "'a-kibibyte'.*'open'",
    ),
    "unpaired brace": (
        replaced(COMPUTED, KIBIBYTE, "{quantity(2**10, 'bytes')"),
        "'a-kibibyte'.*braces",
    ),
    "misspelled field": (replaced(COMPUTED, "unit =", "units ="), "'a-kibibyte'.*no field 'units'"),
    "foreign function": (
        replaced(COMPUTED, "value = 1024", 'value = 1024\nfunctions = ["os.system"]'),
        "'a-kibibyte'.*'os.system'",
    ),
    "private function": (
        replaced(COMPUTED, "value = 1024", 'value = 1024\nfunctions = ["gpuguide.costs.roofline._x"]'),
        "'a-kibibyte'.*public",
    ),
    "no predicate": (MEASURED.replace("predicate =", "expression ="), "'copies-are-fast'.*no field 'expression'"),
    "predicate reads nothing": (
        MEASURED.replace("measurement('copy-size/copy:bandwidth working_set=2147483648').p25", "3e12").replace(
            "{measurement('copy-size/copy:bandwidth working_set=2147483648')}", "fast"
        ),
        "'copies-are-fast'.*must read a measurement",
    ),
    "no source": (replaced(CITED, 'sources = ["guide", "unread"]\n', ""), "'documented'.*needs at least one"),
    "unknown source": (replaced(CITED, '"guide"', '"giude"'), "'documented'.*'giude'.*guide"),
    "sources is text": (replaced(CITED, '["guide", "unread"]', '"guide"'), "'documented'.*list of texts"),
    "value in a cited row": (CITED + "value = 3\n", "'documented'.*no field 'value' in a cited row"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_row_is_named_with_its_file(ledger: Ledger, name: str) -> None:
    rows, message = MALFORMED[name]
    with pytest.raises(LedgerError, match=message) as raised:
        claims.load(ledger(rows))
    assert "claims.toml" in str(raised.value)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (HEAD.replace('"2026-11-21"', '"yesterday"'), "claims.toml, sources.guide.*'yesterday'.*not verified"),
        (HEAD.replace("https://example.org/guide", "http://example.org/guide"), "sources.guide.*https://"),
        (HEAD.replace('title = "A guide"\n', ""), "sources.guide: title is None"),
        (HEAD + 'colour = "blue"\n', "sources.unread.*no key named 'colour'"),
        (HEAD.replace('memory = "Memory"', "memory = 3"), "'memory'.*title"),
        (HEAD.replace("[topics]", "[subjects]"), "no table named 'topics'"),
        ("extra = 1\n" + HEAD, "'extra'"),
    ],
)
def test_a_malformed_head_is_named(tmp_path: Path, head: str, message: str) -> None:
    path = tmp_path / "claims.toml"
    path.write_text(head + COMPUTED, encoding="utf-8")
    with pytest.raises(GpuguideError, match=message):
        claims.load(path)


def test_a_file_that_is_no_toml_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"
    with pytest.raises(LedgerError, match="Cannot read"):
        claims.load(path)
    path.write_text("[topics", encoding="utf-8")
    with pytest.raises(LedgerError, match="not TOML"):
        claims.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(LedgerError, match="not TOML"):
        claims.load(path)
    path.write_text(HEAD, encoding="utf-8")
    with pytest.raises(LedgerError, match="no list of rows named 'claims'"):
        claims.load(path)
    path.write_text("claims = 3\n" + HEAD, encoding="utf-8")
    with pytest.raises(LedgerError, match="no list of rows"):
        claims.load(path)
    path.write_text("claims = [3]\n" + HEAD, encoding="utf-8")
    with pytest.raises(LedgerError, match="row 1: it is not a table"):
        claims.load(path)


def test_rows_beside_are_read_in_the_order_of_the_topics(ledger: Ledger) -> None:
    path = ledger("")
    path.with_name("a-timing.toml").write_text(MEASURED + CITED, encoding="utf-8")
    path.with_name("memory.toml").write_text(COMPUTED.replace('taught = "00-measure-a-gpu"\n', ""), encoding="utf-8")
    rows = claims.load(path)
    assert [row.id for row in rows] == ["a-kibibyte", "copies-are-fast", "documented"]
    assert [row.taught for row in rows] == ["", "00-measure-a-gpu", "00-measure-a-gpu"]
    assert rows[0].place == f"{path.with_name('memory.toml')}:3"
    assert rows[2].place == f"{path.with_name('a-timing.toml')}:14"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (COMPUTED, "rows.toml, row 1: the id 'a-kibibyte' stands twice"),
        (replaced(COMPUTED, '"memory"', '"memmory"'), "rows.toml, row 'a-kibibyte'.*'memmory'"),
        ('[topics]\nnew = "New"\n' + MEASURED, "rows.toml has 'topics', which is none of claims"),
        ("claims = 3\n", "rows.toml: 'claims' is no list of rows"),
        ("[[claims]", "rows.toml is not TOML"),
    ],
)
def test_a_fault_in_a_file_beside_names_that_file(ledger: Ledger, text: str, message: str) -> None:
    path = ledger(COMPUTED)
    path.with_name("rows.toml").write_text(text, encoding="utf-8")
    with pytest.raises(LedgerError, match=message):
        claims.load(path)


# --- computed --------------------------------------------------------------------------------------------


def outcome(path: Path) -> claims.ClaimOutcome:
    (found,) = claims.check(claims.load(path))
    return found


def test_a_computed_claim_that_holds(ledger: Ledger) -> None:
    found = outcome(ledger(COMPUTED))
    assert found.ok
    assert found.detail == "1 KiB"


@pytest.mark.parametrize(
    ("expression", "value", "tolerance", "ok"),
    [
        ("2**10", "1000", "0.005", False),
        ("2**10", "1000", "0.03", True),
        ("[1, 2]", "[1, 2]", "0", True),
        ("[1, 2]", "[1, 3]", "0.1", False),
        ("[1, 2]", "[1, 2, 3]", "0", False),
        ("[1]", "1", "0", False),
        ("1", "[1]", "0", False),
        ("0", "0", "0", True),
        ("[1, [2]]", "[1, 2]", "0", False),
        ("1 < 2", "1", "0", False),
        ("1e308 * 10", "1", "0.9", False),
        ("1 / 0", "1", "0", False),
    ],
)
def test_a_false_computation_is_reported(ledger: Ledger, expression: str, value: str, tolerance: str, ok: bool) -> None:
    row = replaced(COMPUTED, '"2**10"', f'"{expression}"')
    row = replaced(row, "value = 1024", f"value = {value}\ntolerance = {tolerance}")
    found = outcome(ledger(row))
    assert found.ok is ok
    assert ok or found.detail


def test_the_report_of_a_false_computation_shows_both_values(ledger: Ledger) -> None:
    found = outcome(ledger(replaced(COMPUTED, "value = 1024", "value = 2048")))
    assert not found.ok
    assert "2**10 is 1024, but the row says 2048" in found.detail


def test_a_library_function_named_in_the_row(ledger: Ledger) -> None:
    row = replaced(COMPUTED, '"2**10"', '"matmul_flops(2, 3, 4)"')
    row = replaced(row, "value = 1024", 'value = 48\nfunctions = ["gpuguide.costs.roofline.matmul_flops"]')
    assert outcome(ledger(row)).ok
    missing = outcome(ledger(row.replace("matmul_flops", "matmul_flop")))
    assert not missing.ok
    assert "gpuguide.costs.roofline.matmul_flop" in missing.detail
    constant = outcome(
        ledger(row.replace("matmul_flops(2, 3, 4)", "annotations(1)").replace("matmul_flops", "annotations"))
    )
    assert not constant.ok


def test_a_text_that_cannot_be_written_out_fails_the_check(ledger: Ledger) -> None:
    for wrong in ("{1 / 0}", "{1 < 2}", "{[1, 2]}", "{datasheet('h100-sxm', 'no_such_figure')}"):
        assert not outcome(ledger(replaced(COMPUTED, KIBIBYTE, wrong))).ok, wrong


# --- measured --------------------------------------------------------------------------------------------


def test_a_predicate_that_holds(ledger: Ledger, published: Callable[..., Record]) -> None:
    published("copy-size", copy_case(3e12))
    found = outcome(ledger(MEASURED))
    assert found.ok
    assert "3.00 TB/s" in found.detail
    assert "stale" not in found.detail


def test_a_predicate_that_does_not_hold(ledger: Ledger, published: Callable[..., Record]) -> None:
    published("copy-size", copy_case(1.9e12))
    found = outcome(ledger(MEASURED))
    assert not found.ok
    assert "does not hold" in found.detail
    assert "1.90 TB/s" in found.detail


def test_a_quantile_and_not_the_median_decides(ledger: Ledger, published: Callable[..., Record]) -> None:
    published("copy-size", copy_case(2.005e12))  # p25 is half a percent lower: 1.995e12
    assert not outcome(ledger(MEASURED)).ok
    assert outcome(ledger(MEASURED.replace("').p25", "').median"))).ok


def test_a_ratio_is_taken_over_paired_samples(ledger: Ledger, published: Callable[..., Record]) -> None:
    # Both drift by a factor of four, but the pairs differ by 1.5, 1.5, 1.5 and 2.
    published("timing-mistakes", product_case("right", 1, 2, 3, 4), product_case("zeros", 1.5, 3, 4.5, 8))
    path = ledger(RATIO)
    found = outcome(path)
    assert found.ok, found.detail
    (claim,) = claims.load(path)
    assert claims.right(claim) == "They took 1.50 times as long."


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("working_set=2147483648", "working_set=3", "matches 0 cases"),
        ("/copy:", "/coppy:", "coppy"),
        (":bandwidth", ":bandwith", "bandwidth"),
        ("copy-size/", "copy-sizes/", "copy-size"),
        ("copy-size/", "matmul-size/", "no published record of 'matmul-size'"),
        (" > 2e12", " + 1", "neither true nor false"),
        ("').p25", "')", ".median"),
    ],
)
def test_a_claim_whose_measurement_is_gone_fails_with_the_reason(
    ledger: Ledger, published: Callable[..., Record], old: str, new: str, message: str
) -> None:
    published("copy-size", copy_case(3e12))
    found = outcome(ledger(MEASURED.replace(old, new)))
    assert not found.ok
    assert message in found.detail


def test_without_records_a_measured_claim_fails_and_the_others_do_not(
    ledger: Ledger, published: Callable[..., Record]
) -> None:
    outcomes = claims.check(claims.load(ledger(COMPUTED + MEASURED + CITED)))
    assert [found.ok for found in outcomes] == [True, False, True]


def test_a_single_sample_has_no_quantiles(ledger: Ledger, published: Callable[..., Record]) -> None:
    published("copy-size", copy_case(3e12, samples=1))
    found = outcome(ledger(MEASURED))
    assert not found.ok
    assert "single sample" in found.detail
    assert outcome(ledger(MEASURED.replace("').p25", "').median"))).ok


def test_a_case_that_did_not_run_fails_the_claim(ledger: Ledger, published: Callable[..., Record]) -> None:
    published("copy-size", Case({"working_set": 2**31}, "copy", 0, "out-of-memory", "needs 2 GiB"))
    found = outcome(ledger(MEASURED))
    assert not found.ok
    assert "needs 2 GiB" in found.detail


def test_a_stale_record_is_mentioned(ledger: Ledger, published: Callable[..., Record]) -> None:
    published("copy-size", copy_case(3e12), stale=True)
    found = outcome(ledger(MEASURED))
    assert found.ok
    assert "(stale: copy-size)" in found.detail


# --- wording ---------------------------------------------------------------------------------------------


def test_the_text_follows_the_record(ledger: Ledger, published: Callable[..., Record]) -> None:
    (claim,) = claims.load(ledger(MEASURED))
    published("copy-size", copy_case(3e12))
    assert claims.right(claim) == "It ran at 3.00 TB/s."
    published("copy-size", copy_case(2.5e12))
    assert claims.right(claim) == "It ran at 2.50 TB/s."


def test_how_we_know_names_value_spread_predicate_and_machine(ledger: Ledger, published: Callable[..., Record]) -> None:
    published("copy-size", copy_case(3e12))
    (claim,) = claims.load(ledger(MEASURED))
    text = claims.how_we_know(claim)
    name = "copy-size/copy:bandwidth working_set=2147483648"
    for part in (
        f"*a* `{name}` 3.00 TB/s",
        "n = 5",
        "Checked: `a.p25 ",
        "NVIDIA H100 80GB HBM3",
        "driver 580.00",
        "2026-01-02",
    ):
        assert part in text


def test_a_predicate_that_is_false_is_not_worded_as_if_it_held(
    ledger: Ledger, published: Callable[..., Record]
) -> None:
    (claim,) = claims.load(ledger(MEASURED))
    published("copy-size", copy_case(1e12))
    assert "Checked: `a.p25 > 2e12`, which does not hold." in claims.how_we_know(claim)
    published("copy-size", copy_case(3e12))
    assert "Checked: `a.p25 > 2e12`." in claims.how_we_know(claim)


def test_what_is_read_twice_has_one_letter(ledger: Ledger, published: Callable[..., Record]) -> None:
    published("copy-size", copy_case(3e12))
    name = "measurement('copy-size/copy:bandwidth working_set=2147483648')"
    (claim,) = claims.load(ledger(MEASURED.replace(f"{name}.p25", f"2 * {name}.p25 < 3 * {name}")))
    text = claims.how_we_know(claim)
    assert "Checked: `2 * a.p25 < 3 * a" in text
    assert text.count("*a* `copy-size") == 1
    assert "*b*" not in text


def test_how_we_know_of_the_other_kinds(ledger: Ledger) -> None:
    computed, cited = claims.load(ledger(COMPUTED + CITED))
    assert claims.how_we_know(computed) == "Computed: `2**10` = 1 KiB."
    text = claims.how_we_know(cited)
    assert "[A guide](https://example.org/guide), A publisher (read on 2026-11-21)" in text
    assert "[A standard](https://example.org/standard), A body (not verified)" in text


@pytest.mark.parametrize(
    ("expression", "value", "tolerance", "shown"),
    [
        ("65520 / 1", "65520", "0", "65,520"),
        ("2 / 3", "0.667", "0.005", "0.667"),
        ("2 / 3", "0.666667", "1e-5", "0.66667"),
        ("1 / 8", "0.125", "0", "0.125"),
        ("[384, 1.25]", "[384, 1.25]", "1e-9", "384, 1.25"),
    ],
)
def test_the_evidence_shows_the_digits_that_were_checked(
    ledger: Ledger, expression: str, value: str, tolerance: str, shown: str
) -> None:
    row = replaced(COMPUTED, '"2**10"', f'"{expression}"').replace('unit = "B"\n', "")
    (claim,) = claims.load(ledger(replaced(row, "value = 1024", f"value = {value}\ntolerance = {tolerance}")))
    assert claims.how_we_know(claim) == f"Computed: `{expression}` = {shown}."


def test_a_datasheet_figure_brings_its_source(ledger: Ledger) -> None:
    row = replaced(COMPUTED, '"2**10"', "\"datasheet('h100-sxm', 'memory_bandwidth')\"")
    (claim,) = claims.load(ledger(replaced(row, "value = 1024", "value = 3.35e12")))
    assert "NVIDIA H100 SXM and PCIe" in claims.how_we_know(claim)


@pytest.mark.parametrize(
    ("braces", "written"),
    [
        ("{132 * 2048}", "270,336"),
        ("{1 / 3}", "0.333"),
        ("{quantity(8e6 / 16e9, 's')}", "500 µs"),
        ("{datasheet('h100-sxm', 'memory_bandwidth')}", "3.35 TB/s"),
        ("{round(2.6)}", "3"),
        ("{65520 / 1}", "65,520"),
        ("{65520.5 / 1}", "65500"),
        ("{digits(65520.5 / 1, 6)}", "65520.5"),
        ("{digits(1 / 3, 5)}", "0.33333"),
        ("{digits(2 / 5, 5)}", "0.4"),
        ("{digits(0.0003, 1)}", "0.0003"),
        ("{digits(datasheet('a100-sxm-80gb', 'memory_bandwidth'), 4)}", "2.039 TB/s"),
        ("{digits(quantity(163.25 * 1024, 'B'), 5)}", "163.25 KiB"),
    ],
)
def test_how_values_are_written(ledger: Ledger, braces: str, written: str) -> None:
    (claim,) = claims.load(ledger(replaced(COMPUTED, KIBIBYTE, braces)))
    assert claims.right(claim) == f"It is {written}."


def test_what_nobody_could_look_at_is_known_of_a_row_and_of_the_datasheet_figures_it_uses(ledger: Ledger) -> None:
    computed, cited = claims.load(ledger(COMPUTED + CITED))
    assert claims.unread(computed) == []
    assert [source.publisher for source in claims.unread(cited)] == ["A body"]
    row = replaced(COMPUTED, '"2**10"', "\"datasheet('rtx-5090', 'bf16_dense')\"")
    (of_a_figure,) = claims.load(ledger(replaced(row, "value = 1024", "value = 209.5e12")))
    assert [source.key for source in claims.unread(of_a_figure)] == ["rtx-blackwell-whitepaper"]


def test_a_page_that_does_not_declare_the_benchmark_may_not_read_it(
    ledger: Ledger, published: Callable[..., Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    published("copy-size", copy_case(3e12))
    (claim,) = claims.load(ledger(MEASURED))
    monkeypatch.setenv("GPUGUIDE_DECLARED", "ceilings")
    with pytest.raises(GpuguideError, match="copy-size"):
        claims.right(claim)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, gpuguide.claims as claims; rows = claims.load(); "
        "claims.check(row for row in rows if row.kind != 'measured' and not row.functions and not row.benchmarks); "
        "print([name for name in ('torch', 'matplotlib', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
