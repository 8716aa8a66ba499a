from __future__ import annotations

import re
from pathlib import Path

import pytest
import synthetic_records as synthetic

from gpuguide.errors import GpuguideError
from gpuguide.measure import folders, records, reference_gpu

NAMES = {
    # as the driver says: as people say, with the article
    "NVIDIA H100 80GB HBM3": ("H100", "an H100"),
    "NVIDIA H200": ("H200", "an H200"),
    "NVIDIA B200": ("B200", "a B200"),
    "NVIDIA A100-SXM4-80GB": ("A100", "an A100"),
    "NVIDIA GeForce RTX 4090": ("RTX 4090", "an RTX 4090"),
    "Tesla T4": ("T4", "a T4"),
    "NVIDIA L40S": ("L40S", "an L40S"),
    "NVIDIA Tomorrow 1": ("Tomorrow 1", "a Tomorrow 1"),
}


@pytest.fixture
def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make a device of this name the reference GPU."""
    monkeypatch.setattr(folders, "published_folder", lambda: tmp_path)

    def published(name: str, *, stale: bool = False) -> records.Record:
        device = re.sub("[^a-z0-9]+", "-", name.lower())
        monkeypatch.setattr(reference_gpu, "slug", lambda: device)
        made = synthetic.record("copy-size", synthetic.cases_of("copy-size"), (device, name), stale=stale)
        return records.write(made, tmp_path / device / "copy-size.json")

    return published


@pytest.mark.parametrize("name", NAMES)
def test_the_gpu_is_called_by_its_name(publish, name: str) -> None:
    publish(name)
    short, with_article = NAMES[name]
    assert [reference_gpu.word(form) for form in ("name", "short", "a short", "A short")] == [
        name,
        short,
        with_article,
        with_article.replace("a", "A", 1),
    ]


def test_the_datasheet_of_the_reference_gpu(publish) -> None:
    publish("NVIDIA H200")
    assert reference_gpu.sheet().id == reference_gpu.sheet("reference").id == "h200"
    assert reference_gpu.sheet("h100-sxm").id == "h100-sxm"
    assert (reference_gpu.word("architecture"), reference_gpu.word("board")) == ("Hopper", "SXM5")
    publish("NVIDIA Tomorrow 1")
    with pytest.raises(GpuguideError, match=r"nvidia-tomorrow-1, is not in the table of GPUs\. Add it"):
        reference_gpu.sheet()


def test_an_unknown_form_is_named_with_the_near_ones() -> None:
    with pytest.raises(GpuguideError, match="Did you mean short"):
        reference_gpu.word("shrt")


def test_what_is_said_of_an_old_record(publish, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reference_gpu.age(publish("NVIDIA H200")) == ""
    old = publish("NVIDIA H200", stale=True)
    assert reference_gpu.age(old) == "stale: the code that measured this has changed since"
    monkeypatch.setattr(reference_gpu, "slug", lambda: "another-gpu")
    assert reference_gpu.age(old) == "measured with the code of 2026-01-02"
