"""Time and memory of head and loss, forward and backward."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

from gpuguide.benchmarks.cross_entropy import losses
from gpuguide.benchmarks.cross_entropy.losses import Loss, Preparation
from gpuguide.cross_entropy import cost
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, powers_of_two
from gpuguide.measure.records import Metric, Rate

ELEMENT_SIZE = 2
"""Bytes of a bf16 number"""
SHAPES = (
    {"tokens": 4096, "hidden": 768, "vocab": 50304},
    {"tokens": 32768, "hidden": 768, "vocab": 50304},
    {"tokens": 4096, "hidden": 4096, "vocab": 128256},
    {"tokens": 8192, "hidden": 4096, "vocab": 128256},
    {"tokens": 8192, "hidden": 2304, "vocab": 256000},
)
"""The heads of GPT-2 with a small and with a large batch, of Llama 3 8B, and of Gemma 2 2B, less its cap of logits"""
CHUNKED = (SHAPES[1], SHAPES[2], SHAPES[3])
"""Shapes that are measured with every chunk from that on which Liger chooses"""
ACCEPTED_ERROR = {"loss": 1e-3, "gradient": 2e-2}
"""Largest accepted relative error against fp32. Gradients are rounded to bf16, some of them on the way too."""
ACCEPTED_OF_AN_APPROXIMATION = {"loss": 1e-3, "gradient": 4e-2}
"""Largest accepted error of a loss that drops small gradients on purpose; it is published with its time"""
ROWS_CHECKED_AT_ONCE = 1024


@dataclass(frozen=True)
class LossProblem:
    """Hidden states, a head and targets, both tensors with their gradients."""

    hidden: torch.Tensor
    head: torch.Tensor
    targets: torch.Tensor

    @classmethod
    def draw(cls, keys: Keys, device: str) -> LossProblem:
        """Draw one. The head is scaled so that logits are N(0, 1)."""
        tokens, hidden, vocab = (int(keys[name]) for name in ("tokens", "hidden", "vocab"))
        states = torch.randn(tokens, hidden, dtype=torch.bfloat16, device=device)
        head = torch.randn(vocab, hidden, dtype=torch.bfloat16, device=device).mul_(hidden**-0.5)
        targets = torch.randint(vocab, (tokens,), device=device)
        return cls(states.requires_grad_(), head.requires_grad_(), targets)

    def clear_gradients(self) -> None:
        """Drop the gradients."""
        self.hidden.grad = self.head.grad = None

    def step(self, loss: Loss) -> torch.Tensor:
        """Compute the loss and both gradients, anew."""
        self.clear_gradients()
        result = loss(self.hidden, self.head, self.targets)
        result.backward()
        return result.detach()


# --- work ------------------------------------------------------------------------------------------------


def work(prepare: Preparation, device: Device, keys: Keys, accepted: Mapping[str, float] = ACCEPTED_ERROR) -> Work:
    """Compute a loss with its gradients."""
    tokens, hidden, vocab = (int(keys[name]) for name in ("tokens", "hidden", "vocab"))
    loss = prepare(device, keys)
    problem = LossProblem.draw(keys, device.torch_device)
    rates = {"throughput": Rate("FLOP/s", cost.linear_cross_entropy_flops(tokens, hidden, vocab))}
    errors: dict[str, float] = {}

    def call() -> None:
        problem.step(loss)

    def check() -> None:
        errors.update(measure_errors(problem, loss))
        check_errors(errors, accepted)

    def further() -> Mapping[str, Metric]:
        memory = records.metric("B", [extra_memory(problem, loss)])
        return {"peak_memory": memory, "error": records.metric("1", [errors["gradient"]])}

    call()  # compiles
    return Work([call], check, rates, footprint=2 * tokens * vocab, further=further)


def extra_memory(problem: LossProblem, loss: Loss) -> int:
    """Return the peak memory of a step in bytes, without the inputs and their gradients."""
    problem.clear_gradients()
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    problem.step(loss)
    gradients = problem.hidden.nbytes + problem.head.nbytes
    return torch.cuda.max_memory_allocated() - before - gradients


def measure_errors(problem: LossProblem, loss: Loss) -> dict[str, float]:
    """Return the relative errors of the loss and of the worse gradient against fp32, computed a few rows at a time."""
    found = float(problem.step(loss))
    hidden, head, targets = problem.hidden.detach().float(), problem.head.detach().float(), problem.targets
    d_head = torch.zeros_like(head)
    total, wrong, right = 0.0, 0.0, 0.0
    assert problem.hidden.grad is not None
    assert problem.head.grad is not None
    parts = (hidden, targets, problem.hidden.grad)
    for states, wanted, ours in zip(*(part.split(ROWS_CHECKED_AT_ONCE) for part in parts), strict=True):
        logits = states @ head.t()
        total += float(functional.cross_entropy(logits, wanted, reduction="sum"))
        gradient = torch.softmax(logits, dim=-1)
        gradient[torch.arange(len(wanted), device=wanted.device), wanted] -= 1
        gradient /= len(targets)
        exact = gradient @ head
        wrong += float((ours.float() - exact).square().sum())
        right += float(exact.square().sum())
        d_head.addmm_(gradient.t(), states)
    errors = {
        "loss": abs(found * len(targets) / total - 1),
        "gradient": max(
            (wrong / right) ** 0.5,
            float(torch.linalg.vector_norm(problem.head.grad.float() - d_head) / torch.linalg.vector_norm(d_head)),
        ),
    }
    problem.clear_gradients()
    return errors


def check_errors(errors: Mapping[str, float], accepted: Mapping[str, float] = ACCEPTED_ERROR) -> None:
    """Raise an :class:`AssertionError` if an error is larger than accepted."""
    for name, largest in accepted.items():
        error = errors[name]
        assert error <= largest, (
            f"the relative error of the {name} is {error:.1e}, and at most {largest:.0e} is accepted"
        )


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes: eight contenders' inputs and gradients, and the largest of their peaks."""
    tokens, hidden, vocab = (int(keys[name]) for name in ("tokens", "hidden", "vocab"))
    operands = 2 * ELEMENT_SIZE * (tokens + vocab) * hidden
    checking = 2 * 4 * (tokens + vocab) * hidden + 3 * 4 * ROWS_CHECKED_AT_ONCE * vocab
    return 8 * operands + max(cost.whole_extra_memory(tokens, vocab) + ELEMENT_SIZE * tokens * vocab, checking)


BF16 = frozenset({"gpu", "bf16"})


def contender(
    prepare: Preparation,
    *called: str,
    unavailable_reason: Callable[[], str | None] = lambda: None,
    accepted: Mapping[str, float] = ACCEPTED_ERROR,
) -> Contender:
    """Return a loss as a contender, with the libraries that it calls."""
    return Contender(
        lambda device, keys: work(prepare, device, keys, accepted),
        BF16,
        libraries=called,
        unavailable_reason=unavailable_reason,
    )


LINEAR_CROSS_ENTROPY = Benchmark(
    name="linear-cross-entropy",
    title="Head and loss, forward and backward",
    question="How much time and memory does a loss take that never holds all logits?",
    contenders={
        "gpuguide": contender(losses.ours),
        "torch-eager": contender(losses.eager),
        "torch-compile": contender(losses.compile_loss),
        "torch-compile-chunked": contender(losses.compile_in_chunks, unavailable_reason=losses.require_chunker),
        "torch-linear-cross-entropy": contender(losses.torchs_own, unavailable_reason=losses.require_torchs_own),
        "liger": contender(losses.liger, "liger-kernel"),
        "cut-cross-entropy": contender(losses.cut, "cut-cross-entropy", accepted=ACCEPTED_OF_AN_APPROXIMATION),
        "cut-cross-entropy-exact": contender(losses.cut_exact, "cut-cross-entropy"),
    },
    cases=lambda device: SHAPES if device.is_gpu else [],
    memory=bytes_needed,
)


def chunk_cases(device: Device) -> list[Keys]:
    """Return chunks by powers of two, from the one that Liger chooses to all positions at once."""
    if not device.is_gpu:
        return []
    return [
        {**shape, "chunk": chunk}
        for shape in CHUNKED
        for chunk in powers_of_two(losses.chunk_of_liger(*shape.values()), shape["tokens"])
    ]


LINEAR_CROSS_ENTROPY_CHUNK = Benchmark(
    name="linear-cross-entropy-chunk",
    title="Head and loss by the size of the chunk",
    question="What does a smaller chunk of logits cost in time, and what does it save in memory?",
    contenders={"gpuguide": contender(losses.ours), "liger": contender(losses.liger, "liger-kernel")},
    cases=chunk_cases,
    memory=bytes_needed,
    budget=0.5,
)
