"""The report of a run: that of fine-tuning (:mod:`gpuguide.finetuning.report`), with what is trained here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuguide import files
from gpuguide.finetuning.report import render
from gpuguide.finetuning.training_log import LOG
from gpuguide.pretraining.recipe import MODEL, REPORT, SUMMARY, PretrainRecord
from gpuguide.training import world_size
from gpuguide.training.rungs import RUNGS


def write_report(record: PretrainRecord, command: str) -> Path:
    """Write the report into the output folder of a run, and return its path.

    Raises
    ------
    GpuguideError
        If it cannot be written; an earlier report stays.
    """
    path = record.setup.out / REPORT
    files.write_text(path, html(record, command))
    return path


def html(record: PretrainRecord, command: str) -> str:
    """Return the report of a run, finished or not; parameters as of :func:`gpuguide.finetuning.html`."""
    setup = record.setup
    corpus, names = setup.corpus, ", ".join(path.name for path in setup.options.texts)
    return render(
        record,
        command,
        title=f"{setup.options.shape} trained on {names}",
        trained=(f"{record.parameters.trained:,} parameters", "all of the model"),
        settings=list(_settings(record)),
        data=(
            f"{len(corpus.training):,} tokens to train on from {names}, and the last {len(corpus.held_out):,} held "
            f"out. An epoch is {(len(corpus.training) - 1) // setup.seq_len:,} sequences of {setup.seq_len} tokens."
        ),
        files=list(_files(record)),
    )


def _settings(record: PretrainRecord) -> Iterator[tuple[str, str]]:
    setup, config, model = record.setup, record.setup.training, record.setup.config
    yield (
        "model",
        f"{model.layers} layers, {model.heads} heads, hidden size {model.hidden}, {model.vocab_size:,} tokens",
    )
    yield "steps", f"{config.steps:,} of {config.batch} sequences of {setup.seq_len} tokens each"
    local = config.batch // world_size()
    yield "passes", f"of {config.micro_batch or local} sequences, on {world_size()} devices"
    yield "learning rate", f"{config.learning_rate:.3g} after {config.warm_up} warm-up steps, then cosine decay; AdamW"
    yield "weight decay", f"{config.weight_decay:g}, of matrices and embeddings"
    for name, meaning in RUNGS.items():
        yield name, meaning if name in setup.rungs else "left out"
    if (expected := setup.expectation) is not None and expected.tokens_per_second is not None:
        yield "expected", f"{expected.tokens_per_second:,.0f} tokens/s"
    yield "evaluation", f"every {config.eval_every} steps" if config.eval_every > 1 else "after every step"
    yield "seed", str(config.seed)


def _files(record: PretrainRecord) -> Iterator[tuple[str, str]]:
    yield LOG, "a row per step: losses, learning rate, gradient norm, tokens per second, MFU, peak memory"
    if record.finished_at is None:
        yield "nothing else yet", "the state of the run is saved, so that the same command resumes it"
        return
    yield f"{MODEL}/", "the checkpoint, for gpuguide and transformers"
    yield SUMMARY, "settings and losses, for programs"
