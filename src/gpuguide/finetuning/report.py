"""The report of a run: one HTML file without external resources, which reloads itself while the run goes on."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from gpuguide import files
from gpuguide.finetuning import curve, recipe
from gpuguide.finetuning import settings as planning
from gpuguide.finetuning.data.splits import TokenizedExample
from gpuguide.finetuning.examples import SampleGeneration
from gpuguide.finetuning.run_record import RunProgress, RunRecord
from gpuguide.finetuning.training_log import LOG, LogRow, summarize_speed
from gpuguide.units import format_bytes

TEMPLATE = Path(__file__).with_name("report.html")
REFRESH = 5
"""Seconds after which the report of a running training reloads itself"""
CHARTS = {
    "tokens per second": "tokens_per_second",
    "gradient norm": "grad_norm",
    "learning rate": "learning_rate",
    "MFU": "mfu",
}
"""Titles of the charts, and the columns of the log that they show"""
SHOWN, A_PAGE = 200, 20
"""Number of examples in the preview, and on each of its pages"""
LIGHT = {"background": "#ffffff", "text": "#22272e", "grid": "#dde1e6", "grey": "#78828d", "blue": "#0067a8",
         "orange": "#d9640b"}  # fmt: skip
DARK = {"background": "#14181e", "text": "#dce1e8", "grid": "#333b46", "grey": "#7f8a99", "blue": "#62b5f0",
        "orange": "#f2933d"}  # fmt: skip
"""The colours of the site's figures, :mod:`gpuguide.plotting.palette`"""


@dataclass(frozen=True)
class PreviewPage:
    """A page of the data preview."""

    title: str
    examples: Sequence[TokenizedExample]


def write_report(record: RunRecord, command: str) -> Path:
    """Write the report into the output folder of a run, and return its path.

    Raises
    ------
    GpuguideError
        If it cannot be written; an earlier report stays.
    """
    path = record.setup.options.out / recipe.REPORT
    files.write_text(path, html(record, command))
    return path


def html(record: RunRecord, command: str) -> str:
    """Return the report of a fine-tuning, finished or not.

    Parameters
    ----------
    record : RunRecord
        Record of the run so far.
    command : str
        Command line that started it.
    """
    splits, count = record.setup.splits, record.parameters
    return render(
        record,
        command,
        title=f"{record.setup.options.model} fine-tuned on {record.setup.options.data.name}",
        trained=(f"{count.trained:,} parameters", f"{100 * count.share:.2f} % of all"),
        settings=list(_settings(record)),
        data=_data(record),
        files=list(_files(record)),
        notes=splits.notes,
        generations=record.generations,
        prompt_source=_prompt_source(record),
        previews=[("Trained on", _pages(splits.training)), ("Held out", _pages(splits.held_out))],
    )


def render(
    record: RunProgress,
    command: str,
    *,
    title: str,
    trained: tuple[str, str],
    settings: Sequence[tuple[str, str]],
    data: str,
    files: Sequence[tuple[str, str]],
    notes: Sequence[str] = (),
    generations: Sequence[SampleGeneration] = (),
    prompt_source: str = "",
    previews: Sequence[tuple[str, Sequence[PreviewPage]]] = (),
) -> str:
    """Return the report of any run: what all have in common from its record, all else as it is given.

    Parameters
    ----------
    record, command
        Record of the run so far, and the command line that started it.
    title : str
        Title of the page.
    trained : (str, str)
        Number of trained parameters, and a remark.
    settings, files : sequence of (str, str)
        Names and their descriptions.
    data : str
        Sentences on the data; ``notes`` come after it.
    generations, prompt_source, previews
        Texts before and after, where their prompts come from, and pages of examples, if there are any.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    config = record.setup.training
    best = record.best[0] if record.eval_losses and config.keep_best else None
    wide = curve.svg(record.losses, record.eval_losses, config.steps, best)
    narrow = curve.svg(record.losses, record.eval_losses, config.steps, best, 360, 280, "narrow")
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        title=title,
        running=record.end_time is None,
        refresh=REFRESH,
        status=_status(record),
        tiles=list(_tiles(record, trained)),
        keeps_best=config.keep_best,
        wide=Markup(wide),
        narrow=Markup(narrow),
        charts=list(_charts(record.log)),
        eval_losses=record.eval_losses,
        generations=generations,
        prompt_source=prompt_source,
        settings=settings,
        data=data,
        notes=notes,
        previews=previews,
        files=files,
        command=command,
        light=LIGHT,
        dark=DARK,
    )


def _status(record: RunProgress) -> str:
    setup = record.setup
    done = f"{len(record.losses)} of {setup.training.steps} steps"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(record.end_time or time.time()))
    if record.interrupted_at is not None:
        return f"Stopped {when} on {setup.device.name} after {done}. The same command resumes from the last state."
    if record.finished_at is None:
        left = "" if record.seconds_left is None else f", at most {_duration(record.seconds_left)} left"
        return f"{done} at {when} on {setup.device.name}{left}. This page reloads itself while the training runs."
    early = ", stopped early because the held-out loss no longer fell" if record.stopped_early else ""
    return f"Finished {when} on {setup.device.name} after {done}{early}."


def _tiles(record: RunProgress, trained: tuple[str, str]) -> Iterator[tuple[str, str, str]]:
    setup, speed = record.setup, summarize_speed(record.log)
    if record.eval_losses:
        before, (step, best) = record.eval_losses[0][1], record.best
        more = f"{before:.3f} before; perplexity {_perplexity(before)} to {_perplexity(best)}"
        yield "held-out loss", f"{best:.3f}", f"{more}, after step {step}" if step else f"{more}: no step lowered it"
    yield ("trained", *trained)
    if speed is not None:
        last = record.log[-1]
        yield (
            "speed",
            f"{speed.tokens_per_second:,.0f} tokens/s",
            f"{1000 * speed.step_seconds:,.1f} ms per step (medians)",
        )
        yield "MFU", "no ceiling" if speed.mfu is None else f"{100 * speed.mfu:.1f} %", _ceiling(record)
        yield "gradient norm", f"{last.grad_norm:.3g}", f"in step {last.step}; clipped at {setup.training.clip:g}"
    if record.peak_memory is not None:
        predicted = f", predicted {format_bytes(setup.predicted_memory)}" if setup.predicted_memory else ""
        yield "peak GPU memory", format_bytes(record.peak_memory), f"of {format_bytes(setup.device.memory)}{predicted}"
    yield "time", _duration((record.end_time or time.time()) - setup.began), "with loading and saving"


def _ceiling(record: RunProgress) -> str:
    precision = record.setup.training.precision
    if record.ceiling is None:
        return f"no measured {precision} matmul ceiling of {record.setup.device.name} is on record"
    return f"of the measured {precision} matmul ceiling, {record.ceiling.value / 1e12:,.0f} TFLOP/s"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def _perplexity(loss: float) -> str:
    return f"{math.exp(loss):.1f}" if loss < 20 else "above 10⁸"


def _charts(log: Sequence[LogRow]) -> Iterator[tuple[str, Markup]]:
    """Yield the title and the curve of each column that has values."""
    for title, column in CHARTS.items():
        points = [(row.step, float(value)) for row in log if (value := getattr(row, column)) is not None]
        if points:
            yield title, Markup(curve.chart_svg(title, points))


def _settings(record: RunRecord) -> Iterator[tuple[str, str]]:
    options, config = record.setup.options, record.setup.training
    packed = "" if options.weights == "plain" else f"; matrices with adapters in {options.weights}"
    yield "model", f"{options.model}, its weights frozen, in {config.precision}{packed}"
    scale = f"alpha {planning.adapter_alpha(options):g}{' over √rank' if options.rslora else ''}"
    yield "adapters", f"LoRA of rank {options.rank}, {scale}, dropout {options.dropout:g}, in fp32"
    kinds = dict.fromkeys(name.rpartition(".")[2] for name in record.setup.layers)
    yield "layers", f"{len(record.setup.layers)} with adapters: {', '.join(kinds)}"
    yield "parameters", f"{record.parameters.trained:,} trained, {record.parameters.frozen:,} frozen"
    yield "steps", f"{config.steps} at most, of {config.batch} sequences each"
    yield "learning rate", f"{config.learning_rate:g} after {config.warm_up} warm-up steps, then cosine decay; AdamW"
    yield "loss counts", "the assistant's answers, and their ends" if options.train_on_assistant else "every token"
    yield "evaluation", f"every {config.eval_every} steps" if config.eval_every > 1 else "after every step"
    if config.patience is not None:
        yield "early stop", f"after {config.patience} evaluations without a lower held-out loss"
    yield "seed", str(config.seed)


def _data(record: RunRecord) -> str:
    options, splits = record.setup.options, record.setup.splits
    tokens = sum(len(example.tokens) for example in splits.training)
    source = options.eval_data.name if options.eval_data else "the same file"
    return (
        f"{len(splits.training):,} sequences to train on ({tokens:,} tokens) from {options.data.name}, and "
        f"{len(splits.held_out):,} held out, from {source}. The longest has {splits.longest:,} tokens."
    )


def _prompt_source(record: RunRecord) -> str:
    source = "Your prompts" if record.setup.options.prompts else "Beginnings of held-out samples"
    return f"{source}, continued by greedy decoding."


def _pages(examples: Sequence[TokenizedExample]) -> list[PreviewPage]:
    shown = examples[:SHOWN]
    return [
        PreviewPage(
            f"{start + 1} to {min(start + A_PAGE, len(shown))} of {len(examples):,}", shown[start : start + A_PAGE]
        )
        for start in range(0, len(shown), A_PAGE)
    ]


def _files(record: RunRecord) -> Iterator[tuple[str, str]]:
    yield LOG, "a row per step: losses, learning rate, gradient norm, tokens per second, MFU, peak memory"
    if record.finished_at is None:
        yield "nothing else yet", "the state of the run is saved, so that the same command resumes it"
        return
    yield f"{recipe.ADAPTER}/", "the adapter, for PEFT and gpuguide.lora.load_adapter"
    if record.merged_loss is not None:
        loss = f"its held-out loss as it was written is {record.merged_loss:.3f}"
        yield (
            f"{recipe.MERGED}/",
            f"a checkpoint with the adapter in its weights, for gpuguide and transformers; {loss}",
        )
    yield recipe.SUMMARY, "settings and losses, for programs"
