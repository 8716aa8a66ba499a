"""``gpuguide memory``: what a memory snapshot of PyTorch shows. It needs neither PyTorch nor a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuguide.cli.fit import parse_settings
from gpuguide.cli.screen import err, listing, say, show
from gpuguide.costs import memory, presets
from gpuguide.training_memory.explain import Explanation, differences, explain, predicted_parts
from gpuguide.training_memory.snapshot import read_snapshot, replay
from gpuguide.units import format_bytes

LINES = 5
"""Lines of code that are listed"""
app = typer.Typer(
    help="Memory snapshots of PyTorch, in tables and sentences.\n\nExample: gpuguide memory explain snapshot.pickle",
    no_args_is_help=True,
)


@app.callback()
def group() -> None:
    """Keep ``explain`` a command of its own while it is the only one."""


@app.command("explain")
def explain_snapshot(
    snapshot: Annotated[Path, typer.Argument(help="A file of torch.cuda.memory._dump_snapshot, compressed or not.")],
    against: Annotated[
        Path | None, typer.Option(metavar="OTHER", help="An earlier snapshot: list what takes more or less now.")
    ] = None,
    shape: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A model, such as gpt2, to print what is predicted alongside.")
    ] = None,
    batch: Annotated[int, typer.Option(help="Sequences at a time, with --shape.")] = 1,
    seq_len: Annotated[int, typer.Option(help="Tokens of a sequence, with --shape.")] = 1024,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting as of gpuguide fit, with --shape."),
    ] = None,
    device: Annotated[int | None, typer.Option(help="The GPU, where the snapshot has several.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say what fills the memory at the peak of a snapshot, which lines asked for it, and what to change.

    Nothing in the file is run: it is refused if it names a class or a function. A history is needed; record it with
    torch.cuda.memory._record_memory_history before the model is made.

    Example: gpuguide memory explain snapshot.pickle --shape gpt2 --batch 8
    """
    if settings and shape is None:
        raise typer.BadParameter("--set needs --shape: it changes what is predicted.")
    predicted = None
    if shape is not None:
        setup = replace(memory.Setup(batch=batch, seq_len=seq_len), **parse_settings(settings or []))
        predicted = memory.predict(presets.shape(shape), setup)
    found = explain_file(snapshot, device)
    other = explain_file(against, device) if against else None
    if as_json:
        more: dict[str, Any] = {"predicted": predicted_parts(predicted)} if predicted else {}
        if other:
            more["against"] = {
                "total": other.total,
                "parts": differences(found.parts, other.parts),
                "lines": differences(found.lines, other.lines),
            }
        typer.echo(json.dumps({**asdict(found), **more}, indent=1, ensure_ascii=False))
        return
    report(found, predicted)
    if other:
        report_changes(found, other)


def explain_file(path: Path, device: int | None) -> Explanation:
    """Read a snapshot and explain it; a large file says how far it is read."""
    return explain(replay(read_snapshot(path, progress(path)), device))


def progress(path: Path) -> Callable[[int], None]:
    """Return what reports how far a file is read."""

    def report(count: int) -> None:
        err.print(f"{path.name}: {format_bytes(count)} read", markup=False)

    return report


def report(found: Explanation, predicted: memory.MemoryPrediction | None) -> None:
    """Print the peak, its parts, the lines that hold most, and the sentences."""
    reserved = f"{format_bytes(found.reserved)} reserved"
    say(f"The peak: {format_bytes(found.total)} in use, {reserved}; {found.moment}.")
    print()
    expected = predicted_parts(predicted) if predicted else {}
    columns = ["what for", "memory", "share", *(["predicted"] if predicted else [])]
    table = listing(*columns)
    for part in [*found.parts, *(name for name in expected if name not in found.parts)]:
        size = found.parts.get(part, 0)
        cells = [memory.PART_NAMES.get(part, part), format_bytes(size), f"{100 * size / (found.total or 1):.0f} %"]
        table.add_row(*cells, *([format_bytes(expected.get(part, 0))] if predicted else []))
    if predicted:
        table.add_row("in all", format_bytes(found.total), "100 %", format_bytes(predicted.total))
    show(table)
    print()
    table = listing("line that asked for it", "memory")
    for line, size in list(found.lines.items())[:LINES]:
        table.add_row(line, format_bytes(size))
    show(table)
    if found.sentences:
        print()
    for sentence in found.sentences:
        say(sentence)


def report_changes(found: Explanation, other: Explanation) -> None:
    """Print what takes more or less than in another snapshot."""
    print()
    change = found.total - other.total
    say(f"Against the other snapshot: {format_bytes(abs(change))} {'more' if change >= 0 else 'less'}.")
    print()
    table = listing("what changed", "by")
    parts = {memory.PART_NAMES.get(part, part): size for part, size in differences(found.parts, other.parts).items()}
    for name, size in [*parts.items(), *list(differences(found.lines, other.lines).items())[:LINES]]:
        table.add_row(name, f"{'+' if size > 0 else '−'}{format_bytes(abs(size))}")
    show(table)
