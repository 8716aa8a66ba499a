"""Training steps by precision: their time, their memory, and the loss after 200 of them.

Each contender trains GPT-2 small from the same weights on the same text for 200 steps with
:func:`gpuguide.precision.training_step.train_step`, and most of these steps are what is timed, by the host's clock. So
time and loss come from one run. The loss and the norm of the gradients are read after each step, in every precision:
the host never begins the next step before the GPU has ended this one. A loop that does not read them hides part of the
host's time. In fp16 :class:`gpuguide.precision.LossScaler` asks about infinities before clipping, and the host waits
there too; PyTorch's ``GradScaler`` with a fused optimizer does not, and is not measured.

``compile`` compiles each block once and uses it for all layers, and the loss (*regional compilation*): whole models
take minutes to compile for six precisions, and what is lost are two fusions a layer. ``torchao`` is the same with
layers of torchao in fp8. ``compile-graph`` and ``torchao-graph`` are these with the compiled blocks in two CUDA graphs,
one forward and one backward, each launched at once, so that the host seldom delays the GPU; head, loss and optimizer
are launched as before, and with a loss scaler the host still waits in every step. Their memory is not reported:
``torch.cuda.max_memory_allocated`` does not see what a graph uses while it is replayed.

The text is Python's standard library, in the tokens of the models that come with the library.
"""

from __future__ import annotations

import functools
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import gpuguide.models
from gpuguide.benchmarks.precision import preparing
from gpuguide.benchmarks.precision.preparing import METHODS, Prepare, fp32_matmul_precision
from gpuguide.hardware.device import Device
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, find_missing_feature
from gpuguide.measure.records import Metric
from gpuguide.models import corpus
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.models.tokenizer import Tokenizer
from gpuguide.precision import LossScaler, StepResult, TrainingSetup, autocast, cross_entropy_sum, train_step

SHAPE = GPT2Config(vocab_size=50304)
"""GPT-2 small, its vocabulary padded to a multiple of 64"""
BATCH, SEQ_LEN = 8, 1024
STEPS = 200
WARM_UP = 10
"""The first steps, which are not timed"""
LEARNING_RATE, WARMUP_STEPS = 1.5e-4, 40
"""Peak of the learning rate, and steps of its warm-up; after it, the rate falls to a tenth along half a cosine. With
6e-4 a run is at the edge of stability, and later steps amplify the rounding of one step: two compilations of one
precision then differ as much as two precisions do."""
WINDOWS = 64
"""Sequences that the loss is measured on in the end; none of their files is trained on"""


# --- text ------------------------------------------------------------------------------------------------


@functools.cache
def tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the text to train on and the one to measure the loss on, each a stream of tokens."""
    tokenizer = Tokenizer.read(Path(gpuguide.models.__file__).parent / "main" / "tokenizer.json")
    training, validation = corpus.split(corpus.standard_library())

    def stream(sources: Sequence[corpus.CorpusFile]) -> torch.Tensor:
        found: list[int] = []
        for source in sources:
            found += [tokenizer.end_of_text, *tokenizer.encode(source.text)]
        return torch.tensor(found)

    return stream(training), stream(validation)


def windows(stream: torch.Tensor, starts: torch.Tensor, seq_len: int) -> torch.Tensor:
    """Return sequences with the token after each, ``(len(starts), seq_len + 1)``."""
    return stream[starts.unsqueeze(1) + torch.arange(seq_len + 1)]


def draw_batches(keys: Keys, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sequences of all steps, ``(STEPS, batch, seq_len + 1)``, and those that the loss is measured on."""
    batch, seq_len = int(keys["batch"]), int(keys["seq_len"])
    training, validation = tokens()
    drawn = torch.randint(len(training) - seq_len, (STEPS * batch,), generator=torch.Generator().manual_seed(0))
    spread = torch.linspace(0, len(validation) - seq_len - 1, WINDOWS).long()
    steps = windows(training, drawn, seq_len).view(STEPS, batch, seq_len + 1)
    return steps.to(device), windows(validation, spread, seq_len).to(device)


# --- a run -----------------------------------------------------------------------------------------------


class TrainingRun:
    """A training of 200 steps, as far as it has come."""

    def __init__(self, prepare: Prepare, keys: Keys, device: str) -> None:
        self.device, self.batch, self.method = device, int(keys["batch"]), METHODS[str(keys["precision"])]
        self.steps, self.held_out = draw_batches(keys, device)
        self.before = None if prepare in preparing.CAPTURED else measure_settled_memory(device)
        with torch.device(device):
            model = GPT2(SHAPE).to(self.method.weights)
        self.model = prepare(model, keys)
        self.loss_sum = (
            cross_entropy_sum if prepare is preparing.prepare_fp8 else torch.compile(cross_entropy_sum, dynamic=False)
        )
        optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lr_multiplier)
        scaler = LossScaler(enabled=self.method.scaled)
        self.training = TrainingSetup(self.model, optimizer, scaler, schedule, self.method.autocast)
        self.outcomes: list[StepResult] = []
        self.peak: int | None = None

    def step(self) -> None:
        """Take the next step."""
        batch = self.steps[len(self.outcomes)]
        with fp32_matmul_precision(self.method.matmul_precision):
            self.outcomes.append(train_step(self.training, [(batch[:, :-1], batch[:, 1:])], self.loss_sum))

    def warm_up(self) -> None:
        """Take the first steps, and note how much memory the last of them takes at its highest point."""
        for _ in range(WARM_UP - 1):
            self.step()
        if self.before is None:
            self.step()
            return
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        self.step()
        self.peak = torch.cuda.max_memory_allocated() - self.before

    def sample(self) -> float:
        """Return the seconds of the next step. It ends with numbers on the host, so nothing is under way then."""
        if not self.outcomes:
            self.warm_up()
        start = time.perf_counter_ns()
        self.step()
        return (time.perf_counter_ns() - start) * 1e-9

    def further(self) -> Mapping[str, Metric]:
        """Return losses and memory, after the steps that are left."""
        while len(self.outcomes) < STEPS:
            self.step()
        found = {
            "loss": records.metric("nat", [self.loss()]),
            "training_loss": records.metric("nat", [outcome.loss for outcome in self.outcomes]),
            "skipped_steps": records.metric("1", [float(sum(not outcome.stepped for outcome in self.outcomes))]),
        }
        return found if self.peak is None else {**found, "peak_memory": records.metric("B", [self.peak])}

    @torch.no_grad()
    def loss(self) -> float:
        """Return the mean loss on text that is not trained on, as the model computes it in its precision.

        What is compiled is compiled for training, and would be compiled once more; here it runs as it was before. What
        is captured is replayed, and computes as it does in training; so ``batch`` divides ``WINDOWS``.
        """
        total = torch.zeros((), device=self.device)
        with fp32_matmul_precision(self.method.matmul_precision), torch.compiler.set_stance("force_eager"):
            for part in self.held_out.split(self.batch):
                with autocast(self.method.autocast, self.device):
                    total += cross_entropy_sum(self.model(part[:, :-1]), part[:, 1:])
        return float(total) / self.held_out[:, 1:].numel()

    def check(self) -> None:
        """Check the gradients of the first step against float64, and take the first steps."""
        error = self.gradient_error()
        accepted = self.method.accepted
        assert error <= accepted, (
            f"the relative error of the gradients is {error:.1e}, and at most {accepted:.0e} is accepted"
        )
        self.warm_up()

    def gradient_error(self) -> float:
        """Return the error of all gradients of the first step against float64, as a ratio of norms."""
        batch = self.steps[0]
        with self.disable_learning():
            outcome = train_step(self.training, [(batch[:, :-1], batch[:, 1:])], self.loss_sum)
            while not outcome.stepped:  # the loss scaler looks for its scale
                outcome = train_step(self.training, [(batch[:, :-1], batch[:, 1:])], self.loss_sum)
        wrong = right = 0.0
        for found, exact in zip(self.model.parameters(), gradients_in_float64(self.model, batch), strict=True):
            assert found.grad is not None
            wrong += float((found.grad.double() - exact).square().sum())
            right += float(exact.square().sum())
        self.model.zero_grad(set_to_none=True)
        return math.sqrt(wrong / right)

    @contextmanager
    def disable_learning(self) -> Iterator[None]:
        """Let steps compute gradients, whole and unclipped, and change nothing that lasts."""
        usual = self.training
        self.training = replace(usual, schedule=None, clip=math.inf, scaler=LossScaler(enabled=self.method.scaled))
        groups = usual.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = 0.0
        try:
            with fp32_matmul_precision(self.method.matmul_precision):
                yield
        finally:
            self.training = usual
            usual.optimizer.state.clear()
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate


def measure_settled_memory(device: str) -> int | None:
    """Return the bytes in use on a GPU, with no workspace of cuBLAS, so that each contender's own count."""
    if device == "cpu":
        return None
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def lr_multiplier(step: int) -> float:
    """Return the learning rate of a step as a share of the highest: a line up, then half a cosine down to a tenth."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    return 0.55 + 0.45 * math.cos(math.pi * (step - WARMUP_STEPS) / (STEPS - WARMUP_STEPS))


def gradients_in_float64(model: nn.Module, batch: torch.Tensor) -> list[torch.Tensor]:
    """Return the gradients of a plain model with the same weights, a sequence at a time."""
    with torch.device(batch.device):
        exact = GPT2(SHAPE).double()
    with torch.no_grad():
        for mine, theirs in zip(exact.parameters(), model.parameters(), strict=True):
            mine.copy_(theirs)
    for part in batch.split(1):  # attention in float64 keeps all scores
        logits = exact(part[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum")
        (loss / batch[:, 1:].numel()).backward()
    return [weight.grad for weight in exact.parameters() if weight.grad is not None]


# --- declaration -----------------------------------------------------------------------------------------


def work(prepare: Prepare, device: Device, keys: Keys) -> Work:
    """Train, and time the steps."""
    run = TrainingRun(prepare, keys, device.torch_device)
    return Work([], run.check, sample=run.sample, further=run.further)


def lacks_format(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip a precision for which the GPU has no tensor cores, or None."""
    return find_missing_feature(METHODS[str(keys["precision"])].needs, device)


def only_fp8(device: Device, keys: Keys) -> str | None:
    """Return the reason to skip precisions that torchao is not measured for, or None."""
    return lacks_format(device, keys) if keys["precision"] == "fp8" else "it is measured for its layers in fp8 only"


def cases(device: Device) -> Sequence[Keys]:
    """Return the precisions at one batch; on a CPU none, which would take hours."""
    if not device.is_gpu:
        return []
    return [{"precision": precision, "batch": BATCH, "seq_len": SEQ_LEN} for precision in METHODS]


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes: its contenders, what some capture, and one of them at its highest point."""
    precision, count = str(keys["precision"]), int(keys["batch"]) * int(keys["seq_len"])
    parameters = SHAPE.vocab_size * SHAPE.hidden + SHAPE.layers * 12 * SHAPE.hidden**2
    residual, wide = SHAPE.layers * count * SHAPE.hidden, precision in ("fp32", "tf32")
    contenders, graphs = (5, 2) if precision == "fp8" else (3, 1)
    graph_bytes = (40 if wide else 20) * residual
    training = (48 if wide else 28) * residual + 14 * count * SHAPE.vocab_size
    checking = 8 * (4 * parameters + int(keys["seq_len"]) * (3 * SHAPE.vocab_size + 16 * SHAPE.hidden * SHAPE.layers))
    return contenders * 16 * parameters + graphs * graph_bytes + max(training, checking) + 2**29


def contender(
    prepare: Prepare, skip_reason: Callable[[Device, Keys], str | None] = lacks_format, *libraries: str
) -> Contender:
    """Return a training as a contender."""
    return Contender(
        lambda device, keys: work(prepare, device, keys), frozenset({"gpu"}), skip_reason, (*libraries, "cublas")
    )


TRAIN_STEP_PRECISION = Benchmark(
    name="train-step-precision",
    title="Training GPT-2 small for 200 steps, by precision",
    question="What does each precision save in a training step, and what does it cost in the loss?",
    contenders={
        "eager": contender(preparing.prepare_fp8),
        "compile": contender(preparing.compile_blocks),
        "compile-graph": contender(preparing.capture_blocks),
        "torchao": contender(preparing.convert_torchao, only_fp8, "torchao"),
        "torchao-graph": contender(preparing.capture_torchao, only_fp8, "torchao"),
    },
    cases=cases,
    memory=bytes_needed,
    samples=STEPS - WARM_UP,
)
