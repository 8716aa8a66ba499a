"""Time and memory of a step in the shape of GPT-2 small, by what is trained, whatever the weights are."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from gpuguide.benchmarks.transfer_learning.check import check_gradients
from gpuguide.benchmarks.transfer_learning.methods import METHODS, TransferMethod
from gpuguide.benchmarks.transfer_learning.trained import TIMED, contender
from gpuguide.benchmarks.transfer_learning.training import BATCH, Examples, TransferTraining, time_calls
from gpuguide.finetuning.return_types import KINDS, LENGTH
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys
from gpuguide.measure.records import Metric
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.transfer_learning import count_trained_parameters

SHAPES = {
    "gpt2-small": GPT2Config(),
    "two-layers": GPT2Config(vocab_size=256, context=64, layers=2, heads=2, hidden=32),
}
"""The second is for a CPU, and shows that everything works and nothing else"""
LEARNING_RATE = 1e-4
CHECKED = 4
"""Texts whose gradients are checked"""
MEASURED = {
    "new-head": replace(METHODS["new-head"], on_features=False),
    **{name: METHODS[name] for name in ("soft-prompt", "top-quarter", "top-half", "lora", "full")},
}
"""Features are computed anew in each step, as they must be where texts or images are varied"""


class StepRun:
    """Steps of one training method, with random weights and texts."""

    def __init__(self, method: TransferMethod, keys: Keys, device: str) -> None:
        config, seq_len = SHAPES[str(keys["model"])], int(keys["seq_len"])
        with torch.device(device):
            model = GPT2(config)
            tokens = torch.randint(config.vocab_size, (BATCH, seq_len))
            last = torch.randint(seq_len, (BATCH,))
            wanted = torch.randint(len(KINDS), (BATCH,))
        checked = Examples((tokens[:CHECKED], last[:CHECKED]), wanted[:CHECKED])
        check_gradients(method.prepare(copy.deepcopy(model)), checked)
        self.training = TransferTraining(method, model, LEARNING_RATE, Examples((tokens, last), wanted))
        self.examples = Examples((tokens, last), wanted)

    def check(self) -> None:
        """Take the first step, which is not timed: the gradients were checked before."""
        self.training.begin(self.examples, TIMED + 1, 0)
        self.training.next_step()

    def sample(self) -> float:
        """Return the seconds of the next step."""
        return time_calls(self.training.next_step, self.training.places)

    def further(self) -> Mapping[str, Metric]:
        """Return the memory, and how many parameters are trained."""
        found = {"trained_parameters": records.metric("1", [float(count_trained_parameters(self.training.module))])}
        if self.training.peak_memory is not None:
            found["peak_memory"] = records.metric("B", [self.training.peak_memory])
        return found


def stepping(method: TransferMethod) -> Contender:
    """Return a training method as a contender."""
    return contender(lambda keys, device: StepRun(method, keys, device))


def cases(device: Device) -> Sequence[Keys]:
    """Return the one case; on a CPU a small one."""
    if not device.is_gpu:
        return [{"model": "two-layers", "batch": BATCH, "seq_len": 32}]
    return [{"model": "gpt2-small", "batch": BATCH, "seq_len": LENGTH}]


def bytes_needed(keys: Keys) -> float:
    """Return roughly what all contenders take together, each with what it keeps of the layers."""
    config = SHAPES[str(keys["model"])]
    parameters = config.vocab_size * config.hidden + 12 * config.layers * config.hidden**2
    kept = 16 * config.layers * config.hidden * int(keys["batch"]) * int(keys["seq_len"]) * 4
    return len(MEASURED) * (16 * parameters + kept) + 2**31


TRANSFER_STEP = Benchmark(
    name="transfer-step",
    title="A step of training in the shape of GPT-2 small, by what is trained",
    question="What do time and memory of a step depend on: how much is trained, or how deep?",
    contenders={name: stepping(method) for name, method in MEASURED.items()},
    cases=cases,
    memory=bytes_needed,
    samples=TIMED,
)
