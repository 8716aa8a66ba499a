"""Speculative decoding: the trained pair of models that comes with the library, on text that neither has seen.

A sample writes several texts one after another, each alone in its batch, since that is what speculation is for. The
time is that of writing, after the prompts have been read. Prompts are cut from the held-out programs, or are tokens at
random, where there is little to guess. ``gpuguide`` has
the small model draft, ``gpuguide-lookup`` takes guesses from the text itself, and ``plain`` writes a token a step.
``acceptance`` is the share of accepted guesses among those up to the first rejected one, and ``tokens_per_cycle`` what
a draft and its verification bring, both text by text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import torch

from gpuguide import models
from gpuguide.benchmarks.inference import exact
from gpuguide.benchmarks.inference.models import number
from gpuguide.benchmarks.inference.texts import time_call
from gpuguide.hardware.device import Device
from gpuguide.inference import Decoder, Engine, prepare
from gpuguide.inference.speculative import Speculator
from gpuguide.inference.speculative.drafting import PromptLookup
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate
from gpuguide.models.corpus import load_held_out
from gpuguide.sampling.reference import SamplingSettings

TEXTS = 4
PROMPT, NEW_TOKENS = 128, 128
USUAL = 4
SAMPLED = 0.8
"""The temperature of texts that are drawn"""
CASES: Sequence[Keys] = [
    {"drafted": drafted, "temperature": temperature, "source": source, "prompt": PROMPT, "new_tokens": NEW_TOKENS}
    for drafted, temperature, source in (
        (2, 0.0, "held-out"),
        (USUAL, 0.0, "held-out"),
        (5, 0.0, "held-out"),
        (8, 0.0, "held-out"),
        (USUAL, SAMPLED, "held-out"),
        (USUAL, 0.0, "random"),
    )
]
ACCEPTED_DEVIATION = 4.0
"""Largest accepted distance of the surprise of sampled texts from the target's expectation, in standard deviations"""


@dataclass(frozen=True)
class Written:
    """Texts that a run generated."""

    seconds: float
    """Seconds after the prefill, all texts together"""
    texts: list[list[int]]
    """The new tokens of each"""
    found: Mapping[str, list[float]]
    """Other facts about each text"""


Write = Callable[[], Written]
"""Writes all texts of a case"""


def prompts_of(keys: Keys) -> list[list[int]]:
    """Return the prompts: pieces of the held-out programs, evenly spaced, or tokens at random."""
    tokenizer = models.load("main").tokenizer
    length = number(keys, "prompt")
    if keys["source"] == "random":
        generator = torch.Generator().manual_seed(0)
        return torch.randint(tokenizer.vocab_size, (TEXTS, length), generator=generator).tolist()
    tokens = tokenizer.encode(load_held_out())
    apart = len(tokens) // TEXTS
    return [tokens[place * apart : place * apart + length] for place in range(TEXTS)]


def decoder(name: str, device: Device) -> Decoder:
    """Return a trained model, in bf16, as it was published."""
    return prepare(models.load(name).model, dtype=torch.bfloat16, device=device.torch_device)


def capacity(keys: Keys) -> int:
    """Return the tokens of a whole text."""
    return number(keys, "prompt") + number(keys, "new_tokens")


def settings(keys: Keys) -> SamplingSettings:
    """Return how tokens are drawn."""
    return SamplingSettings(temperature=float(keys["temperature"]))


def plain(target: Decoder, device: Device, keys: Keys) -> Write:
    """Return a function that writes with an engine, a token a step."""
    engine = Engine(target, 1, capacity(keys), settings(keys))
    prompts, count = prompts_of(keys), number(keys, "new_tokens")

    def steps() -> None:
        for _ in range(count - 1):
            engine.step()

    def write() -> Written:
        texts, seconds = [], 0.0
        for seed, prompt in enumerate(prompts):
            engine.start([prompt], [seed])
            seconds += time_call(steps, device)[0]
            texts.append(engine.texts[0, len(prompt) : len(prompt) + count].tolist())
        return Written(seconds, texts, {})

    return write


def speculative(draft: Decoder | PromptLookup, target: Decoder, device: Device, keys: Keys) -> Write:
    """Return a function that writes with somebody's guesses."""
    k, prompts, count = number(keys, "drafted"), prompts_of(keys), number(keys, "new_tokens")
    speculator = Speculator(target, draft, rows=1, capacity=capacity(keys), k=k, settings=settings(keys))

    def cycles() -> None:
        left = count - 1
        while left > 0:  # the host looks only where the text could be complete, as Speculator.write does
            for _ in range(ceil(left / (k + 1))):
                speculator.cycle()
            left = int((speculator.ends - speculator.lengths).amax())

    def write() -> Written:
        texts: list[list[int]] = []
        seconds = 0.0
        found: dict[str, list[float]] = {"acceptance": [], "tokens_per_cycle": []}
        for seed, prompt in enumerate(prompts):
            speculator.start([prompt], count, [seed])
            seconds += time_call(cycles, device)[0]
            texts += speculator.read_new_tokens()
            found["acceptance"].append(speculator.acceptance())
            found["tokens_per_cycle"].append(speculator.tokens_per_cycle())
        return Written(seconds, texts, found)

    return write


def work(make: Callable[[Decoder, Device, Keys], Write], device: Device, keys: Keys) -> Work:
    """Write all texts of a case; the first token of each is the prefill's."""
    rates = {"throughput": Rate("token/s", TEXTS * (number(keys, "new_tokens") - 1))}
    target = decoder("main", device)
    write = make(target, device, keys)
    write()  # compiles, and captures
    written = write()

    def further() -> Mapping[str, Metric]:
        return {name: records.metric("1", values) for name, values in written.found.items()}

    return Work([], lambda: check(target, written.texts, keys), rates, sample=lambda: write().seconds, further=further)


def check(target: Decoder, written: Sequence[Sequence[int]], keys: Keys) -> None:
    """Check texts against the target in fp32: that they are the most likely ones, or are as surprising as they should.

    Of tokens drawn from a distribution, the mean of the negative logarithm of the probability is the distribution's
    entropy. Tokens that were drawn from a flatter distribution surprise more, and from a sharper one less. A good draft
    surprises like its target, so it takes many more tokens than these to tell the two apart.
    """
    texts = torch.tensor([[*prompt, *tokens] for prompt, tokens in zip(prompts_of(keys), written, strict=True)])
    texts = texts.to(target.device)
    prompt, temperature = number(keys, "prompt"), settings(keys).temperature
    if not temperature:
        exact.check_texts(target, texts, prompt)
        return
    deviation = surprise(target, texts, prompt, temperature)
    assert abs(deviation) <= ACCEPTED_DEVIATION, (
        f"texts are {deviation:.1f} standard deviations more surprising than they should be, "
        f"and {ACCEPTED_DEVIATION:g} are accepted"
    )


def surprise(target: Decoder, texts: torch.Tensor, prompt: int, temperature: float) -> float:
    """Return how far drawn tokens are from as likely as the target expects, in standard deviations."""
    drawn = texts[:, prompt:]
    logarithms = torch.log_softmax(exact.logits(target, texts[:, :-1], drawn.shape[1]) / temperature, dim=-1).double()
    weights = logarithms.exp()
    entropy = -(weights * logarithms).sum(-1)
    variance = (weights * logarithms.square()).sum(-1) - entropy.square()
    of_drawn = -logarithms.gather(-1, drawn.unsqueeze(-1)).squeeze(-1)
    return float((of_drawn - entropy).sum() / variance.sum().sqrt())


def contender(make: Callable[[Decoder, Device, Keys], Write]) -> Contender:
    """Return a generation loop as a contender."""
    return Contender(lambda device, keys: work(make, device, keys), frozenset({"gpu", "bf16"}), libraries=("cublas",))


SPECULATIVE_DECODE = Benchmark(
    name="speculative-decode",
    title="Speculative decoding with a trained pair",
    question="How much faster does a model write when a smaller one guesses ahead, and how many guesses hold?",
    contenders={
        "gpuguide": contender(lambda target, device, keys: speculative(decoder("draft", device), target, device, keys)),
        "gpuguide-lookup": contender(lambda target, device, keys: speculative(PromptLookup(), target, device, keys)),
        "plain": contender(plain),
    },
    cases=lambda device: CASES if device.is_gpu else [],
    memory=lambda keys: 2**30,
    budget=0.2,
)
