from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gpuguide.benchmarks import cross_entropy as benchmarks
from gpuguide.cross_entropy import linear_cross_entropy
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import records, runner
from gpuguide.measure.benchmark import too_large

LOSS = declarations.get("linear-cross-entropy")
CHUNK = declarations.get("linear-cross-entropy-chunk")
SMALL = {"tokens": 200, "hidden": 64, "vocab": 1003}


def on(gigabytes: int) -> Device:
    """Return a device that has everything but memory."""
    return replace(devices.fake("h100-sxm"), memory=gigabytes * 10**9)


def test_the_shapes_are_those_of_known_models() -> None:
    found = [tuple(keys.values()) for keys in LOSS.cases(on(80))]
    assert found == [
        (4096, 768, 50304),
        (32768, 768, 50304),
        (4096, 4096, 128256),
        (8192, 4096, 128256),
        (8192, 2304, 256000),
    ]
    assert all(list(keys) == ["tokens", "hidden", "vocab", "chunk"] for keys in CHUNK.cases(on(80)))
    assert {int(keys["chunk"]) for keys in CHUNK.cases(on(80))} == {2**power for power in range(8, 16)}


@pytest.mark.parametrize(("gigabytes", "fitting"), [(8, 1), (16, 1), (24, 2), (48, 5), (80, 5)])
def test_what_does_not_fit_is_left_out(gigabytes: int, fitting: int) -> None:
    device = on(gigabytes)
    assert sum(not too_large(LOSS, keys, device) for keys in LOSS.cases(device)) == fitting


def test_a_processor_is_not_asked() -> None:
    assert LOSS.cases(devices.cpu()) == []
    assert CHUNK.cases(devices.cpu()) == []


@pytest.mark.parametrize("benchmark", [LOSS, CHUNK], ids=["loss", "chunk"])
def test_everything_runs_on_a_fake_device(tmp_path: Path, benchmark: declarations.Benchmark) -> None:
    outcome = runner.run([benchmark], devices.fake("h100-sxm"), tmp_path, commit="c0ffee")
    (record,) = outcome.records
    assert not records.read(record.path or Path()).stale
    assert all(case.status == "ok" for case in record.cases)


@pytest.mark.parametrize("loss", [benchmarks.whole, linear_cross_entropy], ids=["whole", "chunked"])
def test_a_right_loss_passes_the_check(loss: benchmarks.Loss) -> None:
    torch.manual_seed(0)
    benchmarks.check(benchmarks.Problem.of(SMALL, "cpu"), loss)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda hidden, head, targets: benchmarks.whole(hidden, head, targets) * 1.01, "loss"),
        (lambda hidden, head, targets: benchmarks.whole(hidden, head, targets) + 0 * head[0, 0] + hidden.sum(), "loss"),
        (lambda hidden, head, targets: benchmarks.whole(hidden, head.detach() + 0 * head, targets), "gradient"),
    ],
)
def test_a_wrong_loss_is_found(wrong: benchmarks.Loss, what: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=f"the relative error of the {what} is"):
        benchmarks.check(benchmarks.Problem.of(SMALL, "cpu"), wrong)
