"""The ways to take a training step of GPT-2 small that are compared, and what they train.

A contender is a step with some of the rungs of :data:`gpuguide.training.rungs.RUNGS`, or a peer:

* ``to-X`` has the rungs up to X, ``without-X`` all but X, and ``only-X`` X alone. ``fp32`` has none and ``best`` all.
* ``nanogpt-recipe`` is that of nanoGPT's ``train.py``: fp32 weights, autocast to bf16, the whole model compiled with
  its loss, PyTorch's choice of attention, and AdamW in one kernel.
* ``hf-compile`` is the same with the GPT-2 of ``transformers``, as it is by default.
* ``best-fed`` is ``best`` with another batch in each step, gathered meanwhile. ``best-fp8`` has the layers' matmuls in
  fp8, and for ``best-autotune`` the compiler tries more kernels.

All clip gradients to a norm of 1, and all have nanoGPT's vocabulary, padded to a multiple of 64. The text is Python's
standard library, in the tokens of the models that come with the library, and initial weights are the same for all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from gpuguide.benchmarks.inference import with_transformers
from gpuguide.benchmarks.precision.training import tokens
from gpuguide.measure.benchmark import Keys
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.precision import to_fp8
from gpuguide.training import PinnedFeeder, StepSettings, TrainingStep, Windows, make_step
from gpuguide.training.rungs import ALL, RUNGS, whole_loss

SHAPE = GPT2Config(vocab_size=50304)
"""GPT-2 small, its vocabulary padded"""
LEARNING_RATE, WEIGHT_DECAY, BETAS, CLIP = 3e-4, 0.1, (0.9, 0.95), 1.0
PEER: dict[str, Any] = {"autocast": "bf16", "graphed": False}
MOST_COMPILATIONS = 64
"""Compilations of one function: each contender is one"""


@dataclass(frozen=True)
class TrainedBy:
    """A step that is ready, and what belongs to it."""

    step: TrainingStep
    close: Callable[[], object] = lambda: None
    next_batch: Callable[[], tuple[torch.Tensor, torch.Tensor]] | None = None
    """Where the batches of a contender come from that is given another one in each step"""
    transposed: frozenset[int] = frozenset()
    """Indices of the parameters that the step stores transposed from ours"""


Make = Callable[[Keys, str, Any], TrainedBy]
"""Function of a case, a device and a pool of memory that makes a step"""


def model(config: GPT2Config, device: str) -> GPT2:
    """Return a model with the initial weights of all contenders."""
    torch.manual_seed(0)
    return GPT2(config).to(device).train()


def settings(**more: Any) -> StepSettings:
    """Return the settings that all contenders share."""
    return StepSettings(learning_rate=LEARNING_RATE, weight_decay=WEIGHT_DECAY, betas=BETAS, clip=CLIP, **more)


def with_rungs(rungs: Collection[str], config: GPT2Config = SHAPE, **more: Any) -> Make:
    """Return what makes a step with some of the rungs."""

    def make(keys: Keys, device: str, pool: Any) -> TrainedBy:
        return TrainedBy(make_step(model(config, device), *shape_of(keys), rungs, settings(**more), pool=pool))

    return make


def nanogpt_recipe(keys: Keys, device: str, pool: Any, config: GPT2Config = SHAPE) -> TrainedBy:
    """Make a step by the recipe of nanoGPT's ``train.py``."""
    made = model(config, device)
    return TrainedBy(TrainingStep(whole_loss(made), made.parameters(), *shape_of(keys), settings(**PEER)))


def hf_compile(keys: Keys, device: str, pool: Any, config: GPT2Config = SHAPE) -> TrainedBy:
    """Make a step of the model of ``transformers``, compiled with its loss."""
    theirs = with_transformers.convert_model(model(config, device), device)  # in eval mode, which drops nothing out

    def logits(tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = theirs(input_ids=tokens, use_cache=False).logits
        return found

    step = TrainingStep(whole_loss(logits), theirs.parameters(), *shape_of(keys), settings(**PEER))
    turned = {id(each.weight) for each in theirs.modules() if type(each).__name__ == "Conv1D"}
    numbers = [number for number, each in enumerate(theirs.parameters()) if id(each) in turned]
    return TrainedBy(step, transposed=frozenset(numbers))


def best_fp8(keys: Keys, device: str, pool: Any, config: GPT2Config = SHAPE) -> TrainedBy:
    """Make the best step with matmuls of the layers in fp8."""
    made = model(config, device)
    to_fp8(made, keep=["head"])
    return TrainedBy(make_step(made, *shape_of(keys), ALL, settings(), pool=pool))


def best_fed(keys: Keys, device: str, pool: Any, config: GPT2Config = SHAPE) -> TrainedBy:
    """Make the best step, and what feeds it."""
    feeder = PinnedFeeder(windows(keys).draw, torch.device(device))
    made = with_rungs(ALL, config)(keys, device, pool)
    return replace(made, close=lambda: feeder.__exit__(None, None, None), next_batch=feeder.next)


def shape_of(keys: Keys) -> tuple[int, int]:
    """Return the sequences of a case's batches, and the tokens of each."""
    return int(keys["batch"]), int(keys["seq_len"])


@functools.cache
def text() -> np.ndarray:
    """Return the text as ids of 16 bits."""
    return tokens()[0].numpy().astype(np.uint16)


def windows(keys: Keys) -> Windows:
    """Return the windows of a case."""
    batch, seq_len = shape_of(keys)
    return Windows(text(), seq_len, batch)


LADDER = tuple(RUNGS)


def ladder() -> dict[str, frozenset[str]]:
    """Return the rungs of each contender that has some: up to each, without each, and each alone.

    What two names would stand for has the first: the first rung alone is ``to-bf16``, and the best without the last
    one is ``to-weights``. The rungs ``weights`` and ``graph`` do not stand alone: the one is bf16, and what the other
    saves is the host's time, of which a step in fp32 needs none.
    """
    found = {"fp32": frozenset[str]()}
    found |= {f"to-{name}": frozenset(LADDER[: number + 1]) for number, name in enumerate(LADDER[:-1])}
    found["best"] = ALL
    found |= {f"without-{name}": _all_but(name) for name in LADDER[:-1]}
    found |= {f"only-{name}": frozenset({name}) for name in LADDER[1:5]}
    return found


def _all_but(name: str) -> frozenset[str]:
    """Return all rungs but one; without bf16 there are no weights in bf16 either."""
    return ALL - ({"bf16", "weights"} if name == "bf16" else {name})


@contextmanager
def many_compilations() -> Iterator[None]:
    """Let the compiler compile one function for each contender: it would stop, or run the later ones uncompiled."""
    import torch._dynamo.config as config

    with config.patch(recompile_limit=MOST_COMPILATIONS, accumulated_recompile_limit=4 * MOST_COMPILATIONS):
        yield
