"""``gpuguide models``: the small models of this site, trained and judged."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuguide.cli.screen import duration, err, listing, show
from gpuguide.errors import GpuguideError

if TYPE_CHECKING:
    import torch

    from gpuguide.models.evaluation import Evaluation

app = typer.Typer(
    help="The small models of this site: train, evaluate.\n\nExample: gpuguide models evaluate", no_args_is_help=True
)


@app.command("train")
def models_train(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="main, draft; both if none is named.")
    ] = None,
    out_folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the checkpoints go.")] = Path(
        "my-models"
    ),
    device: Annotated[str | None, typer.Option(help="gpu or cpu; by default a GPU where there is one.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Fewer or more steps than the recipe's.")] = None,
    commit: Annotated[str | None, typer.Option(help="The code's commit, for the record.")] = None,
) -> None:
    """Train the small models on this interpreter's standard library; stopped, the same command goes on.

    Example: gpuguide models train --out my-models
    """
    from gpuguide.models import corpus, pretraining

    recipes = {name: pretraining.recipe(name) for name in names or pretraining.RECIPES}
    target = torch_device(device)
    err.print("Reading the standard library and learning the tokenizer")
    data = pretraining.prepare(corpus.standard_library())
    for name, recipe in recipes.items():
        recipe = dataclasses.replace(recipe, steps=steps or recipe.steps)

        def show(now: pretraining.PretrainingProgress, name: str = name) -> None:
            speed = f"{now.tokens_per_second:.3g} token/s, about {duration(now.seconds_left)} left"
            err.print(f"[{name}] step {now.step}/{now.steps}: loss {now.loss:.3f} nats; {speed}")

        result = pretraining.train(name, recipe, data, out_folder / name, target, show, commit=commit)
        show_evaluation(f"{out_folder / name} on the held-out text", result)


@app.command("evaluate")
def models_evaluate(
    model: Annotated[str, typer.Option(help="main, draft, gpt2 (downloads it), or a checkpoint's folder.")] = "main",
    text: Annotated[Path | None, typer.Option(help="A file; by default the held-out text.")] = None,
    device: Annotated[str | None, typer.Option(help="gpu or cpu; by default a GPU where there is one.")] = None,
) -> None:
    """Say how well a model predicts a text.

    Example: gpuguide models evaluate --model draft
    """
    from gpuguide import models as checkpoints
    from gpuguide.models import corpus, evaluation

    if text is not None and not text.is_file():
        raise GpuguideError(f"There is no file {text}.")
    content = corpus.load_held_out().encode() if text is None else text.read_bytes()
    loaded = checkpoints.load(model)
    result = evaluation.evaluate(loaded.model.to(torch_device(device)), loaded.tokenizer, content)
    show_evaluation(f"{model} on {text or 'the held-out text'}", result)


def torch_device(name: str | None) -> torch.device:
    """Return the device that is asked for by name, by default a GPU where there is one."""
    import torch

    import gpuguide
    from gpuguide.hardware import device as devices

    return gpuguide.device() if name is None else torch.device(devices.choose(name).torch_device)


def show_evaluation(what: str, result: Evaluation) -> None:
    """Print how well a model predicts."""
    err.print(what, markup=False)
    table = listing("measure", "value", head=False)
    table.add_row("loss", f"{result.loss:.4f} nats a token")
    table.add_row("perplexity", f"{result.perplexity:.2f}")
    table.add_row("bits per byte", f"{result.bits_per_byte:.4f}")
    table.add_row("text", f"{result.tokens} tokens, {result.bytes} bytes")
    show(table)
