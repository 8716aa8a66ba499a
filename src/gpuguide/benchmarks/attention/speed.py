"""Attention: one layer's softmax(QKᵀ)V, forward and with its gradients.

Not every contender is measured on every case. The naive formula does the same work with and without a causal mask, so
it is measured with one. What is compiled anew for each shape takes some seconds every time, and is measured at one or
two lengths; so is what PyTorch has a faster kernel for. ``sdpa-flash`` is FlashAttention-2, as PyTorch holds it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import torch

from gpuguide.benchmarks.attention.contenders import (
    fa3,
    fa4,
    flex,
    is_of_a_model,
    library,
    naive,
    naive_compiled,
    ours_gluon,
    ours_triton,
    require_hopper,
    restrict_compiled,
    restrict_efficient,
    restrict_fa3,
    restrict_fa4,
    restrict_flex,
    restrict_flex_flash,
)
from gpuguide.benchmarks.attention.problem import (
    CHECKED_ROWS_AT_ONCE,
    ELEMENT_SIZE,
    TOKENS,
    WIDTH,
    Attend,
    AttentionTensors,
    Tensors,
    attention_flops,
    check_errors,
    relative_errors,
    shape,
)
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, beyond_memory, powers_of_two
from gpuguide.measure.records import Metric, Rate

SEQ_LENS = {True: powers_of_two(512, 16384), False: (512, 8192)}
"""Sequence lengths with a causal mask (True) and without"""
PASSES = ("forward", "forward-backward")
NAIVE_MATRICES = {"forward": 3, "forward-backward": 6}
"""Matrices of the scores' size that the naive formula holds at its peak"""


def work(make: Callable[[Device, Keys], Attend], device: Device, keys: Keys, *, positions_first: bool = False) -> Work:
    """Attend, and take the gradients if the case asks for them."""
    problem, attend = (
        AttentionTensors.draw(keys, device.torch_device, positions_first=positions_first),
        make(device, keys),
    )
    run = problem.forward if keys["pass"] == "forward" else problem.with_gradients

    def call() -> Tensors:
        return run(attend)

    call()  # compiles
    errors = relative_errors(problem, call())
    found = {name: records.metric("1", [error]) for name, error in name_errors(errors).items()}
    if device.backend == "cuda":
        found["peak_memory"] = records.metric("B", [extra_memory(call)])

    def further() -> Mapping[str, Metric]:
        return found

    return Work(
        [call],
        lambda: check_errors(errors, keys),
        {"throughput": Rate("FLOP/s", attention_flops(keys))},
        timing="graph",
        footprint=sum(part.nbytes for part in (problem.q, problem.k, problem.v, problem.d_out)),
        further=further,
    )


def name_errors(errors: Sequence[float]) -> dict[str, float]:
    """Return the largest error, and with gradients also those of the output and of each gradient."""
    names = ("output_error", "dq_error", "dk_error", "dv_error")
    each = dict(zip(names, errors, strict=True)) if len(errors) > 1 else {}
    return {"error": max(errors), **each}


def extra_memory(call: Callable[[], Tensors]) -> int:
    """Return the peak memory of a call in bytes, without its inputs and results."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    returned = sum(result.nbytes for result in call())
    return torch.cuda.max_memory_allocated() - before - returned


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes without the naive formula.

    Each contender holds its inputs, and a graph with its outputs, fp32 sums of dQ and as much again. Three are not
    counted: FlashAttention-3 has no gradients here, and GPUs for FlashAttention-4 have memory to spare.
    """
    batch, heads, seq_len, head_dim = shape(keys, "batch", "heads", "seq_len", "head_dim")
    one = ELEMENT_SIZE * batch * heads * seq_len * head_dim
    checking = 5 * 4 * CHECKED_ROWS_AT_ONCE * seq_len
    return (len(ATTENTION.contenders) - 3) * (4 + 8) * one + checking


def restrict_naive(device: Device, keys: Keys, among: int = 1) -> str | None:
    """Return the reason to skip a case of the naive formula, or None: the scores of ``among`` contenders must fit."""
    if is_of_a_model(keys):
        return "the naive formula is measured with the heads that all lengths are measured with"
    if not keys["causal"]:
        return "the naive formula does the same work without a mask as with one, and is measured with it"
    batch, heads, seq_len = shape(keys, "batch", "heads", "seq_len")
    scores = ELEMENT_SIZE * batch * heads * seq_len**2
    return beyond_memory(bytes_needed(keys) + among * NAIVE_MATRICES[str(keys["pass"])] * scores, device)


def case(device: Device, **keys: int | bool | str) -> Keys:
    """Return a case's keys in their order, in the 16-bit format that the device computes in."""
    names = ("pass", "head_dim", "seq_len", "causal", "batch", "heads", "kv_heads")
    return {**{name: keys[name] for name in names}, "dtype": "bf16" if "bf16" in device.supports else "fp16"}


def cases(device: Device) -> Sequence[Keys]:
    """Return sequences from short to long, GPT-2 and grouped heads; on a CPU none, whose backends these are not."""
    if not device.is_gpu:
        return []
    square = [
        {"head_dim": head_dim, "seq_len": seq_len, "causal": causal, "batch": TOKENS // seq_len}
        | {"heads": WIDTH // head_dim, "kv_heads": WIDTH // head_dim}
        for head_dim in (64, 128)
        for causal in (False, True)
        for seq_len in SEQ_LENS[causal]
    ]
    gpt2 = [
        {"head_dim": 64, "seq_len": seq_len, "causal": True, "batch": 64, "heads": 12, "kv_heads": 12}
        for seq_len in (512, 1024)
    ]
    grouped = [
        {"head_dim": 128, "seq_len": seq_len, "causal": True, "batch": TOKENS // seq_len, "heads": 32, "kv_heads": 8}
        for seq_len in (2048, 8192)
    ]
    return [case(device, **{"pass": name}, **keys) for name in PASSES for keys in (*square, *gpt2, *grouped)]


ON_GPU = frozenset({"gpu"})
TENSOR_CORES = frozenset({"gpu", "fp16"})
AMPERE = frozenset({"gpu", "flash-attention"})
FA4 = ("flash-attn-4", "nvidia-cutlass-dsl")
"""Libraries that FlashAttention-4 is, and is compiled by"""


def contender(
    make: Callable[[Device, Keys], Attend],
    needs: frozenset[str],
    skip_reason: Callable[[Device, Keys], str | None] = lambda device, keys: None,
    libraries: tuple[str, ...] = (),
    *,
    positions_first: bool = False,
) -> Contender:
    """Return a maker of attention as a contender."""
    return Contender(
        lambda device, keys: work(make, device, keys, positions_first=positions_first), needs, skip_reason, libraries
    )


ATTENTION = Benchmark(
    name="attention",
    title="Attention, forward and backward",
    question="How fast is attention by tiles, and what does the formula as it reads cost in time and memory?",
    contenders={
        "gpuguide-triton": contender(ours_triton, TENSOR_CORES),
        "gpuguide-gluon": contender(ours_gluon, TENSOR_CORES, require_hopper),
        "sdpa-flash": contender(library("FLASH_ATTENTION"), AMPERE),
        "sdpa-cudnn": contender(library("CUDNN_ATTENTION"), AMPERE, libraries=("cudnn",)),
        "sdpa-efficient": contender(library("EFFICIENT_ATTENTION"), ON_GPU, restrict_efficient),
        "fa3": contender(fa3, AMPERE, restrict_fa3, ("fa3-fwd",), positions_first=True),
        "fa4": contender(fa4, TENSOR_CORES, restrict_fa4, FA4, positions_first=True),
        "flex": contender(flex, TENSOR_CORES, restrict_flex),
        "flex-flash": contender(
            functools.partial(flex, options={"BACKEND": "FLASH"}),
            TENSOR_CORES,
            restrict_flex_flash,
            FA4,
        ),
        "naive": contender(naive, ON_GPU, restrict_naive, libraries=("cublas",)),
        "naive-compile": contender(
            naive_compiled,
            TENSOR_CORES,
            lambda device, keys: restrict_compiled(device, keys) or restrict_naive(device, keys, among=2),
            libraries=("cublas",),
        ),
    },
    cases=cases,
    memory=lambda keys: bytes_needed(keys),
    budget=0.1,
)
