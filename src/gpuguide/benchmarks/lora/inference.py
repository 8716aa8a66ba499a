"""Time of inference with an adapter: merged into the weights, beside them, and without one.

Prompts are read and the logits after each last token returned, by one model in three states. All three are compiled and
replayed from a CUDA graph, so that what is seen is the adapters and not their launches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
from torch import nn

from gpuguide import lora
from gpuguide.benchmarks.lora import problem
from gpuguide.benchmarks.lora.contenders import order_of_ours
from gpuguide.benchmarks.lora.step import BF16, USUAL, parameters_of
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate

BATCHES = (1, 16)
SEQ_LEN = 512
ACCEPTED_ERROR = 0.05
"""Largest accepted error of the logits against fp32, as a ratio of norms"""
Read = Callable[[], torch.Tensor]
"""Reads the prompts of a case, and returns the logits after each, ``(batch, vocab_size)``"""


class LastLogits(nn.Module):
    """A model that gives the logits after the last token alone."""

    def __init__(self, model: problem.Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return ``(batch, vocab_size)`` for ``(batch, seq)``."""
        last = self.model.hidden_states(tokens)[-1][:, -1]
        return self.model.head(self.model.final_norm(last))


def with_adapters(keys: Keys, device: str) -> problem.Model:
    """Return the model of a case with its adapters beside the weights."""
    model = problem.model(keys, device)
    settings = lora.Settings(int(keys["rank"]), problem.alpha(keys))
    targets = problem.OURS[problem.kind(keys)][str(keys["targets"])]
    lora.add_adapters(model, targets, settings, dtype=torch.bfloat16)
    values = order_of_ours(model, keys).arrange(problem.values(keys, device))
    trained = [each for each in model.parameters() if each.requires_grad]
    with torch.no_grad():
        for parameter, value in zip(trained, values, strict=True):
            parameter.copy_(value)
    return model


def build_merged_model(keys: Keys, device: str) -> problem.Model:
    """Return the same with the adapters in the weights."""
    model = with_adapters(keys, device)
    lora.merge(model)
    return model


def work(make: Callable[[Keys, str], problem.Model], device: Device, keys: Keys, *, adapted: bool = True) -> Work:
    """Read the prompts of a case."""
    tokens_read = int(keys["batch"]) * int(keys["seq_len"])
    rates = {"token_rate": Rate("token/s", tokens_read)}
    torch.compiler.reset()
    tokens, _ = problem.batch(keys, device.torch_device)
    model = LastLogits(make(keys, device.torch_device)).eval()
    read = torch.compile(model, fullgraph=True, dynamic=False)
    errors: list[float] = []

    @torch.no_grad()
    def call() -> torch.Tensor:
        found: torch.Tensor = read(tokens)
        return found

    def check() -> None:
        errors.append(error_of(call(), compute_expected_logits(keys, device.torch_device, adapted)))
        assert errors[-1] <= ACCEPTED_ERROR, (
            f"the relative error is {errors[-1]:.1e}, and at most {ACCEPTED_ERROR:.0e} is accepted"
        )

    call()  # compiles
    return Work([call], check, rates, timing="graph", further=lambda: {"error": records.metric("1", errors[-1:])})


def compute_expected_logits(keys: Keys, device: str, adapted: bool) -> torch.Tensor:
    """Return the logits in fp32, with the adapters added to the weights, which no code of adapters does."""
    return _compute_expected_logits(tuple(sorted(keys.items())), device, adapted)


@lru_cache(maxsize=2)
@torch.no_grad()
def _compute_expected_logits(items: tuple[tuple[str, object], ...], device: str, adapted: bool) -> torch.Tensor:
    keys: Keys = dict(items)  # type: ignore[arg-type]
    model = problem.model(keys, device, torch.float32)
    values = problem.values(keys, device)
    for name, (layer, place) in problem.find_adapted_matrices(keys).items() if adapted else ():
        weight = model.get_submodule(layer).weight
        assert isinstance(weight, torch.Tensor)
        down, up = (each.float() for each in values[name])
        rows = weight if place.rows is None else weight[slice(*place.rows)]
        rows += problem.scale(keys) * (up @ down)
    tokens, _ = problem.batch(keys, device)
    return torch.cat([LastLogits(model)(some) for some in tokens.split(1)])


def error_of(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the norm of the difference over the norm of what is wanted."""
    return float((found.float() - wanted).norm() / wanted.norm())


def cases(device: Device) -> Sequence[Keys]:
    """Return a small and a large model, alone and in a batch; on a processor none, which would take minutes."""
    if not device.is_gpu:
        return []
    return [
        {"model": model, "targets": USUAL[0], "rank": USUAL[1], "batch": batch, "seq_len": SEQ_LEN}
        for model in problem.MODELS_OF_ALL
        for batch in BATCHES
    ]


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes: the weights of each contender, those of the check, and what is computed."""
    config = problem.config(keys)
    tokens = int(keys["batch"]) * int(keys["seq_len"])
    return (3 * 2 + 3 * 4) * parameters_of(config) + 64 * tokens * config.hidden * config.layers


LORA_INFERENCE = Benchmark(
    name="lora-inference",
    title="Reading prompts with an adapter",
    question="What does an adapter cost in use, beside the weights and merged into them?",
    contenders={
        "merged": Contender(lambda device, keys: work(build_merged_model, device, keys), BF16, libraries=("cublas",)),
        "unmerged": Contender(lambda device, keys: work(with_adapters, device, keys), BF16, libraries=("cublas",)),
        "base": Contender(
            lambda device, keys: work(problem.model, device, keys, adapted=False), BF16, libraries=("cublas",)
        ),
    },
    cases=cases,
    memory=bytes_needed,
)
