"""The matmul that stores exponentials, against float64: interpreted on the CPU, compiled for Hopper, run on a GPU."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import interpreted
import pytest
import torch
from disassembly import machine_code
from interpreted import needs_triton
from torch.nn import functional

from gpuguide.cross_entropy import linear_cross_entropy, reference

SHAPES = {
    "one tile": (16, 16, 32, 32),
    "several chunks": (150, 32, 200, 199),
    "odd vocabulary": (70, 40, 133, 133),
    "long rows of sums": (40, 16, 330, 330),
}
"""Positions, hidden size, rows of the head, and how many of these stand for a token"""
LOGITS = {"flat": 0.1, "usual": 1.0, "peaked": 8.0, "beyond the range": 60.0}
"""Standard deviation of the logits; with 60, most losses exceed 44 nats, and many 88"""


def problem(shape: tuple[int, ...], gain: float, dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    """Return hidden states, a head and targets, of which some are ignored and some are likely tokens."""
    tokens, hidden_size, columns, vocab = shape
    generator = torch.Generator().manual_seed(tokens)
    hidden = torch.randn(tokens, hidden_size, generator=generator).to(dtype)
    head = (torch.randn(columns, hidden_size, generator=generator) * gain * hidden_size**-0.5).to(dtype)
    targets = torch.randint(vocab, (tokens,), generator=generator)
    targets[1::4] = (hidden[1::4].float() @ head[:vocab].float().t()).argmax(1)
    targets[::5] = reference.IGNORE_INDEX
    return [each.to(device) for each in (hidden, head, targets)]


def expected(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, vocab: int) -> list[torch.Tensor]:
    """Return the losses, and the gradients of their mean, in float64."""
    hidden, head = (each.detach().double().requires_grad_() for each in (hidden, head))
    losses = functional.cross_entropy((hidden @ head.t())[:, :vocab], targets, reduction="none")
    mean = losses.sum() / (targets != reference.IGNORE_INDEX).sum()
    return [losses.detach(), *torch.autograd.grad(mean, (hidden, head))]


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(found.double() - exact) / torch.linalg.vector_norm(exact))


# --- interpreted ---------------------------------------------------------------------------------------------


def compare(shape: tuple[int, ...], gain: float, chunk: int) -> None:
    """Compare the kernels with float64, in small tiles. The interpreter multiplies no bf16, so in fp32."""
    from gpuguide.cross_entropy.exp_matmul import ExpMatmul
    from gpuguide.triton_support.tiles import MatmulTiling

    hidden, head, targets = problem(shape, gain, torch.float32, "cpu")
    vocab, tokens = shape[3], shape[0]
    tilings = (MatmulTiling(rows, 32, stages=2, warps=4, group=2, halves=True) for rows in (32, 16))
    d_hidden, d_head = torch.full_like(hidden, float("nan")), torch.zeros_like(head)
    names = ("tiling", "recenter_tiling")
    matmul = ExpMatmul(
        hidden,
        head,
        targets,
        d_hidden,
        vocab_size=vocab,
        ignore_index=reference.IGNORE_INDEX,
        chunk=chunk,
        **dict(zip(names, tilings, strict=True)),
    )
    scale, losses = 1 / (targets != reference.IGNORE_INDEX).sum().float(), torch.empty(tokens)
    for start in range(0, tokens, chunk):
        matmul.store_exponentials(start)
        exponentials, scaled = matmul.finish_rows(start, losses, scale)
        assert not exponentials[:, vocab:].any()
        d_head += exponentials.t() @ scaled
        d_hidden[start : start + chunk] = exponentials @ head
        matmul.multiply_rows(start)
    exact = expected(hidden, head, targets, vocab)
    torch.testing.assert_close(losses.double(), exact[0], rtol=1e-5, atol=1e-5 * max(1, gain))
    assert relative_error(d_hidden, exact[1]) < 1e-4
    assert relative_error(d_head, exact[2]) < 1e-4
    assert not d_hidden[targets == reference.IGNORE_INDEX].any()


@needs_triton
@pytest.mark.parametrize("gain", LOGITS.values(), ids=LOGITS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_kernels_interpreted(shape: tuple[int, ...], gain: float) -> None:
    interpreted.run(__file__, f"compare({shape}, {gain}, 64)")


# --- compiled for Hopper -------------------------------------------------------------------------------------


@needs_triton
def test_both_matmuls_are_compiled_for_hopper_and_fit_it(tmp_path: Path) -> None:
    """Compiled for a GPU that is not here: what a program takes is known without one."""
    interpreted.run(__file__, f"compile_both({str(tmp_path)!r})", interpret=False)


def compile_both(folder: str) -> None:
    """Assert that no register is spilled, one exponential is computed a logit, and the tiles fit shared memory."""
    from gpuguide.cross_entropy import exp_matmul

    kernels = {exp_matmul.exp_matmul_kernel: exp_matmul.TILING, exp_matmul.recenter_kernel: exp_matmul.RECENTER_TILING}
    for kernel, tiling in kernels.items():
        for masked in (False, True):
            compiled = compiled_for_hopper(kernel, tiling, masked)
            assert compiled.metadata.shared <= exp_matmul.SHARED_MEMORY
            code = machine_code(compiled, Path(folder))
            assert not re.search(r"\b(LDL|STL)\b", code), "registers were spilled"
            if kernel is exp_matmul.exp_matmul_kernel:
                logits = tiling.rows * tiling.columns // (32 * tiling.warps)  # of a thread
                assert code.count("MUFU.EX2") < logits + 8


def compiled_for_hopper(kernel: Any, tiling: Any, masked: bool) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    inner = 64
    types = {
        "hidden": f"tensordesc<bf16[{tiling.rows}, {inner}]>",
        "head": f"tensordesc<bf16[{tiling.columns}, {inner}]>",
        "exponentials": f"tensordesc<bf16[{tiling.rows}, {tiling.columns // 2}]>",
        "sums": "*fp32",
        "shifts": "*fp32",
    }
    constants = {"ROWS": tiling.rows, "COLUMNS": tiling.columns, "INNER": inner, "GROUP": tiling.group}
    constants |= {"MASKED": masked, "BLOCK": 64}
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    return triton.compile(
        ASTSource(kernel, signature, constants),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": tiling.warps, "num_stages": tiling.stages},
    )


# --- on a GPU ------------------------------------------------------------------------------------------------

ON_A_GPU = {
    "head in whole tiles": (2100, 256, 1024, 1024),
    "odd": (2100, 72, 50257, 50000),
    "short rows of sums": (1100, 8, 40000, 40000),
}
"""The last with rows of d_hidden that are too short for the sums"""


def on_hopper(shape: tuple[int, ...], gain: float) -> list[torch.Tensor]:
    """Return a problem that the kernels support, or skip the test."""
    from gpuguide.cross_entropy import exp_matmul

    hidden, head, targets = problem(shape, gain, torch.bfloat16, "cuda")
    if not exp_matmul.supports(hidden, head, 1024):
        pytest.skip("needs the copy engine and the shared memory of Hopper")
    return [hidden.requires_grad_(), head.requires_grad_(), targets]


def gradients(loss: Any, hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
    found = loss(hidden, head, targets)
    return [found.detach(), *torch.autograd.grad(found, (hidden, head))]


@pytest.mark.gpu
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("gain", LOGITS.values(), ids=LOGITS)
@pytest.mark.parametrize("shape", ON_A_GPU.values(), ids=ON_A_GPU)
def test_losses_and_gradients_on_a_gpu(shape: tuple[int, ...], gain: float, wide: bool) -> None:
    """Against float64 from the same rounded inputs; at most half as much again as PyTorch's own error."""
    hidden, head, targets = on_hopper(shape, gain)
    vocab = shape[3]
    dtype = torch.float32 if wide else None

    def ours(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return linear_cross_entropy(hidden, head, targets, vocab_size=vocab, chunk=1024, gradient_dtype=dtype)

    def whole(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy((hidden @ head.t())[:, :vocab].float(), targets)

    loss, *exact = expected(hidden, head, targets, vocab)
    found, theirs = gradients(ours, hidden, head, targets), gradients(whole, hidden, head, targets)
    mean = loss.sum() / (targets != reference.IGNORE_INDEX).sum()
    torch.testing.assert_close(found[0].double(), mean, rtol=1e-5, atol=1e-6)
    for mine, other, right in zip(found[1:], theirs[1:], exact, strict=True):
        assert relative_error(mine, right) <= 1.5 * relative_error(other, right) + 1e-3
    assert not found[1][targets == reference.IGNORE_INDEX].any()
    assert not found[2][vocab:].any()


@pytest.mark.gpu
def test_a_few_rows_beyond_the_range_on_a_gpu() -> None:
    """Some have logits that overflow fp32 relative to the target's; their neighbours have not."""
    hidden, head, targets = on_hopper((2100, 256, 3000, 3000), 1.0)
    with torch.no_grad():
        hidden[::97] *= 100
    found = gradients(lambda *given: linear_cross_entropy(*given, chunk=1024), hidden, head, targets)
    losses, *exact = expected(hidden, head, targets, 3000)
    assert float(losses.max()) > 200
    mean = losses.sum() / (targets != reference.IGNORE_INDEX).sum()
    torch.testing.assert_close(found[0].double(), mean, rtol=1e-5, atol=0)
    assert max(relative_error(mine, right) for mine, right in zip(found[1:], exact, strict=True)) < 5e-3


@pytest.mark.gpu
def test_sums_and_counts_on_a_gpu() -> None:
    hidden, head, targets = on_hopper((2100, 256, 3000, 3000), 1.0)
    losses = expected(hidden, head, targets, 3000)[0]
    for count in (40, torch.tensor(40, device="cuda")):
        loss = linear_cross_entropy(hidden, head, targets, count=count, chunk=1024)
        torch.testing.assert_close(loss.double(), losses.sum() / 40, rtol=1e-5, atol=0)
    loss = linear_cross_entropy(hidden, head, targets, reduction="sum", chunk=1024)
    torch.testing.assert_close(loss.double(), losses.sum(), rtol=1e-5, atol=0)
    ignored = torch.full_like(targets, reference.IGNORE_INDEX)
    found = gradients(lambda *given: linear_cross_entropy(*given, chunk=1024), hidden, head, ignored)
    assert not any(each.any() for each in found)


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", [64, 1024])
def test_every_second_target_on_a_gpu(chunk: int) -> None:
    """Targets that do not lie side by side, with the pass over the logits and without."""
    hidden, head, targets = on_hopper((2100, 256, 3000, 3000), 1.0)
    found = linear_cross_entropy(hidden[::2], head, targets[::2], chunk=chunk)
    exact = expected(hidden[::2], head, targets[::2], 3000)[0].sum() / (targets[::2] != reference.IGNORE_INDEX).sum()
    torch.testing.assert_close(found.double(), exact, rtol=1e-3, atol=0)


@pytest.mark.gpu
def test_a_nan_reaches_the_loss_and_the_gradients_on_a_gpu() -> None:
    hidden, head, targets = on_hopper((2100, 256, 3000, 3000), 1.0)
    with torch.no_grad():
        hidden[3, 5] = float("nan")
    targets[3] = 17
    loss, d_hidden, _ = gradients(lambda *given: linear_cross_entropy(*given, chunk=1024), hidden, head, targets)
    assert loss.isnan()
    assert d_hidden[3].isnan().any()
    assert not d_hidden[4:].isnan().any()


@pytest.mark.gpu
def test_a_target_outside_is_refused_on_a_gpu() -> None:
    hidden, head, targets = on_hopper((2100, 256, 3000, 3000), 1.0)
    right = float(linear_cross_entropy(hidden, head, targets, chunk=1024).detach())
    for wrong in (3000, -1, 2**40):
        outside = targets.clone()
        outside[211] = wrong
        with pytest.raises(ValueError, match=rf"The target at \(211,\) is {wrong}; it must lie between 0 and 2999"):
            linear_cross_entropy(hidden, head, outside, chunk=1024)
    assert float(linear_cross_entropy(hidden, head, targets, chunk=1024).detach()) == right


@pytest.mark.gpu
def test_a_captured_step_computes_rows_again_where_new_inputs_need_it() -> None:
    """The graph was captured with inputs that needed none."""
    hidden, head, targets = on_hopper((2100, 256, 3000, 3000), 1.0)

    def step() -> list[torch.Tensor]:
        return gradients(lambda *given: linear_cross_entropy(*given, chunk=1024), hidden, head, targets)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    for factor in (1, 100):
        with torch.no_grad():
            hidden *= factor
        graph.replay()
        for one, other in zip(step(), captured, strict=True):
            assert torch.equal(one, other)


@pytest.mark.gpu
def test_compiled_on_a_gpu() -> None:
    operands = on_hopper((2100, 256, 3000, 3000), 1.0)

    def loss(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return linear_cross_entropy(hidden * 1, head, targets, chunk=1024)

    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True)
    for one, other in zip(gradients(compiled, *operands), gradients(loss, *operands), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.gpu
def test_it_takes_the_memory_of_one_chunk_of_logits() -> None:
    """Beside it there are a few numbers for each position."""
    tokens, hidden_size, vocab = 8192, 768, 50304
    hidden, head, targets = on_hopper((tokens, hidden_size, vocab, vocab), 1.0)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    linear_cross_entropy(hidden, head, targets, chunk=2048).backward()
    extra = torch.cuda.max_memory_allocated() - before - hidden.nbytes - head.nbytes
    assert extra < 2048 * vocab * 2 + 64 * tokens
