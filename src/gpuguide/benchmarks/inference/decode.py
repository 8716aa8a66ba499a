"""Writing texts: a prompt is read, then each step writes one token of every sequence of a batch.

Every contender reads the same random prompts and writes as many tokens as it is asked for, the most likely one each
time, with the same random weights. The time is that of all of it, prefill included, since ``generate`` of
``transformers`` does both; of our own loops ``step`` is the time of a step alone, and ``bandwidth`` what it must read,
weights and cache, over that time.

``torch-compile`` is our plain loop in PyTorch, the whole step compiled at once (``fullgraph=True``) and captured in a
CUDA graph: what our kernels add is the difference. ``hf-static`` is what ``transformers`` compiles by itself when its
cache is a static one. Compiling takes from 20 seconds to more than a minute for each batch, and other peers seconds for
a text, so these write with a few batches only. ``torch-int8`` and ``torch-int4`` are the plain loop with PyTorch's own
matmuls in place of ours, in a CUDA graph; ``torchao`` is ``hf-static`` with weights quantised by torchao, which needs
that package. These three are no measure of what narrow weights can bring: the matmuls of ``torch-int8`` are slower
than those in bf16, and ``torchao`` writes fewer tokens a second than ``hf-static`` in bf16. No kernel of a serving
engine, such as Marlin, Machete or GemLite, was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from gpuguide.benchmarks.inference import exact, models, texts
from gpuguide.benchmarks.inference.models import cache_needed, number, weights_needed
from gpuguide.hardware.device import Device
from gpuguide.inference import Engine, cost
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, powers_of_two

PROMPT, NEW_TOKENS = 64, 256
BATCHES: Mapping[tuple[str, str], Sequence[int]] = {
    ("gpt2-small", "bf16"): powers_of_two(1, 256),
    ("llama-1b-shape", "bf16"): (1, 8, 32, 64, 128, 256),
    ("llama-1b-shape", "int8"): (1,),
    ("llama-1b-shape", "int4"): (1,),
    ("llama-7b-shape", "bf16"): (1, 32, 128),
    ("llama-7b-shape", "int8"): (1, 32),
    ("llama-7b-shape", "int4"): (1, 32),
}
"""Batch sizes by model and weights"""
Places = Mapping[tuple[str, str], Sequence[int]]
"""Batches by model and weights, as above: where a contender is measured"""
DYNAMIC: Places = {("gpt2-small", "bf16"): (1, 32), ("llama-1b-shape", "bf16"): (1,)}
COMPILED: Places = {("gpt2-small", "bf16"): (1, 32), ("llama-1b-shape", "bf16"): (1,)}
TORCH: Mapping[str, Places] = {weights: {("llama-7b-shape", weights): (1,)} for weights in ("int8", "int4")}
TORCHAO: Places = {("llama-1b-shape", "int8"): (1,), ("llama-1b-shape", "int4"): (1,)}
SLOW = "takes long to compile or to run"
DEEP = 32
"""Layers of a model in which rounding adds up to more than in others"""
OWN_KERNELS = "multiplies by narrow weights with PyTorch's own kernel"
ACCEPTED_OF_TORCHAO = {"int8": 0.5, "int4": 3.5}
"""Limits such as :data:`gpuguide.benchmarks.inference.exact.ACCEPTED_GAP`, but against the weights before they were
quantised, for torchao rounds differently. Rounding alone, ours, makes gaps of up to 0.15 and 2.0 with random weights,
and leaving attention out one of 5.9: only what is plainly wrong is found."""


def prompts_of(keys: Keys) -> list[list[int]]:
    """Return the prompts of a case."""
    return models.prompts_for(keys, number(keys, "batch"), number(keys, "prompt"))


def length_of(keys: Keys) -> int:
    """Return the tokens of a whole text of a case."""
    return number(keys, "prompt") + number(keys, "new_tokens")


def check_of(keys: Keys, device: Device, accepted: float | None = None) -> texts.Check:
    """Return the check of a case's texts, against the model in fp32 with the values that its weights have.

    Rounding adds up over the layers. In those of the 7B shape it moves logits by 0.06 standard deviations, and we found
    gaps of 0.12.
    """
    name, weights = str(keys["model"]), str(keys["weights"])
    if accepted is None:
        accepted = exact.ACCEPTED_GAP * (2.5 if models.shape_of(keys).layers >= DEEP else 1)

    def check(written: torch.Tensor) -> None:
        decoder = models.decoder(name, weights, device.torch_device)
        exact.check_texts(decoder, written, number(keys, "prompt"), accepted)

    return check


def ours(device: Device, keys: Keys) -> Work:
    """Write with an engine."""
    decoder = models.decoder(str(keys["model"]), str(keys["weights"]), device.torch_device)
    engine = Engine(decoder, number(keys, "batch"), length_of(keys))
    return texts.work_of_writer(engine, prompts_of(keys), keys, device, check_of(keys, device))


def plain_compiled(device: Device, keys: Keys) -> Work:
    """Write with the plain loop, compiled and captured."""
    from gpuguide.benchmarks.inference.loops import PlainLoop

    decoder = models.decoder(str(keys["model"]), str(keys["weights"]), device.torch_device)
    loop = PlainLoop(decoder, number(keys, "batch"), length_of(keys), compiled=True)
    return texts.work_of_writer(loop, prompts_of(keys), keys, device, check_of(keys, device))


def plain_with_torch_kernels(device: Device, keys: Keys) -> Work:
    """Generate with the plain loop, captured, and PyTorch's matmuls with quantised weights."""
    from gpuguide.benchmarks.inference.loops import PlainLoop, with_torch_kernels

    decoder = models.decoder(str(keys["model"]), str(keys["weights"]), device.torch_device)
    loop = PlainLoop(with_torch_kernels(decoder), number(keys, "batch"), length_of(keys))
    return texts.work_of_writer(loop, prompts_of(keys), keys, device, check_of(keys, device))


def hugging_face(device: Device, keys: Keys, *, static: bool) -> Work:
    """Write with ``generate`` of ``transformers``."""
    from gpuguide.benchmarks.inference import with_transformers

    torch.compiler.reset()  # what was compiled for another case would be tried first, and make shapes symbolic
    model = with_transformers.model(str(keys["model"]), device.torch_device)
    new_tokens = number(keys, "new_tokens")
    generate = with_transformers.generator(model, prompts_of(keys), new_tokens, device.torch_device, static=static)
    return texts.work_of_generator(generate, keys, device, check_of(keys, device))


def torchao(device: Device, keys: Keys) -> Work:
    """Write with ``generate``, static and compiled, with weights quantised by torchao."""
    from gpuguide.benchmarks.inference import with_transformers

    torch.compiler.reset()
    name, weights = str(keys["model"]), str(keys["weights"])
    model = with_transformers.quantise_model(with_transformers.model(name, device.torch_device), weights)
    prompts, new_tokens = prompts_of(keys), number(keys, "new_tokens")
    generate = with_transformers.generator(model, prompts, new_tokens, device.torch_device, static=True)
    before = {**keys, "weights": "bf16"}
    return texts.work_of_generator(
        with_transformers.use_recommended_settings(generate),
        keys,
        device,
        check_of(before, device, ACCEPTED_OF_TORCHAO[weights]),
    )


def only_at(places: Places, why: str) -> Callable[[Device, Keys], str | None]:
    """Return a function that says no to all cases but some, and why."""

    def skip_reason(device: Device, keys: Keys) -> str | None:
        if keys["batch"] in places.get((str(keys["model"]), str(keys["weights"])), ()):
            return None
        return f"{why}, and is measured with {format_places(places)} only"

    return skip_reason


def format_places(places: Places) -> str:
    """Return places as a sentence lists them.

    >>> format_places({("gpt2-small", "bf16"): (1, 32), ("llama-1b-shape", "int4"): (1,)})
    'gpt2-small in bf16 at batches of 1 and 32, and llama-1b-shape in int4 at a batch of 1'
    """
    each = [
        f"{model} in {weights} at {'a batch' if len(batches) == 1 else 'batches'} of {' and '.join(map(str, batches))}"
        for (model, weights), batches in places.items()
    ]
    return ", and ".join(each)


def contender(
    build: Callable[[Device, Keys], Work],
    skip_reason: Callable[[Device, Keys], str | None] = lambda device, keys: None,
    libraries: tuple[str, ...] = ("cublas",),
) -> Contender:
    """Return a generation loop as a contender."""
    return Contender(build, frozenset({"gpu", "bf16"}), skip_reason, libraries)


def cases(device: Device) -> Sequence[Keys]:
    """Return the models from small to large, and batches; on a CPU none, which would take hours."""
    if not device.is_gpu:
        return []
    return [
        {"model": model, "batch": batch, "weights": weights, "prompt": PROMPT, "new_tokens": NEW_TOKENS}
        for (model, weights), batches in BATCHES.items()
        for batch in batches
    ]


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes: weights, a cache and logits of each contender, and the check in fp32."""
    shape = models.shape_of(keys)
    name, weights, batch = str(keys["model"]), str(keys["weights"]), number(keys, "batch")
    peers = [places for places in (DYNAMIC, COMPILED, COMPILED, *TORCH.values(), TORCHAO)
             if batch in places.get((name, weights), ())]  # fmt: skip
    caches = (1 + len(peers)) * cache_needed(keys, length_of(keys))
    a_layer = 4 * cost.weight_bytes_held(shape) / shape.layers
    logits = 6 * 4 * (batch + 2 * number(keys, "new_tokens")) * shape.vocab
    widened_embedding = 2 * 4 * shape.vocab * shape.hidden
    activations = 16 * batch * number(keys, "prompt") * shape.intermediate
    return weights_needed(keys) + caches + a_layer + logits + widened_embedding + activations


DECODE = Benchmark(
    name="decode",
    title="Writing texts, by batch and by weights",
    question="How many tokens a second does a model write, and how near is a step to the time of reading its weights?",
    contenders={
        "gpuguide": contender(ours),
        "torch-compile": contender(plain_compiled, only_at(COMPILED, SLOW)),
        "hf-dynamic": contender(
            lambda device, keys: hugging_face(device, keys, static=False),
            only_at(DYNAMIC, SLOW),
            ("transformers", "cublas"),
        ),
        "hf-static": contender(
            lambda device, keys: hugging_face(device, keys, static=True),
            only_at(COMPILED, SLOW),
            ("transformers", "cublas"),
        ),
        "torch-int8": contender(plain_with_torch_kernels, only_at(TORCH["int8"], OWN_KERNELS)),
        "torch-int4": contender(plain_with_torch_kernels, only_at(TORCH["int4"], OWN_KERNELS)),
        "torchao": contender(torchao, only_at(TORCHAO, SLOW), ("torchao", "transformers", "cublas")),
    },
    cases=cases,
    memory=bytes_needed,
    budget=0.1,
)
