"""A run as one HTML file that needs no server and loads nothing; while it runs, the page loads itself again."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gpuguide.finetuning import curve, recipe, saving, settings
from gpuguide.finetuning.preparing import Piece
from gpuguide.finetuning.recipe import Story
from gpuguide.units import format_bytes

TEMPLATE = Path(__file__).with_name("report.html")
REFRESH = 5
"""Seconds after which the page of a run under way loads itself again"""
SHOWN, A_PAGE = 200, 20
"""Samples that can be leafed through, and how many stand together"""
LIGHT = {"background": "#ffffff", "text": "#22272e", "grid": "#dde1e6", "grey": "#78828d", "blue": "#0067a8",
         "orange": "#d9640b"}  # fmt: skip
DARK = {"background": "#14181e", "text": "#dce1e8", "grid": "#333b46", "grey": "#7f8a99", "blue": "#62b5f0",
        "orange": "#f2933d"}  # fmt: skip
"""The colours of the site's figures, :mod:`gpuguide.plotting.palette`"""


@dataclass(frozen=True)
class Page:
    """Some of the samples."""

    title: str
    pieces: Sequence[Piece]


def write_report(story: Story, command: str) -> Path:
    """Write the report into the folder of a run, and return its path.

    Raises
    ------
    GpuguideError
        If it cannot be written; one that was there before stays.
    """
    path = story.request.out / recipe.REPORT
    saving.write(path, html(story, command))
    return path


def html(story: Story, command: str) -> str:
    """Return the report of a run, finished or not.

    Parameters
    ----------
    story : Story
        What is known of the run.
    command : str
        With which it is run again.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    prepared, plan = story.prepared, story.plan
    assert prepared is not None
    assert plan is not None
    best = story.best[0] if story.measured else None
    wide = curve.svg(story.losses, story.measured, plan.steps, best)
    narrow = curve.svg(story.losses, story.measured, plan.steps, best, 360, 280, "narrow")
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        title=f"{story.request.model} fine-tuned on {story.request.data.name}",
        running=story.ended is None,
        refresh=REFRESH,
        status=_status(story),
        tiles=list(_tiles(story)),
        wide=Markup(wide),
        narrow=Markup(narrow),
        measured=story.measured,
        examples=story.examples,
        sampled=_sampled(story),
        trained=list(_trained(story)),
        data=_data(story),
        notes=prepared.notes,
        previews=[("Trained on", _pages(prepared.training)), ("Held out", _pages(prepared.held_out))],
        files=list(_files(story)),
        command=command,
        light=LIGHT,
        dark=DARK,
    )


def _status(story: Story) -> str:
    plan = story.plan
    assert plan is not None
    done = f"{len(story.losses)} of {plan.steps} steps"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(story.ended or time.time()))
    if story.stopped is not None:
        return f"Stopped {when} on {story.device.name} after {done}. The same command goes on from the last state."
    if story.finished is None:
        return f"{done} at {when} on {story.device.name}. While it runs, this page loads itself again."
    early = ", stopped early because the held-out loss no longer fell" if story.stopped_early else ""
    return f"Finished {when} on {story.device.name} after {done}{early}."


def _tiles(story: Story) -> Iterator[tuple[str, str, str]]:
    if story.measured:
        before, (step, best) = story.measured[0][1], story.best
        more = f"{before:.3f} before; perplexity {_perplexity(before)} to {_perplexity(best)}"
        yield "held-out loss", f"{best:.3f}", f"{more}, after step {step}" if step else f"{more}: no step lowered it"
    if story.count:
        yield "trained", f"{story.count.trained:,} parameters", f"{100 * story.count.share:.2f} % of all"
    if story.peak is not None:
        predicted = f", predicted {format_bytes(story.predicted)}" if story.predicted else ""
        yield "GPU memory at its peak", format_bytes(story.peak), f"of {format_bytes(story.device.memory)}{predicted}"
    seconds = (story.ended or time.time()) - story.began
    yield "time", f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min", "with loading and saving"


def _perplexity(loss: float) -> str:
    return f"{math.exp(loss):.1f}" if loss < 20 else "above 10⁸"


def _trained(story: Story) -> Iterator[tuple[str, str]]:
    request, plan = story.request, story.plan
    assert plan is not None
    alpha = settings.alpha_of(request)
    packed = "" if request.weights == "plain" else f"; matrices beside adapters in {request.weights}"
    yield "model", f"{request.model}, its weights frozen, in {plan.precision}{packed}"
    if story.count:
        scale = f"alpha {alpha:g}{' over √rank' if request.stabilised else ''}"
        yield "adapters", f"LoRA of rank {request.rank}, {scale}, dropout {request.dropout:g}, in fp32"
        kinds = dict.fromkeys(name.rpartition(".")[2] for name in story.layers)
        yield "beside", f"{len(story.layers)} layers: {', '.join(kinds)}"
        yield "parameters", f"{story.count.trained:,} trained, {story.count.frozen:,} frozen"
    yield "steps", f"{plan.steps} at most, of {plan.batch} sequences each"
    yield "learning rate", f"{plan.learning_rate:g} after {plan.warm_up} steps, then down a cosine; AdamW"
    yield "the loss counts", "every token" if request.counted == "all" else "the assistant's answers, and their ends"
    yield "held-out loss", f"every {plan.every} steps" if plan.every > 1 else "after every step"
    if plan.patience is not None:
        yield "early stop", f"after {plan.patience} measurements without a lower held-out loss"
    yield "seed", str(plan.seed)


def _data(story: Story) -> str:
    prepared = story.prepared
    assert prepared is not None
    tokens = sum(len(each.tokens) for each in prepared.training)
    apart = story.request.held_out.name if story.request.held_out else "the same file"
    return (
        f"{len(prepared.training):,} sequences to train on ({tokens:,} tokens) from {story.request.data.name}, and "
        f"{len(prepared.held_out):,} held out, from {apart}. The longest has {prepared.longest:,} tokens."
    )


def _sampled(story: Story) -> str:
    if story.request.prompts:
        return "The prompts that were given. The most likely token is taken each time."
    return "Beginnings of held-out samples. The most likely token is taken each time."


def _pages(pieces: Sequence[Piece]) -> list[Page]:
    shown = pieces[:SHOWN]
    return [
        Page(f"{start + 1} to {min(start + A_PAGE, len(shown))} of {len(pieces):,}", shown[start : start + A_PAGE])
        for start in range(0, len(shown), A_PAGE)
    ]


def _files(story: Story) -> Iterator[tuple[str, str]]:
    if story.finished is None:
        yield "nothing yet", "the state of the run is kept, so that the same command goes on with it"
        return
    yield f"{recipe.ADAPTER}/", "the adapter, for PEFT and gpuguide.lora.load_adapter"
    if story.merged_loss is not None:
        loss = f"its held-out loss as it was written is {story.merged_loss:.3f}"
        yield (
            f"{recipe.MERGED}/",
            f"a checkpoint with the adapter in its weights, for gpuguide and transformers; {loss}",
        )
    yield recipe.NOTE, "settings and losses, for programs"
