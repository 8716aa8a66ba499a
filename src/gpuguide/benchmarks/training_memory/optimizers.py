"""The optimizer's step alone, on the parameters of GPT-2 small and of a 1.2B Llama shape.

fp32 parameters with fp32 states move 28 bytes a parameter (parameter, gradient and two moments are loaded, and all but
the gradient stored), fp32 masters of bf16 parameters 40, and bf16 parameters with 8-bit states 10. Contenders of one
format share parameters and gradients, whose values do not change the time, and have their own states.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from gpuguide.benchmarks.training.contenders import BETAS, WEIGHT_DECAY
from gpuguide.benchmarks.training.ladder import memory_in_use, memory_metrics
from gpuguide.benchmarks.training_memory.models import CONFIGS, make_model, shape_of
from gpuguide.hardware.device import Device
from gpuguide.measure import timing
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate
from gpuguide.training_memory.eight_bit import AdamW8bit
from gpuguide.triton_support.graphs import workspace_of_its_own

LEARNING_RATE = 1e-3
ACCEPTED = 0.1
"""Smallest accepted cosine of a first step and the negative sign of the gradient"""
BYTES = {"fp32": 28, "masters": 40, "8-bit": 10}
"""Bytes a parameter that a step must move"""
Step = Callable[[], object]
Parameters = list[nn.Parameter]


@functools.lru_cache(maxsize=1)
def parameters_of(name: str, device: str, narrow: bool) -> Parameters:
    """Return the parameters of a model with gradients; only those of the last call are kept."""
    with torch.device("meta"):
        shapes = [each.shape for each in make_model(CONFIGS[name], "meta").parameters()]
    generator = torch.Generator(device).manual_seed(0)
    dtype = torch.bfloat16 if narrow else torch.float32
    found = []
    for shape in shapes:
        values = 0.02 * torch.randn(shape, device=device, generator=generator)
        each = nn.Parameter(values.to(dtype))
        each.grad = (1e-3 * torch.randn(shape, device=device, generator=generator)).to(dtype)
        found.append(each)
    return found


# --- contenders --------------------------------------------------------------------------------------------------


def torch_adamw(parameters: Parameters, **more: Any) -> Step:
    """Return the step of PyTorch's AdamW."""
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, **more).step


def capturable(parameters: Parameters) -> Step:
    """Return the step of PyTorch's AdamW in one kernel, with a learning rate that a graph can read."""
    rate = torch.tensor(LEARNING_RATE, device=parameters[0].device)
    return torch.optim.AdamW(
        parameters, lr=rate, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True, capturable=True
    ).step


def masters(narrow: Parameters) -> Step:
    """Return the step of fp32 copies of bf16 parameters, with both copies."""
    wide = [nn.Parameter(each.detach().float()) for each in narrow]
    gradients = [torch.zeros_like(each) for each in wide]
    for each, gradient in zip(wide, gradients, strict=True):
        each.grad = gradient
    step = capturable(wide)

    def whole() -> None:
        torch._foreach_copy_(gradients, [each.grad for each in narrow if each.grad is not None])
        step()
        with torch.no_grad():
            torch._foreach_copy_(list(narrow), list(wide))

    return whole


def eight_bit(parameters: Parameters) -> Step:
    """Return the step of the library's 8-bit AdamW."""
    return AdamW8bit(parameters, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY).step


def eight_bit_capturable(parameters: Parameters) -> Step:
    """Return the step of the library's 8-bit AdamW, with a learning rate that a graph can read."""
    rate = torch.tensor(LEARNING_RATE, device=parameters[0].device)
    return AdamW8bit(parameters, lr=rate, betas=BETAS, weight_decay=WEIGHT_DECAY).step


def torchao(parameters: Parameters) -> Step:
    """Return the step of torchao's 8-bit AdamW, with bf16 rounded at random as its documentation says for bf16."""
    from torchao.optim import AdamW8bit as Theirs

    step: Step = Theirs(
        parameters, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY, bf16_stochastic_round=True
    ).step
    return step


def bitsandbytes(parameters: Parameters) -> Step:
    """Return the step of bitsandbytes' 8-bit AdamW."""
    from bitsandbytes.optim import AdamW8bit as Theirs

    step: Step = Theirs(parameters, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY).step
    return step


def flashoptim(parameters: Parameters) -> Step:
    """Return the step of FlashOptim's AdamW."""
    from flashoptim import FlashAdamW

    step: Step = FlashAdamW(parameters, lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY).step
    return step


def muon(parameters: Parameters) -> Step:
    """Return the step of PyTorch's Muon on the matrices of the layers."""
    largest = max(each.numel() for each in parameters if each.ndim == 2)
    matrices = [each for each in parameters if each.ndim == 2 and each.numel() < largest]
    return torch.optim.Muon(matrices, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY).step


def compiled(parameters: Parameters) -> Step:
    """Return the step of PyTorch's AdamW for all parameters at once, compiled."""
    rate = torch.tensor(LEARNING_RATE, device=parameters[0].device)
    is_gpu = rate.is_cuda
    optimizer = torch.optim.AdamW(
        parameters, lr=rate, betas=BETAS, weight_decay=WEIGHT_DECAY, foreach=True, capturable=is_gpu
    )
    step: Step = torch.compile(optimizer.step, dynamic=False)
    return step


CONTENDERS: Mapping[str, tuple[Callable[[Parameters], Step], str, tuple[str, ...]]] = {
    "for-loop": (functools.partial(torch_adamw, foreach=False), "fp32", ()),
    "foreach": (functools.partial(torch_adamw, foreach=True), "fp32", ()),
    "fused": (functools.partial(torch_adamw, fused=True), "fp32", ()),
    "fused-graph": (capturable, "fp32", ()),
    "compiled": (compiled, "fp32", ()),
    "masters-graph": (masters, "masters", ()),
    "gpuguide-8bit": (eight_bit, "8-bit", ()),
    "gpuguide-8bit-graph": (eight_bit_capturable, "8-bit", ()),
    "torchao-8bit": (torchao, "8-bit", ("torchao",)),
    "bitsandbytes-8bit": (bitsandbytes, "8-bit", ("bitsandbytes",)),
    "flashoptim": (flashoptim, "8-bit", ("flashoptim",)),
    "muon": (muon, "8-bit", ("cublas",)),
}
"""Function that makes the step, key of :data:`BYTES`, and libraries"""
OF_LARGE = ("fused", "gpuguide-8bit", "torchao-8bit", "bitsandbytes-8bit", "flashoptim")
"""Contenders with the larger shape, whose states fit next to each other"""


# --- work --------------------------------------------------------------------------------------------------------


def work(name: str, device: Device, keys: Keys) -> Work:
    """Repeat the step with the same gradients."""
    make, format, _ = CONTENDERS[name]
    parameters = parameters_of(str(keys["parameters"]), device.torch_device, format != "fp32")
    largest = parameters[0]
    first = largest.detach().flatten()[: 2**20].float().clone()
    before = memory_in_use(device)
    step = make(parameters)
    step()
    moved = largest.detach().flatten()[: 2**20].float() - first
    found = memory_metrics(device, before)
    call: Step = step
    if name.endswith("-graph") and device.backend == "cuda":
        call = capture(step)

    def check() -> None:
        assert largest.grad is not None
        direction = largest.grad.flatten()[: 2**20].float().sign()
        agreement = -float(torch.nn.functional.cosine_similarity(moved, direction, 0))
        assert name == "muon" or agreement > ACCEPTED, f"a step goes against the gradient by {agreement:.2f} only"

    count = sum(each.numel() for each in parameters)
    rates = {} if name == "muon" else {"bandwidth": Rate("B/s", BYTES[format] * count)}
    return Work([call], check, rates, timing="wall", further=lambda: found)


def capture(step: Step) -> Step:
    """Return the replay of a graph of a step."""
    timing.on_side_stream(step)
    graph = torch.cuda.CUDAGraph()
    with workspace_of_its_own(), torch.cuda.graph(graph):
        step()

    def replay() -> Step:
        """Replay the graph, and keep the states whose addresses it has."""
        graph.replay()
        return step

    return replay


def skip_reason(name: str, device: Device, keys: Keys) -> str | None:
    """Return the reason to leave out a contender, or ``None``."""
    is_small = keys["parameters"] == "gpt2-small"
    return None if is_small or name in OF_LARGE else "is measured with the smaller shape only"


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes: parameters and gradients of both formats, and the states of each contender."""
    count = shape_of(CONFIGS[str(keys["parameters"])]).parameters()
    names = CONTENDERS if keys["parameters"] == "gpt2-small" else OF_LARGE
    states = {"fp32": 8, "masters": 16, "8-bit": 3}
    return float(count * (12 + sum(states[CONTENDERS[name][1]] for name in names)) + 2**31)


def cases(device: Device) -> Sequence[Keys]:
    """Return the cases."""
    return [{"parameters": name} for name in ("gpt2-small", "llama-1b-shape")] if device.is_gpu else []


def end() -> None:
    """Forget parameters and compiled functions."""
    parameters_of.cache_clear()
    torch.compiler.reset()


OPTIMIZER_STEP = Benchmark(
    name="optimizer-step",
    title="The optimizer's step alone",
    question="How long does an optimizer's step take, and how near to the memory's bandwidth is it?",
    contenders={
        name: Contender(
            functools.partial(work, name),
            frozenset({"gpu", "bf16"}),
            functools.partial(skip_reason, name),
            libraries,
        )
        for name, (_, _, libraries) in CONTENDERS.items()
    },
    cases=cases,
    memory=bytes_needed,
    budget=0.5,
    end=end,
)
