"""The reader on snapshots of a GPU, which ``make_snapshots.py`` recorded, against what the allocator itself counted.

Those of the folder ``snapshots`` were recorded on an H200 with PyTorch 2.11.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuguide.training_memory.explain import explain
from gpuguide.training_memory.snapshot import read_snapshot, replay


def check_snapshots(folder: Path) -> None:
    """Compare each snapshot of a folder with the file beside it."""
    found = sorted(folder.glob("*.pickle.xz"))
    assert len(found) == 6
    for path in found:
        counted = json.loads((folder / f"{path.name.split('.')[0]}.json").read_text(encoding="utf-8"))
        history = replay(read_snapshot(path))
        assert history.total_at(history.peak) == counted["requested_bytes"], path.name
        explanation = explain(history)
        assert explanation.named_share >= 0.95, (path.name, explanation.parts)
        text = " ".join(explanation.sentences)
        assert all(words in text for words in counted["sentences"]), (path.name, text)
        if path.name.startswith(("eager", "checkpointed", "compiled")):  # the compiler's trials may leave holes
            others = [sentence for sentence in explanation.sentences if "reserved and not in use" not in sentence]
            assert not others, (path.name, others)


def test_snapshots_recorded_on_an_h200_are_named_and_add_up() -> None:
    check_snapshots(Path(__file__).with_name("snapshots"))


@pytest.mark.gpu
@pytest.mark.slow
def test_snapshots_of_a_gpu_are_named_and_add_up(tmp_path: Path) -> None:
    program = Path(__file__).with_name("make_snapshots.py")
    subprocess.run([sys.executable, program, tmp_path], check=True, timeout=300)
    check_snapshots(tmp_path)
