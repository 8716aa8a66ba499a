"""The table of who is fastest: it is what the records say, and no part of what a benchmark measures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuguide.attention import choice, gpu
from gpuguide.benchmarks.attention.speed import ATTENTION
from gpuguide.cli import app
from gpuguide.measure import choices, digest, store
from gpuguide.measure.digest.source import Tree


def test_the_tables_are_what_the_published_records_say() -> None:
    """Where this fails, `gpuguide records choices --write` writes them anew."""
    assert choices.tables() == [gpu.TABLE]
    for table in choices.tables():
        assert table.read_text(encoding="utf-8") == choices.from_records(table)


def test_every_backend_is_a_contender() -> None:
    table = json.loads(gpu.TABLE.read_text(encoding="utf-8"))
    assert table["benchmark"] == ATTENTION.name
    assert set(table["contenders"]) <= set(ATTENTION.contenders)
    assert {*table["contenders"].values(), "sdpa"} == set(choice.BACKENDS)


def test_the_order_is_that_of_the_medians() -> None:
    tables = json.loads(gpu.TABLE.read_text(encoding="utf-8"))
    names = {backend: contender for contender, backend in tables["contenders"].items()}
    for record in store.load_all_published():
        if record.benchmark == "attention":
            measured = {(case.contender, json.dumps(dict(case.keys))): case for case in record.cases}
            rows = tables["devices"][record.runs[-1].device_name]["cases"]
            assert len(rows) == len({keys for _, keys in measured})
            for row in rows:
                keys = json.dumps({key: value for key, value in row.items() if key != "order"})
                times = [measured[names[backend], keys].metrics["time"].summary.median for backend in row["order"]]
                assert times == sorted(times)


def test_a_gpu_of_the_same_generation_shares_its_table() -> None:
    kinds = json.loads(gpu.TABLE.read_text(encoding="utf-8"))["devices"]
    for name, table in kinds.items():
        assert gpu.load_measurements(name, tuple(table["capability"])) == (name, table["cases"])
    assert gpu.load_measurements("NVIDIA GH200", (9, 0))[0] in kinds
    assert gpu.load_measurements("Tesla T4", (7, 5)) == (None, ())


def test_the_table_is_no_part_of_the_digest(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__", "theme", "*.json")
    before = digest.digest_in(digest.tree(), "attention")
    package = Path(shutil.copytree(digest.PACKAGE_FOLDER, tmp_path / "gpuguide", ignore=ignored))
    (package / "attention" / "choices.json").write_text("{}", encoding="utf-8")  # the copy has no other JSON
    assert digest.digest_in(Tree(package), "attention") == before


def test_the_command_compares_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "attention" / "choices.json"
    table.parent.mkdir()
    right = gpu.TABLE.read_text(encoding="utf-8")
    table.write_text(json.dumps({**json.loads(right), "devices": {}}), encoding="utf-8")
    monkeypatch.setattr(choices, "tables", lambda: [table])
    for words, status, said in (
        ([], 1, "not as the records say"),
        (["--write"], 0, "written"),
        ([], 0, "as the records say"),
    ):
        done = CliRunner().invoke(app, ["records", "choices", *words])
        assert (done.exit_code, done.output) == (status, f"attention: {said}\n")
    assert table.read_text(encoding="utf-8") == right
