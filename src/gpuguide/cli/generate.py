"""``gpuguide generate``: continue a text, and report time to first token, speed and share of the read ceiling."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import typer

from gpuguide.cli.old_names import merge_old_name
from gpuguide.cli.screen import err, listing, show
from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.units import format_bytes, format_quantity, significant

if TYPE_CHECKING:
    import torch

    from gpuguide.inference import Decoder, Engine

FORMATS = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Our name of each format, and PyTorch's"""
NEW_TOKENS = 128
"""New tokens by default, or fewer where the context ends"""
STANDARD_INPUT = "-"
READ_BENCHMARK, READ_CONTENDER, READ_SIZE = "memory-hierarchy", "l2", 2**30
"""Benchmark case that is timed where no record has a read ceiling, and its working set in bytes"""


@dataclass
class Times:
    """When each token of a text reached the host, in seconds after the prompt was given."""

    arrivals: list[float] = field(default_factory=list)

    def record(self, tokens: Iterable[int]) -> Iterator[int]:
        """Yield the tokens, and record when each arrives."""
        start = time.perf_counter()
        for token in tokens:
            self.arrivals.append(time.perf_counter() - start)
            yield token

    @property
    def step(self) -> float | None:
        """Mean seconds from one token to the next; ``None`` if there are not two."""
        steps = len(self.arrivals) - 1
        return (self.arrivals[-1] - self.arrivals[0]) / steps if steps > 0 else None


def generate(
    prompt: Annotated[
        str,
        typer.Option(metavar="TEXT", help="Text to continue, special tokens by their names; - reads standard input."),
    ],
    model: Annotated[
        str, typer.Option(help="main, draft, gpt2 (downloads it), or a folder with a GPT-2 or Llama 3 checkpoint.")
    ] = "main",
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help=f"New tokens at most; by default {NEW_TOKENS}, or what the context holds.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Old name of --max-new-tokens, for this release.")] = None,
    temperature: Annotated[
        float, typer.Option(help="0 for greedy decoding; 1 draws from the model's distribution.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw from this many of the most likely tokens; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the fewest tokens with this total probability.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Draw from tokens with this share of the highest probability.")] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed draws the same text.")] = 0,
    weights: Annotated[str, typer.Option(help="plain, int8 or int4, for the matrices of the layers.")] = "plain",
    dtype: Annotated[
        str | None, typer.Option(help="fp32, bf16 or fp16; by default bf16 on a GPU that has it, else fp32.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="gpu or cpu; by default a GPU where there is one.")] = None,
) -> None:
    """Continue a text: the text goes to standard output, its speed to standard error.

    The text ends with the model's end-of-text token, after --max-new-tokens tokens, or with Ctrl-C.

    Example: gpuguide generate --prompt "def __init__(self" --max-new-tokens 64
    """
    import torch

    from gpuguide import models
    from gpuguide.inference import generate as loop
    from gpuguide.inference import prepare, streaming
    from gpuguide.inference.decoder import WEIGHTS
    from gpuguide.models.tokenizer import prompt_with_special

    limit = merge_old_name("--max-new-tokens", max_new_tokens, "--tokens", tokens)
    settings = streaming.sampling_settings(temperature, top_k, top_p, min_p)
    if weights not in WEIGHTS:
        raise unknown("kind of weights", weights, WEIGHTS)
    where = devices.current_or_cpu() if device is None else devices.choose(device)
    if where.backend == "fake":
        raise GpuguideError(f"A device that {devices.FAKE_VARIABLE} makes up cannot generate text; use --device cpu.")
    format = format_for(dtype, where)
    # In fp32 a 7B model would take 27 GB on the host. But what is quantised is best not rounded before.
    loaded = models.load(model, format if weights == "plain" else torch.float32)
    ids = prompt_with_special(loaded.tokenizer, standard_input() if prompt == STANDARD_INPUT else os.fsencode(prompt))
    count = min(NEW_TOKENS, max(1, loaded.config.context - len(ids))) if limit is None else limit
    decoder = prepare(loaded.model, weights=weights, dtype=format, device=where.torch_device)
    if where.is_gpu:
        engine = streaming.engine_for(decoder, len(ids), count, settings)
        stream = streaming.stream(engine, ids, count, loaded.tokenizer.ends, seed)
        warm_up(engine, ids)
    else:
        stream = loop.generate(decoder, ids, count, settings, stop=loaded.tokenizer.ends, seed=seed)
    times = Times()
    print_stream(streaming.detokenize(loaded.tokenizer, times.record(stream)))
    report(f"{model} in {dtype_name(format)}, {weights} weights", len(ids), times, decoder, where)


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
    """Generate a few tokens and drop them, so that compiling kernels and capturing a CUDA graph are not timed."""
    from gpuguide.inference import streaming

    err.print("Compiling kernels for this GPU, which takes longest the first time")
    for _ in streaming.stream(engine, prompt, min(3, engine.capacity - len(prompt))):
        pass


def print_stream(pieces: Iterable[str]) -> None:
    """Print text piece by piece and end its last line; Ctrl-C ends the text."""
    last = "\n"
    try:
        for piece in pieces:
            typer.echo(printable(piece), nl=False)
            last = piece[-1]
    except KeyboardInterrupt:
        err.print("\nInterrupted; the speed is that of the tokens so far.")
    if last != "\n":
        typer.echo()


def printable(text: str) -> str:
    """Return a text with a question mark for each character that standard output cannot write in its encoding."""
    encoding = sys.stdout.encoding or "utf-8"
    return text.encode(encoding, errors="replace").decode(encoding)


# --- the report ------------------------------------------------------------------------------------------


def report(what: str, prompt: int, times: Times, decoder: Decoder, where: Device) -> None:
    """Print the speed of a text to standard error, and on a GPU its share of the measured read ceiling."""
    table = listing("measure", "value", head=False)
    table.add_row("model", what)
    table.add_row("device", where.name)
    table.add_row("prompt", with_count(prompt, "token"))
    if times.arrivals:
        table.add_row("time to first token", format_quantity(times.arrivals[0], "s"))
    table.add_row("new tokens", str(len(times.arrivals)))
    if times.step:
        table.add_row("speed", f"{significant(1 / times.step)} token/s, {significant(times.step * 1e3)} ms a token")
        for name, value in memory_rows(prompt, len(times.arrivals), times.step, decoder, where):
            table.add_row(name, value)
    show(table, stderr=True)


def memory_rows(
    prompt: int, new_tokens: int, step: float, decoder: Decoder, where: Device
) -> Iterator[tuple[str, str]]:
    """Yield rows that compare a step's mean bandwidth with the read ceiling, the roofline bound of decoding."""
    from gpuguide.inference import cost

    shape, storage = decoder.shape, decoder.storage()
    context = prompt + (new_tokens - 2) / 2  # the first of the new tokens came from the prompt, without a step
    weights = cost.weight_bytes_read(shape, storage)
    cache = (context + 1) * cost.cache_bytes_per_token(shape, storage)
    read = weights + cache
    label = "share of the read ceiling"
    yield "a step reads", f"{format_bytes(weights)} of weights, {format_bytes(cache)} of KV cache on average"
    if not where.is_gpu:
        yield label, "not compared: a processor's caches may hold part of it"
        return
    try:
        bandwidth, source = read_ceiling(where)
    except GpuguideError as error:
        yield label, f"not compared: {error}"
        return
    share = f"{100 * read / step / bandwidth:.0f}% of {format_quantity(bandwidth, 'B/s')}, {source}"
    small = "; all of it fits into the L2 cache, which is faster than memory" if read < where.l2 else ""
    yield label, share + small


def read_ceiling(where: Device) -> tuple[float, str]:
    """Return the highest measured bandwidth of reading a GPU's memory in B/s, and where it was measured.

    The ceiling is from the user's own records, or the published ones of the same GPU, or else a read is timed now.

    Raises
    ------
    GpuguideError
        If there is no record, and the read cannot be timed.
    """
    from gpuguide.measure import benchmark, measured_ceilings, records, runner, store

    own = (record for name in measured_ceilings.READS for record in store.load_mine(name))
    published = map(records.load, measured_ceilings.source_files())
    for measured, source in ((own, "measured in your own records"), (published, "measured in this GPU's records")):
        known = {r.benchmark: r for r in measured if r.device == where.slug and not r.simulated}
        if rates := list(measured_ceilings.memory_rates(known, measured_ceilings.READS, where.l2)):
            return measured_ceilings.highest(rates).value, source
    declared = benchmark.get(READ_BENCHMARK)
    alone = replace(declared, contenders={READ_CONTENDER: declared.contenders[READ_CONTENDER]})
    (case,) = runner.measure_case(alone, {"working_set": READ_SIZE}, where, quick=True)
    if case.status != "ok":
        raise GpuguideError(f"The read bandwidth of {where.name} could not be measured: {case.reason}.")
    return case.metrics["bandwidth"].summary.median, "measured just now"


def with_count(count: int, what: str) -> str:
    """Return a count with its noun: ``1 token``, ``2 tokens``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
