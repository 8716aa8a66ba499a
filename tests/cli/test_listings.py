"""Every listing fits a terminal of 100 columns, whatever the records hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import synthetic_records as synthetic
from synthetic_records import OWN

from gpuguide import claims
from gpuguide.claims import ClaimOutcome
from gpuguide.measure import folders, records, reference_gpu
from gpuguide.measure.records import Case, Rate

Run = Callable[..., tuple[int, str, str]]
COLUMNS = 100
DEVICES = [
    (reference_gpu.slug(), "NVIDIA H100 80GB HBM3"),
    ("nvidia-rtx-pro-6000-blackwell-max-q-workstation-edition", "NVIDIA RTX PRO 6000 Blackwell Max-Q"),
    ("8x-nvidia-h200", "NVIDIA H200"),
    ("cpu", "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.00GHz"),
]
LONG_KEYS = {
    "pass": "forward-backward",
    "head_dim": 128,
    "seq_len": 16384,
    "causal": False,
    "batch": 1,
    "heads": 16,
    "kv_heads": 16,
    "dtype": "bf16",
}
REASON = "RuntimeError: " + "a kernel that this GPU does not have was asked for, " * 4 + "x" * 120


def wide_cases() -> Iterator[Case]:
    """Yield cases with many keys that differ, long names, and reasons why there is no measurement."""
    for place, values in enumerate(({}, {"causal": True, "heads": 32, "pass": "forward", "batch": 64})):
        keys = {**LONG_KEYS, **values, "seq_len": 2**place}
        yield synthetic.case(keys, "transformers-checkpointed", 1e-3, {"throughput": Rate("FLOP/s", 1e12)})
        yield Case(keys, "gpuguide", 0, "failed", REASON)
        measured = {name: records.metric("s", [1e-3] * 5) for name in ("time", "software_slowdown_margin")}
        yield Case(keys, "torch-topk-graph", 0, "ok", measured=measured)


@pytest.fixture
def many_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overlay: Path) -> Path:
    """Records of four devices published, and of two of one's own; some are stale."""
    folder = tmp_path / "published"
    monkeypatch.setattr(folders, "published_folder", lambda: folder)
    for place in (folder, overlay):
        for device in DEVICES if place == folder else [DEVICES[1], OWN]:
            synthetic.write_all(place, device)
            wide = synthetic.record("attention", wide_cases(), device, stale=device == DEVICES[1])
            records.write(wide, place / device[0] / "attention.json")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["doctor"],
        ["bench", "list"],
        ["bench", "compare"],
        ["bench", "compare", "--published"],
        ["bench", "compare", *(device for device, _ in DEVICES)],
        ["records", "list"],
        ["records", "list", "--mine"],
        ["records", "show", "attention"],
        ["records", "show", "timing-mistakes"],
        ["records", "verify"],
        ["models", "evaluate", "--model", "draft", "--device", "cpu", "--text", "TEXT"],
    ],
    ids=" ".join,
)
def test_a_listing_fits(gpuguide: Run, many_records: Path, tmp_path: Path, words: list[str]) -> None:
    text = tmp_path / "some.txt"
    text.write_text("def f(x): return x")
    status, out, _ = gpuguide(*(str(text) if word == "TEXT" else word for word in words))
    assert status in (0, 1)
    lines = out.splitlines()
    assert len(lines) > 3
    too_long = [line for line in lines if len(line) > COLUMNS and "x" * 120 not in line]
    assert not too_long


def test_how_fast_a_text_was_written_fits(gpuguide: Run) -> None:
    status, _, err = gpuguide("generate", "--prompt", "import", "--tokens", "3", "--model", "draft", "--device", "cpu")
    assert status == 0
    assert len(err.splitlines()) > 3
    assert max(map(len, err.splitlines())) <= COLUMNS


def test_claims_that_do_not_hold_fit(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    row = claims.load()[0]
    outcome = ClaimOutcome(row, False, "measurement('ceilings/copy:bandwidth').p25 > 2e12 does not hold: " * 5)
    monkeypatch.setattr(claims, "check", lambda rows: [outcome])
    monkeypatch.chdir(Path(claims.LEDGER).parents[3])
    status, out, _ = gpuguide("claims", "check")
    assert status == 1
    assert out.startswith(f"src/gpuguide/claims/{row.path and row.path.name}:")
    assert max(map(len, out.splitlines())) <= COLUMNS
    assert len(out.splitlines()) > 3
