"""The screen of ``gpuguide finetune`` and ``train``: stages, a preview of the data, losses, speed and time left.

In a terminal a chart is redrawn in place; elsewhere each evaluation prints a line. The report is rewritten each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from gpuguide.cli.screen import duration, err, listing, show, width
from gpuguide.errors import GpuguideError
from gpuguide.finetuning import (
    Callback,
    DatasetSplits,
    FinetuneOptions,
    RunProgress,
    RunRecord,
    RunStage,
    TokenizedExample,
    write_report,
)
from gpuguide.hardware.device import Device
from gpuguide.pretraining import PretrainCallback, PretrainOptions, PretrainRecord, PretrainStage
from gpuguide.pretraining import write_report as write_pretraining_report
from gpuguide.units import format_bytes

if TYPE_CHECKING:
    from typing import Self

A_PAGE = 10
"""Number of examples on a page of the preview"""
SHOWN = 200
"""Number of examples in the preview"""
HEIGHT = 10
"""Lines of the chart"""
TITLES = {
    RunStage.LOAD_DATA: "Reading {data}",
    RunStage.TOKENIZE: "Tokenising",
    RunStage.PLAN: "Checking settings and the memory of {device}",
    RunStage.LOAD_MODEL: "Loading {model}",
    RunStage.GENERATE: "Generating with the untrained model",
    RunStage.TRAIN: "Training",
    RunStage.EXPORT: "Saving to {out}",
}
PRETRAINING_TITLES = {
    PretrainStage.TOKENIZE: "Tokenising {texts}",
    PretrainStage.PLAN: "Planning for {device}",
    PretrainStage.MAKE_MODEL: "Making {shape}",
    PretrainStage.TRAIN: "Training",
    PretrainStage.EXPORT: "Saving to {out}",
}


class ProgressScreen:
    """Shows a run to a person.

    Parameters
    ----------
    command : str
        Command line that starts the run again.
    asks : bool
        Whether to show the data before the training begins.
    console : rich.console.Console, optional
        Console to print to; standard error by default.
    """

    def __init__(self, command: str, *, asks: bool, console: Console | None = None) -> None:
        self.command, self.asks = command, asks
        self.console = console or err
        self.live: Live | None = None
        self.has_stepped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop_live()

    def write_report(self, record: Any) -> Path:
        """Write the report of a run so far, and return its path."""
        raise NotImplementedError

    def describe_parameters(self, record: Any) -> str:
        """Return in words what is trained."""
        raise NotImplementedError

    def show_stage(self, number: int, count: int, title: str) -> None:
        """Print the number and the title of a stage."""
        self._stop_live()
        self.console.print(f"[{number}/{count}] {title}", markup=False, soft_wrap=True)

    def on_note(self, text: str) -> None:
        """Print a note below the stage."""
        self.console.print(f"      {text}", markup=False, soft_wrap=True)

    def on_train_begin(self, record: RunProgress) -> None:
        """Say what is trained, write the first report, and start the chart."""
        self.on_note(self.describe_parameters(record))
        if record.setup.device.is_gpu and record.ceiling is None:
            self.on_note(f"No MFU: no measured matmul ceiling of {record.setup.device.name} is on record.")
        self.on_note(f"{self.write_report(record)} shows it too")
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self.live = Live(console=self.console, refresh_per_second=4, transient=False)
            self.live.start()

    def on_step(self, record: RunProgress) -> None:
        """Show a step."""
        if not self.has_stepped:
            self.has_stepped = True
            if len(record.losses) > 1:
                self.on_note(f"Resuming after step {len(record.losses) - 1}.")
            elif self.live is None:
                self.on_note(f"before: held out {record.eval_losses[0][1]:.3f}")
        if self.live is not None:
            self.live.update(self._view(record))

    def on_evaluation(self, record: RunProgress) -> None:
        """Show a held-out loss, and rewrite the report."""
        self.write_report(record)
        if self.live is None:
            step, loss = record.eval_losses[-1]
            losses = f"step {step}: loss {record.losses[-1]:.3f}, held out {loss:.3f}"
            self.on_note(f"{losses}; {', '.join(describe_step(record))}; {_time_left(record)}")

    def on_end(self, record: RunProgress) -> None:
        """Write the final report."""
        self.write_report(record)

    def on_interrupt(self, record: RunProgress) -> None:
        """Write a report that says that the run was interrupted."""
        self._stop_live()
        with suppress(GpuguideError):  # for example of a full disk, which the run has reported already
            self.write_report(record)

    def _stop_live(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _view(self, record: RunProgress) -> RenderableType:
        """Return the chart, the metrics of the last step and the progress bar."""
        steps = record.setup.training.steps
        columns = max(30, min(self.console.width, 110))
        lines = chart(record.losses, record.eval_losses, steps, columns)
        step, best = record.best
        held_out = f"held out {record.eval_losses[-1][1]:.3f}, lowest {best:.3f} after step {step}"
        now = [f"step {len(record.losses)} of {steps}", f"loss {record.losses[-1]:.3f}", held_out]
        bar = ProgressBar(steps, len(record.losses), width=columns)
        metrics = Text("   ".join(describe_step(record)), style="dim")
        return Group(*lines, Text("   ".join(now)), metrics, bar, Text(_time_left(record), style="dim"))


class TrainingScreen(ProgressScreen, Callback):
    """Shows a fine-tuning to a person; parameters as of :class:`ProgressScreen`."""

    def on_stage(self, stage: RunStage, options: FinetuneOptions, device: Device) -> None:
        """Print the number and the title of a stage."""
        title = TITLES[stage].format(device=device.name, data=options.data, model=options.model, out=options.out)
        self.show_stage(stage.number, len(RunStage), title)

    def confirm_data(self, splits: DatasetSplits) -> bool:
        """Show the data, and ask whether to train on them, if somebody can answer."""
        training, held_out = len(splits.training), len(splits.held_out)
        self.on_note(f"{training} to train on, {held_out} held out; the longest has {splits.longest} tokens.")
        if not self.asks:
            return True
        held_out_rows = [(True, example) for example in splits.held_out[: SHOWN // 4]]
        training_rows = [(False, example) for example in splits.training[: SHOWN - len(held_out_rows)]]
        return _browse([*training_rows, *held_out_rows], training + held_out)

    def write_report(self, record: RunRecord) -> Path:
        """Write the report of a run so far, and return its path."""
        return write_report(record, self.command)

    def describe_parameters(self, record: RunRecord) -> str:
        """Return in words what is trained."""
        share = f"{100 * record.parameters.share:.2f}% of all"
        return f"{record.parameters.trained:,} parameters in adapters of {len(record.setup.layers)} layers, {share}"


class PretrainingScreen(ProgressScreen, PretrainCallback):
    """Shows a training of all weights to a person; parameters as of :class:`ProgressScreen`."""

    def on_stage(self, stage: PretrainStage, options: PretrainOptions, device: Device) -> None:
        """Print the number and the title of a stage."""
        texts = ", ".join(map(str, options.texts))
        title = PRETRAINING_TITLES[stage].format(device=device.name, texts=texts, shape=options.shape, out=options.out)
        self.show_stage(stage.number, len(PretrainStage), title)

    def write_report(self, record: PretrainRecord) -> Path:
        """Write the report of a run so far, and return its path."""
        return write_pretraining_report(record, self.command)

    def describe_parameters(self, record: PretrainRecord) -> str:
        """Return in words what is trained."""
        return f"{record.parameters.trained:,} parameters"


def describe_step(record: RunProgress) -> list[str]:
    """Return the metrics of the last step as short texts: speed, MFU, learning rate, gradient norm, peak memory."""
    row = record.log[-1]
    return [
        f"{1000 * (row.step_seconds or 0):,.0f} ms/step",
        f"{row.tokens_per_second:,.0f} tokens/s",
        *([f"MFU {100 * row.mfu:.1f}%"] if row.mfu is not None else []),
        f"lr {row.learning_rate:.2e}",
        f"grad norm {row.grad_norm:.3g}",
        *([f"peak {format_bytes(row.peak_memory_bytes)}"] if row.peak_memory_bytes is not None else []),
    ]


def _time_left(record: RunProgress) -> str:
    return "measuring the speed" if record.seconds_left is None else f"at most {duration(record.seconds_left)} left"


def chart(
    losses: Sequence[float], eval_losses: Sequence[tuple[int, float]], steps: int, columns: int, height: int = HEIGHT
) -> list[Text]:
    """Return lines of text that draw the losses of steps as dots and the held-out losses as circles.

    Each column shows the mean of its steps.
    """
    room = columns - 8
    values = _columns(losses, steps, room)
    held = {min(room - 1, step * room // max(steps, 1)): loss for step, loss in eval_losses}
    shown = [*values.values(), *held.values()]
    if not shown:
        return []
    low, high = min(shown), max(shown)

    def row(value: float) -> int:
        return round((height - 1) * (high - value) / ((high - low) or 1.0))

    grid = [[" "] * room for _ in range(height)]
    for column, value in values.items():
        grid[row(value)][column] = "·"
    for column, value in held.items():
        grid[row(value)][column] = "o"
    lines = []
    for number, cells in enumerate(grid):
        label = f"{high - (high - low) * number / (height - 1):.3f}" if number in (0, height // 2, height - 1) else ""
        line = Text(f"{label:>6} ", style="dim", no_wrap=True)
        for cell in cells:
            line.append(cell, style="bold cyan" if cell == "o" else "dim")
        lines.append(line)
    return [*lines, Text("       · each step   o held out", style="dim")]


def _columns(losses: Sequence[float], steps: int, room: int) -> dict[int, float]:
    groups: dict[int, list[float]] = {}
    for step, loss in enumerate(losses):
        groups.setdefault(min(room - 1, step * room // max(steps, 1)), []).append(loss)
    return {column: sum(group) / len(group) for column, group in groups.items()}


def _browse(examples: Sequence[tuple[bool, TokenizedExample]], count: int) -> bool:
    """Show examples page by page until the user starts or quits; without a terminal, show one page and start."""
    import sys

    pages, page = -(-len(examples) // A_PAGE), 0
    while True:
        _show_page(examples[page * A_PAGE : (page + 1) * A_PAGE])
        if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
            return True
        shown = f"page {page + 1} of {pages}" + (
            f", {len(examples)} of {count} samples" if count > len(examples) else ""
        )
        answer = _ask(f"{shown}. Enter: next page, b: back, s: start, q: quit > ")
        if answer in ("s", "q"):
            return answer == "s"
        page = max(0, page - 1) if answer == "b" else (page + 1) % pages


def _ask(question: str) -> str:
    """Return the letter that the user types; the end of the input means quit."""
    err.print(question, end="", markup=False)
    try:
        return input().strip().lower()[:1]
    except EOFError:
        return "q"


def _show_page(examples: Sequence[tuple[bool, TokenizedExample]]) -> None:
    table = listing("use", "place", "tokens", "text", whole=("use", "tokens"))
    room = max(20, width() - 40)
    for is_held_out, example in examples:
        text = " ".join(example.text.split())
        text = text if len(text) <= room else f"{text[: room - 1]}…"
        table.add_row("held out" if is_held_out else "train", example.location, str(len(example.tokens)), text)
    show(table, stderr=True)
