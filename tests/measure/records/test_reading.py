from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuguide.errors import GpuguideError
from gpuguide.measure import records
from gpuguide.measure.records import DamagedRecord, Readings

Fields = dict[str, Any]


# Every kind is written with a checksum that fits, so that the check for this kind of damage has to notice it.

Damage = tuple[str, str, Callable[[Fields], Any]]
"""What is wrong, the field that the message must name, and how it comes about"""

OPTIONAL = {
    "driver",
    "cuda",
    "commit",
    "host_cores_available",
    *Readings.__dataclass_fields__,
}
LEFT_OUT = {"reason", "libraries", "metrics", "rates", "turns"}
"""Fields that a file leaves out where they are empty"""
FREE_NAMES = {"versions", "keys", "metrics", "rates"}
"""Objects whose names are the benchmark's, so that none is missing and none is unknown"""


SHAPE: Fields = {
    "schema_version": 3,
    "benchmark": "",
    "device": "",
    "harness_version": 2,
    "code_digest": "",
    "checksum": "",
    "runs": [
        {
            **dict.fromkeys(("device_name", "driver", "cuda", "python"), ""),
            "versions": {"torch": ""},
            "host_cpu": "",
            "host_cores": 1,
            "host_cores_available": 1.5,
            **dict.fromkeys(("before", "after"), dict.fromkeys(Readings.__dataclass_fields__, 1.0)),
            **dict.fromkeys(("started_at", "finished_at"), ""),
            "elapsed": 1.0,
            "commit": "",
            "seed": 0,
            "command": "",
            "simulated": False,
        }
    ],
    "cases": [
        {
            "keys": {"size": 1},
            "contender": "",
            "run": 0,
            "status": "",
            "reason": "",
            "correct": "",
            "libraries": [""],
            "metrics": {
                "time": {
                    "unit": "",
                    "samples": [1.0],
                    "summary": {"n": 1, "median": 1.0},
                    "turns": [1],
                }
            },
            "rates": {"bandwidth": {"unit": "", "per_call": 1.0}},
        }
    ],
}
"""The shape of a record: each object and list once"""


def at(content: Any, steps: tuple[str | int, ...]) -> Any:
    for step in steps:
        content = content[step]
    return content


def path_of(steps: tuple[str | int, ...]) -> str:
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")


def put(steps: tuple[str | int, ...], value: Any) -> Callable[[Fields], Fields]:
    def damage(content: Fields) -> Fields:
        at(content, steps[:-1])[steps[-1]] = value
        return content

    return damage


def take_out(steps: tuple[str | int, ...]) -> Callable[[Fields], Fields]:
    def damage(content: Fields) -> Fields:
        del at(content, steps[:-1])[steps[-1]]
        return content

    return damage


def twice(steps: tuple[str | int, ...]) -> Callable[[Fields], str]:
    """Let one field stand twice in its object, with the same value: then the checksum still fits."""

    def damage(content: Fields) -> str:
        value = at(content, steps)
        marked = f"{steps[-1]} again"
        at(content, steps[:-1])[marked] = value
        return json.dumps(content).replace(json.dumps(marked), json.dumps(steps[-1]))

    return damage


def every_place(value: Any, steps: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every field and item of the shape with its value."""
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*steps, name), inner
        if isinstance(inner, (dict, list)):
            yield from every_place(inner, (*steps, name))


def systematic() -> Iterator[Damage]:
    """Yield the kinds of damage that every field, object and number can have."""
    for steps, value in every_place(SHAPE):
        where, name, parent = path_of(steps), steps[-1], steps[-2] if len(steps) > 1 else ""
        if isinstance(name, str) and parent not in FREE_NAMES and name not in LEFT_OUT:
            yield "removed", where, take_out(steps)
        if isinstance(name, str):
            yield "twice", where, twice(steps)
        if isinstance(value, dict) and name not in FREE_NAMES:
            yield "unknown field", f"{where}.colour", put((*steps, "colour"), 1)
        if isinstance(value, dict) and name in FREE_NAMES:
            yield "empty name", where, put((*steps, ""), value and next(iter(value.values())))
        if name not in OPTIONAL:
            yield "null", where, put(steps, None)
        wrong: Any = [1] if isinstance(value, (str, int, float)) else "text"
        yield "wrong type", where, put(steps, wrong)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield "text for a number", where, put(steps, {"text": 1} if parent == "keys" else "1")
            if parent != "keys":
                yield "true for a number", where, put(steps, True)
            for number in (math.nan, math.inf, -math.inf, 10**400):
                yield f"{str(number)[:4]} for a number", where, put(steps, number)
        if isinstance(value, str) and name != "reason":
            yield "empty text", where, put(steps, "")
        if isinstance(value, (dict, list)):
            yield "other container", where, put(steps, [] if isinstance(value, dict) else {})
    yield "unknown field", "colour", put(("colour",), 1)


def changed(*edits: Callable[[Fields], Fields]) -> Callable[[Fields], Fields]:
    def damage(content: Fields) -> Fields:
        for edit in edits:
            content = edit(content)
        return content

    return damage


FIRST: tuple[str | int, ...] = ("cases", 0)
TIME = (*FIRST, "metrics", "time")
SKIPPED: tuple[str | int, ...] = ("cases", 3)
PARTICULAR: list[Damage] = [
    ("future version", "schema_version", put(("schema_version",), 4)),
    ("version zero", "schema_version", put(("schema_version",), 0)),
    ("harness version zero", "harness_version", put(("harness_version",), 0)),
    ("digest too short", "code_digest", put(("code_digest",), "sha256:" + "1" * 63)),
    ("digest of another kind", "code_digest", put(("code_digest",), "md5:" + "1" * 64)),
    ("digest in capitals", "code_digest", put(("code_digest",), "sha256:" + "A" * 64)),
    ("another benchmark's name", "benchmark", put(("benchmark",), "other")),
    ("a path as benchmark", "benchmark", put(("benchmark",), "../made-up")),
    ("capitals in the benchmark", "benchmark", put(("benchmark",), "Made-up")),
    ("another device", "device", put(("device",), "nvidia-other")),
    ("a path as device", "device", put(("device",), "a\\b")),
    ("a space in the device", "device", put(("device",), "nvidia gpu")),
    ("no runs", "runs", put(("runs",), [])),
    ("no cases", "runs[0]", put(("cases",), [])),
    (
        "a run that no case needs",
        "runs[2]",
        lambda content: {**content, "runs": [*content["runs"], content["runs"][0]]},
    ),
    ("run out of range", "cases[0].run", put((*FIRST, "run"), 2)),
    ("negative run", "cases[0].run", put((*FIRST, "run"), -1)),
    ("a version that is not there", "runs[0].versions", take_out(("runs", 0, "versions", "cudnn"))),
    ("no version of PyTorch", "runs[0].versions", take_out(("runs", 0, "versions", "torch"))),
    ("no versions at all", "runs[0].versions", put(("runs", 0, "versions"), {})),
    ("less than no cores", "runs[0].host_cores_available", put(("runs", 0, "host_cores_available"), -1)),
    ("a turn too many", "cases[0].metrics.time.turns", put((*TIME, "turns"), [1, 3, 1])),
    ("a turn too few", "cases[0].metrics.time.turns", put((*TIME, "turns"), [3])),
    ("a turn without samples", "cases[0].metrics.time.turns[2]", put((*TIME, "turns"), [1, 3, 0])),
    ("half a sample in a turn", "cases[0].metrics.time.turns[0]", put((*TIME, "turns"), [1.5, 2.5])),
    (
        "a turn of a metric without",
        "cases[0].metrics.peak_memory.turns",
        put((*FIRST, "metrics", "peak_memory", "turns"), [2]),
    ),
    ("no cores", "runs[0].host_cores", put(("runs", 0, "host_cores"), 0)),
    ("negative elapsed", "runs[0].elapsed", put(("runs", 0, "elapsed"), -1)),
    ("half a core", "runs[0].host_cores", put(("runs", 0, "host_cores"), 1.5)),
    ("a half seed", "runs[0].seed", put(("runs", 0, "seed"), 0.5)),
    ("no date", "runs[0].started_at", put(("runs", 0, "started_at"), "yesterday")),
    ("a date without time", "runs[0].started_at", put(("runs", 0, "started_at"), "2026-11-21")),
    ("no time zone", "runs[0].finished_at", put(("runs", 0, "finished_at"), "2026-11-21T01:10:26")),
    ("another time zone", "runs[0].finished_at", put(("runs", 0, "finished_at"), "2026-11-21T01:10:26+02:00")),
    ("the 31st of November", "runs[0].started_at", put(("runs", 0, "started_at"), "2026-11-31T01:10:26+00:00")),
    ("a date in another form", "runs[0].started_at", put(("runs", 0, "started_at"), "20261121T011026+0000")),
    ("number for a flag", "runs[0].simulated", put(("runs", 0, "simulated"), 1)),
    ("version that is no text", "runs[0].versions.torch", put(("runs", 0, "versions", "torch"), 2.11)),
    ("unknown status", "cases[0].status", put((*FIRST, "status"), "fine")),
    ("unknown correctness", "cases[0].correct", put((*FIRST, "correct"), "no")),
    ("a key that is a list", "cases[0].keys.size", put((*FIRST, "keys", "size"), [1])),
    ("other key names", "cases[5].keys", put(("cases", 5, "keys"), {"size": 4})),
    ("one more key", "cases[5].keys", put(("cases", 5, "keys", "seed"), 4)),
    ("a key of another type", "cases[5].keys.size", put(("cases", 5, "keys", "size"), "4")),
    ("a flag for a number in a key", "cases[5].keys.size", put(("cases", 5, "keys", "size"), True)),
    ("repeated case", "cases[2]", put(("cases", 2, "keys", "size"), 1)),
    ("repeated case as float", "cases[2]", put(("cases", 2, "keys", "size"), 1.0)),
    ("ok and nothing measured", "cases[0].metrics", changed(put((*FIRST, "metrics"), {}), put((*FIRST, "rates"), {}))),
    ("ok with a reason", "cases[0].reason", put((*FIRST, "reason"), "needs fp8")),
    ("skipped without a reason", "cases[3]", put((*SKIPPED, "reason"), "")),
    ("skipped and correct", "cases[3].correct", put((*SKIPPED, "correct"), "yes")),
    ("skipped and rates", "cases[3]", put((*SKIPPED, "rates"), {"bandwidth": {"unit": "B/s", "per_call": 1}})),
    (
        "skipped and measured",
        "cases[3]",
        lambda content: put((*SKIPPED, "metrics"), copy.deepcopy(content["cases"][0]["metrics"]))(content),
    ),
    ("failed without a reason", "cases[5]", put(("cases", 5, "reason"), "")),
    ("out of memory without a reason", "cases[4]", put(("cases", 4, "reason"), "")),
    ("a rate without a time", "cases[0].rates", take_out(TIME)),
    ("a rate that hides a metric", "cases[0].rates.time", put((*FIRST, "rates", "time"), {"unit": "1", "per_call": 1})),
    ("a negative rate", "cases[0].rates.bandwidth.per_call", put((*FIRST, "rates", "bandwidth", "per_call"), -1)),
    ("a time in milliseconds", "cases[0].metrics.time.unit", put((*TIME, "unit"), "ms")),
    ("no samples", "cases[0].metrics.time.samples", put((*TIME, "samples"), [])),
    ("a time of zero", "cases[0].metrics.time.samples", put((*TIME, "samples", 1), 0)),
    ("a negative time", "cases[0].metrics.time.samples", put((*TIME, "samples", 1), -0.002)),
    ("text among samples", "cases[0].metrics.time.samples[2]", put((*TIME, "samples", 2), "0.004")),
    ("null among samples", "cases[0].metrics.time.samples[3]", put((*TIME, "samples", 3), None)),
    ("a sample lost", "cases[0].metrics.time.summary.n", put((*TIME, "samples"), [0.001, 0.002, 0.004])),
    ("a sample changed", "cases[0].metrics.time.summary.median", put((*TIME, "samples", 1), 0.0021)),
    ("n changed", "cases[0].metrics.time.summary.n", put((*TIME, "summary", "n"), 5)),
    ("n of zero", "cases[0].metrics.time.summary.n", put((*TIME, "summary", "n"), 0)),
    ("median changed", "cases[0].metrics.time.summary.median", put((*TIME, "summary", "median"), 0.0031)),
    ("a quantile of before", "cases[0].metrics.time.summary.p25", put((*TIME, "summary", "p25"), 0.00175)),
    ("a list at the top", "the top", lambda content: [content]),
    ("null at the top", "the top", lambda content: None),
    ("text at the top", "the top", lambda content: "record"),
]
KINDS = [*systematic(), *PARTICULAR]


def test_there_are_at_least_a_hundred_kinds_of_damage() -> None:
    assert len({(kind, where) for kind, where, _ in KINDS}) == len(KINDS) >= 100


def damaged(path: Path) -> DamagedRecord:
    """Read the file, which must be noticed as damaged, and return the error."""
    with pytest.raises(DamagedRecord) as caught:
        records.read(path)
    assert str(path) in str(caught.value)
    assert f"damaged at {caught.value.where}: " in str(caught.value)
    return caught.value


@pytest.mark.parametrize(("where", "damage"), [kind[1:] for kind in KINDS], ids=[f"{k}-{w}" for k, w, _ in KINDS])
def test_damage_is_named_with_its_field(where: str, damage: Callable[[Fields], Any], record_file: Any) -> None:
    content = record_file.signed(record_file.content())
    assert records.read(record_file.write(content)).path == record_file.path  # nothing else is wrong with it
    content = damage(content)
    if isinstance(content, str) and where != "the top":
        record_file.path.write_text(content)
    else:
        record_file.write(content, sign=isinstance(content, dict) and where != "checksum")
    assert damaged(record_file.path).where == where


QUANTILES = [
    *((name, put((*TIME, "summary", name), 0.0031)) for name in records.QUANTILES),
    *((name, put((*TIME, "summary", name), None)) for name in ("p5", "p25", "p75", "p95")),
    ("p5", put((*TIME, "samples", 0), 0.0011)),
]


@pytest.mark.parametrize(("name", "damage"), QUANTILES)
def test_a_wrong_quantile_of_the_second_version_is_noticed(
    name: str, damage: Callable[[Fields], Fields], record_file: Any
) -> None:
    path = record_file.write(damage(record_file.content_of_version_2()))
    assert damaged(path).where == f"cases[0].metrics.time.summary.{name}"


def test_a_quantile_of_a_single_sample_is_noticed_in_the_second_version(record_file: Any) -> None:
    summary = (*FIRST, "metrics", "peak_memory", "summary")
    path = record_file.write(put((*summary, "p25"), 4096)(record_file.content_of_version_2()))
    assert damaged(path).where == "cases[0].metrics.peak_memory.summary.p25"


@pytest.mark.parametrize("part", [0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99])
def test_a_truncated_file_is_named_with_the_line(record_file: Any, part: float) -> None:
    text = records.to_json(records.read(record_file.write(record_file.content())))
    record_file.path.write_text(text[: int(part * len(text))])
    assert damaged(record_file.path).where.startswith("line ")


def test_every_truncation_and_every_lost_character_is_noticed(record_file: Any) -> None:
    """Every prefix of the file, and the file without any one character that is not white space."""
    path = record_file.write(record_file.content())
    text = records.to_json(records.read(path)).rstrip()
    end = text.index('"cases"') + 900
    for place in range(0, end, 7):
        for broken in (text[:place], text[:place] + text[place + 1 :]):
            if broken.split() == text.split() or "".join(broken.split()) == "".join(text.split()):
                continue
            with pytest.raises(DamagedRecord):
                records.from_json(broken, path)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (b"\xff\xfe{}", "byte 0"),
        (b'{"benchmark": "caf\xe9"}', "byte 18"),
        (b"", "line 1, column 1"),
        (b"\0" * 64, "line 1, column 1"),
        (b"{'benchmark': 'copy'}", "line 1, column 2"),
        (b'{"schema_version": 1,}', "line 1, column 2"),  # 21 or 22, as the Python version has it
        (b'{"schema_version": 1}{}', "line 1, column 22"),
        (b"[" * 200_000, "the text"),
        (b'{"schema_version": ' + b"1" * 5000 + b"}", "the text"),
        (b"<<<<<<< HEAD\n{}", "line 1, column 1"),
    ],
    ids=[
        "UTF-16", "Latin-1", "empty", "zeros", "Python", "comma", "two", "too deep", "a number of 5000 digits", "merge"
    ],
)  # fmt: skip
def test_a_file_that_is_not_json_is_named_with_the_place(record_file: Any, text: bytes, where: str) -> None:
    record_file.path.write_bytes(text)
    assert damaged(record_file.path).where.startswith(where)


@pytest.mark.parametrize(
    ("steps", "value"),
    [
        (("runs", 0, "commit"), "0000000"),
        (("runs", 0, "driver"), None),
        (("runs", 0, "before", "power"), 300.0),
        (("cases", 0, "contender"), "better"),
        (("cases", 0, "rates", "bandwidth", "per_call"), 60.0),
        (("cases", 3, "reason"), "too old"),
        (("harness_version",), 3),
        (("code_digest",), "sha256:" + "3" * 64),
        (("checksum",), "sha256:" + "3" * 64),
    ],
    ids=lambda value: path_of(value) if isinstance(value, tuple) else "",
)
def test_an_edit_by_hand_is_noticed_even_where_the_value_is_possible(
    record_file: Any, steps: tuple[str | int, ...], value: Any
) -> None:
    content = record_file.signed(record_file.content())
    record_file.write(put(steps, value)(content), sign=False)
    assert damaged(record_file.path).where == "checksum"


def test_a_record_of_the_second_version_holds_the_same(record_file: Any) -> None:
    old = records.read(record_file.write(record_file.content_of_version_2()))
    assert records.read(record_file.write(record_file.content())) == old
    assert records.from_json(records.to_json(old)) == replace(old, path=None)


def test_empty_fields_are_left_out(record_file: Any) -> None:
    record = records.read(record_file.write(record_file.content()))
    written = json.loads(records.to_json(record))["cases"]
    assert written[3].keys() == {"keys", "contender", "run", "status", "correct", "reason"}
    assert written[1].keys() == {"keys", "contender", "run", "status", "correct", "metrics", "rates"}
    assert "turns" not in written[0]["metrics"]["peak_memory"]


def test_a_record_of_the_first_version_is_read_without_turns_and_libraries(record_file: Any) -> None:
    old = records.read(record_file.write(record_file.content_of_version_1()))
    assert [run.host_cores_available for run in old.runs] == [None, None]
    assert {case.libraries for case in old.cases} == {()}
    assert {metric.turns for case in old.cases for metric in case.metrics.values()} == {()}
    new = records.read(record_file.write(record_file.content()))
    assert [case.measured["time"].samples for case in old.cases_of("fast")] == [
        case.measured["time"].samples for case in new.cases_of("fast")
    ]
    assert records.from_json(records.to_json(old)) == replace(old, path=None)  # also written as this version writes


@pytest.mark.parametrize(
    ("steps", "value"),
    [(("runs", 0, "host_cores_available"), 2), ((*FIRST, "libraries"), []), ((*TIME, "turns"), [4])],
    ids=lambda value: path_of(value) if isinstance(value, tuple) else "",
)
def test_a_field_of_the_second_version_has_no_place_in_the_first(
    record_file: Any, steps: tuple[str | int, ...], value: Any
) -> None:
    error = damaged(record_file.write(put(steps, value)(record_file.content_of_version_1())))
    assert error.where == path_of(steps)
    assert "no field of that name belongs here" in str(error)


def test_a_version_of_before_needs_no_versions_of_libraries(record_file: Any) -> None:
    fields = put(("runs", 0, "versions"), {})(record_file.content_of_version_1())
    assert records.read(record_file.write(fields)).runs[0].versions == {}


def test_a_simulated_run_and_a_skipped_case_need_no_version_of_what_they_did_not_call(record_file: Any) -> None:
    fields = take_out(("runs", 1, "versions", "cudnn"))(record_file.content())
    assert records.read(record_file.write(fields)).cases[2].libraries == ("cudnn",)
    fields["runs"][1]["simulated"] = False
    assert damaged(record_file.write(fields)).where == "runs[1].versions"
    fields["cases"][2] |= {"status": "skipped", "reason": "cudnn", "correct": "n/a", "metrics": {}, "rates": {}}
    assert records.read(record_file.write(fields)).cases[2].status == "skipped"


def test_a_future_version_says_what_to_do(record_file: Any) -> None:
    record_file.write({"schema_version": 7, "anything": {}})
    assert "update gpuguide" in str(damaged(record_file.path))


def test_a_file_under_another_name_or_in_another_folder_is_noticed(record_file: Any) -> None:
    path = record_file.write(record_file.content())
    renamed = path.rename(path.with_name("other.json"))
    assert damaged(renamed).where == "benchmark"
    folder = path.parent.with_name("cpu")
    folder.mkdir()
    assert damaged(renamed.rename(folder / "made-up.json")).where == "device"


def test_a_record_that_is_not_there_or_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(GpuguideError, match=r"no record at .*missing\.json"):
        records.read(tmp_path / "missing.json")
    with pytest.raises(GpuguideError, match="Cannot read the record"):
        records.read(tmp_path)
