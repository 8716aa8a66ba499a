from __future__ import annotations

import pytest
import torch
from fake_devices import on

from gpuguide.benchmarks.cross_entropy import losses, speed
from gpuguide.cross_entropy import linear_cross_entropy
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure.benchmark import too_large

LOSS = declarations.get("linear-cross-entropy")
CHUNK = declarations.get("linear-cross-entropy-chunk")
SMALL = {"tokens": 200, "hidden": 64, "vocab": 1003}


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
    assert {int(keys["chunk"]) for keys in CHUNK.cases(on(80))} == {2**power for power in range(7, 16)}


@pytest.mark.parametrize(("gigabytes", "fitting"), [(8, 1), (16, 1), (24, 1), (48, 4), (80, 5)])
def test_what_does_not_fit_is_left_out(gigabytes: int, fitting: int) -> None:
    device = on(gigabytes)
    assert sum(not too_large(LOSS, keys, device) for keys in LOSS.cases(device)) == fitting


def test_a_processor_is_not_asked() -> None:
    assert LOSS.cases(devices.cpu()) == []
    assert CHUNK.cases(devices.cpu()) == []


@pytest.mark.parametrize("loss", [losses.whole, linear_cross_entropy], ids=["whole", "chunked"])
def test_a_right_loss_passes_the_check(loss: losses.Loss) -> None:
    torch.manual_seed(0)
    speed.check_errors(speed.measure_errors(speed.LossProblem.draw(SMALL, "cpu"), loss))


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda hidden, head, targets: losses.whole(hidden, head, targets) * 1.01, "loss"),
        (lambda hidden, head, targets: losses.whole(hidden, head, targets) + 0 * head[0, 0] + hidden.sum(), "loss"),
        (lambda hidden, head, targets: losses.whole(hidden, head.detach() + 0 * head, targets), "gradient"),
    ],
)
def test_a_wrong_loss_is_found(wrong: losses.Loss, what: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=f"the relative error of the {what} is"):
        speed.check_errors(speed.measure_errors(speed.LossProblem.draw(SMALL, "cpu"), wrong))


def test_what_this_torch_lacks_is_left_out_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.nn.functional, "linear_cross_entropy", raising=False)
    monkeypatch.setattr(torch._inductor, "list_options", lambda: ["max_autotune"])
    reasons = {name: one.unavailable_reason() for name, one in LOSS.contenders.items()}
    assert {name for name, reason in reasons.items() if reason} == {
        "torch-linear-cross-entropy",
        "torch-compile-chunked",
    }
    assert reasons["torch-linear-cross-entropy"] == f"PyTorch {torch.__version__} has no linear_cross_entropy; 2.13 has"


@pytest.mark.parametrize("prepare", [losses.compile_in_chunks, losses.torchs_own])
def test_what_this_torch_has_computes_the_same_in_fp32(prepare: losses.Preparation) -> None:
    reasons = {losses.compile_in_chunks: losses.require_chunker, losses.torchs_own: losses.require_torchs_own}
    if reason := reasons[prepare]():
        pytest.skip(reason)
    torch.manual_seed(0)
    problem = speed.LossProblem.draw(SMALL, "cpu")
    single = [each.detach().float().requires_grad_() for each in (problem.hidden, problem.head)]
    found, exact = (
        torch.autograd.grad(loss(*single, problem.targets), single)
        for loss in (prepare(devices.cpu(), SMALL), losses.whole)
    )
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_the_factor_that_gives_liger_a_chunk_is_the_smallest() -> None:
    for keys in CHUNK.cases(on(80)):
        tokens, hidden, vocab, chunk = (int(value) for value in keys.values())
        factor = losses.factor_of_liger(tokens, hidden, vocab, chunk)
        assert losses.chunk_of_liger(tokens, hidden, vocab, factor) == chunk
        assert factor == 1 or losses.chunk_of_liger(tokens, hidden, vocab, factor - 1) < chunk
    with pytest.raises(ValueError, match=r"^Liger takes 4096 tokens in chunks of 100 with no factor\.$"):
        losses.factor_of_liger(4096, 4096, 128256, 100)


@pytest.mark.gpu
@pytest.mark.parametrize("name", list(LOSS.contenders))
def test_every_contender_is_right_or_skipped_with_a_reason(name: str) -> None:
    device = devices.current()
    contender = LOSS.contenders[name]
    if reason := declarations.find_missing_library(contender, device):
        pytest.skip(reason)
    work = contender.build(device, {**SMALL, "vocab": 4096, "tokens": 512})
    assert work.check is not None
    work.check()
    assert set(work.further()) == {"peak_memory", "error"}
