"""Every method to make a pretrained model do a task, by the number of examples: what comes of it, and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from gpuguide.benchmarks.transfer_learning.check import check_scores
from gpuguide.benchmarks.transfer_learning.methods import METHODS, TransferMethod
from gpuguide.benchmarks.transfer_learning.task import (
    ask_in_context,
    draw_functions,
    error,
    load_checkpoint,
    load_model,
    part,
    predict_answers,
    scores_of_kinds,
    shortest_of_each,
)
from gpuguide.benchmarks.transfer_learning.trained import STEPS, TIMED, TrainedContender, contender
from gpuguide.benchmarks.transfer_learning.training import BATCH, time_calls
from gpuguide.finetuning.return_types import LENGTH, Encoded
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys
from gpuguide.measure.records import Metric
from gpuguide.models.corpus import load_held_out
from gpuguide.models.evaluation import evaluate
from gpuguide.models.gpt2 import GPT2
from gpuguide.transfer_learning import NextToken, count_trained_parameters
from gpuguide.triton_support.graphs import workspace_of_its_own

EXAMPLES = (32, 128, 512, 1223)
"""Training-set sizes; the last is the full set"""
LEARNING_RATES = {
    "new-head": 1e-2,
    "soft-prompt": 1e-1,
    "top-quarter": 1e-4,
    "top-half": 3e-5,
    "lora": 3e-4,
    "full": 1e-4,
    "new-head-full": 1e-4,
    "full-layer-rates": 1e-4,
    "from-scratch": 3e-4,
}
"""Those with the lowest error on functions to validate with, after 512 examples: the benchmark of learning rates"""
DRAWS = 5
"""Trainings with other examples, in another order, from another start"""
LONGER = 1000
"""Steps for the methods that have the fewest parameters"""
PATIENT = ("new-head", "soft-prompt")
QUICK: Keys = {"model": "draft", "examples": 32, "steps": 10}
"""The case of a CPU, which shows that everything works and nothing else"""


def draws(keys: Keys) -> int:
    """Return how often a case is drawn."""
    return DRAWS if int(keys["steps"]) >= STEPS else 1


class ScoreContender(TrainedContender):
    """A training method, with its scores on functions that nothing saw."""

    def further(self) -> Mapping[str, Metric]:
        """Return scores of all draws, and what the training took."""
        found: dict[str, list[float]] = {"error": [], "training_error": [], "old_loss": []}
        seconds = []
        for draw, took in self.finish_draws():
            seconds += [took] if draw or self.draws == 1 else []  # some steps of the first were timed one by one
            for name, value in self.scores(draw).items():
                found[name].append(value)
        module = self.training.module
        metrics = {name: records.metric("nat" if name == "old_loss" else "1", each) for name, each in found.items()}
        metrics["training_time"] = records.metric("s", seconds)
        metrics["trained_parameters"] = records.metric("1", [float(count_trained_parameters(module))])
        metrics["answer_time"] = answer_time(module, part("held-out", self.name, self.device))
        if self.training.peak_memory is not None:
            metrics["peak_memory"] = records.metric("B", [self.training.peak_memory])
        return metrics

    def scores(self, draw: int) -> dict[str, float]:
        """Return the errors of the trained model, and its loss on text like that on which it was pretrained."""
        module = self.training.module
        return {
            "error": error(module, part("held-out", self.name, self.device)),
            "training_error": error(module, draw_functions(self.count, self.name, self.device, draw)),
            "old_loss": old_loss(module.get_submodule("model"), self.name, self.device),
        }


class Prompted:
    """A contender that trains nothing, and is asked with solved examples before a question, or without."""

    def __init__(self, with_solved: bool, keys: Keys, device: str) -> None:
        self.with_solved, self.device, self.name = with_solved, device, str(keys["model"])
        self.count, self.draws = int(keys["examples"]), draws(keys)
        self.model = load_model(self.name, device)
        self.module = NextToken(self.model)

    def questions(self, draw: int) -> Encoded:
        """Return the held-out functions, with the solved examples of a draw before each."""
        texts = part("held-out", self.name, self.device)
        if not self.with_solved:
            return texts
        room = self.model.config.context - LENGTH
        return ask_in_context(
            shortest_of_each(draw_functions(self.count, self.name, self.device, draw), room, draw), texts
        )

    def check(self) -> None:
        """Check the scores of a batch against float64."""
        texts = self.questions(0)
        check_scores(self.module, texts.tokens[:BATCH], texts.last[:BATCH])
        self.answer = answering(self.module, texts)

    def sample(self) -> float:
        """Return the seconds of a batch of answers."""
        return time_calls(self.answer, self.model.head.weight)

    def further(self) -> Mapping[str, Metric]:
        """Return the errors of all draws, how many functions get the answer that is given most, and the old loss."""
        errors, commonest = [], []
        for draw in range(self.draws):
            texts = self.questions(draw)
            given = predict_answers(self.module, texts)
            errors.append(float((given != texts.kinds).float().mean()))
            commonest.append(float(given.bincount().max()) / len(given))
        return {
            "error": records.metric("1", errors),
            "commonest_answer": records.metric("1", commonest),
            "old_loss": records.metric("nat", [old_loss(self.model, self.name, self.device)]),
            "trained_parameters": records.metric("1", [0.0]),
            "answer_time": records.metric("s", [time_calls(self.answer, self.model.head.weight) for _ in range(TIMED)]),
        }


def old_loss(model: nn.Module, name: str, device: str) -> float:
    """Return the loss on Python programs that nothing was trained on, as a language model."""
    assert isinstance(model, GPT2)
    return evaluate(model, load_checkpoint(name, device).tokenizer, load_held_out()).loss


def answering(module: nn.Module, texts: Encoded) -> Callable[[], object]:
    """Return a call that answers one batch; on a GPU, a replay of a CUDA graph."""
    tokens, last = texts.tokens[:BATCH].clone(), texts.last[:BATCH].clone()
    module.eval()

    @torch.no_grad()
    def answer() -> torch.Tensor:
        return scores_of_kinds(module, tokens, last, texts.answers).argmax(1)

    if not tokens.is_cuda:
        return answer
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        answer()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with workspace_of_its_own(), torch.cuda.graph(graph):
        answer()

    def replay() -> tuple[torch.Tensor, ...]:
        graph.replay()
        return tokens, last, texts.answers, *module.parameters()  # which the graph reads and does not hold

    return replay


def answer_time(module: nn.Module, texts: Encoded) -> Metric:
    """Return the seconds of a batch of answers, several times."""
    answer = answering(module, texts)
    return records.metric("s", [time_calls(answer, texts.tokens) for _ in range(TIMED)])


# --- declaration -----------------------------------------------------------------------------------------


def make_scored_contender(method: TransferMethod, learning_rate: float, name: str) -> Contender:
    """Return a training method as a contender."""
    trains = contender(lambda keys, device: ScoreContender(method, learning_rate, draws(keys), keys, device))
    return replace(trains, skip_reason=lambda device, keys: explain_skip(name, keys))


def make_prompted_contender(name: str, *, with_solved: bool) -> Contender:
    """Return a method that trains nothing as a contender."""
    answers = contender(partial(Prompted, with_solved))
    return replace(answers, skip_reason=lambda device, keys: explain_skip(name, keys))


def explain_skip(name: str, keys: Keys) -> str | None:
    """Return the reason to skip longer training with a method, or None."""
    if int(keys["steps"]) > STEPS and name not in PATIENT:
        return f"longer training is measured for {' and '.join(PATIENT)}, which have the fewest parameters"
    return None


def cases(device: Device) -> Sequence[Keys]:
    """Return the numbers of examples; on a CPU one small case."""
    if not device.is_gpu:
        return [QUICK]
    usual: list[Keys] = [{"model": "main", "examples": count, "steps": STEPS} for count in EXAMPLES]
    return [*usual, {"model": "main", "examples": EXAMPLES[-1], "steps": LONGER}]


TRANSFER = Benchmark(
    name="transfer-learning",
    title="A pretrained model on a new task, by what is trained: a step of training, or a batch of answers",
    question="Which part of a pretrained model is worth training, with how many examples?",
    contenders={
        "zero-shot": make_prompted_contender("zero-shot", with_solved=False),
        "in-context": make_prompted_contender("in-context", with_solved=True),
        **{name: make_scored_contender(method, LEARNING_RATES[name], name) for name, method in METHODS.items()},
    },
    cases=cases,
    memory=lambda keys: 2.0**32,
    samples=TIMED,
)
