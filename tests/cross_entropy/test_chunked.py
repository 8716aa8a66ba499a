"""The loss a chunk at a time against PyTorch's loss of all logits, in float64 and in bf16."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from gpuguide.cross_entropy import chunked, cost, linear_cross_entropy, loop, reference

TOKENS, HIDDEN, VOCAB = 257, 64, 1003
"""Multiples of nothing that a kernel or a chunk likes"""

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def problem(
    dtype: torch.dtype = torch.float64, tokens: int = TOKENS
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(tokens, HIDDEN, generator=generator, dtype=torch.float64)
    head = torch.randn(VOCAB, HIDDEN, generator=generator, dtype=torch.float64) * HIDDEN**-0.5
    targets = torch.randint(VOCAB, (tokens,), generator=generator)
    targets[::5] = reference.IGNORE_INDEX
    return hidden.to(dtype).requires_grad_(), head.to(dtype).requires_grad_(), targets


def whole(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy((hidden @ head.t()).to(torch.promote_types(hidden.dtype, torch.float32)), targets)


def results(loss: Loss, dtype: torch.dtype = torch.float64, upstream: float = 1.0) -> list[torch.Tensor]:
    """Return a loss and both its gradients."""
    hidden, head, targets = problem(dtype)
    found = loss(hidden, head, targets)
    (found * upstream).backward()
    assert hidden.grad is not None
    assert head.grad is not None
    return [found.detach(), hidden.grad, head.grad]


@pytest.mark.parametrize("chunk", [1, 64, 100, 256, 257, 1000, None])
def test_loss_and_gradients_in_float64(chunk: int | None) -> None:
    found = results(lambda *given: linear_cross_entropy(*given, chunk=chunk))
    for ours, exact in zip(found, results(whole), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("upstream", [0.0, 0.5, 65536.0])
def test_the_gradient_from_above_is_multiplied_in(upstream: float) -> None:
    for ours, exact in zip(
        results(linear_cross_entropy, upstream=upstream), results(whole, upstream=upstream), strict=True
    ):
        torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize(
    "given",
    [
        {"label_smoothing": 0.1},
        {"z_loss": 1e-3},
        {"softcap": 2.0},
        {"softcap": 2.0, "z_loss": 1e-3, "label_smoothing": 0.1},
        {"reduction": "sum"},
    ],
)
def test_settings_as_in_the_plain_loss(given: dict[str, object]) -> None:
    def plain(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return reference.cross_entropy(hidden @ head.t(), targets, **given)  # type: ignore[arg-type]

    found = results(lambda *operands: linear_cross_entropy(*operands, chunk=50, **given))  # type: ignore[arg-type]
    for ours, exact in zip(found, results(plain), strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_rows_that_stand_for_no_token_take_no_part(smoothing: float) -> None:
    hidden, head, targets = problem()
    padded = torch.cat([head.detach(), torch.full((21, HIDDEN), 5.0, dtype=head.dtype)]).requires_grad_()
    loss = linear_cross_entropy(hidden, padded, targets, vocab_size=VOCAB, label_smoothing=smoothing, chunk=50)
    (d_hidden, d_padded) = torch.autograd.grad(loss, [hidden, padded])
    exact = functional.cross_entropy(hidden @ head.t(), targets, label_smoothing=smoothing)
    e_hidden, e_head = torch.autograd.grad(exact, [hidden, head])
    torch.testing.assert_close(loss, exact)
    torch.testing.assert_close(d_hidden, e_hidden)
    torch.testing.assert_close(d_padded[:VOCAB], e_head)
    assert not d_padded[VOCAB:].any()


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(found.double() - exact) / torch.linalg.vector_norm(exact))


def test_bf16_is_nearly_as_exact_as_pytorch() -> None:
    """Measured against the same rounded inputs in float64."""
    hidden, head, targets = problem(torch.bfloat16)
    exact_hidden, exact_head = (each.detach().double().requires_grad_() for each in (hidden, head))
    exact = whole(exact_hidden, exact_head, targets)
    exact.backward()
    ours = results(lambda *given: linear_cross_entropy(*given, chunk=64), torch.bfloat16)
    theirs = results(whole, torch.bfloat16)
    assert float(abs(ours[0] - exact) / exact) <= 1.5 * float(abs(theirs[0] - exact) / exact) + 1e-6
    for mine, other, right in zip(ours[1:], theirs[1:], (exact_hidden.grad, exact_head.grad), strict=True):
        assert right is not None
        assert relative_error(mine, right) <= 1.5 * relative_error(other, right)


def test_gradients_can_be_added_up_in_fp32() -> None:
    exact = results(whole)
    bf16 = results(lambda *given: linear_cross_entropy(*given, chunk=4), torch.bfloat16)
    wide = results(lambda *given: linear_cross_entropy(*given, chunk=4, gradient_dtype=torch.float32), torch.bfloat16)
    assert wide[2].dtype == torch.bfloat16
    assert relative_error(wide[2], exact[2]) < relative_error(bf16[2], exact[2])


def test_fp16_gradients_do_not_overflow() -> None:
    hidden, head, targets = problem(torch.float16)
    loss = linear_cross_entropy(hidden, head, targets, reduction="sum", chunk=50)
    loss.backward()
    exact = results(lambda *given: linear_cross_entropy(*given, reduction="sum"))
    assert hidden.grad is not None
    assert head.grad is not None
    assert hidden.grad.dtype == head.grad.dtype == torch.float16
    assert relative_error(head.grad, exact[2]) < 5e-3


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("given", [{}, {"label_smoothing": 0.1}, {"z_loss": 1e-3}])
def test_fp16_gradients_do_not_vanish_before_a_loss_scale_reaches_them(device: str, given: dict[str, float]) -> None:
    """Divided by the count of a large batch, most gradients of logits are below the smallest number of fp16.

    The rows of tokens that never are a target have the smallest gradients, so they are looked at alone too.
    """
    count, vocab = 2**18, 32768
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(64, HIDDEN, generator=generator).to(device, torch.float16)
    head = (torch.randn(vocab, HIDDEN, generator=generator) * HIDDEN**-0.5).to(device, torch.float16)
    targets = torch.randint(100, (64,), generator=generator).to(device)

    def gradients(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        operands = [each.detach().to(dtype).requires_grad_() for each in (hidden, head)]
        if dtype == torch.float16:
            loss = linear_cross_entropy(*operands, targets, count=count, chunk=50, **given)  # type: ignore[arg-type]
        else:
            loss = reference.cross_entropy(operands[0] @ operands[1].t(), targets, count=count, **given)  # type: ignore[arg-type]
        d_hidden, d_head = torch.autograd.grad(loss * 2.0**22, operands)  # a loss scale
        return d_hidden, d_head

    (d_hidden, d_head), (exact_hidden, exact_head) = gradients(torch.float16), gradients(torch.float64)
    assert relative_error(d_hidden, exact_hidden) < 1e-3
    assert relative_error(d_head, exact_head) < 1e-3
    assert relative_error(d_head[100:], exact_head[100:]) < 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_other_formats_take_the_count_into_the_gradient_of_the_logits(dtype: torch.dtype) -> None:
    """So nothing is left to multiply with: without a gradient from above, both results are handed out as they are."""
    hidden, head, targets = problem(dtype)
    loss = linear_cross_entropy(hidden, head, targets, chunk=TOKENS)
    d_hidden, d_head = torch.autograd.grad(loss, [hidden, head])
    counted = int((targets != reference.IGNORE_INDEX).sum())
    logits = hidden.detach() @ head.detach().t()
    gradient = (reference.logits_gradient(logits, targets) * torch.tensor(counted).float().reciprocal()).to(dtype)
    assert torch.equal(d_hidden, gradient @ head)
    assert torch.equal(d_head, gradient.t() @ hidden)


@pytest.mark.parametrize(
    ("dtype", "given", "message"),
    [
        (
            torch.float16,
            torch.float16,
            r"^gradient_dtype is torch.float16; gradients of torch.float16 can be added up in torch.float32\.$",
        ),
        (torch.bfloat16, torch.float16, r"in torch.bfloat16 or torch.float32\.$"),
        (torch.float32, torch.bfloat16, r"in torch.float32\.$"),
        (torch.float64, torch.float32, r"in torch.float64\.$"),
    ],
)
def test_a_type_that_gradients_cannot_be_added_up_in_is_named(
    dtype: torch.dtype, given: torch.dtype, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(*problem(dtype), gradient_dtype=given)


def test_accumulation_over_micro_batches_with_the_count_of_all() -> None:
    hidden, head, targets = problem()
    exact = torch.autograd.grad(whole(hidden, head, targets), [hidden, head])
    count = (targets != reference.IGNORE_INDEX).sum()
    for part, wanted in zip(hidden.split(100), targets.split(100), strict=True):
        linear_cross_entropy(part, head, wanted, count=count).backward()
    assert hidden.grad is not None
    assert head.grad is not None
    torch.testing.assert_close(hidden.grad, exact[0])
    torch.testing.assert_close(head.grad, exact[1])


def test_leading_axes_and_strides_are_the_callers_business() -> None:
    hidden, head, targets = problem()
    batched = hidden.detach()[:256].reshape(4, 64, HIDDEN).transpose(0, 1).requires_grad_()
    wanted = targets[:256].reshape(4, 64).t()
    loss = linear_cross_entropy(batched, head, wanted, chunk=50)
    torch.testing.assert_close(loss, whole(hidden[:256], head, targets[:256]))
    loss.backward()
    assert batched.grad is not None
    assert batched.grad.shape == (64, 4, HIDDEN)


@pytest.mark.parametrize("frozen", ["hidden", "head", "both"])
def test_only_the_gradients_that_are_wanted(frozen: str) -> None:
    hidden, head, targets = problem()
    exact = whole(hidden, head, targets)
    hidden.requires_grad_(frozen == "head")
    head.requires_grad_(frozen == "hidden")
    loss = linear_cross_entropy(hidden, head, targets, chunk=50)
    torch.testing.assert_close(loss, exact)
    assert loss.requires_grad == (frozen != "both")
    if frozen != "both":
        loss.backward()
        assert (hidden.grad is None) == (frozen == "hidden")
        assert (head.grad is None) == (frozen == "head")


def test_without_gradients_none_are_computed() -> None:
    hidden, head, targets = problem()
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, head, targets, chunk=50)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, whole(hidden, head, targets).detach())


def test_autocast_casts_both_operands() -> None:
    hidden, head, targets = problem(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = linear_cross_entropy(hidden, head, targets)
        exact = functional.cross_entropy(functional.linear(hidden, head).float(), targets)
    loss.backward()
    assert hidden.grad is not None
    assert hidden.grad.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=1e-5, atol=0)


@pytest.mark.parametrize("given", [{}, {"reduction": "sum"}, {"count": 40}, {"label_smoothing": 0.1, "z_loss": 1e-3}])
@pytest.mark.parametrize("tokens", [TOKENS, 0])
def test_nothing_that_counts_gives_zero(tokens: int, given: dict[str, object]) -> None:
    """Whether all targets are ignored, or there are none at all."""
    hidden, head, targets = problem(tokens=tokens)
    ignored = torch.full_like(targets, reference.IGNORE_INDEX)
    loss = linear_cross_entropy(hidden, head, ignored, **given)  # type: ignore[arg-type]
    loss.backward()
    assert loss == 0
    assert hidden.grad is not None
    assert head.grad is not None
    assert not hidden.grad.any()
    assert not head.grad.any()
    with torch.no_grad():
        assert linear_cross_entropy(hidden, head, ignored, **given) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [100, torch.tensor(100), torch.tensor(100.0), 0, torch.tensor(0)])
def test_the_count_as_number_and_as_tensor(count: int | torch.Tensor) -> None:
    """A count of nothing, as of micro-batches that are all ignored, divides by one."""

    def sum_over_count(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(hidden @ head.t(), targets, reduction="sum") / max(int(count), 1)

    def ours(*operands: torch.Tensor) -> torch.Tensor:
        return linear_cross_entropy(*operands, count=count, chunk=100)

    for found, exact in zip(results(ours), results(sum_over_count), strict=True):
        torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        torch.testing.assert_close(ours(*problem()), sum_over_count(*problem()))


@pytest.mark.parametrize("gradients", [True, False])
def test_the_count_is_one_number_of_any_shape(gradients: bool) -> None:
    """The loss is a scalar all the same."""
    hidden, head, targets = problem()
    hidden.requires_grad_(gradients)
    head.requires_grad_(gradients)
    for count in (torch.tensor([100]), torch.tensor([[100.0]])):
        loss = linear_cross_entropy(hidden, head, targets, count=count)
        assert loss.shape == ()
        torch.testing.assert_close(loss, linear_cross_entropy(hidden, head, targets, count=100))
    for count in (torch.tensor([40, 60]), torch.empty(0)):
        with pytest.raises(
            ValueError, match=rf"^The count must be one number; given {len(count)}, .* \({len(count)},\)\.$"
        ):
            linear_cross_entropy(hidden, head, targets, count=count)


def test_a_sum_is_divided_by_nothing() -> None:
    hidden, head, targets = problem()
    loss = linear_cross_entropy(hidden, head, targets, reduction="sum", count=7)
    torch.testing.assert_close(loss, functional.cross_entropy(hidden @ head.t(), targets, reduction="sum"))


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("wrong", [VOCAB, -1, 2**40])
def test_a_target_outside_is_named_with_its_place(wrong: int, gradients: bool) -> None:
    """The place is that in the targets as they were given, and the first of several."""
    hidden, head, targets = problem()
    batched, wanted = hidden.detach()[:256].reshape(4, 64, HIDDEN), targets[:256].reshape(4, 64).clone()
    batched.requires_grad_(gradients)
    head.requires_grad_(gradients)
    wanted[2, 17] = wanted[3, 5] = wrong
    message = (
        f"The target at (2, 17) is {wrong}; it must lie between 0 and 1002, or be -100 for a position that does not "
        "count."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        linear_cross_entropy(batched, head, wanted, chunk=50)
    assert batched.grad is None
    with pytest.raises(ValueError, match=r"The target at \(5, 3\) is"):
        linear_cross_entropy(batched.transpose(0, 1), head, wanted.t())
    assert linear_cross_entropy(batched, head, wanted.where(wanted != wrong, reference.IGNORE_INDEX)) > 0


def test_an_ignored_target_may_be_a_token_of_the_vocabulary() -> None:
    hidden, head, targets = problem()
    targets = targets.where(targets != reference.IGNORE_INDEX, 0)
    loss = linear_cross_entropy(hidden, head, targets, ignore_index=0)
    torch.testing.assert_close(loss, functional.cross_entropy(hidden @ head.t(), targets, ignore_index=0))


def test_a_second_derivative_is_refused() -> None:
    hidden, head, targets = problem()
    for operand in (hidden, head):
        (gradient,) = torch.autograd.grad(linear_cross_entropy(hidden, head, targets), operand, create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivative"):
            gradient.sum().backward()


def test_a_second_backward_pass_is_refused() -> None:
    hidden, head, targets = problem()
    loss = linear_cross_entropy(hidden, head, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="overwritten by the first backward pass"):
        loss.backward()


def test_no_tensor_of_all_logits_is_ever_made() -> None:
    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        elements = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            result = func(*args, **(kwargs or {}))
            for tensor in torch.utils._pytree.tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    self.elements = max(self.elements, tensor.numel())
            return result

    hidden, head, targets = (each.detach() for each in problem())
    outputs = torch.empty_like(hidden), torch.empty_like(head)
    settings = loop.LossSettings(VOCAB, reference.IGNORE_INDEX, 0.0, 0.0, 0.0, 32)
    gc.collect()
    with Largest() as largest:  # it does not see what an operator does, so the loop runs without one
        loop.compute_losses_and_gradients(hidden, head, targets, None, settings, *outputs)
    assert largest.elements == VOCAB * HIDDEN  # the head and its gradient
    assert largest.elements > 32 * VOCAB


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunk": 0}, "The chunk is 0 positions; it must be at least 1"),
        ({"vocab_size": 0}, "vocab_size is 0; the head has 1003 rows"),
        ({"vocab_size": 1004}, "vocab_size is 1004"),
        ({"vocab_size": 1000}, "The target at .* it must lie between 0 and 999"),
        ({"reduction": "none"}, "The reduction is 'none'; it must be one of mean, sum"),
        ({"label_smoothing": 2.0}, "label_smoothing is 2.0"),
        ({"softcap": -1.0}, "softcap is -1.0; it must be a finite number, zero"),
        ({"softcap": float("inf")}, "softcap is inf"),
    ],
)
def test_settings_out_of_range_are_named(change: dict[str, object], message: str) -> None:
    hidden, head, targets = problem()
    targets[1] = VOCAB - 1
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(hidden, head, targets, **change)  # type: ignore[arg-type]


def test_operands_that_do_not_fit_are_named() -> None:
    hidden, head, targets = problem()
    with pytest.raises(ValueError, match=r"given \(1003, 63\) and \(257, 64\)"):
        linear_cross_entropy(hidden, head[:, 1:], targets)
    with pytest.raises(ValueError, match=r"of one type; given torch.float64 and torch.float32"):
        linear_cross_entropy(hidden, head.float(), targets)
    with pytest.raises(ValueError, match=r"Targets must have the shape \(257,\)"):
        linear_cross_entropy(hidden, head, targets[1:])


def test_the_default_chunk_is_a_power_of_two_of_at_least_2048() -> None:
    assert chunked.default_chunk(50304, 2) == 8192
    assert chunked.default_chunk(128256, 2) == 2048
    assert chunked.default_chunk(10**6, 4) == 2048
    assert chunked.default_chunk(1, 4) & (chunked.default_chunk(1, 4) - 1) == 0


def test_costs() -> None:
    assert cost.linear_cross_entropy_flops(2, 3, 5) == 6 * 2 * 3 * 5
    assert cost.loss_pass_bytes(2, 5, 2) == 40
    assert cost.whole_extra_memory(2, 5) == 120
    assert cost.chunked_extra_memory(2, 5, 2) == 20
    assert cost.chunked_time_floor(2, 3, 5, 2, peak=180, bandwidth=40) == pytest.approx(2)
