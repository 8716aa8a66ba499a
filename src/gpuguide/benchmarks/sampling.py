"""Drawing the next token from logits: temperature, top-k, top-p and the draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gpuguide.errors import GpuguideError
from gpuguide.hardware.device import Device
from gpuguide.measure import timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate
from gpuguide.sampling import sample_bytes, sample_token

BATCHES = (1, 8, 64, 256)
VOCABULARIES = (50304, 128256, 262144)
SPREAD = {"flat": 1.0, "peaked": 5.0}
"""Standard deviation of the logits. With five, one token often has most of the probability."""
TEMPERATURE, TOP_K, TOP_P = 0.8, 50, 0.9
ELEMENT_SIZE = 4
"""Bytes of an fp32 logit"""
CHECKED_DRAWS = 64

Sample = Callable[[torch.Tensor], torch.Tensor]
"""Takes logits ``(batch, vocab)`` and returns tokens, ``(batch,)``"""


# --- contenders ------------------------------------------------------------------------------------------


def ours(device: Device, batch: int) -> Sample:
    """Return the fused sampler, with a seed for each row."""
    seeds = torch.arange(batch, device=device.torch_device)
    step = torch.zeros((), dtype=torch.int64, device=device.torch_device)
    return lambda logits: sample_token(logits, seeds, step=step, temperature=TEMPERATURE, top_k=TOP_K, top_p=TOP_P)


def with_transformers() -> Sample:
    """Return the sampling of ``generate``: the library's processors one after the other, softmax, and multinomial."""
    try:
        from transformers.generation import logits_process
    except ImportError as error:
        raise GpuguideError("transformers is not installed; it comes with the extra peers.") from error
    warpers: Any = logits_process.LogitsProcessorList(
        [
            logits_process.TemperatureLogitsWarper(TEMPERATURE),
            logits_process.TopKLogitsWarper(TOP_K),
            logits_process.TopPLogitsWarper(TOP_P),
        ]
    )
    return lambda logits: torch.multinomial(torch.softmax(warpers(None, logits), dim=-1), num_samples=1).squeeze(1)


def with_topk(logits: torch.Tensor) -> torch.Tensor:
    """Sample in plain PyTorch, the short way: everything after top-k looks at the few logits that it leaves."""
    values, tokens = logits.topk(TOP_K, dim=-1)
    probabilities = torch.softmax(values / TEMPERATURE, dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = torch.where(before < TOP_P, probabilities, 0.0)
    first = (kept / torch.empty_like(kept).exponential_()).argmax(dim=-1, keepdim=True)
    return tokens.gather(-1, first).squeeze(1)


# --- work ------------------------------------------------------------------------------------------------


def work(sample: Sample, device: Device, keys: Keys, *, graph: bool) -> Work:
    """Draw a token from each row, by replaying a graph or as the host launches it."""
    batch, vocab, spread = int(keys["batch"]), int(keys["vocab"]), SPREAD[str(keys["logits"])]
    if device.backend == "fake":
        return Work(calls=[lambda: None])
    moved = int(sample_bytes(batch, vocab, ELEMENT_SIZE))
    sets = 1 + int(2 * device.l2 // moved)
    inputs = [torch.randn(batch, vocab, device=device.torch_device) * spread for _ in range(sets)]

    def call_on(logits: torch.Tensor) -> Callable[[], torch.Tensor]:
        return lambda: sample(logits)

    calls = [call_on(logits) for logits in inputs]
    rates = {"bandwidth": Rate("B/s", moved), "throughput": Rate("token/s", batch)}
    sampler = None
    if graph:
        timing.warm_up(calls[0], torch.cuda.synchronize)
        sampler = timing.cuda_graph(calls, timing.graph_estimate(calls[0]))
    return Work(calls, lambda: check(sample, inputs[0]), rates, "wall", moved, sampler)


def check(sample: Sample, logits: torch.Tensor) -> None:
    """Check that every token drawn is one that a sort in float64 keeps."""
    ordered = (logits.double() / TEMPERATURE).sort(dim=-1, descending=True)
    probabilities = torch.softmax(ordered.values[:, :TOP_K], dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = (before < TOP_P).sum(dim=-1)
    threshold = ordered.values.gather(-1, (kept - 1).unsqueeze(-1))
    for _ in range(CHECKED_DRAWS):
        drawn = logits.double().gather(-1, sample(logits).unsqueeze(-1)) / TEMPERATURE
        assert bool((drawn >= threshold - 1e-6 * threshold.abs()).all()), "a token was drawn that is not kept"


CASES: list[Keys] = [
    {"batch": batch, "vocab": vocab, "logits": shape} for vocab in VOCABULARIES for batch in BATCHES for shape in SPREAD
]
ON_GPU = frozenset({"gpu"})


def cases(device: Device) -> Sequence[Keys]:
    """Return batches from one sequence to many; on a CPU none, since a graph is part of the question."""
    return CASES if device.is_gpu else []


SAMPLE_TOKEN = Benchmark(
    name="sample-token",
    title="Drawing the next token",
    question="How long does it take to draw tokens with temperature, top-k and top-p?",
    contenders={
        "gpuguide": Contender(
            lambda device, keys: work(ours(device, int(keys["batch"])), device, keys, graph=True), ON_GPU
        ),
        "gpuguide-eager": Contender(
            lambda device, keys: work(ours(device, int(keys["batch"])), device, keys, graph=False), ON_GPU
        ),
        "transformers": Contender(lambda device, keys: work(with_transformers(), device, keys, graph=False), ON_GPU),
        "torch-topk": Contender(lambda device, keys: work(with_topk, device, keys, graph=False), ON_GPU),
        "torch-topk-graph": Contender(lambda device, keys: work(with_topk, device, keys, graph=True), ON_GPU),
    },
    cases=cases,
    memory=lambda keys: 12 * sample_bytes(int(keys["batch"]), int(keys["vocab"]), ELEMENT_SIZE),
    budget=0.3,
)
