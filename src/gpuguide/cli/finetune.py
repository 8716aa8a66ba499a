"""``gpuguide finetune``: a model learns from one's own text, in stages that one can watch, stop and go on with."""

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

from gpuguide.cli.screen import err, listing, show
from gpuguide.errors import GpuguideError
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device

if TYPE_CHECKING:
    from gpuguide.finetuning import Story

PROCESSES, LOCAL, RANK = "WORLD_SIZE", "LOCAL_RANK", "RANK"
"""What torchrun tells each process"""


def finetune(
    data: Annotated[Path, typer.Argument(metavar="FILE", help="A text, JSON Lines (.jsonl) or Parquet, in UTF-8.")],
    model: Annotated[
        str, typer.Option(help="main, draft, gpt2 (downloads it), or a folder with a GPT-2 or Llama 3 checkpoint.")
    ] = "main",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the results go.")] = Path("my-finetune"),
    held_out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What to measure with; by default a tenth of the data.")
    ] = None,
    targets: Annotated[
        list[str] | None, typer.Option(help="Layers with adapters: all, attention, or names; may be repeated.")
    ] = None,
    rank: Annotated[int, typer.Option(min=1, help="Rank of the adapters.")] = 16,
    alpha: Annotated[float | None, typer.Option(help="Adapters count alpha / rank; by default twice the rank.")] = None,
    stabilised: Annotated[
        bool, typer.Option("--stabilised", help="Count alpha / √rank instead (rank-stabilised LoRA).")
    ] = False,
    dropout: Annotated[float, typer.Option(help="Share of the adapters' inputs that is dropped.")] = 0.0,
    epochs: Annotated[float, typer.Option(help="How often each sequence is read.")] = 3.0,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps, in place of epochs.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences in a step.")] = 4,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, help="Sequences at once: the same step in less memory.")
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="At its highest.")] = 3e-4,
    every: Annotated[int | None, typer.Option(min=1, help="Steps between two held-out losses.")] = None,
    patience: Annotated[
        int, typer.Option(min=0, help="Stop after so many held-out losses without a lower one; 0 for never.")
    ] = 5,
    length: Annotated[int | None, typer.Option(min=8, help="Tokens of a sequence at most.")] = None,
    too_long: Annotated[str, typer.Option(help="Longer samples: stop, cut, split or skip.")] = "stop",
    prompt: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="What to continue before and after; may be repeated.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="fp32 or bf16 for the frozen weights; by default bf16 on a GPU that has it.")
    ] = None,
    weights: Annotated[
        str, typer.Option(help="plain, int8, int4 or nf4, for the frozen matrices beside adapters.")
    ] = "plain",
    loss: Annotated[
        str, typer.Option(help="What counts: all, or the answers of conversations, less those of weight 0.")
    ] = "all",
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the model: pays in long runs, after a minute.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="gpu or cpu; by default a GPU where there is one.")] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Of the adapters, the order of the data and what is held out.")
    ] = 0,
    merge: Annotated[bool, typer.Option(help="Write a checkpoint with the adapter merged, too.")] = True,
    again: Annotated[bool, typer.Option("--again", help="Write over a finished run, or another one.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Begin without showing the data.")] = False,
) -> None:
    """Fine-tune a model on a text, or on samples: {"text": ...} or {"messages": [...]} in each line or row.

    Thin matrices are trained beside the frozen weights (LoRA). The folder gets the adapter, a checkpoint with the
    adapter merged, and report.html. Stopped, the same command goes on. Several GPUs share the work under torchrun:
    torchrun --nproc-per-node 2 -m gpuguide finetune notes.txt --yes

    Example: gpuguide finetune notes.txt --model main --steps 60
    """
    from gpuguide import finetuning
    from gpuguide.cli.training_screen import Screen

    request = finetuning.Request(
        data=data, model=model, out=out, held_out=held_out, length=length, too_long=too_long,
        targets=tuple(targets or ["all"]), rank=rank, alpha=alpha, stabilised=stabilised, dropout=dropout,
        epochs=epochs, steps=steps, batch=batch, micro_batch=micro_batch, learning_rate=learning_rate, every=every,
        patience=patience or None, dtype=dtype, weights=weights, counted=loss, compiled=compiled, seed=seed,
        prompts=tuple(prompt or []), merge=merge, again=again,
    )  # fmt: skip
    with joined(device) as where:
        if os.environ.get(RANK, "0") != "0":
            finetuning.run(request, where, finetuning.Listener())
            return
        with Screen(command(), asks=not yes and PROCESSES not in os.environ) as screen:
            try:
                story = finetuning.run(request, where, screen)
            except finetuning.Declined:
                err.print("Nothing was trained.")
                raise typer.Exit(1) from None
    report(story)


@contextmanager
def joined(name: str | None) -> Iterator[Device]:
    """Give the device to train on; under torchrun this process's, after it has joined the others."""
    where = devices.current_or_cpu() if name is None else devices.choose(name)
    if int(os.environ.get(PROCESSES, "1")) == 1:
        yield where
        return
    import torch
    import torch.distributed as dist

    if where.backend == "cuda":
        number = int(os.environ.get(LOCAL, "0"))
        if number >= torch.cuda.device_count():
            raise GpuguideError(
                f"Process {number} has no GPU of its own: PyTorch sees {torch.cuda.device_count()}. Start as many "
                "processes as there are GPUs with --nproc-per-node."
            )
        torch.cuda.set_device(number)
        where = replace(where, torch_device=f"cuda:{number}")
    dist.init_process_group("nccl" if where.backend == "cuda" else "gloo")
    try:
        yield where
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def command() -> str:
    """Return what was typed, so that it can be typed again."""
    count = os.environ.get("LOCAL_WORLD_SIZE", "1")
    begin = ["gpuguide"] if PROCESSES not in os.environ else ["torchrun", "--nproc-per-node", count, "-m", "gpuguide"]
    return shlex.join([*begin, *sys.argv[1:]])


def report(story: Story) -> None:
    """Print what came of a run, and where it lies."""
    table = listing("measure", "value", head=False)
    before, (step, best) = story.measured[0][1], story.best
    after = f" after step {step}" if step else ": no step lowered it"
    table.add_row("held-out loss", f"{best:.4f} nats a token{after}, {before:.4f} before")
    if story.merged_loss is not None:
        table.add_row("merged checkpoint", f"{story.merged_loss:.4f} nats a token, as it was written")
    table.add_row("steps", f"{len(story.losses)}{', stopped early' if story.stopped_early else ''}")
    for name in ("adapter", *(["merged"] if story.merged_loss is not None else []), "report.html"):
        table.add_row(name, str(story.request.out / name))
    show(table)
    if story.merged_loss is not None:
        err.print(f"Try it: gpuguide generate --model {shlex.quote(str(story.request.out / 'merged'))} --prompt TEXT")
