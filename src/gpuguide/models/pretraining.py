"""A plain trainer: the whole recipe of the packaged models.

Run it with ``gpuguide models train``. One process, one device, one loop; random numbers of a step depend on the seed
and the step alone, so a resumed run continues as if it had not been interrupted.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpuguide import __version__, checkpoint_files, models
from gpuguide.errors import GpuguideError, unknown
from gpuguide.files import replace_atomically
from gpuguide.hardware.processor import processor_name
from gpuguide.models import checkpoint, corpus, gpt2_checkpoint
from gpuguide.models.evaluation import Evaluation, evaluate
from gpuguide.models.gpt2 import GPT2, GPT2Config
from gpuguide.models.pretraining_state import STATE, PretrainingState
from gpuguide.models.tokenizer import Tokenizer
from gpuguide.training.batches import step_seed

RECORD = "training.json"
VOCAB_SIZE = 2048
CONTEXT = 512
FIRST_REPORT = 3
"""Number of steps before the first report, which estimates the time left"""
REPORT_SECONDS = 30
"""Seconds between two reports"""


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training, apart from the corpus."""

    config: GPT2Config
    steps: int
    batch: int = 64
    """Sequences per step, each as long as the model's context"""
    learning_rate: float = 1e-3
    """Peak learning rate, reached after ``warm_up`` steps; it then decays to a tenth along a cosine"""
    warm_up: int = 200
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    """Largest norm of all gradients together"""
    seed: int = 0
    teacher: str | None = None
    """Model whose probabilities are the targets instead of the next tokens (distillation): one that was trained into a
    sibling folder, or else the packaged one"""
    teacher_temperature: float = 1.0
    """Temperature of the teacher's probabilities; below 1 likely tokens weigh more, which helps greedy drafts"""

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step: linear warm-up, then cosine decay to a tenth."""
        if step < self.warm_up:
            return self.learning_rate * (step + 1) / self.warm_up
        done = (step - self.warm_up) / max(self.steps - self.warm_up, 1)
        return self.learning_rate * (0.55 + 0.45 * math.cos(math.pi * done))


RECIPES = {
    "main": Recipe(
        GPT2Config(VOCAB_SIZE, CONTEXT, layers=8, heads=4, hidden=256, dropout=0.2),
        steps=6000,
        learning_rate=2e-3,
        weight_decay=3.0,
    ),
    "draft": Recipe(
        GPT2Config(VOCAB_SIZE, CONTEXT, layers=2, heads=2, hidden=128),
        steps=6000,
        learning_rate=3e-3,
        weight_decay=1.0,
        teacher="main",
        teacher_temperature=0.7,
    ),
}
"""The text is small for the models, which read it some eighty times. Hence the dropout, the strong weight decay and the
small vocabulary: each lowered the loss on texts that were not trained on."""


@dataclass
class PretrainingProgress:
    """Progress of a training."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    seconds_left: float


@dataclass
class Corpus:
    """Texts as tokens: one stream to train on and one to validate on, files separated by end-of-text."""

    tokenizer: Tokenizer
    training: torch.Tensor
    validation: torch.Tensor
    description: dict[str, Any] = field(default_factory=dict)


def recipe(name: str) -> Recipe:
    """Return the recipe of a model by name.

    Raises
    ------
    UnknownName
        If there is none.
    """
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]


def prepare(sources: list[corpus.CorpusFile], vocab_size: int = VOCAB_SIZE) -> Corpus:
    """Split the corpus, learn the tokenizer from what is trained on, and turn both parts into tokens."""
    training, validation = corpus.split(sources)
    tokenizer = Tokenizer.train((source.text for source in training), vocab_size)
    description = {
        "interpreter": f"{platform.python_implementation()} {platform.python_version()}",
        "files": len(sources),
        "bytes": sum(len(source.text.encode()) for source in sources),
        "sha256": corpus.digest(sources),
        "validation_files": len(validation),
    }
    return Corpus(tokenizer, _stream(tokenizer, training), _stream(tokenizer, validation), description)


def _stream(tokenizer: Tokenizer, sources: list[corpus.CorpusFile]) -> torch.Tensor:
    tokens: list[int] = []
    for source in sources:
        tokens += [tokenizer.end_of_text, *tokenizer.encode(source.text)]
    return torch.tensor(tokens)


def train(
    name: str,
    recipe: Recipe,
    data: Corpus,
    folder: Path,
    device: torch.device,
    report: Callable[[PretrainingProgress], None],
    *,
    every: int = 100,
    commit: str | None = None,
) -> Evaluation:
    """Train a model, resuming from a saved state if one exists, and write its checkpoint and record.

    Parameters
    ----------
    name : str
        Name of the model in the record.
    recipe, data
        Settings, and the corpus.
    folder : Path
        Folder of the checkpoint; until it is finished, of the saved state.
    device : torch.device
        Device to train on: CUDA in bf16 autocast, others in fp32.
    report : callable
        Called after an evaluation, or when :data:`REPORT_SECONDS` have passed; the state is saved then, too.
    every : int
        Steps between two evaluations, whose losses the record keeps.
    commit : str, optional
        Commit of the code, for the record.

    Returns
    -------
    Evaluation
        Evaluation of the finished model, as it was written, on the held-out text.

    Raises
    ------
    GpuguideError
        If the folder holds the state of another training, the corpus is shorter than one sequence, or a teacher has
        another tokenizer.
    """
    context = recipe.config.context
    for part, stream in (("to train on", data.training), ("to validate on", data.validation)):
        if len(stream) <= context:
            raise GpuguideError(f"The text {part} has {len(stream)} tokens; one sequence needs {context + 1}.")
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    model = GPT2(recipe.config).to(device)
    teacher = None if recipe.teacher is None else _teacher(recipe.teacher, folder.parent, data, device)
    optimizer = _optimizer(model, recipe)
    state = PretrainingState(
        folder / STATE, model, optimizer, {"recipe": dataclasses.asdict(recipe), "corpus": data.description}
    )
    state.note_environment(_environment(device, commit))
    stream = data.training.to(device)
    validation = _validation_windows(data.validation, context).to(device)
    begun = shown = time.perf_counter()
    first = state.step
    between_steps = True
    try:
        while state.step < recipe.steps:
            between_steps = False
            state.recent.append(_step(model, teacher, optimizer, recipe, stream, state.step))
            state.step += 1
            between_steps = True
            due = state.step % every == 0 or state.step == recipe.steps
            if not due and state.step != first + FIRST_REPORT and time.perf_counter() < shown + REPORT_SECONDS:
                continue
            training_loss = float(torch.stack(state.recent).mean())
            if not math.isfinite(training_loss):
                raise GpuguideError(f"The loss is {training_loss} at step {state.step}: the training has diverged.")
            a_second = (state.step - first) / (time.perf_counter() - begun)
            if due:
                state.losses.append((state.step, training_loss, _validation_loss(model, validation)))
                state.recent.clear()
            left = (recipe.steps - state.step) / a_second
            report(
                PretrainingProgress(state.step, recipe.steps, training_loss, a_second * recipe.batch * context, left)
            )
            state.save(time.perf_counter() - begun)
            shown = time.perf_counter()
    except KeyboardInterrupt:
        if between_steps:  # in the middle of one, weights and step do not agree; what was saved before stays
            state.save(time.perf_counter() - begun)
        raise
    return _finish(name, recipe, data, folder, state, time.perf_counter() - begun)


def _optimizer(model: GPT2, recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW, which pulls matrices towards zero and leaves biases and norms alone."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas)


def _teacher(name: str, folder: Path, data: Corpus, device: torch.device) -> nn.Module:
    """Return the teacher of a smaller model; its tokenizer must be that of the corpus."""
    beside = folder / name
    loaded = models.load(beside if (beside / checkpoint_files.WEIGHTS).exists() else name)
    if _vocabulary(loaded.tokenizer) != _vocabulary(data.tokenizer):
        raise GpuguideError(
            f"{name} was trained with another tokenizer than this corpus gives, so nothing can learn from it; "
            f"first train {name} into {beside}."
        )
    return loaded.model.to(device).eval().requires_grad_(False)


def _vocabulary(tokenizer: Tokenizer) -> list[bytes]:
    return [tokenizer.decode_bytes([token]) for token in range(tokenizer.vocab_size)]


def _step(
    model: GPT2,
    teacher: nn.Module | None,
    optimizer: torch.optim.Optimizer,
    recipe: Recipe,
    stream: torch.Tensor,
    step: int,
) -> torch.Tensor:
    """Take one step, and return its loss without waiting for the device."""
    torch.manual_seed(step_seed(recipe.seed, step))  # dropout
    model.train()
    for group in optimizer.param_groups:
        group["lr"] = recipe.learning_rate_at(step)
    windows = _random_windows(stream, recipe, step)
    loss = _loss(model, windows) if teacher is None else _loss_to_teacher(model, teacher, windows, recipe)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def _random_windows(stream: torch.Tensor, recipe: Recipe, step: int) -> torch.Tensor:
    """Return the sequences of a step, ``(batch, context + 1)``, from random places of the stream."""
    generator = torch.Generator().manual_seed(step_seed(recipe.seed, step))
    context = recipe.config.context
    starts = torch.randint(len(stream) - context, (recipe.batch, 1), generator=generator)
    return stream[starts.to(stream.device) + torch.arange(context + 1, device=stream.device)]


def _loss(model: GPT2, windows: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of each token after the first, given those before it."""
    with torch.autocast(windows.device.type, torch.bfloat16, enabled=windows.device.type == "cuda"):
        logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.float().flatten(0, 1), windows[:, 1:].flatten())


def _loss_to_teacher(model: GPT2, teacher: nn.Module, windows: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """Return the mean cross-entropy with the probabilities that the teacher gives every token."""
    with torch.autocast(windows.device.type, torch.bfloat16, enabled=windows.device.type == "cuda"):
        with torch.no_grad():
            wanted = (teacher(windows[:, :-1]).float() / recipe.teacher_temperature).softmax(dim=-1)
        logits = model(windows[:, :-1])
    return functional.cross_entropy(logits.float().flatten(0, 1), wanted.flatten(0, 1))


def _validation_windows(stream: torch.Tensor, context: int, most: int = 64) -> torch.Tensor:
    """Return sequences that do not overlap, ``(windows, context + 1)``, spread over the stream."""
    count = min(most, (len(stream) - 1) // context)
    starts = torch.linspace(0, len(stream) - context - 1, count).long().unsqueeze(1)
    return stream[starts + torch.arange(context + 1)]


@torch.no_grad()
def _validation_loss(model: GPT2, windows: torch.Tensor) -> float:
    model.eval()
    return float(torch.stack([_loss(model, part) for part in windows.split(16)]).mean())


def _environment(device: torch.device, commit: str | None) -> dict[str, str | None]:
    """Return the device and the versions that train a model."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name(),
        "torch": torch.__version__,
        "gpuguide": __version__,
        "commit": commit,
    }


def _finish(
    name: str, recipe: Recipe, data: Corpus, folder: Path, state: PretrainingState, seconds: float
) -> Evaluation:
    """Write the checkpoint and its record, and remove the saved state.

    The record is written last, and an earlier one removed first, so that a record always describes the weights next to
    it.
    """
    (folder / RECORD).unlink(missing_ok=True)
    gpt2_checkpoint.write(folder, state.model, data.tokenizer)
    model, tokenizer = checkpoint.read(folder)  # the weights as they were written, in bf16
    result = evaluate(model, tokenizer, corpus.load_held_out())
    record: dict[str, Any] = {
        "model": name,
        "parameters": model.parameter_count(),
        "recipe": dataclasses.asdict(recipe),
        "corpus": data.description,
        "tokens": {"training": len(data.training), "validation": len(data.validation)},
        "losses": [
            {"step": step, "training": round(training, 4), "validation": round(validation, 4)}
            for step, training, validation in state.losses
        ],
        "held_out": {**dataclasses.asdict(result), "sha256": _sha256(corpus.HELD_OUT)},
        "sha256": {path.name: _sha256(path) for path in _files(folder)},
        **state.environments[-1],
        "seconds": state.seconds + seconds,
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    if state.environments[:-1]:
        record["before"] = state.environments[:-1]
    with replace_atomically(folder / RECORD) as temporary:
        checkpoint_files.write_json(temporary, record)
    state.path.unlink(missing_ok=True)
    return result


def _files(folder: Path) -> Iterator[Path]:
    for name in (checkpoint_files.WEIGHTS, checkpoint_files.TOKENIZER):
        yield folder / name


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
