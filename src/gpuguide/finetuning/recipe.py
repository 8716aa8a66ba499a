"""The whole recipe: from a file with data to an adapter, a merged checkpoint and a report, in seven stages."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from gpuguide import lora, models, training
from gpuguide.errors import GpuguideError, UnknownName, unknown
from gpuguide.finetuning import examples, preparing, reading, saving, settings
from gpuguide.finetuning.conversation import Conversations
from gpuguide.finetuning.examples import Example
from gpuguide.finetuning.preparing import Limits, Prepared
from gpuguide.finetuning.settings import Request
from gpuguide.hardware.device import Device
from gpuguide.measure.units import format_bytes
from gpuguide.models import adapters, checkpoint
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama
from gpuguide.models.tokenizer import Tokenizer
from gpuguide.precision import cross_entropy_sum
from gpuguide.precision.training_step import LossSum
from gpuguide.training import STATE, held_out_loss, processes, rank

ADAPTER, MERGED, NOTE, REPORT = "adapter", "merged", "finetune.json", "report.html"
"""What is left in the folder"""
STAGES = ("read the data", "make tokens", "check the memory", "load the model", "write before", "train", "save")


@dataclass
class Story:
    """What is known of a run so far: what the screen and the report show."""

    request: Request
    device: Device
    stage: str = STAGES[0]
    began: float = field(default_factory=time.time)
    prepared: Prepared | None = None
    plan: training.Plan | None = None
    layers: list[str] = field(default_factory=list)
    count: lora.Count | None = None
    predicted: float | None = None
    """Bytes that a step was predicted to take on the GPU"""
    peak: int | None = None
    """Bytes that PyTorch had allocated on the GPU at most"""
    losses: tuple[float, ...] = ()
    measured: tuple[tuple[int, float], ...] = ()
    stopped_early: bool = False
    examples: list[tuple[Example, str, str | None]] = field(default_factory=list)
    """Each with what the model wrote before and after"""
    merged_loss: float | None = None
    """The held-out loss of the merged checkpoint as it was written"""
    finished: float | None = None
    stopped: float | None = None
    """When it was stopped before its end, if it was"""

    @property
    def ended(self) -> float | None:
        """When it was finished or stopped; ``None`` while it goes on."""
        return self.finished or self.stopped

    @property
    def best(self) -> tuple[int, float]:
        """The step after which the held-out loss was lowest, and that loss."""
        return min(self.measured, key=lambda row: row[1])


class Listener:
    """Is told how a run gets on. This one keeps silent."""

    def stage(self, story: Story) -> None:
        """Take note that another stage begins."""

    def say(self, text: str) -> None:
        """Take note of something that a person should know."""

    def confirm(self, prepared: Prepared) -> bool:
        """Look at the data, and say whether to go on."""
        return True

    def step(self, story: Story) -> None:
        """Take note of a step of the training."""

    def measured(self, story: Story) -> None:
        """Take note that the held-out loss was measured, or that the run has ended."""

    def stopped(self, story: Story) -> None:
        """Take note that a training ends before its time: somebody stopped it, or it failed."""


class Declined(Exception):
    """Raised where somebody looked at the data and did not want to go on."""


def run(request: Request, device: Device, listener: Listener) -> Story:
    """Fine-tune a model on data, or go on with a run that was stopped.

    Parameters
    ----------
    request : Request
        What is asked for.
    device : Device
        Where to train; where several processes have joined a group of ``torch.distributed``, this one's.
    listener : Listener
        Who is told.

    Raises
    ------
    GpuguideError
        If the data, the model or a setting is not what it must be, the folder holds a finished run, the training does
        not fit the GPU, or something cannot be written.
    Declined
        If the listener does not want to go on.
    """
    story = Story(request, device)
    if request.weights not in settings.PACKINGS:
        raise unknown("kind of weights", request.weights, settings.PACKINGS)
    folder = folder_of(request.model)
    _check_folder(request)
    listener.stage(story)
    source = reading.read(request.data)
    apart = reading.read(request.held_out) if request.held_out else None
    _next(story, listener, 1)
    config = checkpoint.read_config(folder)
    tokenizer = checkpoint.read_tokenizer(folder, config.vocab_size)
    story.layers = settings.layers_of(request, config)
    limits = Limits(settings.length_of(request, config), request.too_long, request.share, request.seed, request.counted)
    conversations = Conversations(folder, tokenizer)
    prepared = story.prepared = preparing.prepare(source, apart, tokenizer, conversations, limits)
    for note in prepared.notes:
        listener.say(note)
    plan = story.plan = settings.plan_of(request, prepared, device)
    if not listener.confirm(prepared):
        raise Declined
    _next(story, listener, 2)
    story.predicted = settings.checked_memory(request, config, prepared, plan, device, story.layers)
    try:
        _trained(story, listener, folder, tokenizer)
    except BaseException as error:
        story.stopped = time.time()
        listener.stopped(story)
        if isinstance(error, torch.OutOfMemoryError):
            raise GpuguideError(
                f"{device.name} ran out of memory ({format_bytes(device.memory)}). The last state stays; run the same "
                "command with a smaller --micro-batch to go on from it, or with a smaller --length to begin anew."
            ) from error
        raise
    return story


def folder_of(name: str) -> Path:
    """Return where the checkpoint of a model lies; ``gpt2`` is downloaded unless it is here.

    Raises
    ------
    GpuguideError
        If there is no such model, or it cannot be fetched.
    """
    if name in models.PACKAGED:
        return models.packaged_folder(name)
    if name in models.HUB:
        return models.fetch(models.HUB[name])
    if Path(name).is_dir():
        return Path(name)
    if Path(name).exists() or "/" in name:
        raise UnknownName(
            f"{name} is no folder with a checkpoint. One of the Hugging Face Hub is downloaded before: "
            f"hf download {name} --local-dir FOLDER."
        )
    raise unknown("model", name, [*models.PACKAGED, *models.HUB, "a folder with a checkpoint"])


def _next(story: Story, listener: Listener, stage: int) -> None:
    story.stage = STAGES[stage]
    listener.stage(story)


def _check_folder(request: Request) -> None:
    """Refuse what is no folder, and to write over a finished run unless that is asked for."""
    if request.out.exists() and not request.out.is_dir():
        raise GpuguideError(f"{request.out} is a file; name a folder with --out.")
    if not request.again and (request.out / NOTE).exists() and not (request.out / STATE).exists():
        raise GpuguideError(
            f"{request.out} holds a finished run. Name another folder with --out, or write over it with --again."
        )


def _trained(story: Story, listener: Listener, folder: Path, tokenizer: Tokenizer) -> None:
    """Load the model, train it, and save what was trained."""
    request, plan, prepared = story.request, story.plan, story.prepared
    assert plan is not None
    assert prepared is not None
    _next(story, listener, 3)
    if story.device.backend == "fake":
        raise GpuguideError("A made-up device cannot train; use --device cpu.")
    model = checkpoint.read_model(folder, settings.FORMATS[plan.precision])
    torch.manual_seed(request.seed)  # the adapters are drawn
    settings.add_adapters(model, request, settings.PACKINGS[request.weights])
    model.to(story.device.torch_device)  # packed before, so that the whole weights need not fit
    trained, loss_sum = _with_loss(model)
    story.count = lora.count_parameters(model)
    _next(story, listener, 4)
    if rank() == 0:
        story.examples = _before(model, tokenizer, request, prepared)
    _next(story, listener, 5)
    if story.device.is_gpu:
        torch.cuda.reset_peak_memory_stats(story.device.torch_device)

    def report(progress: training.Progress) -> None:
        story.losses, story.measured = tuple(progress.losses), tuple(progress.measurements)
        listener.step(story)
        if progress.held_out is not None:
            _note_memory(story)
            listener.measured(story)

    def keep(result: training.Result) -> None:
        story.losses, story.measured = result.losses, result.held_out
        story.stopped_early = result.stopped_early
        _note_memory(story)
        first = rank() == 0
        if processes() > 1:
            dist.destroy_process_group()  # what follows is for one
        if first:
            _next(story, listener, 6)
            _save(story, model, folder)
            _finish(story, model, tokenizer)
            listener.measured(story)

    learnt, held_out = ([each.sequence for each in part] for part in (prepared.training, prepared.held_out))
    training.finetune(
        trained, learnt, held_out, plan, request.out, report, keep, loss_sum=loss_sum, discard=request.again
    )


def _with_loss(model: GPT2 | Llama) -> tuple[nn.Module, LossSum]:
    """Return what is trained and its loss: without most logits, unless the head has an adapter itself."""
    if isinstance(model.head, lora.AdaptedLayer):
        return model, cross_entropy_sum
    headless = lora.WithoutHead(model)
    return headless, headless.loss_sum


def _before(
    model: GPT2 | Llama, tokenizer: Tokenizer, request: Request, prepared: Prepared
) -> list[tuple[Example, str, str | None]]:
    chosen = examples.of_prompts(request.prompts, tokenizer) or examples.of_pieces(prepared.held_out, tokenizer)
    return [(each, examples.continued(model, tokenizer, each), None) for each in chosen]


def _save(story: Story, model: GPT2 | Llama, folder: Path) -> None:
    request = story.request
    lora.save_adapter(model, request.out / ADAPTER, base=request.model, places=adapters.places(model))
    if request.merge:
        try:
            lora.merge_into_checkpoint(folder, request.out / ADAPTER, request.out / MERGED, replace=True)
        except GpuguideError as error:
            raise GpuguideError(
                f"{error} What was trained is kept: make room, and run the same command again to write it."
            ) from error
    else:
        shutil.rmtree(request.out / MERGED, ignore_errors=True)  # that of another adapter


def _finish(story: Story, model: GPT2 | Llama, tokenizer: Tokenizer) -> None:
    """Write with the trained model, measure the merged checkpoint as it was written, and note what came of the run."""
    request, plan, prepared = story.request, story.plan, story.prepared
    assert plan is not None
    assert prepared is not None
    after = [examples.continued(model, tokenizer, example) for example, _, _ in story.examples]
    story.examples = [(*row[:2], text) for row, text in zip(story.examples, after, strict=True)]
    if request.merge:
        merged = checkpoint.read_model(request.out / MERGED, settings.FORMATS[plan.precision])
        merged.to(story.device.torch_device)
        story.merged_loss = held_out_loss(merged, [each.sequence for each in prepared.held_out], plan)
    story.finished = time.time()
    saving.write_note(request.out / NOTE, summary(story))


def _note_memory(story: Story) -> None:
    if story.device.backend == "cuda":
        story.peak = torch.cuda.max_memory_allocated(story.device.torch_device)


def summary(story: Story) -> dict[str, object]:
    """Return a finished run as it is written to ``finetune.json``."""
    request = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(story.request).items()}
    assert story.plan is not None
    assert story.count is not None
    return {
        "request": request,
        "plan": asdict(story.plan),
        "layers": story.layers,
        "trained_parameters": story.count.trained,
        "device": story.device.name,
        "peak_memory": story.peak,
        "losses": story.losses,
        "held_out": story.measured,
        "best": story.best,
        "merged_loss": story.merged_loss,
        "stopped_early": story.stopped_early,
    }
