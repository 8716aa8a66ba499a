"""The kernels for long rows against PyTorch in float64: interpreted on the processor, and compiled on a GPU."""

from __future__ import annotations

from types import SimpleNamespace

import interpreted
import pytest
import torch
from interpreted import needs_triton, pieces_that_fit

from gpuguide import logits

SHAPES = [(3, 1003), (2, 5), (1, 1), (2, 3, 300), (64,), (2, 20000)]
ACCEPTED = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
"""Relative error of a probability. In fp32 an exponent of 50 has six digits behind the point. To bf16 the interpreter
cuts off where a GPU rounds. fp16 holds few digits of small numbers, so there are absolute errors too."""
PIECES = (256, 4096, 32768, 2**20)
"""Bytes of a row that a program takes"""
ONE_PIECE = PIECES[-1]


def rows_of(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) * 5).to(device, dtype)


def compare_softmax(rows: torch.Tensor, pieces: tuple[int, ...]) -> None:
    from gpuguide.logits import fused

    expected = torch.softmax(rows.double(), dim=-1)
    for piece_bytes in pieces_that_fit(rows.shape[-1], rows.element_size(), pieces, rows.device.type):
        found = fused.launch_softmax(rows, piece_bytes)
        assert found.dtype == rows.dtype
        assert found.is_contiguous()
        smallest = 2**-24 if rows.dtype == torch.float16 else 1e-30
        torch.testing.assert_close(found.double(), expected, rtol=ACCEPTED[rows.dtype], atol=smallest)


def compare_log_sum_exp(rows: torch.Tensor, pieces: tuple[int, ...]) -> None:
    from gpuguide.logits import fused

    expected = torch.logsumexp(rows.double(), dim=-1)
    for piece_bytes in pieces:
        found = fused.launch_log_sum_exp(rows, piece_bytes)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


# --- what is compared, in parts ---------------------------------------------------------------------------
# The interpreter runs one program after the other, so there a row of a softmax must be one piece. The programs of a
# log-sum-exp wait for nobody.


def shapes_formats_and_strides(device: str, pieces_of_softmax: tuple[int, ...]) -> None:
    for dtype in ACCEPTED:
        for shape in SHAPES:
            rows = rows_of(shape, dtype, device)
            compare_softmax(rows, pieces_of_softmax)
            compare_log_sum_exp(rows, PIECES[1:] if rows.numel() > 10000 else PIECES)
    wide = rows_of((6, 1009), torch.float32, device)
    for rows in (wide[:, 5:905], wide[:, ::2], wide.reshape(1009, 6).t(), wide[:1].expand(4, 1009), wide[2]):
        compare_softmax(rows, pieces_of_softmax)
        compare_log_sum_exp(rows, PIECES[1:])
    compare_softmax(wide[:, :1000].reshape(2, 3, 1000).transpose(0, 1), pieces_of_softmax)


def rows_that_are_no_distribution_or_nearly(device: str, pieces_of_softmax: tuple[int, ...]) -> None:
    """NaN, infinite logits, few finite ones, logits far from zero, and all the same."""
    rows = torch.randn(11, 300, generator=torch.Generator().manual_seed(0))
    rows[0, 299] = torch.nan
    rows[1, 150] = torch.inf
    rows[2] = -torch.inf
    rows[3, :299] = -torch.inf
    rows[4, 70:] = -torch.inf
    rows[5] += 100
    rows[6] -= 1e30
    rows[7] = 3.5
    rows[8, 3], rows[8, 200] = torch.inf, 110.0  # in another piece, against which the power below it vanishes
    rows[9, 3], rows[9, 200] = torch.nan, torch.inf
    rows[10, 10:20] = torch.finfo(torch.float32).min
    for dtype in (torch.float32, torch.bfloat16):
        found = compare_edges(rows.to(device, dtype), pieces_of_softmax)
        assert found[[0, 1, 2, 8, 9]].isnan().all()


def numbers_near_the_largest(device: str, pieces_of_softmax: tuple[int, ...]) -> None:
    """A mask is often the lowest number there is, and a row may hold nothing else."""
    lowest = torch.finfo(torch.float32).min
    rows = torch.tensor([[3e38, 0.0], [lowest, lowest], [lowest, 1.0], [-3e38, -3e38], [-lowest, lowest]])
    compare_edges(rows.repeat_interleave(100, dim=1).to(device), pieces_of_softmax)
    compare_edges(rows.repeat(1, 100).to(device), pieces_of_softmax)


def compare_edges(rows: torch.Tensor, pieces_of_softmax: tuple[int, ...]) -> torch.Tensor:
    """Compare NaN with NaN too, and return the probabilities."""
    from gpuguide.logits import fused

    expected = torch.softmax(rows.double(), dim=-1).to(rows.dtype)
    for piece_bytes in pieces_of_softmax:
        found = fused.launch_softmax(rows, piece_bytes)
        torch.testing.assert_close(found, expected, rtol=2 * ACCEPTED[rows.dtype], atol=1e-30, equal_nan=True)
    expected = torch.logsumexp(rows.double(), dim=-1).float()
    for piece_bytes in PIECES:
        sums = fused.launch_log_sum_exp(rows, piece_bytes)
        torch.testing.assert_close(sums, expected, rtol=1e-6, atol=1e-6, equal_nan=True)
    return found


PARTS = {
    part.__name__: part
    for part in (shapes_formats_and_strides, rows_that_are_no_distribution_or_nearly, numbers_near_the_largest)
}
every_part = pytest.mark.parametrize("part", PARTS)


@needs_triton
@every_part
def test_kernels_interpreted(part: str) -> None:
    interpreted.run(__file__, f"PARTS[{part!r}]('cpu', ({ONE_PIECE},))")


@needs_triton
def test_a_row_of_more_pieces_than_can_run_at_the_same_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuguide.logits.fused import RowSplit

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=20))
    device = torch.device("cuda")
    RowSplit.from_size(20 * 16384, 2).check_occupancy(device)
    with pytest.raises(ValueError, match=r"A row of 21 pieces .* this GPU has fewer: use torch\.softmax"):
        RowSplit.from_size(20 * 16384 + 1, 2).check_occupancy(device)


@needs_triton
def test_pieces_cover_a_row_and_begin_where_wide_loads_may() -> None:
    """Without a launch: the kernels' grid is arithmetic."""
    from gpuguide.logits.fused import RowSplit

    for columns in (1, 63, 64, 65, 1000, 8192, 8193, 50257, 128256, 262144):
        for element_size in (2, 4):
            for piece_bytes in (128, 16384, 32768):
                split = RowSplit.from_size(columns, element_size, piece_bytes)
                assert (split.pieces - 1) * split.length < columns <= split.pieces * split.length
                assert split.length % 64 == 0
                assert split.length <= split.block
                assert split.block & (split.block - 1) == 0
                assert split.slots == 1 if split.pieces == 1 else split.slots >= split.pieces
                assert split.slots & (split.slots - 1) == 0
                assert 1 <= split.warps <= 32


# --- on a GPU ----------------------------------------------------------------------------------------------


@pytest.mark.gpu
@every_part
def test_kernels_on_a_gpu(part: str) -> None:
    PARTS[part]("cuda", PIECES)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [50257, 128256, 262144])
def test_long_rows(vocab: int, dtype: torch.dtype) -> None:
    rows = rows_of((200, vocab), dtype, "cuda")
    probabilities, sums = logits.fused_softmax(rows), logits.fused_log_sum_exp(rows)
    for part in range(0, 200, 50):
        here = slice(part, part + 50)
        exact = torch.softmax(rows[here].double(), dim=-1)
        error = torch.linalg.matrix_norm(probabilities[here].double() - exact) / torch.linalg.matrix_norm(exact)
        assert error <= ACCEPTED[dtype]
        torch.testing.assert_close(sums[here].double(), torch.logsumexp(rows[here].double(), -1), rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
def test_a_captured_graph_gives_the_same_again_and_again() -> None:
    """Programs of a row count one another, and each replay must begin at zero."""
    rows = torch.randn(40, 50304, device="cuda")
    logits.fused_softmax(rows), logits.fused_log_sum_exp(rows)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = logits.fused_softmax(rows), logits.fused_log_sum_exp(rows)
    for _ in range(3):
        rows.normal_()
        graph.replay()
        torch.testing.assert_close(captured[0], torch.softmax(rows, dim=-1), rtol=1e-5, atol=1e-9)
        torch.testing.assert_close(captured[1], torch.logsumexp(rows, dim=-1), rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
def test_more_than_two_to_the_31_logits() -> None:
    """Offsets exceed 32 bits in the last rows."""
    vocab = 262144
    count = 2**31 // vocab + 2
    if torch.cuda.get_device_properties(0).total_memory < 5 * count * vocab:
        pytest.skip("needs 11 GB of GPU memory")
    rows = torch.zeros(count, vocab, dtype=torch.bfloat16, device="cuda")
    rows[-1, 5] = 20.0
    sums, probabilities = logits.fused_log_sum_exp(rows), logits.fused_softmax(rows)
    exact = torch.logsumexp(rows[-2:].double(), dim=-1)
    torch.testing.assert_close(sums[-2:].double(), exact, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(sums[:-1], exact[:1].float().expand(count - 1))
    assert float(probabilities[-1, 5]) == pytest.approx(float((20 - exact[1]).exp()), rel=1e-2)
    assert bool((probabilities[-2] == 2**-18).all())
