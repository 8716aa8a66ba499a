"""``gpuguide memory``: what a memory snapshot of PyTorch shows. It needs neither PyTorch nor a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuguide.cli.fit import parse_settings
from gpuguide.cli.old_names import merge_old_name
from gpuguide.cli.screen import err, format_parts, format_shares, listing, say, show
from gpuguide.costs import memory, presets
from gpuguide.training_memory.explain import Explanation, differences, explain, predicted_parts
from gpuguide.training_memory.snapshot import read_snapshot, replay
from gpuguide.units import format_bytes

LINES = 5
"""Lines of code that a table has"""
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
        Path | None,
        typer.Option(metavar="OTHER", help="An earlier snapshot, to list what uses more or less memory now."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="A model, such as gpt2, to print its predicted memory alongside."),
    ] = None,
    shape: Annotated[str | None, typer.Option(hidden=True)] = None,
    batch: Annotated[int, typer.Option(help="Sequences at a time, with --model.")] = 1,
    seq_len: Annotated[int, typer.Option(help="Tokens of a sequence, with --model.")] = 1024,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of gpuguide fit, with --model."),
    ] = None,
    device: Annotated[int | None, typer.Option(help="The GPU, where the snapshot has several.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print what fills the memory at the peak of a snapshot, which lines requested it, and what to change.

    Nothing in the file is run, and a file that names a class or a function is refused. The snapshot needs a history.
    Call torch.cuda.memory._record_memory_history before the model is made.

    Example: gpuguide memory explain snapshot.pickle --model gpt2 --batch 8
    """
    model = merge_old_name("--model", model, "--shape", shape)
    if settings and model is None:
        raise typer.BadParameter("--set changes the prediction, so it needs --model.")
    predicted = None
    if model is not None:
        setup = replace(memory.Setup(batch=batch, seq_len=seq_len), **parse_settings(settings or []))
        predicted = memory.predict(presets.shape(model), setup)
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
    """Read a snapshot and explain it; report the progress of a large file."""
    return explain(replay(read_snapshot(path, progress(path)), device))


def progress(path: Path) -> Callable[[int], None]:
    """Return the function that reports how much of a file is read."""

    def report(count: int) -> None:
        err.print(f"{path.name}: {format_bytes(count)} read", markup=False)

    return report


def report(found: Explanation, predicted: memory.MemoryPrediction | None) -> None:
    """Print the peak, its parts, the lines that hold most, and the sentences."""
    sizes, total = format_parts(list(found.parts.values()))
    say(f"The peak: {total} in use, {format_bytes(found.reserved)} reserved; {found.moment}.")
    print()
    rows = {
        part: [size, share]
        for part, size, share in zip(found.parts, sizes, format_shares(list(found.parts.values())), strict=True)
    }
    totals = [total, "100 %"]
    if predicted:
        expected = predicted_parts(predicted)
        sizes, total = format_parts(list(expected.values()))
        for part in expected:
            rows.setdefault(part, ["0 B", "0 %"])
        for part, row in rows.items():
            row.append(dict(zip(expected, sizes, strict=True)).get(part, "0 B"))
        totals.append(total)
    table = listing("part", "memory", "share", *(["predicted"] if predicted else []))
    for part, row in rows.items():
        table.add_row(memory.PART_NAMES.get(part, part), *row)
    table.add_row("total", *totals)
    show(table)
    print()
    lines = dict(list(found.lines.items())[:LINES])
    if len(found.lines) > LINES:
        lines["other lines"] = found.total - sum(lines.values())
    table = listing("line that requested it", "memory")
    for line, size in zip(lines, format_parts(list(lines.values()))[0], strict=True):
        table.add_row(line, size)
    show(table)
    if found.sentences:
        print()
    for sentence in found.sentences:
        say(sentence)


def report_changes(found: Explanation, other: Explanation) -> None:
    """Print the parts and lines that use more or less memory than in another snapshot."""
    print()
    change = found.total - other.total
    say(f"Compared with the other snapshot: {format_bytes(abs(change))} {'more' if change >= 0 else 'less'}.")
    print()
    table = listing("what changed", "by")
    parts = {memory.PART_NAMES.get(part, part): size for part, size in differences(found.parts, other.parts).items()}
    for name, size in [*parts.items(), *list(differences(found.lines, other.lines).items())[:LINES]]:
        table.add_row(name, f"{'+' if size > 0 else '−'}{format_bytes(abs(size))}")
    show(table)
