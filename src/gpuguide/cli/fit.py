"""``gpuguide fit``: whether a model fits a GPU, its memory by part, and changes that lower it. It needs no GPU."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace
from typing import Annotated, Any

import typer

from gpuguide.cli.old_names import merge_old_name
from gpuguide.cli.screen import format_parts, format_shares, listing, say, show
from gpuguide.costs import memory, presets
from gpuguide.errors import unknown
from gpuguide.measure.cards import Card, find_card, load_cards
from gpuguide.units import format_bytes

SEQ_LEN = 1024
"""Tokens of a sequence by default, or the context of the model where it is shorter"""


def parse_settings(texts: list[str]) -> dict[str, Any]:
    """Return the fields of a setup from texts such as ``loss=chunked``.

    Raises
    ------
    UnknownName
        If there is no field of a name.
    typer.BadParameter
        If a text has no value, or one of the wrong kind.
    """
    known, found = {field.name: field.default for field in fields(memory.Setup)}, {}
    for text in texts:
        name, sign, value = text.partition("=")
        if name not in known:
            raise unknown("setting", name, known)
        found[name] = _value(known[name], value) if sign else None
        if found[name] is None:
            kind = {bool: "true or false", int: "a whole number"}.get(type(known[name]), "a word")
            raise typer.BadParameter(f"{text}: write {name}=VALUE, with {kind}.")
    return found


def _value(default: Any, text: str) -> Any:
    """Return a text as the kind of value that a default is, or ``None``."""
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.lower())
    if isinstance(default, int):
        return int(text) if text.lstrip("-").isdecimal() else None
    return text or None


def fit(
    gpu: Annotated[str, typer.Option(metavar="CARD", help="A card, such as rtx-4090, or a size, such as 16GiB.")],
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A model, such as llama-3.2-1b.", show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model as an option, in place of the argument.")
    ] = None,
    shape: Annotated[str | None, typer.Option(hidden=True)] = None,
    batch: Annotated[int, typer.Option(help="Sequences at a time.")] = 1,
    seq_len: Annotated[
        int | None, typer.Option(help="Tokens of a sequence; by default 1024, or the model's context if shorter.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="mixed, bf16 or fp32; by default mixed in training, and bf16 otherwise.")
    ] = None,
    purpose: Annotated[str, typer.Option(help="train, generate or evaluate.")] = "train",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting of gpuguide.costs.memory.Setup, such as optimizer=adamw-8bit; may be repeated.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the prediction as JSON.")] = False,
) -> None:
    """Predict the memory of a step by part, and list the changes that lower it, those that slow it least first.

    The exit status is 1 if it does not fit.

    Example: gpuguide fit llama-3.2-1b --batch 4 --seq-len 2048 --gpu 16GiB
    """
    model = merge_old_name("--model", model, "--shape", shape)
    if (name is None) == (model is None):
        raise typer.BadParameter("Name one model, such as gpuguide fit llama-3.2-1b or --model llama-3.2-1b.")
    model = name or model or ""
    model_shape, card = presets.shape(model), find_card(gpu)
    setup = memory.Setup(
        purpose,
        precision or ("mixed" if purpose == "train" else "bf16"),
        batch,
        min(SEQ_LEN, model_shape.context) if seq_len is None else seq_len,
    )
    setup = replace(setup, **parse_settings(settings or []))
    prediction = memory.predict(model_shape, setup)
    available = memory.SAFE_SHARE * card.bytes
    verdict = memory.judge(prediction.total, card.bytes)
    most, changes = memory.largest_batch(model_shape, setup, available), memory.remedies(model_shape, setup)
    together = memory.combine_remedies(model_shape, setup, available)
    if as_json:
        highest = prediction.highest
        found = {
            "model": model,
            "gpu": asdict(card),
            "setup": asdict(setup),
            "verdict": verdict,
            "total": prediction.total,
            "moment": highest.name,
            "parts": {part: size for part, size in highest.parts.items() if size},
            "moments": {moment.name: moment.total for moment in prediction.moments},
            "largest_batch": most,
            "remedies": [{"change": each.change, "total": each.total} for each in changes],
            "together": [each.change for each in together],
            "cards": [other.id for other in cards_that_fit(prediction.total)],
        }
        typer.echo(json.dumps(found, indent=1, ensure_ascii=False))
    else:
        report_parts(prediction, verdict, card)
        report_changes(changes, together, most, setup, available)
        if verdict != "fits":
            larger = [f"{other.name} ({other.id})" for other in cards_that_fit(prediction.total)]
            say(f"Without changes it fits on {', '.join(larger[:3]) or 'no single card'}.")
    if verdict == "too large":
        raise typer.Exit(1)


def cards_that_fit(total: float) -> list[Card]:
    """Return the cards on which so many bytes fit, the smallest first."""
    return [card for card in load_cards() if memory.judge(total, card.bytes) == "fits"]


def report_parts(prediction: memory.MemoryPrediction, verdict: str, card: Card) -> None:
    """Print the verdict, and the parts of the highest moment."""
    total, highest = prediction.total, prediction.highest
    words = {"fits": "It fits", "tight": "It is tight", "too large": "It does not fit"}[verdict]
    size = format_bytes(card.bytes)
    if card.origin != "given":
        origin = {"driver": "as its driver reports", "printed": "as the vendor prints it"}[card.origin]
        size = f"{size} ({origin}) on {card.name}"
    parts = {part: count for part, count in sorted(highest.parts.items(), key=lambda item: -item[1]) if count}
    sizes, sum_of_sizes = format_parts(list(parts.values()))
    say(f"{words}: {sum_of_sizes} of {size}, {100 * total / card.bytes:.0f} %.")
    print()
    table = listing(f"at the peak ({highest.name})", "memory", "share")
    for part, printed, share in zip(parts, sizes, format_shares(list(parts.values())), strict=True):
        table.add_row(memory.PART_NAMES[part], printed, share)
    table.add_row("total", sum_of_sizes, "100 %")
    show(table)
    print()


def report_changes(
    changes: list[memory.Remedy], together: list[memory.Remedy], most: int, setup: memory.Setup, available: float
) -> None:
    """Print the changes one by one, those with which it fits together, and the largest batch."""
    if changes:
        table = listing("one change", "memory", "result")
        for each in changes:
            result = "fits" if each.total <= available else "does not fit"
            table.add_row(each.change, format_bytes(each.total), result)
        show(table)
        print()
    if together:
        steps = "; ".join(each.change for each in together)
        say(f"With these changes together it fits in {format_bytes(together[-1].total)}: {steps}.")
    if most:
        say(f"Largest batch without changes: {most} sequences of {setup.seq_len} tokens.")
    else:
        say(f"Not even one sequence of {setup.seq_len} tokens fits without changes.")
