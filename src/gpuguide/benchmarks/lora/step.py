"""A training step with adapters: time and memory, by model, by the layers that have them, and by their rank.

A step is forward pass, loss, backward pass and AdamW, timed by the host's clock around synchronised work, so that time
in which the GPU waits for launches counts. Everybody trains the same numbers (:mod:`gpuguide.benchmarks.lora.problem`)
and is held against fp32 without any code of adapters (:mod:`gpuguide.benchmarks.lora.reference`): the loss and the
gradients of the very step that is timed, captured or not. Nothing is dropped out.

``peft`` is what its documentation shows: adapters in fp32, autocast to bf16, the loss of ``transformers``.
``peft-no-autocast`` holds adapters in bf16 and casts nothing; the compiled ones build upon it, since it is the faster.
Compiling takes a minute for each case, so cases are those from which one can read something: adapters beside all layers
at rank 16 for every model and everybody, and from there, for the smallest and the largest model, another rank or fewer
layers. What a compiler does for PEFT is measured at the former only.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache

import torch

from gpuguide.benchmarks.lora import contenders, problem, reference
from gpuguide.benchmarks.lora.contenders import COMPILED, EAGER, LoraContender, Make
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate
from gpuguide.models import gpt2, shapes
from gpuguide.training.step import TrainingStep

BATCH, SEQ_LEN = 16, 512
USUAL_RANK = 16
USUAL = ("all", USUAL_RANK)
OTHERS = (("attention", USUAL_RANK), ("all", 8), ("all", 64))
"""Layers that have adapters, and their rank"""
BF16 = frozenset({"gpu", "bf16"})


# --- work ------------------------------------------------------------------------------------------------


def work(make: Make, device: Device, keys: Keys) -> Work:
    """Train one batch again and again."""
    rates = {"token_rate": Rate("token/s", int(keys["batch"]) * int(keys["seq_len"]))}
    forget_what_was_compiled()
    before = measure_allocated(device)
    trained = make(keys, device.torch_device)
    step = step_of(trained, keys)
    tokens, targets = problem.batch(keys, device.torch_device)
    peak = peak_of_two(lambda: step(tokens, targets), device) - before
    errors: dict[str, float] = {}

    def check() -> None:
        errors.update(errors_of(trained, step, keys, device.torch_device))
        reference.refuse(errors)

    def further() -> Mapping[str, Metric]:
        found = {"error": records.metric("1", [errors["gradient"]])} if errors else {}
        return found | ({"peak_memory": records.metric("B", [peak])} if device.is_gpu else {})

    return Work([lambda: step(tokens, targets)], check, rates, timing="wall", further=further)


def step_of(trained: LoraContender, keys: Keys) -> TrainingStep:
    """Return the step of a contender. All that are captured share memory, since they never run at the same time."""
    shape = int(keys["batch"]), int(keys["seq_len"])
    pool = graph_pool_owner(tuple(sorted(keys.items()))).pool() if torch.cuda.is_available() else None
    return TrainingStep(trained.loss, trained.model.parameters(), *shape, trained.settings, pool=pool)


def errors_of(trained: LoraContender, step: TrainingStep, keys: Keys, device: str) -> dict[str, float]:
    """Give a step the adapters of the case, take it, and return the errors of its loss and gradients.

    A step that changes no parameter fails: it would be fast.
    """
    step.load(trained.arrange(problem.values(keys, device)))
    before = [each.detach().clone() for each in step.masters.trained]
    loss = float(step(*problem.batch(keys, device)))
    gradients = [each.grad for each in step.parameters]
    found = [each for each in gradients if each is not None]
    assert len(found) == len(gradients), "a parameter has no gradient"
    moved = [not torch.equal(old, new) for old, new in zip(before, step.masters.trained, strict=True)]
    assert all(moved), f"{moved.count(False)} of {len(moved)} parameters were not changed by the step"
    return reference.errors(trained.expected(keys, device), loss, trained.name_gradients(found))


def forget_what_was_compiled() -> None:
    """Let the compiler begin anew. Steps that are captured need it no more, and it counts how often it compiled."""
    torch.compiler.reset()


@lru_cache(maxsize=1)
def graph_pool_owner(case: Hashable) -> torch.cuda.CUDAGraph:
    """Return a graph of nothing, whose memory the captured steps of a case share.

    It is there so that the memory has an owner all the time: once no graph has any, no other may take it up.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.zeros(1, device="cuda")
    return graph


def measure_allocated(device: Device) -> int:
    """Return the bytes in use on the device, after what nobody needs is freed."""
    if not device.is_gpu:
        return 0
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # so that this contender's own count
    return torch.cuda.memory_allocated()


def peak_of_two(step: Callable[[], object], device: Device) -> int:
    """Take two steps, and return the highest number of bytes in use. The first compiles and captures."""
    if device.is_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        step()
    if not device.is_gpu:
        return 0
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


# --- declaration -----------------------------------------------------------------------------------------


def cases(device: Device) -> Sequence[Keys]:
    """Return the cases, those that everybody takes part in first; on a processor none, which would take minutes."""
    if not device.is_gpu:
        return []
    smallest, largest = problem.MODELS_OF_ALL
    chosen = [(smallest, *USUAL), (largest, *USUAL), ("gpt2-medium", *USUAL)]
    chosen += [(model, *other) for model in (smallest, largest) for other in OTHERS]
    return [
        {"model": model, "targets": targets, "rank": rank, "batch": BATCH, "seq_len": SEQ_LEN}
        for model, targets, rank in chosen
    ]


def restrict_compiled(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip a compiled peer, or None."""
    if usual(keys):
        return None
    return f"takes long to compile, and is measured beside all layers at rank {USUAL_RANK} only"


def whatever_the_adapters(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip the training of all weights, which is the same whatever the adapters are, or None."""
    if usual(keys):
        return None
    return f"has no adapters, and is measured beside those of all layers at rank {USUAL_RANK}"


def usual(keys: Keys) -> bool:
    """Return whether everybody is measured on a case."""
    return (keys["targets"], keys["rank"]) == USUAL


def no_kernels_for_gpt2(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip models for which Liger has no kernels, or None."""
    return "Liger has no kernels for GPT-2" if problem.kind(keys) == "gpt2" else None


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes with all contenders set up: weights of each, states, and two steps at most.

    One step is what graphs share, one what PyTorch keeps for what is not captured.
    """
    config = problem.config(keys)
    tokens = int(keys["batch"]) * int(keys["seq_len"])
    parameters = parameters_of(config)
    inner = 4 * config.hidden if isinstance(config, gpt2.GPT2Config) else 2 * config.inner
    a_step = tokens * (config.layers * (24 * config.hidden + 6 * inner) + 14 * config.vocab_size)
    weights = (len(LORA_STEP.contenders) + 1) * 2 * parameters
    checking = 3 * 4 * parameters
    full = 18 * parameters if usual(keys) else 0
    return weights + full + checking + 2 * a_step


def parameters_of(config: problem.ModelConfig) -> int:
    """Return the parameters of a model, tied ones counted once."""
    return shapes.build_meta_model(config, torch.bfloat16).parameter_count()


def contender(
    make: Make, *libraries: str, skip_reason: Callable[[Device, Keys], str | None] = lambda device, keys: None
) -> Contender:
    """Return a training method as a contender, with the libraries that it calls."""
    return Contender(lambda device, keys: work(make, device, keys), BF16, skip_reason, (*libraries, "cublas"))


LORA_STEP = Benchmark(
    name="lora-step",
    title="A training step with adapters",
    question="How long does a training step with adapters take, and in how much memory?",
    contenders={
        "gpuguide": contender(contenders.ours),
        "peft": contender(
            lambda keys, device: contenders.peft(keys, device, EAGER, autocast=True), "peft", "transformers"
        ),
        "peft-no-autocast": contender(
            lambda keys, device: contenders.peft(keys, device, EAGER), "peft", "transformers"
        ),
        "peft-compile": contender(
            lambda keys, device: contenders.peft(keys, device, COMPILED),
            "peft",
            "transformers",
            skip_reason=restrict_compiled,
        ),
        "peft-compile-chunked-loss": contender(
            lambda keys, device: contenders.peft(keys, device, COMPILED, chunked=True),
            "peft",
            "transformers",
            skip_reason=restrict_compiled,
        ),
        "peft-liger": contender(
            contenders.peft_with_liger, "peft", "transformers", "liger-kernel", skip_reason=no_kernels_for_gpt2
        ),
        "full-finetune-compile": contender(contenders.full, skip_reason=whatever_the_adapters),
    },
    cases=cases,
    memory=bytes_needed,
    budget=0.5,
    end=graph_pool_owner.cache_clear,
)
