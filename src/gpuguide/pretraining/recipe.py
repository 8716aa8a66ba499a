"""The recipe: tokenise the texts, plan, make the model, train it, write its checkpoint.

:func:`prepare` gives a :class:`~gpuguide.pretraining.PretrainSetup`, :func:`train` a :class:`TrainedModel`, and
:func:`export` the finished :class:`PretrainRecord`. A :class:`PretrainCallback` receives progress events.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from gpuguide import files, lora, training
from gpuguide.costs import memory
from gpuguide.errors import GpuguideError
from gpuguide.finetuning.run_record import ProgressCallback, RunProgress, RunRecorder
from gpuguide.finetuning.training_log import LOG, Speedometer
from gpuguide.hardware.device import Device
from gpuguide.models import gpt2_checkpoint
from gpuguide.models.gpt2 import GPT2
from gpuguide.pretraining import expectation, settings, texts
from gpuguide.pretraining.run import PretrainingRun, asked_anywhere, deferred_interrupt
from gpuguide.pretraining.settings import PretrainOptions, PretrainSetup
from gpuguide.training import TrainingProgress, rank, run_steps, world_size
from gpuguide.training.rungs import RUNGS
from gpuguide.units import format_bytes

MODEL, SUMMARY, REPORT = "model", "train.json", "report.html"
"""Names of the results in the output folder"""


class PretrainStage(enum.Enum):
    """Stage of a run."""

    TOKENIZE = "tokenise"
    PLAN = "plan"
    MAKE_MODEL = "make the model"
    TRAIN = "train"
    EXPORT = "export"

    @property
    def number(self) -> int:
        """Number of the stage, from 1."""
        return list(PretrainStage).index(self) + 1


@dataclass(frozen=True, kw_only=True)
class PretrainRecord(RunProgress):
    """Results of a run so far. Every event carries a new record; the last one is complete."""

    setup: PretrainSetup


class PretrainCallback(ProgressCallback[PretrainRecord]):
    """Receives progress events of a run. The base class ignores them."""

    def on_stage(self, stage: PretrainStage, options: PretrainOptions, device: Device) -> None:
        """Handle the beginning of a stage."""


@dataclass(frozen=True)
class TrainedModel:
    """Model after training, and the record of its run."""

    model: GPT2
    record: PretrainRecord


def prepare(options: PretrainOptions, device: Device, callback: PretrainCallback) -> PretrainSetup:
    """Tokenise the texts, and plan the training; every process of a data-parallel run calls this function.

    Parameters
    ----------
    options : PretrainOptions
        Options of the run.
    device : Device
        Device to train on.
    callback : PretrainCallback
        Receiver of progress events.

    Raises
    ------
    GpuguideError
        If a text, the tokenizer or an option is invalid, the folder holds a finished run, or a batch does not fit.
    """
    began = time.time()
    _check_output_folder(options)
    rungs, name = settings.rungs_here(options, device), settings.tokenizer_name(options)
    callback.on_stage(PretrainStage.TOKENIZE, options, device)
    tokenizer = texts.read_tokenizer(name)
    config = settings.model_config(options, tokenizer)
    if rank() == 0:
        corpus = texts.prepare_corpus(options.texts, tokenizer, config.vocab_size, options.out)
    else:
        corpus = texts.prepare_corpus(options.texts, tokenizer, config.vocab_size, options.out, writes=False)
    callback.on_note(
        f"{len(corpus.training):,} tokens to train on, {len(corpus.held_out):,} held out at the end;"
        f" {corpus.token_file}"
    )
    callback.on_stage(PretrainStage.PLAN, options, device)
    plan, expected = settings.training_config(options, corpus, config, device, rungs)
    seq_len = options.seq_len or config.context
    setup = PretrainSetup(options, device, began, tokenizer, corpus, config, seq_len, rungs, plan, expected)
    for note in describe_plan(setup):
        callback.on_note(note)
    return setup


def describe_plan(setup: PretrainSetup) -> Iterator[str]:
    """Yield what will be trained, how, and what it takes, before anything begins."""
    plan, expected, seq_len = setup.training, setup.expectation, setup.seq_len
    tokens, epochs = plan.steps * plan.batch * seq_len, plan.steps * plan.batch * seq_len / len(setup.corpus.training)
    local = plan.batch // world_size()
    size = plan.micro_batch or local
    passes = math.ceil(local / size)
    yield (
        f"{plan.steps:,} steps of {plan.batch} x {seq_len} tokens, {tokens:,} in all ({epochs:.2f} epochs), "
        f"{passes} {'pass' if passes == 1 else 'passes'} of {size} {'sequence' if size == 1 else 'sequences'} each"
    )
    yield f"Peak learning rate {plan.learning_rate:.2e} after {plan.warm_up} steps, then half a cosine to 0"
    yield f"With {', '.join(name for name in RUNGS if name in setup.rungs) or 'no rung'}"
    if setup.device.is_gpu and "bf16" in setup.rungs and "bf16" not in setup.device.supports:
        yield f"{setup.device.name} has no bf16: matmuls in fp16, with a loss scaler"
    if expected is None:
        return
    yield f"A step takes about {format_bytes(expected.memory)} of {format_bytes(setup.device.memory)}."
    if expected.tokens_per_second is None or expected.seconds is None:
        yield f"No rates of {setup.device.name} are known, so the time is not."
    else:
        hours, minutes = expected.seconds / 3600, expected.seconds / 60
        takes = f"{hours:.1f} hours" if hours >= 1 else f"{minutes:.1f} minutes"
        yield f"Expected: {expected.tokens_per_second:,.0f} tokens/s, {takes}, and a minute to compile"


def train(setup: PretrainSetup, callback: PretrainCallback) -> TrainedModel:
    """Make the model and train it, resuming an interrupted run; every process of a data-parallel run calls this.

    The saved state stays, so that the training is not lost if :func:`export` fails.

    Raises
    ------
    GpuguideError
        If the state is damaged or of another run, a file cannot be written, the loss is no longer finite, or the GPU
        has too little memory.
    KeyboardInterrupt
        If the user stopped it; the state is saved.
    """
    options, device = setup.options, setup.device
    callback.on_stage(PretrainStage.MAKE_MODEL, options, device)
    if device.backend == "fake":
        raise GpuguideError("A fake device cannot train; use --device cpu.")
    with _out_of_memory_advice(setup), deferred_interrupt() as should_stop:
        torch.manual_seed(options.seed)
        model = GPT2(setup.config).to(device.torch_device)
        run = PretrainingRun(setup, model)
        run.resume(options.overwrite)
        callback.on_stage(PretrainStage.TRAIN, options, device)
        if device.backend == "cuda":
            torch.cuda.reset_peak_memory_stats(device.torch_device)
        speedometer = Speedometer(model, device, setup.training.precision)
        count = lora.count_parameters(model)
        recorder = RunRecorder(PretrainRecord(setup=setup, parameters=count, ceiling=speedometer.ceiling), speedometer)
        callback.on_train_begin(recorder.record)

        def record_step(progress: TrainingProgress) -> None:
            recorder.add_step(progress)
            callback.on_step(recorder.record)
            if progress.eval_loss is not None:
                callback.on_evaluation(recorder.record)

        try:
            result = run_steps(run, run.advance, run.evaluate, record_step, lambda: asked_anywhere(should_stop()))
        except BaseException:
            callback.on_interrupt(recorder.interrupt())
            raise
        finally:
            run.close()
        values = run.parameters
        with torch.no_grad():  # the fp32 copies, from which the checkpoint is rounded once
            model.float()
            for name, parameter in model.named_parameters():
                parameter.copy_(values[name])
    return TrainedModel(model, recorder.add_result(result))


def export(trained: TrainedModel, callback: PretrainCallback) -> PretrainRecord:
    """Write the checkpoint and the summary, and remove the saved state; one process calls this.

    Raises
    ------
    GpuguideError
        If a file cannot be written; the same command then exports again without training.
    """
    model, record = trained.model, trained.record
    setup = record.setup
    callback.on_stage(PretrainStage.EXPORT, setup.options, setup.device)
    try:
        gpt2_checkpoint.write(setup.out / MODEL, model, setup.tokenizer)
        finished = replace(record, finished_at=time.time())
        files.write_json(setup.out / SUMMARY, summarize(finished))
    except OSError as error:
        callback.on_interrupt(replace(record, interrupted_at=time.time()))
        raise GpuguideError(
            f"{setup.out / MODEL} cannot be written ({error.strerror}). The trained weights are saved: free disk "
            "space, and run the same command again."
        ) from error
    callback.on_end(finished)
    training.remove_state(setup.out)
    return finished


def summarize(record: PretrainRecord) -> dict[str, object]:
    """Return the content of ``train.json`` for a finished run."""
    setup = record.setup
    options = asdict(setup.options) | {"texts": [str(path) for path in setup.options.texts], "out": str(setup.out)}
    return {
        "options": options,
        "model": asdict(setup.config),
        "training": asdict(setup.training),
        "seq_len": setup.seq_len,
        "rungs": [name for name in RUNGS if name in setup.rungs],
        "parameters": record.parameters.trained,
        "device": setup.device.name,
        "processes": world_size(),
        "expected": None if setup.expectation is None else asdict(setup.expectation),
        "peak_memory": record.peak_memory,
        "losses": record.losses,
        "eval_losses": record.eval_losses,
    }


def _check_output_folder(options: PretrainOptions) -> None:
    """Refuse a file in place of the folder, and a finished run unless it may be overwritten."""
    if options.out.exists() and not options.out.is_dir():
        raise GpuguideError(f"{options.out} is a file; name a folder with --out.")
    is_finished = (options.out / SUMMARY).exists() and not (options.out / training.STATE).exists()
    if is_finished and not options.overwrite:
        raise GpuguideError(
            f"{options.out} holds a finished run. Name another folder with --out, or replace the run with --overwrite."
        )


@contextmanager
def _out_of_memory_advice(setup: PretrainSetup) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        local = setup.training.batch // world_size()
        tried = setup.training.micro_batch or local
        shape = expectation.shape_of(setup.config)
        less = expectation.step_bytes(shape, tried, setup.seq_len, setup.rungs, tried < local) - 1
        room = min(less, memory.SAFE_SHARE * _available(setup.device))
        fits = expectation.find_largest_micro_batch(shape, tried, setup.seq_len, setup.rungs, room)
        advice = f"--micro-batch {fits}" if fits else "a shorter --seq-len, or a smaller --shape"
        raise GpuguideError(
            f"{setup.device.name} ran out of memory ({format_bytes(setup.device.memory)}) with {tried} sequences of a "
            f"pass; another program may use it. What was saved stays: run the same command with {advice}."
        ) from error


def _available(device: Device) -> int:
    """Return the bytes that this process could have: what it holds, and what nobody does."""
    if device.backend != "cuda":
        return device.memory
    free, _ = torch.cuda.mem_get_info(device.torch_device)
    return int(free) + torch.cuda.memory_reserved(device.torch_device)


def output_names(folder: Path) -> list[tuple[str, Path]]:
    """Return what a finished run leaves behind: names, and where they are."""
    return [(name, folder / name) for name in (MODEL, LOG, REPORT)]
