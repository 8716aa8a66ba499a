"""``gpuguide generate``: a model continues a text, and says how fast it was and how fast it could be."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import typer

from gpuguide.cli.screen import err, listing, show
from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.units import format_bytes, format_quantity, significant

if TYPE_CHECKING:
    import torch

    from gpuguide.inference import Decoder, Engine
    from gpuguide.measure.records import Record

FORMATS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Our name of each format, and PyTorch's"""
NEW_TOKENS = 128
"""How many tokens are written unless one asks for more, or fewer have room"""
STANDARD_INPUT = "-"


@dataclass
class Times:
    """When each token of a text reached the host, in seconds after the prompt was given."""

    arrivals: list[float] = field(default_factory=list)

    def of(self, tokens: Iterable[int]) -> Iterator[int]:
        """Yield the tokens, and note when each comes."""
        begun = time.perf_counter()
        for token in tokens:
            self.arrivals.append(time.perf_counter() - begun)
            yield token

    @property
    def step(self) -> float | None:
        """Mean seconds from one token to the next; ``None`` if there are not two."""
        steps = len(self.arrivals) - 1
        return (self.arrivals[-1] - self.arrivals[0]) / steps if steps > 0 else None


def generate(
    prompt: Annotated[
        str,
        typer.Option(metavar="TEXT", help="What to continue, special tokens by their names; - reads standard input."),
    ],
    model: Annotated[
        str, typer.Option(help="main, draft, gpt2 (downloads it), or a folder with a GPT-2 or Llama 3 checkpoint.")
    ] = "main",
    tokens: Annotated[
        int | None, typer.Option(min=1, help=f"New tokens at most; by default {NEW_TOKENS}, or what has room.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token; 1 draws as the model says.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw from so many of the most likely tokens; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the fewest tokens that together are so likely.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Draw from tokens at least so likely, relative to the first.")] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed draws the same text.")] = 0,
    weights: Annotated[str, typer.Option(help="plain, int8 or int4, for the matrices of the layers.")] = "plain",
    dtype: Annotated[
        str | None, typer.Option(help="fp32, bf16 or fp16; by default bf16 on a GPU that has it, else fp32.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="gpu or cpu; by default a GPU where there is one.")] = None,
) -> None:
    """Continue a text: the text goes to standard output, how fast it was to standard error.

    The text ends with the model's end-of-text token, after --tokens tokens, or with Ctrl-C.

    Example: gpuguide generate --prompt "def __init__(self" --tokens 64
    """
    import torch

    from gpuguide import models
    from gpuguide.inference import prepare, writing
    from gpuguide.inference.decoder import WEIGHTS
    from gpuguide.models.tokenizer import prompt_with_special

    drawing = writing.settings(temperature, top_k, top_p, min_p)
    if weights not in WEIGHTS:
        raise unknown("kind of weights", weights, WEIGHTS)
    where = devices.current_or_cpu() if device is None else devices.choose(device)
    if where.backend == "fake":
        raise GpuguideError(f"A device that {devices.FAKE_VARIABLE} makes up cannot write; use --device cpu.")
    format = format_for(dtype, where)
    # In fp32 a 7B model would take 27 GB on the host. But what is quantised is best not rounded before.
    loaded = models.load(model, format if weights == "plain" else torch.float32)
    given = prompt_with_special(loaded.tokenizer, standard_input() if prompt == STANDARD_INPUT else os.fsencode(prompt))
    count = min(NEW_TOKENS, max(1, loaded.config.context - len(given))) if tokens is None else tokens
    decoder = prepare(loaded.model, weights=weights, dtype=format, device=where.torch_device)
    engine = writing.engine_for(decoder, len(given), count, drawing)
    times = Times()
    coming = times.of(writing.stream(engine, given, count, loaded.tokenizer.ends, seed))
    if where.is_gpu:
        warm_up(engine, given)
    print_as_it_comes(writing.pieces_of_text(loaded.tokenizer, coming))
    report(f"{model} in {dtype_name(format)}, {weights} weights", len(given), times, decoder, where)


def standard_input() -> bytes:
    """Return what comes from standard input, to its end.

    Raises
    ------
    GpuguideError
        If it is closed, as for a job that no terminal started.
    """
    if sys.stdin is None or sys.stdin.closed:
        raise GpuguideError(
            f"Standard input is closed, and --prompt {STANDARD_INPUT} reads it. Give the text itself, or < FILE."
        )
    return sys.stdin.buffer.read()


def format_for(name: str | None, where: Device) -> torch.dtype:
    """Return the format that is asked for by name, by default the smallest that is safe on the device.

    Raises
    ------
    UnknownName
        If there is no such format.
    """
    import torch

    if name is None:
        name = "bf16" if where.is_gpu and "bf16" in where.supports else "fp32"
    if name not in FORMATS:
        raise unknown("format", name, FORMATS)
    found: torch.dtype = getattr(torch, FORMATS[name])
    return found


def dtype_name(format: torch.dtype) -> str:
    """Return our name of a format."""
    return next(ours for ours, theirs in FORMATS.items() if str(format) == f"torch.{theirs}")


def warm_up(engine: Engine, prompt: list[int]) -> None:
    """Write a little for nobody, so that compiling kernels and capturing a step do not count as writing."""
    from gpuguide.inference import writing

    err.print("Compiling kernels for this GPU, which takes longest the first time")
    for _ in writing.stream(engine, prompt, min(3, engine.capacity - len(prompt))):
        pass


def print_as_it_comes(pieces: Iterable[str]) -> None:
    """Print text piece by piece and end its last line; Ctrl-C ends the text."""
    last = "\n"
    try:
        for piece in pieces:
            typer.echo(printable(piece), nl=False)
            last = piece[-1]
    except KeyboardInterrupt:
        err.print("\nInterrupted; this is how fast it was until then.")
    if last != "\n":
        typer.echo()


def printable(text: str) -> str:
    """Return a text with a question mark for each character that standard output cannot write in its encoding."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, errors="replace").decode(encoding)


# --- how fast it was, and could be -----------------------------------------------------------------------


def report(what: str, prompt: int, times: Times, decoder: Decoder, where: Device) -> None:
    """Print how fast a text was written to standard error, and on a GPU how fast memory would allow it."""
    table = listing("measure", "value", head=False)
    table.add_row("model", what)
    table.add_row("device", where.name)
    table.add_row("prompt", counted(prompt, "token"))
    if times.arrivals:
        table.add_row("time to first token", format_quantity(times.arrivals[0], "s"))
    table.add_row("new tokens", str(len(times.arrivals)))
    if times.step:
        table.add_row("speed", f"{significant(1 / times.step)} token/s, {significant(times.step * 1e3)} ms a token")
        for name, value in roofline(prompt, len(times.arrivals), times.step, decoder, where):
            table.add_row(name, value)
    show(table, stderr=True)


def roofline(prompt: int, written: int, step: float, decoder: Decoder, where: Device) -> Iterator[tuple[str, str]]:
    """Yield rows that compare a step's mean time with that of reading what it must read."""
    from gpuguide.inference import cost

    shape, storage = decoder.shape, decoder.storage()
    context = prompt + (written - 2) / 2  # the first of the new tokens came from the prompt, without a step
    weights = cost.weight_bytes_read(shape, storage)
    cache = (context + 1) * cost.cache_bytes_per_token(shape, storage)
    read = weights + cache
    yield "a step reads", f"{format_bytes(weights)} of weights, {format_bytes(cache)} of cache on average"
    if not where.is_gpu:
        yield "share of the roofline", "not compared: a processor's caches may hold some of it"
        return
    try:
        bandwidth, source = copy_bandwidth(where)
    except GpuguideError as error:
        yield "share of the roofline", f"not compared: {error}"
        return
    share = f"{100 * read / step / bandwidth:.0f}% of {format_quantity(bandwidth, 'B/s')}, {source}"
    small = "; all of it fits into the L2 cache, which is faster than memory" if read < where.l2 else ""
    yield "share of the roofline", share + small


def copy_bandwidth(where: Device) -> tuple[float, str]:
    """Return the bandwidth of a large copy on a GPU in B/s, and who measured it.

    That is the user's own record, or the published one of the same GPU, or else a copy that is timed now.

    Raises
    ------
    GpuguideError
        If there is no record, and the copy cannot be timed.
    """
    from gpuguide.measure import benchmark, runner, store

    own = [record for record in store.mine("ceilings") if record.device == where.slug]
    published = [record for record in store.published_records() if record.benchmark == "ceilings"]
    same = [record for record in published if record.device == where.slug]
    for records, source in ((own, "a copy in your own record"), (same, "a copy in the published record of this GPU")):
        for found in filter(None, map(copy_of, records)):
            return found, source
    declared = benchmark.get("ceilings")
    alone = replace(declared, contenders={"copy": declared.contenders["copy"]})
    (case,) = runner.measure_case(alone, {}, where, quick=True)
    if case.status != "ok":
        raise GpuguideError(f"The bandwidth of {where.name} could not be measured: {case.reason}.")
    return case.metrics["bandwidth"].summary.median, "a copy timed just now"


def copy_of(record: Record) -> float | None:
    """Return the median bandwidth of the copy in a record of ceilings, B/s; ``None`` if it was not measured."""
    for case in record.cases:
        if case.contender == "copy" and case.status == "ok" and not record.simulated:
            return case.metrics["bandwidth"].summary.median
    return None


def counted(count: int, what: str) -> str:
    """Return a number of things: ``1 token``, ``2 tokens``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
