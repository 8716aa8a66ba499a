"""The Triton kernels against the plain losses: interpreted on the processor, and compiled on a GPU."""

from __future__ import annotations

from typing import Any

import interpreted
import pytest
import torch
from interpreted import needs_triton, pieces_that_fit

from gpuguide.cross_entropy import linear_cross_entropy, reference

SETTINGS: list[dict[str, float]] = [
    {},
    {"label_smoothing": 0.1},
    {"z_loss": 1e-2},
    {"softcap": 5.0},
    {"softcap": 5.0, "z_loss": 1e-2, "label_smoothing": 0.1},
]
SHAPES = [(9, 1003, 990), (3, 64, 64), (2, 1, 1), (2, 40000, 39999)]
"""Rows, columns, and how many of these stand for a token"""
PLAIN = {"ignore_index": reference.IGNORE_INDEX, "label_smoothing": 0.0, "z_loss": 0.0}


def compare(device: str, shape: tuple[int, int, int], given: dict[str, float], scale: float, piece: int) -> None:
    """Assert that the kernel's loss and gradient are those of the plain version."""
    from gpuguide.cross_entropy import fused

    rows, columns, vocab = shape
    generator = torch.Generator().manual_seed(rows)
    logits = (torch.randn(rows, columns, generator=generator) * 4).to(device)
    targets = torch.randint(vocab, (rows,), generator=generator).to(device)
    targets[rows // 2] = reference.IGNORE_INDEX
    settings: dict[str, Any] = PLAIN | given
    real = logits[:, :vocab].double()
    loss = reference.token_losses(real, targets, **settings)
    gradient = reference.logits_gradient(real, targets, **settings) * scale
    overwritten = logits.clone()
    factor = torch.tensor(scale, device=device)
    losses = torch.zeros(rows, device=device)
    fused.loss_then_gradient_(overwritten, targets, losses, factor, vocab_size=vocab, piece_bytes=piece, **settings)
    torch.testing.assert_close(losses.double(), loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(overwritten[:, :vocab].double(), gradient, rtol=1e-4, atol=1e-6)
    assert not overwritten[:, vocab:].any()


def compare_all(device: str, pieces: tuple[int, ...]) -> None:
    """Compare every shape and setting, the look at the targets, and the multiplication in place.

    The interpreter runs one program after the other, so there every row must be one piece.
    """
    from gpuguide.cross_entropy import fused

    for shape in SHAPES:
        for given in SETTINGS:
            for piece in pieces_that_fit(shape[1], 4, pieces, device):
                compare(device, shape, given, scale=0.5, piece=piece)
    for count in (1, 5000):
        targets = torch.randint(100, (count,), device=device)
        targets[::3] = reference.IGNORE_INDEX
        scale, outside = fused.scan_targets(targets, 100, reference.IGNORE_INDEX)
        counted = int((targets != reference.IGNORE_INDEX).sum())
        assert float(scale) == pytest.approx(1 / max(counted, 1))
        assert int(outside) >= count
        targets[count // 2 :] = 100
        assert int(fused.scan_targets(targets, 100, reference.IGNORE_INDEX)[1]) == count // 2
        ignoring = torch.full_like(targets, 7)
        scale, outside = fused.scan_targets(ignoring, 7, 7)
        assert (float(scale), int(outside) >= count) == (1, True)
    far_from_zero(device, pieces)
    for factor in (1.0, 3.0):
        values = torch.randn(10001, device=device)
        expected = values * factor
        torch.testing.assert_close(fused.multiply_(values, torch.tensor(factor, device=device)), expected)


def far_from_zero(device: str, pieces: tuple[int, ...]) -> None:
    """Adding a constant to a row changes neither its loss nor its gradient, as long as fp32 holds the logits."""
    from gpuguide.cross_entropy import fused

    logits = torch.zeros(3, 300, device=device)
    logits[1] -= 3e38
    logits[2] += 4096
    targets = torch.tensor([0, 299, 150], device=device)
    for piece in pieces:
        overwritten, losses = logits.clone(), torch.zeros(3, device=device)
        one = torch.ones((), device=device)
        fused.loss_then_gradient_(overwritten, targets, losses, one, vocab_size=300, piece_bytes=piece, **PLAIN)  # type: ignore[arg-type]
        expected = torch.full((3, 300), 1 / 300, device=device)
        expected[torch.arange(3, device=device), targets] -= 1
        torch.testing.assert_close(losses, torch.full((3,), 300.0, device=device).log(), rtol=1e-5, atol=0)
        torch.testing.assert_close(overwritten, expected, rtol=1e-5, atol=0)


@needs_triton
def test_kernels_interpreted() -> None:
    interpreted.run(__file__, "compare_all('cpu', (2**20,))")


@pytest.mark.gpu
def test_kernels_on_a_gpu() -> None:
    compare_all("cuda", (256, 4096, 32768, 2**20))


@pytest.mark.gpu
def test_a_target_outside_the_vocabulary_is_refused_and_harms_nothing() -> None:
    """The GPU has then computed with it; it is told all the same, and the next loss is right."""
    hidden = torch.randn(300, 64, device="cuda", requires_grad=True)
    head = torch.randn(1003, 64, device="cuda", requires_grad=True)
    targets = torch.randint(1003, (300,), device="cuda")
    right = float(linear_cross_entropy(hidden, head, targets, chunk=64))
    for wrong in (1003, -1, 2**40):
        outside = targets.clone()
        outside[211] = wrong
        with pytest.raises(ValueError, match=rf"The target at \(211,\) is {wrong}; it must lie between 0 and 1002"):
            linear_cross_entropy(hidden, head, outside, chunk=64)
    assert float(linear_cross_entropy(hidden, head, targets, chunk=64)) == right


@pytest.mark.gpu
def test_the_place_of_a_target_outside_is_that_in_the_shape_given() -> None:
    hidden = torch.randn(4, 64, 32, device="cuda", requires_grad=True)
    head = torch.randn(1003, 32, device="cuda", requires_grad=True)
    targets = torch.randint(1003, (4, 64), device="cuda")
    targets[2, 17] = targets[3, 5] = 1003
    for given in ({}, {"reduction": "sum"}, {"count": 10}, {"count": torch.tensor(10, device="cuda")}):
        with pytest.raises(
            ValueError, match=r"^The target at \(2, 17\) is 1003; it must lie between 0 and 1002, or be"
        ):
            linear_cross_entropy(hidden, head, targets, chunk=64, **given)  # type: ignore[arg-type]
    with torch.no_grad(), pytest.raises(ValueError, match=r"^The target at \(2, 17\) is 1003"):
        linear_cross_entropy(hidden, head, targets)


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [300, 0])
@pytest.mark.parametrize("given", [{}, {"reduction": "sum"}, {"count": 40}])
def test_nothing_that_counts_gives_zero_on_a_gpu(tokens: int, given: dict[str, Any]) -> None:
    hidden = torch.randn(tokens, 64, device="cuda", requires_grad=True)
    head = torch.randn(1003, 64, device="cuda", requires_grad=True)
    targets = torch.full((tokens,), reference.IGNORE_INDEX, device="cuda")
    loss = linear_cross_entropy(hidden, head, targets, chunk=64, **given)
    loss.backward()
    assert loss == 0
    assert hidden.grad is not None
    assert head.grad is not None
    assert not hidden.grad.any()
    assert not head.grad.any()


@pytest.mark.gpu
def test_counts_and_sums_on_a_gpu() -> None:
    hidden = torch.randn(300, 64, device="cuda", dtype=torch.float64, requires_grad=True)
    head = torch.randn(1003, 64, device="cuda", dtype=torch.float64, requires_grad=True)
    targets = torch.randint(1003, (300,), device="cuda")
    total = torch.nn.functional.cross_entropy(hidden @ head.t(), targets, reduction="sum")
    single = hidden.detach().float().requires_grad_(), head.detach().float().requires_grad_()
    for count in (40, torch.tensor(40), torch.tensor(40, device="cuda")):
        for operands in ((hidden, head), single):
            loss = linear_cross_entropy(*operands, targets, count=count, chunk=64)
            torch.testing.assert_close(loss.double(), total / 40, rtol=1e-4, atol=0)
    loss = linear_cross_entropy(*single, targets, reduction="sum", chunk=64)
    torch.testing.assert_close(loss.double(), total, rtol=1e-4, atol=0)


@pytest.mark.gpu
def test_a_captured_step_gives_the_same() -> None:
    hidden = torch.randn(300, 64, device="cuda", requires_grad=True)
    head = torch.randn(1003, 64, device="cuda", requires_grad=True)
    targets = torch.randint(1003, (300,), device="cuda")

    def step() -> torch.Tensor:
        hidden.grad = head.grad = None
        loss = linear_cross_entropy(hidden, head, targets, chunk=64)
        loss.backward()
        return loss.detach()

    eager = step(), hidden.grad, head.grad
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(), hidden.grad, head.grad
    graph.replay()
    for one, other in zip(eager, captured, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("chunk", [64, 300])
def test_linear_cross_entropy_on_a_gpu(dtype: torch.dtype, chunk: int) -> None:
    """Against float64 from the same rounded inputs; at most half as much again as PyTorch's own error."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(257, 64, generator=generator).to("cuda", dtype)
    head = (torch.randn(1003, 64, generator=generator) / 8).to("cuda", dtype)
    targets = torch.randint(1003, (257,), generator=generator).cuda()
    targets[::5] = reference.IGNORE_INDEX

    def gradients(loss: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        operands = [each.to(dtype).requires_grad_() for each in (hidden, head)]
        found = loss(*operands, targets)
        (found * 2).backward()
        return [found.detach(), *(each.grad for each in operands)]

    def whole(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        return torch.nn.functional.cross_entropy((hidden @ head.t()).to(wide), targets)

    exact = gradients(whole, torch.float64)
    theirs = gradients(whole, dtype)
    ours = gradients(lambda *given: linear_cross_entropy(*given, chunk=chunk), dtype)
    for mine, other, right in zip(ours, theirs, exact, strict=True):
        norm = torch.linalg.vector_norm
        error, accepted = (float(norm(each.double() - right) / norm(right)) for each in (mine, other))
        assert error <= 1.5 * accepted + 1e-6


@pytest.mark.gpu
def test_more_than_two_to_the_31_logits() -> None:
    """Offsets exceed 32 bits in the last rows."""
    from gpuguide.cross_entropy import fused

    vocab = 262144
    rows = 2**31 // vocab + 2
    if torch.cuda.get_device_properties(0).total_memory < 6 * rows * vocab:
        pytest.skip("needs 13 GB of GPU memory")
    logits = torch.zeros(rows, vocab, dtype=torch.bfloat16, device="cuda")
    targets = torch.arange(rows, device="cuda")
    one = torch.ones((), device="cuda")
    losses = torch.zeros(rows, device="cuda")
    fused.loss_then_gradient_(logits, targets, losses, one, vocab_size=vocab, **PLAIN)  # type: ignore[arg-type]
    torch.testing.assert_close(losses, torch.tensor(float(vocab), device="cuda").log().expand(rows))
    last = logits[-1].float()
    assert float(last[rows - 1]) == pytest.approx(1 / vocab - 1, rel=1e-2)
    assert float(last[0]) == pytest.approx(1 / vocab, rel=1e-2)
