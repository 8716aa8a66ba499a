"""What a step dispatches, what fusion leaves of it, and where the host waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from gpuguide.fusion import cost, reference
from gpuguide.fusion.cost import Machine, fuse
from gpuguide.fusion.tracing import trace

N = 1000
FLOAT = 4
MACHINE = Machine(launch=8e-6, graph_launch=1e-6, bandwidth=4e12, arithmetic=7e14)


def arrays(count: int) -> list[torch.Tensor]:
    return [torch.rand(N) + 0.5 for _ in range(count)]


@pytest.mark.parametrize(
    ("function", "inputs", "operations", "passes", "fused"),
    [
        (reference.add_four, 4, 3, 9, 5),
        (reference.add_multiply_relu_divide, 4, 4, 11, 5),
        (reference.tanh_chain, 3, 24, 64, 4),
        (reference.gelu, 1, 8, 18, 2),
    ],
)
def test_chains(function: object, inputs: int, operations: int, passes: int, fused: int) -> None:
    values = arrays(inputs)
    traced = trace(lambda: function(*values))  # type: ignore[operator]
    assert len(traced.operations) == operations
    assert traced.moved == passes * N * FLOAT
    (kernel,) = fuse(traced)
    assert kernel.moved == fused * N * FLOAT


def test_a_layer_norm_that_is_written_out_has_eight_operations() -> None:
    x, weight, bias = torch.rand(50, 20), torch.rand(20), torch.rand(20)
    traced = trace(lambda: reference.layer_norm(x, weight, bias))
    assert [each.name for each in traced.operations] == ["mean", "var", "sub", "add", "sqrt", "div", "mul", "add"]
    (kernel,) = fuse(traced)
    assert kernel.moved == (2 * 50 * 20 + 2 * 20) * FLOAT
    assert len(trace(lambda: functional.layer_norm(x, (20,), weight, bias)).operations) == 1


def test_a_matmul_ends_a_kernel() -> None:
    x, weight = torch.rand(8, 16), torch.rand(16, 16)
    traced = trace(lambda: torch.relu((x * 2) @ weight) + x)
    assert traced.flops == 2 * 8 * 16 * 16
    first, matmul, second = fuse(traced)
    assert [[each.name for each in kernel.operations] for kernel in (first, matmul, second)] == [
        ["mul"],
        ["mm"],
        ["relu", "add"],
    ]
    assert second.moved == 3 * 8 * 16 * FLOAT
    assert matmul.seconds(MACHINE) == MACHINE.graph_launch


def test_a_sum_of_columns_does_not_fuse_with_what_follows() -> None:
    x = torch.rand(8, 16)
    kernels = fuse(trace(lambda: (x * 2) / (x * 2).sum(0)))
    assert len(kernels) == 2


def test_what_others_need_is_stored() -> None:
    x = torch.rand(N)
    kept: list[torch.Tensor] = []

    def step() -> torch.Tensor:
        kept.append(x * 2)
        return kept[0] + 1

    (kernel,) = fuse(trace(step))
    assert kernel.moved == 3 * N * FLOAT


def test_views_and_allocations_start_no_kernel() -> None:
    x = torch.rand(8, 16)
    traced = trace(lambda: torch.empty_like(x.t().reshape(-1)[:4]).expand(4).detach())
    assert [each.name for each in traced.operations] == ["clone"]  # of the transpose that is reshaped


def test_an_expanded_array_is_read_once() -> None:
    x, row = torch.rand(8, 16), torch.rand(16)
    (operation,) = trace(lambda: x + row).operations
    assert operation.moved == (2 * 8 * 16 + 16) * FLOAT
    (filled,) = trace(lambda: x.copy_(row.expand(8, 16))).operations
    assert filled.moved == (8 * 16 + 16) * FLOAT


def test_views_of_one_tensor_are_distinguished() -> None:
    a, b, c = torch.rand(3, N).unbind()
    traced = trace(lambda: a + b + c)
    assert traced.moved == 6 * N * FLOAT
    (kernel,) = fuse(traced)
    assert kernel.moved == 4 * N * FLOAT


def test_the_backward_pass_is_seen() -> None:
    weight = torch.rand(16, 16, requires_grad=True)
    x = torch.rand(8, 16)
    traced = trace(lambda: (x @ weight).sum().backward())
    assert traced.flops == 2 * 2 * 8 * 16 * 16
    assert weight.grad is not None


def test_lines_at_which_the_host_waits_are_the_users() -> None:
    model, x = torch.nn.Linear(4, 4), torch.rand(8, 4)

    def step() -> None:
        loss = model(x).sum()
        loss.item()
        x[x > 0.5].sum()
        torch.nonzero(x)

    waits = trace(step).waits
    line = step.__code__.co_firstlineno
    assert [wait.line for wait in waits] == [f"test_tracing.py:{line + number}" for number in (2, 3, 4)]
    assert "item" in waits[0].reason


@pytest.mark.parametrize(
    ("step", "waits"),
    [
        (lambda x, mask, rows: x[mask], True),
        (lambda x, mask, rows: x.__setitem__(mask, x[0, 0].expand(2)), True),
        (lambda x, mask, rows: x.index_put_((rows, mask[0]), x[0, :1].clone(), accumulate=True), True),
        (lambda x, mask, rows: x.__setitem__(mask, 0.0), False),
        (lambda x, mask, rows: mask.index_put_((rows,), mask[0].clone()), False),
        (lambda x, mask, rows: mask[rows], False),
        (lambda x, mask, rows: mask.index_select(0, rows), False),
        (lambda x, mask, rows: x.masked_fill_(mask, 0.0), False),
    ],
)
def test_only_a_mask_as_index_makes_the_host_wait(step: Callable[..., object], waits: bool) -> None:
    """A mask that is a value, or says where one number is written, makes no wait."""
    x, rows = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1])
    mask = x > 0.5
    assert bool(trace(lambda: step(x, mask, rows)).waits) is waits


def test_copies_that_wait() -> None:
    with FakeTensorMode():
        x, host = torch.empty(8, device="cuda"), torch.empty(8)
        for step, waits in (
            (lambda: x.cpu(), True),
            (lambda: host.copy_(x), True),
            (lambda: x.to("cpu", non_blocking=True), False),
            (lambda: host.copy_(x, non_blocking=True), False),
        ):
            assert bool(trace(step).waits) is waits


def test_reductions_of_rows_are_known_by_their_axis() -> None:
    x = torch.rand(2, 3, 4)
    for step, kind in (
        (lambda: torch.linalg.vector_norm(x, 2.0, dim=-1), "row"),
        (lambda: torch.linalg.vector_norm(x, 2), "columns"),
        (lambda: x.sum(2), "row"),
        (lambda: x.sum([0, 2]), "columns"),
        (lambda: x.sum(), "columns"),
    ):
        (operation,) = trace(step).operations
        assert operation.kind == kind


# --- the limits ------------------------------------------------------------------------------------------


def test_the_longest_limit_holds() -> None:
    assert cost.limits(24, 2**20, 0, MACHINE).name == "launches"
    assert cost.limits(24, 2**32, 0, MACHINE).name == "bytes"
    assert cost.limits(1, 2**32, 2**40, MACHINE).name == "FLOPs"
    assert cost.limits(24, 2**20, 0, MACHINE, graph=True).launches == 24 * MACHINE.graph_launch
    assert cost.limits(24, 2**20, 0, MACHINE).seconds == 24 * MACHINE.launch


def test_layer_norm_moves_four_arrays_each_way() -> None:
    assert cost.add_layer_norm_bytes(10, 20, 2, backward=False) == 4 * 10 * 20 * 2
    assert cost.add_layer_norm_bytes(10, 20, 2, backward=True) == 8 * 10 * 20 * 2
