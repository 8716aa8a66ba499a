"""Drawing the next token from logits: temperature, top-k, top-p, min-p and the draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from gpuguide.benchmarks.inputs import calls_on, random_logits
from gpuguide.hardware.device import Device
from gpuguide.measure import timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate
from gpuguide.sampling import sample_bytes, sample_token
from gpuguide.sampling.reference import SamplingSettings

BATCHES = (1, 8, 64, 256)
VOCABULARIES = (50304, 128256, 262144)
DEVIATION = {"flat": 1.0, "peaked": 5.0}
"""Standard deviation of the logits. With five, one token often has most of the probability."""
USUAL = SamplingSettings(temperature=0.8, top_k=50, top_p=0.9)
SETTINGS = {
    "top-k-top-p": USUAL,
    "top-p": SamplingSettings(temperature=0.8, top_p=0.9),
    "plain": SamplingSettings(temperature=0.8),
    "min-p": SamplingSettings(temperature=0.8, min_p=0.05),
}
"""Settings: with top-k few logits are read twice; without, top-p and min-p read all of them twice"""
ELEMENT_SIZE = 4
"""Bytes of an fp32 logit"""
CHECKED_DRAWS = 64
ACCEPTED_SUM = 1e-5
"""Accepted error of an fp32 sum over the vocabulary's probabilities, where top-p cuts"""

Sample = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Function of logits ``(batch, vocab)`` and a step, one int64 on the same device; returns tokens, ``(batch,)``"""
Preparation = Callable[[Device, int, SamplingSettings], Sample]
"""Function that returns a sampler for a device, a batch and settings"""


# --- contenders ------------------------------------------------------------------------------------------


def ours(device: Device, batch: int, settings: SamplingSettings) -> Sample:
    """Return the fused sampler, with a seed for each row."""
    seeds = torch.arange(batch, device=device.torch_device)
    given: dict[str, Any] = asdict(settings)
    return lambda logits, step: sample_token(logits, seeds, step=step, **given)


def with_transformers(device: Device, batch: int, settings: SamplingSettings) -> Sample:
    """Return the sampling of ``generate``: the library's processors one after the other, softmax, and multinomial."""
    from transformers.generation import logits_process

    warpers: Any = logits_process.LogitsProcessorList([logits_process.TemperatureLogitsWarper(settings.temperature)])
    if settings.top_k > 0:
        warpers.append(logits_process.TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1:
        warpers.append(logits_process.TopPLogitsWarper(settings.top_p))
    if settings.min_p > 0:
        warpers.append(logits_process.MinPLogitsWarper(settings.min_p))
    return lambda logits, step: torch.multinomial(torch.softmax(warpers(None, logits), dim=-1), 1).squeeze(1)


def with_torch(device: Device, batch: int, settings: SamplingSettings) -> Sample:
    """Return a short sampler in plain PyTorch: what follows top-k looks at the few logits that it leaves."""

    def sample(logits: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        values, tokens = logits, None
        if settings.top_k > 0:
            values, tokens = logits.topk(settings.top_k, dim=-1)
        elif settings.top_p < 1:
            values, tokens = logits.sort(dim=-1, descending=True)
        kept = torch.softmax(values / settings.temperature, dim=-1)
        if settings.top_p < 1:
            before = kept.cumsum(dim=-1) - kept
            kept = torch.where(before < settings.top_p, kept, 0.0)
        if settings.min_p > 0:
            kept = torch.where(kept >= settings.min_p * kept.amax(dim=-1, keepdim=True), kept, 0.0)
        first = (kept / torch.empty_like(kept).exponential_()).argmax(dim=-1, keepdim=True)
        return (first if tokens is None else tokens.gather(-1, first)).squeeze(1)

    return sample


def with_flashinfer(device: Device, batch: int, settings: SamplingSettings) -> Sample:
    """Return FlashInfer's sampler: top-k first, as we do, and the draw by rejection, with no sort.

    Of all its functions it is the one that its documentation names for the settings, with the seed as a tensor, which
    a CUDA graph needs, and another seed in each step. Its kernels are compiled at the first use, which takes minutes,
    unless the package flashinfer-jit-cache is installed.

    Source: https://docs.flashinfer.ai/api/sampling.html.

    Raises
    ------
    ValueError
        If the settings cut by min-p as well as by top-k or top-p, for which the library has no function.
    """
    from flashinfer import sampling

    offset = torch.zeros(1, dtype=torch.int64, device=device.torch_device)
    temperature, top_k, top_p, min_p = settings.temperature, settings.top_k, settings.top_p, settings.min_p
    if min_p > 0 and (top_k > 0 or top_p < 1):
        raise ValueError(f"FlashInfer cuts by min-p alone; given top_k={top_k}, top_p={top_p} and min_p={min_p}.")

    def sample(logits: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        seed = step.view(1)
        if top_k > 0:
            return sampling.top_k_top_p_sampling_from_logits(
                logits / temperature, top_k, top_p, seed=seed, offset=offset
            )
        if top_p < 1:
            probabilities = sampling.softmax(logits, temperature)
            return sampling.top_p_sampling_from_probs(probabilities, top_p, seed=seed, offset=offset)
        if min_p > 0:
            probabilities = sampling.softmax(logits, temperature)
            return sampling.min_p_sampling_from_probs(probabilities, min_p, seed=seed, offset=offset)
        return sampling.sampling_from_logits(logits / temperature, seed=seed, offset=offset)

    return sample


# --- work ------------------------------------------------------------------------------------------------


def work(prepare: Preparation, device: Device, keys: Keys, *, graph: bool) -> Work:
    """Draw a token from each row, by replaying a graph or as the host launches it."""
    batch, vocab = int(keys["batch"]), int(keys["vocab"])
    settings = SETTINGS[str(keys.get("settings", "top-k-top-p"))]
    deviation = DEVIATION[str(keys.get("logits", "flat"))]
    sample = prepare(device, batch, settings)
    step = torch.zeros((), dtype=torch.int64, device=device.torch_device)
    values = random_logits(batch, vocab, torch.float32, device, deviation)
    calls = calls_on(lambda logits: sample(logits, step), values)
    moved = int(sample_bytes(batch, vocab, ELEMENT_SIZE))
    rates = {"bandwidth": Rate("B/s", moved), "throughput": Rate("token/s", batch)}
    replay = None
    if graph:
        timing.warm_up(calls[0], torch.cuda.synchronize)
        replay = timing.cuda_graph(calls, timing.graph_estimate(calls[0]))
    return Work(calls, lambda: check(sample, values[0], settings), rates, "wall", moved, replay)


def check(sample: Sample, logits: torch.Tensor, settings: SamplingSettings) -> None:
    """Check over many steps that every token drawn is one that a sort in float64 keeps."""
    ordered = (logits.double() / settings.temperature).sort(dim=-1, descending=True).values
    ordered = ordered[:, : settings.top_k or None]
    probabilities = torch.softmax(ordered, dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    kept = (before < settings.top_p + ACCEPTED_SUM) & (probabilities >= settings.min_p * probabilities[:, :1])
    lowest = ordered.gather(-1, kept.sum(dim=-1, keepdim=True) - 1)
    step = torch.zeros((), dtype=torch.int64, device=logits.device)
    for _ in range(CHECKED_DRAWS):
        tokens = sample(logits, step).long()
        drawn = logits.gather(-1, tokens.unsqueeze(-1)).double() / settings.temperature
        assert bool((drawn >= lowest - 1e-6 * lowest.abs()).all()), "a token was drawn that is not kept"
        step.add_(1)


def contender(prepare: Preparation, *called: str, graph: bool) -> Contender:
    """Return a contender, whose sampler is made when a case is set up, with the libraries that it calls."""
    return Contender(
        lambda device, keys: work(prepare, device, keys, graph=graph), frozenset({"gpu"}), libraries=called
    )


CASES: list[Keys] = [
    {"batch": batch, "vocab": vocab, "logits": shape}
    for vocab in VOCABULARIES
    for batch in BATCHES
    for shape in DEVIATION
]


def cases(device: Device) -> Sequence[Keys]:
    """Return batches from one sequence to many; on a CPU none, since a graph is part of the question."""
    return CASES if device.is_gpu else []


SAMPLE_TOKEN = Benchmark(
    name="sample-token",
    title="Drawing the next token",
    question="How long does it take to draw tokens with temperature, top-k and top-p?",
    contenders={
        "gpuguide": contender(ours, graph=True),
        "gpuguide-eager": contender(ours, graph=False),
        "transformers": contender(with_transformers, "transformers", graph=False),
        "torch-topk": contender(with_torch, graph=False),
        "torch-topk-graph": contender(with_torch, graph=True),
        "flashinfer": contender(with_flashinfer, "flashinfer", graph=True),
    },
    cases=cases,
    memory=lambda keys: 12 * sample_bytes(int(keys["batch"]), int(keys["vocab"]), ELEMENT_SIZE),
    budget=0.3,
)


# --- other settings --------------------------------------------------------------------------------------

CASES_OF_SETTINGS: list[Keys] = [
    {"batch": batch, "vocab": 128256, "settings": settings} for batch in (1, 64, 256) for settings in SETTINGS
]
"""The logits are flat, so that top-p alone keeps much of the vocabulary, from all of which the draw is made."""


def cases_of_settings(device: Device) -> Sequence[Keys]:
    """Return all settings for few sequences and for many; on a CPU none."""
    return CASES_OF_SETTINGS if device.is_gpu else []


SAMPLE_TOKEN_SETTINGS = Benchmark(
    name="sample-token-settings",
    title="Drawing the next token with other settings",
    question="What does it cost to draw tokens when no top-k leaves few of them first?",
    contenders={
        "gpuguide": contender(ours, graph=True),
        "transformers": contender(with_transformers, "transformers", graph=False),
        "torch-graph": contender(with_torch, graph=True),
        "flashinfer": contender(with_flashinfer, "flashinfer", graph=True),
    },
    cases=cases_of_settings,
    memory=lambda keys: 32 * sample_bytes(int(keys["batch"]), int(keys["vocab"]), ELEMENT_SIZE),
    budget=0.05,
)
