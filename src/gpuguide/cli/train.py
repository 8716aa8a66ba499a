"""``gpuguide train``: train a model on texts from its first weights; the run shows its progress and can be resumed."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuguide.cli.finetune import RANK, command_line, process_group
from gpuguide.cli.screen import err, listing, show
from gpuguide.units import format_bytes

if TYPE_CHECKING:
    from gpuguide.pretraining import PretrainRecord

UNITS = {"K": 10**3, "M": 10**6, "B": 10**9}


def parse_count(text: str) -> int:
    """Return a number of tokens: ``100M``, ``1.5B``, ``250_000``."""
    digits, factor = (text[:-1], UNITS[text[-1].upper()]) if text[-1:].upper() in UNITS else (text, 1)
    try:
        count = round(float(digits.replace("_", "")) * factor)
    except (ValueError, OverflowError):
        count = 0
    if count < 1:
        raise typer.BadParameter(f"{text} is no number of tokens; write 100M, 1.5B or 250000.")
    return count


def train(
    texts: Annotated[
        list[Path],
        typer.Argument(metavar="TEXTS", help="Texts, JSON Lines or Parquet; or one token file (.npy, .bin)."),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Output folder.")],
    shape: Annotated[str, typer.Option(help="gpt2-small, gpt2-medium, main or draft.")] = "gpt2-small",
    tokens: Annotated[
        int | None,
        typer.Option(
            parser=parse_count, metavar="COUNT", help="Tokens to train on, such as 100M; one epoch by default."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="main, gpt2 (downloads it), or a tokenizer.json; by default that of the shape.")
    ] = None,
    seq_len: Annotated[int | None, typer.Option(min=1, help="Tokens of a sequence; by default the context.")] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences per step; by default such that there are a thousand steps.")
    ] = None,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences per pass of a GPU; by default the most that fit.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate; by default by size.")] = None,
    weight_decay: Annotated[float, typer.Option(help="Weight decay of matrices and embeddings.")] = 0.1,
    clip: Annotated[float, typer.Option(help="Largest norm of all gradients together.")] = 1.0,
    eval_every: Annotated[int | None, typer.Option(min=1, help="Steps between two evaluations.")] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Leave out bf16, attention, compile, optimizer, loss, weights or graph; may be repeated."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="gpu or cpu; by default a GPU where there is one.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seed of the weights and of the order.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would take, and stop.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a finished run, or the state of another one.")
    ] = False,
) -> None:
    """Train a model in the shape of GPT-2 on texts, as fast as this machine can.

    The texts are tokenised once. Time and memory are predicted before the training begins. The folder gets the
    checkpoint, log.csv and report.html. After an interruption, the same command resumes. Several GPUs share the work
    under torchrun, as in "torchrun --nproc-per-node 2 -m gpuguide train notes.txt --out my-model".

    Example: gpuguide train notes.txt --out my-model --shape draft
    """
    from gpuguide import pretraining
    from gpuguide.cli.training_screen import PretrainingScreen

    options = pretraining.PretrainOptions(
        texts=tuple(texts), out=out, shape=shape, tokenizer=tokenizer, tokens=tokens, seq_len=seq_len, batch=batch,
        micro_batch=micro_batch, learning_rate=learning_rate, weight_decay=weight_decay, clip=clip,
        eval_every=eval_every, without=tuple(without or []), seed=seed, overwrite=overwrite,
    )  # fmt: skip
    is_first = os.environ.get(RANK, "0") == "0"
    with PretrainingScreen(command_line(), asks=False) as screen:
        callback = screen if is_first else pretraining.PretrainCallback()
        with process_group(device) as local_device:
            setup = pretraining.prepare(options, local_device, callback)
            if dry_run:
                return
            trained = pretraining.train(setup, callback)
        if is_first:
            report(pretraining.export(trained, callback))


def report(record: PretrainRecord) -> None:
    """Print the results of a run, and the files that it wrote."""
    from gpuguide.finetuning.training_log import summarize_speed
    from gpuguide.pretraining.recipe import MODEL, output_names

    table = listing("measure", "value", head=False)
    before, (step, last) = record.eval_losses[0][1], record.eval_losses[-1]
    table.add_row("held-out loss", f"{last:.4f} nats a token after step {step}, {before:.4f} before")
    if (speed := summarize_speed(record.log)) is not None:
        mfu = f", MFU {100 * speed.mfu:.1f}%" if speed.mfu is not None else ""
        milliseconds = f"{1000 * speed.step_seconds:,.0f} ms per step"
        table.add_row("speed", f"{speed.tokens_per_second:,.0f} tokens/s{mfu}, {milliseconds} (medians)")
    if (expected := record.setup.expectation) is not None and expected.tokens_per_second is not None:
        table.add_row("expected", f"{expected.tokens_per_second:,.0f} tokens/s")
    if record.peak_memory is not None:
        table.add_row("peak GPU memory", format_bytes(record.peak_memory))
    for name, path in output_names(record.setup.out):
        table.add_row(name, str(path))
    show(table)
    model = shlex.quote(str(record.setup.out / MODEL))
    err.print(f"Try it: gpuguide generate --model {model} --prompt TEXT")
