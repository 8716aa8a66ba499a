"""The recipe: load the data, tokenise it, plan the training, train, export the model.

Each stage is a function that returns values: :func:`prepare` gives a :class:`~gpuguide.finetuning.RunSetup`,
:func:`train` a :class:`TrainedModel`, :func:`export` the finished :class:`~gpuguide.finetuning.RunRecord`. :func:`run`
calls all three. A :class:`~gpuguide.finetuning.Callback` receives progress events.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from gpuguide import files, lora, models, training
from gpuguide.errors import GpuguideError, unknown
from gpuguide.finetuning import examples, peft_names, settings
from gpuguide.finetuning.data.conversation import Conversations
from gpuguide.finetuning.data.files import load_data
from gpuguide.finetuning.data.splits import DataConfig, tokenize
from gpuguide.finetuning.examples import SampleGeneration
from gpuguide.finetuning.run_record import Callback, RunRecord, RunStage, start_recorder, summarize
from gpuguide.finetuning.settings import FinetuneOptions, RunSetup
from gpuguide.hardware.device import Device
from gpuguide.models.checkpoint import open_checkpoint
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama
from gpuguide.precision import cross_entropy_sum
from gpuguide.precision.training_step import LossSum
from gpuguide.training import TrainingProgress
from gpuguide.units import format_bytes

ADAPTER, MERGED, SUMMARY, REPORT = "adapter", "merged", "finetune.json", "report.html"
"""Names of the results in the output folder"""


@dataclass(frozen=True)
class TrainedModel:
    """Model after training, and the record of its run."""

    model: GPT2 | Llama
    record: RunRecord


class Declined(Exception):
    """Raised if the user looked at the data and declined to train on them."""


def run(options: FinetuneOptions, device: Device, callback: Callback) -> RunRecord:
    """Fine-tune a model on data, resuming an interrupted run.

    Parameters
    ----------
    options : FinetuneOptions
        Options of the run.
    device : Device
        Device to train on.
    callback : Callback
        Receiver of progress events.

    Raises
    ------
    GpuguideError
        If the data, the model or an option is invalid, the folder holds a finished run, the training does not fit the
        GPU, or a file cannot be written.
    Declined
        If the callback declines the data.
    """
    return export(train(prepare(options, device, callback), callback), callback)


def prepare(options: FinetuneOptions, device: Device, callback: Callback) -> RunSetup:
    """Load the data, tokenise it, and plan the training. Parameters and errors as in :func:`run`."""
    began = time.time()
    if options.weights not in settings.PACKINGS:
        raise unknown("kind of weights", options.weights, settings.PACKINGS)
    folder = models.find_checkpoint(options.model)
    _check_output_folder(options)
    callback.on_stage(RunStage.LOAD_DATA, options, device)
    data = load_data(options.data)
    eval_data = load_data(options.eval_data) if options.eval_data else None

    callback.on_stage(RunStage.TOKENIZE, options, device)
    checkpoint = open_checkpoint(folder)
    tokenizer = checkpoint.read_tokenizer()
    layers = settings.target_layers(options, checkpoint.config)
    length = settings.sequence_length(options, checkpoint.config)
    data_config = DataConfig(length, options.overflow, options.eval_share, options.seed, options.train_on_assistant)
    splits = tokenize(data, eval_data, tokenizer, Conversations(checkpoint, tokenizer), data_config)
    for note in splits.notes:
        callback.on_note(note)

    callback.on_stage(RunStage.PLAN, options, device)
    plan = settings.training_config(options, splits, device)
    predicted = settings.predict_memory(options, checkpoint.config, splits, plan, device, layers)
    if predicted is not None:
        callback.on_note(f"A step takes about {format_bytes(predicted)} of {format_bytes(device.memory)}.")
    if not callback.confirm_data(splits):
        raise Declined
    return RunSetup(options, device, began, checkpoint, tokenizer, splits, tuple(layers), plan, predicted)


def train(setup: RunSetup, callback: Callback) -> TrainedModel:
    """Load the model, add adapters and train them; every process of a data-parallel run calls this function.

    The saved state stays, so that the training is not lost if :func:`export` fails. Parameters as :func:`prepare`
    returns them; errors as in :func:`run`.
    """
    options, device, config = setup.options, setup.device, setup.training
    callback.on_stage(RunStage.LOAD_MODEL, options, device)
    if device.backend == "fake":
        raise GpuguideError("A fake device cannot train; use --device cpu.")
    with _out_of_memory_advice(device):
        model = _load_model(setup)
        trained, loss_sum = _with_loss(model)
        callback.on_stage(RunStage.GENERATE, options, device)
        generations = _generate_before(setup, model) if training.rank() == 0 else ()
        callback.on_stage(RunStage.TRAIN, options, device)
        if device.backend == "cuda":
            torch.cuda.reset_peak_memory_stats(device.torch_device)
        recorder = start_recorder(setup, model, generations)
        callback.on_train_begin(recorder.record)

        def record_step(progress: TrainingProgress) -> None:
            recorder.add_step(progress)
            callback.on_step(recorder.record)
            if progress.eval_loss is not None:
                callback.on_evaluation(recorder.record)

        sequences = [example.sequence for example in setup.splits.training]
        held_out = [example.sequence for example in setup.splits.held_out]
        try:
            result = training.finetune(
                trained, sequences, held_out, config, options.out, record_step,
                loss_sum=loss_sum, discard=options.overwrite, keep_state=True,
            )  # fmt: skip
        except BaseException:
            callback.on_interrupt(recorder.interrupt())
            raise
    return TrainedModel(model, recorder.add_result(result))


def export(trained: TrainedModel, callback: Callback) -> RunRecord:
    """Write the adapter, the merged checkpoint and the summary, and remove the saved state; one process calls this.

    Returns
    -------
    RunRecord
        Record of the finished run, with texts generated after training and the loss of the merged checkpoint.

    Raises
    ------
    GpuguideError
        If a file cannot be written; the same command then exports again without training.
    """
    model, record = trained.model, trained.record
    setup = record.setup
    options = setup.options
    callback.on_stage(RunStage.EXPORT, options, setup.device)
    try:
        with _out_of_memory_advice(setup.device):
            lora.save_adapter(model, options.out / ADAPTER, base=options.model, places=peft_names.places(model))
            merged_loss = _merge(setup) if options.merge else None
            if not options.merge:
                shutil.rmtree(options.out / MERGED, ignore_errors=True)  # the checkpoint of an earlier run
            generations = [
                replace(each, after=examples.generate_text(model, setup.tokenizer, each.example))
                for each in record.generations
            ]
        finished = replace(record, generations=tuple(generations), merged_loss=merged_loss, finished_at=time.time())
        files.write_json(options.out / SUMMARY, summarize(finished))
    except BaseException:
        callback.on_interrupt(replace(record, interrupted_at=time.time()))
        raise
    callback.on_end(finished)
    training.remove_state(options.out)
    return finished


def _check_output_folder(options: FinetuneOptions) -> None:
    """Refuse a file in place of the folder, and a finished run unless it may be overwritten."""
    if options.out.exists() and not options.out.is_dir():
        raise GpuguideError(f"{options.out} is a file; name a folder with --out.")
    is_finished = (options.out / SUMMARY).exists() and not (options.out / training.STATE).exists()
    if is_finished and not options.overwrite:
        raise GpuguideError(
            f"{options.out} holds a finished run. Name another folder with --out, or replace the run with --overwrite."
        )


def _load_model(setup: RunSetup) -> GPT2 | Llama:
    options = setup.options
    model = setup.checkpoint.read_model(settings.FORMATS[setup.training.precision])
    torch.manual_seed(options.seed)  # for the initial values of the adapters
    settings.add_adapters(model, options, settings.PACKINGS[options.weights])
    model.to(setup.device.torch_device)  # packed before, so that the whole weights need not fit
    return model


def _with_loss(model: GPT2 | Llama) -> tuple[nn.Module, LossSum]:
    """Return the trained module and its loss; most logits never exist, unless the head itself has an adapter."""
    if isinstance(model.head, lora.AdaptedLayer):
        return model, cross_entropy_sum
    headless = training.WithoutHead(model)
    return headless, headless.loss_sum


def _generate_before(setup: RunSetup, model: GPT2 | Llama) -> tuple[SampleGeneration, ...]:
    prompts = examples.choose_prompts(setup.options.prompts, setup.splits.held_out, setup.tokenizer)
    return tuple(SampleGeneration(prompt, examples.generate_text(model, setup.tokenizer, prompt)) for prompt in prompts)


def _merge(setup: RunSetup) -> float:
    """Write the merged checkpoint, and return its held-out loss as it was written."""
    options = setup.options
    try:
        lora.merge_into_checkpoint(setup.checkpoint.folder, options.out / ADAPTER, options.out / MERGED, replace=True)
    except GpuguideError as error:
        raise GpuguideError(
            f"{error} The trained weights are saved: free disk space, and run the same command again to export them."
        ) from error
    merged = open_checkpoint(options.out / MERGED).read_model(settings.FORMATS[setup.training.precision])
    merged.to(setup.device.torch_device)
    held_out = [example.sequence for example in setup.splits.held_out]
    return training.evaluate_loss(merged, held_out, setup.training)


@contextmanager
def _out_of_memory_advice(device: Device) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise GpuguideError(
            f"{device.name} ran out of memory ({format_bytes(device.memory)}). The last state is saved; run the same "
            "command with a smaller --micro-batch to resume from it, or with a smaller --length to start again."
        ) from error
