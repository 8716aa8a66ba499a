"""Softmax and log-sum-exp over a vocabulary, and the matmul that makes the logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gpuguide import logits
from gpuguide.benchmarks.inputs import OfRows, calls_on, count_input_sets, random_logits
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, powers_of_two
from gpuguide.measure.records import Rate

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ACCEPTED_ERROR = {"bf16": 4e-3, "fp16": 4e-3, "fp32": 1e-5}
"""Largest accepted error against float64, as a ratio of norms. The probabilities of a large vocabulary are so small
that fp16 holds them with few digits."""
ACCEPTED_LSE_ERROR = 1e-5
"""Largest accepted error of a log-sum-exp in fp32 against float64, in nats"""
CHECKED_ROWS = 16
COLUMNS_AT_ONCE = 4096
SOFTMAX_ROWS = (64, 4096)
"""A batch of sequences that are being written, and the positions of a small training batch"""
VOCABULARIES = (32768, 65536, 131072, 262144)
GPT2, GPT2_PADDED, LLAMA3_8B = (768, 50257), (768, 50304), (4096, 128256)
"""Hidden size and vocabulary. Padded, GPT-2's vocabulary is a multiple of 64."""


def number(keys: Keys, name: str) -> int:
    """Return a key's value, which must be an integer."""
    value = keys[name]
    assert isinstance(value, int), f"{name}={value!r} is not an integer"
    return value


def element_size(keys: Keys) -> int:
    """Return the bytes an element of the case's format takes."""
    return DTYPES[str(keys["dtype"])].itemsize


def evenly_spaced(rows: int, device: torch.device) -> torch.Tensor:
    """Return the indices of the rows that are compared with float64."""
    return torch.linspace(0, rows - 1, min(rows, CHECKED_ROWS), device=device).long()


def check_error(result: torch.Tensor, reference: torch.Tensor, dtype: str) -> None:
    """Check a result against float64."""
    norm = torch.linalg.matrix_norm
    error, accepted = float(norm(result.double() - reference) / norm(reference)), ACCEPTED_ERROR[dtype]
    assert error <= accepted, f"the relative error is {error:.1e}, and at most {accepted:.0e} is accepted"


# --- softmax and log-sum-exp -----------------------------------------------------------------------------


def eager_softmax(values: torch.Tensor) -> torch.Tensor:
    """Return PyTorch's softmax over the last axis."""
    return torch.softmax(values, dim=-1)


def eager_log_sum_exp(values: torch.Tensor) -> torch.Tensor:
    """Return PyTorch's log-sum-exp over the last axis, in fp32."""
    return torch.logsumexp(values.float(), dim=-1)


def compile_function(function: OfRows, device: Device) -> OfRows:
    """Return a function of PyTorch's, to be compiled for the one shape that it is called with next."""
    torch.compiler.reset()  # after eight shapes the compiler would give up on one function
    return torch.compile(function, dynamic=False)


def quack_softmax(device: Device) -> OfRows:
    """Return the softmax of the library quack-kernels, which writes its kernels in CuTe DSL."""
    from quack.softmax import softmax as quack

    return quack  # type: ignore[no-any-return,unused-ignore]


def inputs(device: Device, keys: Keys) -> list[torch.Tensor]:
    """Return sets of rows of N(0, 1) logits."""
    return random_logits(number(keys, "rows"), number(keys, "vocab"), DTYPES[str(keys["dtype"])], device)


def softmax_work(function: OfRows, device: Device, keys: Keys) -> Work:
    """Turn rows of N(0, 1) logits into probabilities."""
    rows, vocab, dtype = number(keys, "rows"), number(keys, "vocab"), str(keys["dtype"])
    values = inputs(device, keys)
    calls = calls_on(function, values)

    def check() -> None:
        result = calls[0]()
        sums = result.sum(dim=-1, dtype=torch.float32)
        accepted = ACCEPTED_ERROR[dtype]
        assert bool(((sums - 1).abs() <= accepted).all()), f"the probabilities of a row do not add up to 1: {sums}"
        chosen = evenly_spaced(rows, result.device)
        check_error(result[chosen], torch.softmax(values[0][chosen].double(), dim=-1), dtype)

    moved = int(logits.softmax_bytes(rows, vocab, element_size(keys)))
    return Work(calls, check, {"bandwidth": Rate("B/s", moved)}, footprint=moved)


def log_sum_exp_work(function: OfRows, device: Device, keys: Keys) -> Work:
    """Add up the powers of rows of N(0, 1) logits."""
    rows, vocab = number(keys, "rows"), number(keys, "vocab")
    values = inputs(device, keys)
    calls = calls_on(function, values)

    def check() -> None:
        for part, found in zip(values[0].split(CHECKED_ROWS), calls[0]().split(CHECKED_ROWS), strict=True):
            error = float((found.double() - torch.logsumexp(part.double(), dim=-1)).abs().max())
            assert error <= ACCEPTED_LSE_ERROR, f"the error is {error:.1e}, and {ACCEPTED_LSE_ERROR:.0e} is accepted"

    moved = int(logits.log_sum_exp_bytes(rows, vocab, element_size(keys)))
    return Work(calls, check, {"bandwidth": Rate("B/s", moved)}, footprint=moved)


def softmax_cases(device: Device) -> Sequence[Keys]:
    """Return rows from few to many; on a CPU a few only."""
    return [
        {"rows": rows, "vocab": vocab, "dtype": dtype}
        for rows in (SOFTMAX_ROWS if device.is_gpu else SOFTMAX_ROWS[:1])
        for dtype in (half_format(device), "fp32")
        for vocab in VOCABULARIES
        if device.is_gpu or dtype == "fp32"
    ]


def half_format(device: Device) -> str:
    """Return the 16-bit format that a device computes in."""
    return "bf16" if "bf16" in device.supports else "fp16"


SOFTMAX = Benchmark(
    name="softmax",
    title="Softmax over a vocabulary",
    question="How near does a softmax come to reading and writing its data once?",
    contenders={
        "gpuguide": Contender(lambda device, keys: softmax_work(logits.fused_softmax, device, keys)),
        "torch-eager": Contender(lambda device, keys: softmax_work(eager_softmax, device, keys)),
        "torch-compile": Contender(
            lambda device, keys: softmax_work(compile_function(eager_softmax, device), device, keys)
        ),
        "quack": Contender(
            lambda device, keys: softmax_work(quack_softmax(device), device, keys),
            frozenset({"gpu"}),
            libraries=("quack-kernels", "nvidia-cutlass-dsl"),
        ),
    },
    cases=softmax_cases,
    memory=lambda keys: 2.5 * logits.softmax_bytes(number(keys, "rows"), number(keys, "vocab"), element_size(keys)),
    budget=0.3,
)

LOG_SUM_EXP = Benchmark(
    name="log-sum-exp",
    title="Log-sum-exp over a vocabulary",
    question="How near does a log-sum-exp come to reading its data once?",
    contenders={
        "gpuguide": Contender(lambda device, keys: log_sum_exp_work(logits.fused_log_sum_exp, device, keys)),
        "torch-eager": Contender(lambda device, keys: log_sum_exp_work(eager_log_sum_exp, device, keys)),
        "torch-compile": Contender(
            lambda device, keys: log_sum_exp_work(compile_function(eager_log_sum_exp, device), device, keys)
        ),
    },
    cases=softmax_cases,
    memory=lambda keys: 3 * logits.softmax_bytes(number(keys, "rows"), number(keys, "vocab"), 4),
    budget=0.3,
)


# --- the head --------------------------------------------------------------------------------------------


def head_work(device: Device, keys: Keys) -> Work:
    """Multiply hidden states by a head's weight, stored as models store it: one row a token of the vocabulary."""
    tokens, hidden, vocab = number(keys, "tokens"), number(keys, "hidden"), number(keys, "vocab")
    dtype = str(keys["dtype"])
    moved = int(logits.head_bytes(tokens, hidden, vocab, element_size(keys)))

    def operands() -> tuple[torch.Tensor, torch.Tensor]:
        states = torch.randn(tokens, hidden, dtype=DTYPES[dtype], device=device.torch_device)
        weight = torch.randn(vocab, hidden, dtype=DTYPES[dtype], device=device.torch_device)
        return states, weight.mul_(hidden**-0.5)  # logits are N(0, 1) then

    def call_on(states: torch.Tensor, weight: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: logits.project(states, weight)

    sets = [operands() for _ in range(count_input_sets(moved, device))]
    calls = [call_on(states, weight) for states, weight in sets]

    def check() -> None:
        result = calls[0]()
        finite = torch.isfinite(result.sum(dim=-1, dtype=torch.float32))
        assert bool(finite.all()), "a logit is not a finite number"
        states, weight = sets[0]
        chosen = evenly_spaced(tokens, result.device)
        reference = [states[chosen].double() @ part.double().t() for part in weight.split(COLUMNS_AT_ONCE)]
        check_error(result[chosen], torch.cat(reference, dim=1), dtype)

    rates = {
        "throughput": Rate("FLOP/s", logits.head_flops(tokens, hidden, vocab)),
        "bandwidth": Rate("B/s", moved),
    }
    return Work(calls, check, rates, footprint=moved)


def head_cases(device: Device) -> Sequence[Keys]:
    """Return heads with one token and more; the unpadded one with fewer steps, on a CPU the smaller ones only."""
    heads = {GPT2_PADDED: powers_of_two(1, 16384), GPT2: powers_of_two(1, 16384, 2), LLAMA3_8B: powers_of_two(1, 16384)}
    if not device.is_gpu:
        heads = {GPT2_PADDED: powers_of_two(1, 1024, 2)}
    dtype = half_format(device) if device.is_gpu else "fp32"
    return [
        {"tokens": tokens, "hidden": hidden, "vocab": vocab, "dtype": dtype}
        for (hidden, vocab), steps in heads.items()
        for tokens in steps
    ]


HEAD = Benchmark(
    name="lm-head",
    title="The language-model head against the number of tokens",
    question="From how many tokens on is the head limited by arithmetic and no longer by memory?",
    contenders={"torch": Contender(head_work)},
    cases=head_cases,
    memory=lambda keys: logits.head_bytes(
        number(keys, "tokens"), number(keys, "hidden"), number(keys, "vocab"), element_size(keys)
    ),
    budget=0.3,
)
