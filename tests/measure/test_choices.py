from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import synthetic_records as synthetic

from gpuguide.errors import GpuguideError
from gpuguide.measure import choices, folders, records

Publish = Callable[[str, str], None]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "choices.json"
    path.write_text(json.dumps({"benchmark": "copy-size", "contenders": {"copy": "ours"}, "devices": {}}))
    return path


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Publish:
    folder = tmp_path / "records"
    monkeypatch.setattr(folders, "published_folder", lambda: folder)

    def write(device: str, name: str) -> None:
        cases = synthetic.cases_of("copy-size")[:1]
        made = synthetic.record("copy-size", cases, (device, name))
        records.write(made, folder / device / "copy-size.json")

    return write


def test_processors_and_several_gpus_are_no_kind_of_gpu(table: Path, publish: Publish) -> None:
    publish("cpu", "A processor")
    publish("8x-nvidia-h200", "NVIDIA H200")
    assert json.loads(choices.from_records(table))["devices"] == {}
    publish("nvidia-h200", "NVIDIA H200")
    devices = json.loads(choices.from_records(table))["devices"]
    assert devices == {"NVIDIA H200": {"capability": [9, 0], "cases": [{"working_set": 16384, "order": ["ours"]}]}}


def test_a_gpu_that_is_not_in_the_table_of_gpus_is_named_with_its_record(table: Path, publish: Publish) -> None:
    publish("nvidia-x1", "NVIDIA X1")
    with pytest.raises(GpuguideError, match=r"NVIDIA X1, of which .*copy-size\.json is a record.* Add it"):
        choices.from_records(table)
