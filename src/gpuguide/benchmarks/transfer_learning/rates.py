"""Learning rates of every training method, by the error on functions that are neither trained on nor held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuguide.benchmarks.transfer_learning.methods import METHODS, TransferMethod
from gpuguide.benchmarks.transfer_learning.task import draw_functions, error, part
from gpuguide.benchmarks.transfer_learning.trained import STEPS, TIMED, TrainedContender, contender
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys
from gpuguide.measure.records import Metric

EXAMPLES = 512
RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
DRAWS = 3
QUICK: Keys = {"model": "draft", "examples": 32, "steps": 10, "learning_rate": 1e-3}
"""The case of a CPU, which shows that everything works and nothing else"""


class ValidationContender(TrainedContender):
    """A training method at one learning rate."""

    def further(self) -> Mapping[str, Metric]:
        """Return the errors of all draws."""
        validation, training = [], []
        for draw, _ in self.finish_draws():
            validation.append(error(self.training.module, part("validation", self.name, self.device)))
            training.append(error(self.training.module, draw_functions(self.count, self.name, self.device, draw)))
        return {"validation_error": records.metric("1", validation), "training_error": records.metric("1", training)}


def make_validated_contender(method: TransferMethod) -> Contender:
    """Return a training method as a contender."""

    def build(keys: Keys, device: str) -> ValidationContender:
        return ValidationContender(
            method, float(keys["learning_rate"]), DRAWS if keys["steps"] == STEPS else 1, keys, device
        )

    return contender(build)


def cases(device: Device) -> Sequence[Keys]:
    """Return the learning rates; on a CPU one small case."""
    if not device.is_gpu:
        return [QUICK]
    return [{"model": "main", "examples": EXAMPLES, "steps": STEPS, "learning_rate": rate} for rate in RATES]


TRANSFER_LEARNING_RATE = Benchmark(
    name="transfer-learning-rate",
    title="A pretrained model on a new task, by what is trained and by the learning rate",
    question="At which learning rate does each training method err least on functions that it has not seen?",
    contenders={name: make_validated_contender(method) for name, method in METHODS.items()},
    cases=cases,
    memory=lambda keys: 2.0**32,
    samples=TIMED // 2,
)
