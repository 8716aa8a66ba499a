"""``gpuguide bench compare``, as somebody with a small GPU sees it who has just measured it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic_records as synthetic
from synthetic_records import OWN, PUBLISHED

from gpuguide.measure import folders, records, reference_gpu
from gpuguide.measure.records import Case

Run = Callable[..., tuple[int, str, str]]
CPU = ("cpu", "A processor")


@pytest.fixture
def overlay(overlay: Path) -> Path:
    """An empty folder of one's own records: one that is not there is refused."""
    overlay.mkdir()
    return overlay


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made-up records of the reference GPU and of a processor, in place of the published ones."""
    folder = tmp_path / "published"
    monkeypatch.setattr(folders, "published_folder", lambda: folder)
    synthetic.write_all(folder, (reference_gpu.slug(), PUBLISHED[1]))
    synthetic.write_all(folder, CPU, slower=30.0)
    return folder


def rows(out: str, benchmark: str) -> list[str]:
    """Return the lines below the title of one benchmark."""
    (block,) = re.findall(rf"^{benchmark} .*\n((?:.+\n)*)", out, re.MULTILINE)
    return block.splitlines()


def test_ones_own_cases_come_with_the_published_value_and_the_ratio(
    gpuguide: Run, published: Path, overlay: Path
) -> None:
    synthetic.write_all(overlay, OWN, slower=2.0)
    status, out, err = gpuguide("bench", "compare")
    assert (status, err) == (0, "")
    (line,) = [line for line in rows(out, "ceilings") if line.startswith("copy ")]
    yours, theirs, speed = re.fullmatch(r"copy +([\d.]+) TB/s +([\d.]+) TB/s +([\d.]+)× *", line).groups()  # type: ignore[union-attr]
    assert float(speed) == pytest.approx(float(yours) / float(theirs), abs=0.01) == pytest.approx(0.5, abs=0.01)
    (line,) = [line for line in rows(out, "ceilings") if line.startswith("launch ")]
    assert line.rstrip().endswith("0.50×")  # of times too, more is faster
    assert len([line for line in rows(out, "copy-size") if "working_set=" in line]) == 18
    assert [re.match(r"\S+ on \S+ \(yours\)", out, 0) is not None, "(published)" in out] == [True, False]
    assert out.endswith("as the device on its left\n")


def test_a_processor_stands_beside_a_processor(gpuguide: Run, published: Path, overlay: Path) -> None:
    synthetic.write_all(overlay, CPU, slower=60.0)
    _, out, _ = gpuguide("bench", "compare", "--benchmark", "ceilings")
    (line,) = [line for line in rows(out, "ceilings") if line.startswith("copy ")]
    assert line.rstrip().endswith("0.50×")
    assert reference_gpu.slug()[:10] not in out


def test_what_only_others_measured_is_left_out(gpuguide: Run, published: Path, overlay: Path) -> None:
    """A GPU with little memory has other sizes: they stand there, with a dash where nobody published them."""
    small = [Case({"working_set": 12345}, "copy", 0, "ok", measured={"time": records.metric("s", [1e-3] * 5)})]
    mine = synthetic.cases_of("copy-size")[:2] + small
    mine.append(Case({"working_set": 2**40}, "copy", 0, "skipped", "needs 2048.0 GiB"))
    records.write(synthetic.record("copy-size", mine, OWN), overlay / OWN[0] / "copy-size.json")
    _, out, _ = gpuguide("bench", "compare")
    lines = [line for line in rows(out, "copy-size") if "working_set=" in line]
    assert [len(re.findall(r"B/s| ms|×", line)) for line in lines] == [3, 3, 1]
    assert "–" in lines[2]
    assert "1 more without a measurement; 'gpuguide records show copy-size' says why." in out
    assert "ceilings" not in out


def test_published_records_stand_side_by_side_on_request(gpuguide: Run, published: Path, overlay: Path) -> None:
    synthetic.write_all(overlay, OWN)
    _, out, _ = gpuguide("bench", "compare", "--published", "--benchmark", "ceilings")
    own, _, others = out.partition("ceilings (published)\n")
    assert own.startswith(f"ceilings on {OWN[0]} (yours)\n")
    (line,) = [line for line in others.splitlines() if line.startswith("copy ")]
    assert len(re.findall(r"[\d.]+ [GT]B/s", line)) == 2
    assert "copy-size" not in out


def test_published_devices_that_are_named_stand_beside(gpuguide: Run, published: Path, overlay: Path) -> None:
    synthetic.write_all(overlay, OWN)
    synthetic.write_all(overlay, ("nvidia-l4", "NVIDIA L4"))
    _, out, _ = gpuguide("bench", "compare", "nvidia-l4", "cpu", "--benchmark", "ceilings")
    assert out.startswith("ceilings on nvidia-l4 (yours)\n")
    (line,) = [line for line in rows(out, "ceilings") if line.startswith("copy ")]
    assert line.rstrip().endswith("30×")
    assert OWN[0] not in out


def test_the_same_kind_of_gpu_may_stand_on_both_sides(gpuguide: Run, published: Path, overlay: Path) -> None:
    synthetic.write_all(overlay, (reference_gpu.slug(), PUBLISHED[1]))
    _, out, _ = gpuguide("bench", "compare", reference_gpu.slug(), "--benchmark", "ceilings")
    assert f"ceilings on {reference_gpu.slug()} (yours)" in out
    assert {line.split()[-1] for line in rows(out, "ceilings") if line.endswith(("×", "× "))} == {"1.0×"}


def test_without_records_of_ones_own(gpuguide: Run, published: Path, overlay: Path) -> None:
    status, out, err = gpuguide("bench", "compare")
    assert (status, out) == (1, "")
    assert "gpuguide bench run" in err
    assert "--published" in err
    for words in (["--published"], ["cpu", reference_gpu.slug()]):
        status, out, err = gpuguide("bench", "compare", *words)
        assert (status, err) == (0, "")
        assert "ceilings (published)" in out


def test_more_devices_than_fit_beside_each_other_get_a_second_table(
    gpuguide: Run, published: Path, overlay: Path
) -> None:
    for name in ("nvidia-l4", "nvidia-a100-sxm4-80gb", "nvidia-b200", "8x-nvidia-b200"):
        records.write(
            synthetic.record("ceilings", synthetic.cases_of("ceilings"), (name, name)),
            published / name / "ceilings.json",
        )
    _, out, _ = gpuguide("bench", "compare", "--published", "--benchmark", "ceilings")
    assert out.count("ceilings (published)") == 2
    synthetic.write_all(overlay, OWN)
    _, out, _ = gpuguide(
        "bench", "compare", *(folder.name for folder in published.iterdir()), "--benchmark", "ceilings"
    )
    assert out.count("\ncontender ") == 3
    lines = [line for line in rows(out, "ceilings") if line.startswith("matmul-fp8 ")]
    assert sum(line.count("×") for line in lines) == 6
    assert sum(line.count("FLOP/s") for line in lines) == 9  # one's own in each table


def test_what_is_stale_says_so(gpuguide: Run, published: Path, overlay: Path) -> None:
    for folder, device in ((published, PUBLISHED), (overlay, OWN)):
        old = synthetic.record("ceilings", synthetic.cases_of("ceilings"), device, stale=True)
        records.write(old, folder / device[0] / "ceilings.json")
    gone = replace(old, benchmark="gone")
    records.write(gone, overlay / OWN[0] / "gone.json")
    _, out, _ = gpuguide("bench", "compare", PUBLISHED[0])
    assert f"ceilings on {OWN[0]} (yours; stale: the code has changed since)" in out
    assert "(stale)" in rows(out, "ceilings")[3]
    assert f"gone on {OWN[0]} (yours; stale" in out


def test_records_without_any_measurement(gpuguide: Run, published: Path, overlay: Path) -> None:
    failed = [Case({}, "copy", 0, "failed", "ValueError: no")]
    records.write(synthetic.record("ceilings", failed, OWN), overlay / OWN[0] / "ceilings.json")
    status, out, _ = gpuguide("bench", "compare")
    assert status == 0
    assert "1 more without a measurement" in out
