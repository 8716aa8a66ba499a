"""``gpuguide memory explain``: tables, sentences and JSON of a snapshot."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuguide.costs import memory, presets

Run = Callable[..., tuple[int, str, str]]
MIB = 2**20


def snapshot(mib: int) -> dict[str, Any]:
    """Return a snapshot in which one line holds some MiB."""
    frames = [{"filename": "train.py", "line": 41, "name": "step"}]
    size = {"size": mib * MIB, "requested_size": mib * MIB}
    block = {**size, "address": 0, "state": "active_allocated", "frames": frames}
    segment = {"device": 0, "address": 0, "total_size": mib * MIB, "segment_pool_id": (0, 0), "blocks": [block]}
    event = {"action": "alloc", "addr": 0, "size": mib * MIB, "stream": 0, "time_us": 0, "frames": frames}
    return {"segments": [segment], "device_traces": [[event]]}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Write two snapshots."""
    paths = tmp_path / "now.pickle", tmp_path / "before.pickle"
    for path, mib in zip(paths, (30, 10), strict=True):
        path.write_bytes(pickle.dumps(snapshot(mib)))
    return paths


def test_the_peak_is_explained_and_compared(gpuguide: Run, files: tuple[Path, Path]) -> None:
    status, out, err = gpuguide("memory", "explain", files[0], "--against", files[1], "--model", "gpt2")
    assert (status, err) == (0, "")
    assert out.startswith("The peak: 30 MiB in use")
    assert "train.py:41 in step" in out
    assert "20 MiB more" in out
    assert f"{memory.predict(presets.shape('gpt2'), memory.Setup()).total / 2**30:.2f} GiB" in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_old_name_of_model_works(gpuguide: Run, files: tuple[Path, Path]) -> None:
    answers = [gpuguide("memory", "explain", files[0], option, "gpt2") for option in ("--model", "--shape")]
    assert answers[0] == answers[1]
    assert "--shape" not in gpuguide("memory", "explain", "--help")[1]


def test_printed_parts_and_lines_add_up(gpuguide: Run, tmp_path: Path) -> None:
    path, unit, blocks, events = tmp_path / "many.pickle", 1_234_567, [], []
    for number in range(9):
        frames = [{"filename": "train.py", "line": number, "name": "step"}]
        size = {"size": 2 * MIB, "requested_size": unit + number}
        blocks.append({**size, "address": number * 2 * MIB, "state": "active_allocated", "frames": frames})
        events.append(
            {"action": "alloc", "addr": number * 2 * MIB, "size": unit + number, "stream": 0, "frames": frames}
        )
    segment = {"device": 0, "address": 0, "total_size": 18 * MIB, "segment_pool_id": (0, 0), "blocks": blocks}
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [events]}))
    _, out, _ = gpuguide("memory", "explain", path, "--model", "gpt2")
    lines = [round(100 * float(each)) for each in re.findall(r"(?:train\.py|other lines).* (\d+\.\d\d) MiB", out)][-6:]
    assert len(lines) == 6
    assert sum(lines) == round(100 * sum(unit + number for number in range(9)) / MIB)
    table = re.findall(r"(\d+) % +([\d.]+) (?:GiB|B)", out)
    assert sum(round(100 * float(size)) for _, size in table[:-1]) == round(100 * float(table[-1][1]))


def test_json_has_all_of_it(gpuguide: Run, files: tuple[Path, Path]) -> None:
    _, out, _ = gpuguide("memory", "explain", files[0], "--against", files[1], "--model", "gpt2", "--json")
    found = json.loads(out)
    assert found["total"] == 30 * MIB
    assert found["against"]["lines"] == {"train.py:41 in step": 20 * MIB}
    assert sum(found["predicted"].values()) == memory.predict(presets.shape("gpt2"), memory.Setup()).total


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--model", "gpt-3"], 2, "gpt2"),
        (["--model", "gpt2", "--shape", "gpt2"], 2, "old name of --model"),
        (["--set", "loss=chunked"], 2, "--model"),
        (["--device", "3"], 1, "device 3"),
        (["--against", "nowhere.pickle"], 1, "nowhere.pickle"),
        (["--model", "gpt2", "--batch", "0"], 1, "batch is 0"),
    ],
)
def test_bad_options_are_refused(
    gpuguide: Run, files: tuple[Path, Path], words: list[str], status: int, says: str
) -> None:
    found, out, err = gpuguide("memory", "explain", files[0], *words)
    assert (found, out) == (status, "")
    assert says in err
