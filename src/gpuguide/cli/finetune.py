"""``gpuguide finetune``: fine-tune a model on your own data; the run shows its progress and can be resumed."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuguide.cli.old_names import merge_old_name
from gpuguide.cli.screen import err, listing, show
from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.units import format_bytes

if TYPE_CHECKING:
    from gpuguide.finetuning import RunRecord

WORLD_SIZE, LOCAL_RANK, RANK = "WORLD_SIZE", "LOCAL_RANK", "RANK"
"""Environment variables of torchrun"""
LOSS = {"all": False, "answers": True}
"""Values of the old option --loss, and of the new --train-on-assistant"""


def finetune(
    data: Annotated[Path, typer.Argument(metavar="FILE", help="A text, JSON Lines (.jsonl) or Parquet, in UTF-8.")],
    model: Annotated[
        str, typer.Option(help="main, draft, gpt2 (downloads it), or a folder with a GPT-2 or Llama 3 checkpoint.")
    ] = "main",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Output folder.")] = Path("my-finetune"),
    eval_data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Held-out data; by default a tenth of the data.")
    ] = None,
    targets: Annotated[
        list[str] | None, typer.Option(help="Layers with adapters: all, attention, or names; may be repeated.")
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="Rank of the adapters.")] = 16,
    alpha: Annotated[
        float | None, typer.Option(help="Adapters are scaled by alpha / rank; by default twice the rank.")
    ] = None,
    rslora: Annotated[
        bool, typer.Option("--rslora", help="Scale by alpha / √rank instead (rank-stabilised LoRA).")
    ] = False,
    dropout: Annotated[float, typer.Option(help="Dropout of the adapters' inputs.")] = 0.0,
    epochs: Annotated[float, typer.Option(help="Passes over the training data.")] = 3.0,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of steps, instead of epochs.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences per step.")] = 4,
    micro_batch: Annotated[
        int | None,
        typer.Option(min=1, help="Sequences per pass (gradient accumulation), for less memory."),
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-4,
    eval_every: Annotated[int | None, typer.Option(min=1, help="Steps between two evaluations.")] = None,
    patience: Annotated[
        int, typer.Option(min=0, help="Stop after so many evaluations without a lower held-out loss; 0 for never.")
    ] = 5,
    length: Annotated[int | None, typer.Option(min=8, help="Maximum number of tokens in a sequence.")] = None,
    overflow: Annotated[
        str | None, typer.Option(help="Longer samples: error, truncate, chunk or drop; by default error.")
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Prompt to continue before and after; may be repeated.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="fp32 or bf16 for the frozen weights; by default bf16 on a GPU that has it.")
    ] = None,
    weights: Annotated[
        str, typer.Option(help="plain, int8, int4 or nf4, for the frozen matrices with adapters.")
    ] = "plain",
    train_on_assistant: Annotated[
        bool, typer.Option("--train-on-assistant", help="Loss on the answers of conversations only.")
    ] = False,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the model: worth it in long runs, after a minute.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="gpu or cpu; by default a GPU where there is one.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of the adapters, the order of the data and the split.")
    ] = 0,
    merge: Annotated[bool, typer.Option(help="Write a checkpoint with the adapter merged, too.")] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a finished run, or the state of another one.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Begin without showing the data.")] = False,
    held_out: Annotated[
        Path | None, typer.Option("--held-out", metavar="FILE", help="Old name of --eval-data.")
    ] = None,
    too_long: Annotated[
        str | None, typer.Option("--too-long", help="Old name of --overflow: stop, cut, split or skip.")
    ] = None,
    every: Annotated[int | None, typer.Option("--every", min=1, help="Old name of --eval-every.")] = None,
    stabilised: Annotated[bool, typer.Option("--stabilised", help="Old name of --rslora.")] = False,
    loss: Annotated[
        str | None, typer.Option("--loss", help="all, or answers: old form of --train-on-assistant.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Old name of --overwrite.")] = False,
) -> None:
    """Fine-tune a model on a text, or on samples: {"text": ...} or {"messages": [...]} in each line or row.

    Low-rank adapters are trained next to the frozen weights (LoRA). The folder gets the adapter, a checkpoint with the
    adapter merged, log.csv and report.html. After an interruption, the same command resumes. Several GPUs share the
    work under torchrun, as in "torchrun --nproc-per-node 2 -m gpuguide finetune notes.txt --yes". Old names of options
    work for one more release.

    Example: gpuguide finetune notes.txt --model main --steps 60
    """
    from gpuguide import finetuning
    from gpuguide.cli.training_screen import TrainingScreen

    if loss is not None and loss not in LOSS:
        raise unknown("loss", loss, LOSS)
    loss_on_assistant = None if loss is None else LOSS[loss]
    options = finetuning.FinetuneOptions(
        data=data, model=model, out=out,
        eval_data=merge_old_name("--eval-data", eval_data, "--held-out", held_out),
        length=length,
        overflow=merge_old_name("--overflow", overflow, "--too-long", too_long) or "error",
        targets=tuple(targets or ["all"]), rank=rank, alpha=alpha,
        rslora=bool(merge_old_name("--rslora", rslora or None, "--stabilised", stabilised or None)),
        dropout=dropout, epochs=epochs, steps=steps, batch=batch, micro_batch=micro_batch, learning_rate=learning_rate,
        eval_every=merge_old_name("--eval-every", eval_every, "--every", every),
        patience=patience or None, dtype=dtype, weights=weights,
        train_on_assistant=bool(
            merge_old_name("--train-on-assistant", train_on_assistant or None, "--loss", loss_on_assistant)
        ),
        compiled=compiled, seed=seed, prompts=tuple(prompt or []), merge=merge,
        overwrite=bool(merge_old_name("--overwrite", overwrite or None, "--again", again or None)),
    )  # fmt: skip
    is_first = os.environ.get(RANK, "0") == "0"
    asks = not yes and WORLD_SIZE not in os.environ
    with TrainingScreen(command_line(), asks=asks) as screen:
        callback = screen if is_first else finetuning.Callback()
        try:
            with process_group(device) as local_device:
                trained = finetuning.train(finetuning.prepare(options, local_device, callback), callback)
        except finetuning.Declined:
            err.print("Nothing was trained.")
            raise typer.Exit(1) from None
        if is_first:
            report(finetuning.export(trained, callback))


@contextmanager
def process_group(name: str | None) -> Iterator[Device]:
    """Give the device to train on; under torchrun, join the process group and leave it at the end."""
    device = devices.current_or_cpu() if name is None else devices.choose(name)
    if int(os.environ.get(WORLD_SIZE, "1")) == 1:
        yield device
        return
    import torch
    import torch.distributed as dist

    if device.backend == "cuda":
        number = int(os.environ.get(LOCAL_RANK, "0"))
        if number >= torch.cuda.device_count():
            raise GpuguideError(
                f"Process {number} has no GPU of its own: PyTorch sees {torch.cuda.device_count()}. Start as many "
                "processes as there are GPUs with --nproc-per-node."
            )
        torch.cuda.set_device(number)
        device = replace(device, torch_device=f"cuda:{number}")
    dist.init_process_group("nccl" if device.backend == "cuda" else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def command_line() -> str:
    """Return the command line of this run, so that it can be run again."""
    count = os.environ.get("LOCAL_WORLD_SIZE", "1")
    begin = ["gpuguide"] if WORLD_SIZE not in os.environ else ["torchrun", "--nproc-per-node", count, "-m", "gpuguide"]
    return shlex.join([*begin, *sys.argv[1:]])


def report(record: RunRecord) -> None:
    """Print the results of a run, and the files that it wrote."""
    from gpuguide.finetuning.training_log import LOG, summarize_speed

    table = listing("measure", "value", head=False)
    before, (step, best) = record.eval_losses[0][1], record.best
    after = f" after step {step}" if step else ": no step lowered it"
    table.add_row("held-out loss", f"{best:.4f} nats a token{after}, {before:.4f} before")
    if record.merged_loss is not None:
        table.add_row("merged checkpoint", f"{record.merged_loss:.4f} nats a token, as it was written")
    table.add_row("steps", f"{len(record.losses)}{', stopped early' if record.stopped_early else ''}")
    if (speed := summarize_speed(record.log)) is not None:
        mfu = f", MFU {100 * speed.mfu:.1f}%" if speed.mfu is not None else ""
        milliseconds = f"{1000 * speed.step_seconds:,.0f} ms per step"
        table.add_row("speed", f"{speed.tokens_per_second:,.0f} tokens/s{mfu}, {milliseconds} (medians)")
    if record.peak_memory is not None:
        table.add_row("peak GPU memory", format_bytes(record.peak_memory))
    names = ["adapter", *(["merged"] if record.merged_loss is not None else []), LOG, "report.html"]
    for name in names:
        table.add_row(name, str(record.setup.options.out / name))
    show(table)
    if record.merged_loss is not None:
        merged = shlex.quote(str(record.setup.options.out / "merged"))
        err.print(f"Try it: gpuguide generate --model {merged} --prompt TEXT")
