"""What ``gpuguide finetune`` shows: stages, the data page by page, and the losses as they come.

In a terminal a chart is renewed in place; elsewhere each held-out loss is a line. The report is written anew with each.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gpuguide.cli.screen import duration, err, listing, show, width
from gpuguide.errors import GpuguideError
from gpuguide.finetuning import Listener, Piece, Prepared, Story, write_report
from gpuguide.finetuning.recipe import STAGES
from gpuguide.units import format_bytes

if TYPE_CHECKING:
    from typing import Self

A_PAGE = 10
"""Samples of the preview that are shown together"""
SHOWN = 200
"""Samples of the preview in all"""
HEIGHT = 10
"""Lines of the chart"""
TITLES = ("Reading {data}", "Making tokens", "Checking the memory of {device}", "Loading {model}",
          "Writing with the model as it is", "Training", "Saving to {out}")  # fmt: skip


class Screen(Listener):
    """Shows a run to a person.

    Parameters
    ----------
    command : str
        With which the run is started again.
    asks : bool
        Whether to show the data before the training begins.
    console : rich.console.Console, optional
        Where to; standard error if it is left out.
    """

    def __init__(self, command: str, *, asks: bool, console: Console | None = None) -> None:
        self.command, self.asks = command, asks
        self.console = console or err
        self.live: Live | None = None
        self.begun, self.first = 0.0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def stage(self, story: Story) -> None:
        """Print the number and the title of a stage."""
        self._end()
        number = STAGES.index(story.stage)
        named = {"data": story.request.data, "model": story.request.model, "out": story.request.out}
        title = TITLES[number].format(device=story.device.name, **named)
        self.console.print(f"[{number + 1}/{len(STAGES)}] {title}", markup=False, soft_wrap=True)
        if story.stage == "load the model" and story.predicted:
            self.say(f"A step takes about {format_bytes(story.predicted)} of {format_bytes(story.device.memory)}.")
        if story.stage == "train":
            self._begin(story)

    def say(self, text: str) -> None:
        """Print a note below the stage."""
        self.console.print(f"      {text}", markup=False, soft_wrap=True)

    def confirm(self, prepared: Prepared) -> bool:
        """Show the data, and ask whether to go on, if there is somebody to ask."""
        training, held_out = len(prepared.training), len(prepared.held_out)
        self.say(f"{training} to train on, {held_out} held out; the longest has {prepared.longest} tokens.")
        if not self.asks:
            return True
        measured_with = [(True, each) for each in prepared.held_out[: SHOWN // 4]]
        trained_on = [(False, each) for each in prepared.training[: SHOWN - len(measured_with)]]
        return _leafed([*trained_on, *measured_with], training + held_out)

    def step(self, story: Story) -> None:
        """Show a step."""
        if not self.begun:
            self.begun, self.first = time.monotonic(), len(story.losses)
            if self.first > 1:
                self.say(f"Going on after step {self.first - 1}.")
            elif self.live is None:
                self.say(f"before: held out {story.measured[0][1]:.3f}")
        if self.live is not None:
            self.live.update(self._view(story))

    def measured(self, story: Story) -> None:
        """Show a held-out loss, and write the report anew."""
        write_report(story, self.command)
        if self.live is None and story.finished is None:
            step, loss = story.measured[-1]
            self.say(f"step {step}: loss {story.losses[-1]:.3f}, held out {loss:.3f}; {self._left(story)}")

    def stopped(self, story: Story) -> None:
        """Let the report say that nothing goes on any more; before the training, there is none of this run yet."""
        self._end()
        if STAGES.index(story.stage) >= STAGES.index("train"):
            with suppress(GpuguideError):  # of a full disk, for example, which has been told already
                write_report(story, self.command)

    def _begin(self, story: Story) -> None:
        if story.count:
            share = f"{100 * story.count.share:.2f}% of all"
            self.say(f"{story.count.trained:,} parameters beside {len(story.layers)} layers, {share}")
        path = write_report(story, self.command)
        self.say(f"{path} shows it too")
        if self.console.is_terminal and not self.console.is_dumb_terminal:
            self.live = Live(console=self.console, refresh_per_second=4, transient=False)
            self.live.start()

    def _end(self) -> None:
        if self.live is not None:
            self.live.stop()
            self.live = None

    def _left(self, story: Story) -> str:
        assert story.plan is not None
        done = len(story.losses) - self.first
        if not done:
            return "measuring the speed"
        a_step = (time.monotonic() - self.begun) / done
        return f"at most {duration(a_step * (story.plan.steps - len(story.losses)))} left"

    def _view(self, story: Story) -> RenderableType:
        """Return the chart, the numbers of now and how far it is."""
        assert story.plan is not None
        columns = max(30, min(self.console.width, 110))
        lines = chart(story.losses, story.measured, story.plan.steps, columns)
        now = Table.grid(padding=(0, 2))
        best = f", lowest {story.best[1]:.3f} after step {story.best[0]}" if story.measured else ""
        held_out = f"held out {story.measured[-1][1]:.3f}{best}" if story.measured else ""
        memory = f"GPU {format_bytes(story.peak)}" if story.peak else ""
        now.add_row(f"step {len(story.losses)} of {story.plan.steps}", f"loss {story.losses[-1]:.3f}", held_out, memory)
        bar = ProgressBar(story.plan.steps, len(story.losses), width=columns)
        return Group(*lines, now, bar, Text(self._left(story), style="dim"))


def chart(
    losses: Sequence[float], measured: Sequence[tuple[int, float]], steps: int, columns: int, height: int = HEIGHT
) -> list[Text]:
    """Return lines of text that draw the losses of steps as dots and the held-out ones as circles.

    A column stands for the mean of its steps.
    """
    room = columns - 8
    values = _columns(losses, steps, room)
    held = {min(room - 1, step * room // max(steps, 1)): loss for step, loss in measured}
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


def _leafed(pieces: Sequence[tuple[bool, Piece]], count: int) -> bool:
    """Show samples page by page until somebody wants to start or to stop; where nobody can be asked, one page."""
    import sys

    pages, page = -(-len(pieces) // A_PAGE), 0
    while True:
        _show_page(pieces[page * A_PAGE : (page + 1) * A_PAGE])
        if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
            return True
        shown = f"page {page + 1} of {pages}" + (f", {len(pieces)} of {count} samples" if count > len(pieces) else "")
        answer = _asked(f"{shown}. Enter: next page, b: back, s: start, q: quit > ")
        if answer in ("s", "q"):
            return answer == "s"
        page = max(0, page - 1) if answer == "b" else (page + 1) % pages


def _asked(question: str) -> str:
    """Return one letter that a person types; the end of the input means to stop."""
    err.print(question, end="", markup=False)
    try:
        return input().strip().lower()[:1]
    except EOFError:
        return "q"


def _show_page(pieces: Sequence[tuple[bool, Piece]]) -> None:
    table = listing("use", "place", "tokens", "text", whole=("use", "tokens"))
    room = max(20, width() - 40)
    for held_out, piece in pieces:
        text = " ".join(piece.text.split())
        text = text if len(text) <= room else f"{text[: room - 1]}…"
        table.add_row("held out" if held_out else "train", piece.place, str(len(piece.tokens)), text)
    show(table, stderr=True)
