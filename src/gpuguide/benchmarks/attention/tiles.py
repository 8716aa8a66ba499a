"""Ablations of the attention kernels: they run with their default configuration, and with one change at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpuguide.benchmarks.attention.contenders import require_hopper
from gpuguide.benchmarks.attention.problem import (
    TOKENS,
    WIDTH,
    AttentionTensors,
    Tensors,
    attention_flops,
    check_errors,
    relative_errors,
)
from gpuguide.benchmarks.attention.speed import ATTENTION, TENSOR_CORES, bytes_needed
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate

Changes = Mapping[str, Any]
"""Fields of a kernel's launch configuration or schedule and their values, where they differ from those as shipped"""
TILES: Mapping[str, Changes] = {
    "64x64": {"block_m": 64, "block_n": 64, "num_warps": 4},
    "64x128": {"block_m": 64, "block_n": 128, "num_warps": 4},
    "128x64": {"block_m": 128, "block_n": 64, "num_warps": 8},
    "128x128": {"block_m": 128, "block_n": 128, "num_warps": 8},
}
STAGES: Mapping[str, Changes] = {f"stages-{count}": {"num_stages": count} for count in (1, 2, 3)}
VARIANTS: Mapping[str, Mapping[str, Changes]] = {
    "forward": {"as-shipped": {}, "one-loop": {"split": False}, "powers-of-e": {"exp2": False}, **TILES, **STAGES},
    "keys": {"as-shipped": {}, **TILES, **STAGES},
    "queries": {"as-shipped": {}, **TILES, **STAGES},
    "forward-by-hand": {
        "as-shipped": {},
        "weights-after-products": {"overlap_softmax": False},
        "without-turns": {"ping_pong": False},
        "neither": {"overlap_softmax": False, "ping_pong": False},
        "weights-in-16-bits": {"carry_fp32": False},
        "head-after-head": {"interleave_heads": False},
        "program-per-tile": {"persistent": False},
        "columns-64": {"block_n": 64},
        "stages-1": {"num_stages": 1},
    },
    "backward-by-hand": {
        "as-shipped": {},
        "stored-not-added": {"accumulate": False},
        "head-by-head": {"section": 1},
        "dq-at-once": {"delay_dq": False},
        "dq-a-tile-later": {"delay_dq": True},
        "rows-64": {"block_m": 64},
        "rows-64-dq-a-tile-later": {"block_m": 64, "delay_dq": True},
    },
}
"""Changes of each kernel that are measured, one at a time but for ``neither`` and ``rows-64-dq-a-tile-later``"""
WITHOUT_DQ = {"stored-not-added"}
"""Variants whose dQ is wrong, and is not checked"""
TILES_SEQ_LEN = 8192


def tiles_work(device: Device, keys: Keys) -> Work:
    """Run the pass that a kernel belongs to, with the kernel launched as shipped but for one change."""
    from gpuguide.attention import triton_flash

    kernel, changes = str(keys["kernel"]), VARIANTS[str(keys["kernel"])][str(keys["variant"])]
    problem = AttentionTensors.draw(with_shape(keys), device.torch_device)
    inputs, causal, scale = (problem.q, problem.k, problem.v), problem.causal, problem.q.shape[-1] ** -0.5
    if kernel == "forward-by-hand":
        from gpuguide.attention import gluon_flash

        schedule = replace(gluon_flash.DEFAULT_SCHEDULE, **changes)
        return measure_checked(keys, problem, lambda: gluon_flash.forward(*inputs, causal, scale, schedule)[:1])
    out, lse = triton_flash.forward(*inputs, causal, scale)
    forward_pass = (*inputs, out, lse, problem.d_out)
    if kernel == "backward-by-hand":
        from gpuguide.attention import gluon_backward

        own = replace(gluon_backward.SCHEDULES[problem.q.shape[-1]], **changes)
        return measure_checked(
            keys, problem, lambda: (out, *gluon_backward.backward(*forward_pass, None, causal, scale, own))
        )
    config = replace(triton_flash.default_config(kernel, problem.q), **changes)
    if kernel == "forward":
        return measure_checked(keys, problem, lambda: triton_flash.forward(*inputs, causal, scale, config)[:1])

    def call() -> Tensors:
        dkdv_config, dq_config = (config if kernel == name else None for name in ("keys", "queries"))
        return (out, *triton_flash.backward(*forward_pass, causal, scale, dkdv_config, dq_config))

    return measure_checked(keys, problem, call)


def measure_checked(keys: Keys, problem: AttentionTensors, call: Callable[[], Tensors]) -> Work:
    """Return a call with its rate, and with the check of what it returns."""
    errors = relative_errors(problem, call())
    if keys["variant"] in WITHOUT_DQ:
        del errors[1]
    rates = {"throughput": Rate("FLOP/s", attention_flops(with_shape(keys)))}
    return Work([call], lambda: check_errors(errors, with_shape(keys)), rates, timing="graph")


def with_shape(keys: Keys) -> Keys:
    """Return keys of a case of ``attention-tiles`` with the pass, the batch and the heads that they imply."""
    heads, batch = WIDTH // int(keys["head_dim"]), TOKENS // int(keys["seq_len"])
    name = "forward" if str(keys["kernel"]).startswith("forward") else "backward"
    return {**keys, "pass": name, "batch": batch, "heads": heads, "kv_heads": heads}


def tiles_cases(device: Device) -> Sequence[Keys]:
    """Return every change at each size of a head; on a CPU none. The Gluon kernel is measured with both masks."""
    if not device.is_gpu:
        return []
    dtype = "bf16" if "bf16" in device.supports else "fp16"
    return [
        {"kernel": kernel, "head_dim": head_dim, "seq_len": TILES_SEQ_LEN, "causal": causal}
        | {"variant": variant, "dtype": dtype}
        for kernel, variants in VARIANTS.items()
        for head_dim in (64, 128)
        for causal in ((False, True) if kernel == "forward-by-hand" else (True,))
        for variant in variants
        if not kernel.endswith("by-hand") or require_hopper(device, {}) is None
    ]


ATTENTION_TILES = Benchmark(
    name="attention-tiles",
    title="Attention by tiles, one change at a time",
    question="What is each choice in the kernels worth?",
    contenders={"gpuguide": Contender(tiles_work, TENSOR_CORES)},
    cases=tiles_cases,
    memory=lambda keys: bytes_needed(with_shape(keys)) / len(ATTENTION.contenders),
    budget=0.1,
)
