"""Prefill: reading a prompt, which makes the first token and leaves the keys and values of all others in the cache.

The time is the host's, since a short prompt is read before the host has launched what reads it. Both contenders return
the logits after the last token only. Each call of ``transformers`` has a new cache, as ``generate`` makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from gpuguide.benchmarks.inference import exact, models
from gpuguide.benchmarks.inference.models import cache_needed, number, shape_of, weights_needed
from gpuguide.hardware.device import Device
from gpuguide.inference import Engine, cost
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Rate

PROMPTS: Mapping[tuple[str, int], Sequence[int]] = {
    ("gpt2-small", 1): (64, 1024),
    ("gpt2-small", 8): (1024,),
    ("llama-1b-shape", 1): (64, 512, 4096),
    ("llama-1b-shape", 8): (4096,),
    ("llama-7b-shape", 1): (64, 512, 4096),
}
"""Tokens of a prompt, by model and batch"""
ACCEPTED_ERROR, DEEP = 0.05, 32
"""Largest accepted error of the logits against fp32, as a ratio of norms. In bf16 we found up to 0.014, and in a model
of as many layers as are ``DEEP`` up to 0.07, ours and that of ``transformers``: there, twice as much is accepted."""

Read = Callable[[], torch.Tensor]
"""Reads the prompts of a case, and returns the logits after each, ``(batch, vocab_size)``"""


def ours(device: Device, keys: Keys) -> Read:
    """Return a reading of all prompts by an engine, in one piece."""
    batch, prompt = number(keys, "batch"), number(keys, "prompt")
    decoder = models.decoder(str(keys["model"]), "bf16", device.torch_device)
    engine = Engine(decoder, batch, prompt)
    prompts = models.prompts_for(keys, batch, prompt)
    rows = torch.arange(batch, device=device.torch_device)
    return lambda: engine.read(prompts, rows, 0)


def hugging_face(device: Device, keys: Keys) -> Read:
    """Return a forward pass of ``transformers`` that fills a cache."""
    from transformers import DynamicCache

    from gpuguide.benchmarks.inference import with_transformers

    model = with_transformers.model(str(keys["model"]), device.torch_device)
    prompts = models.prompts_for(keys, number(keys, "batch"), number(keys, "prompt"))

    def read() -> torch.Tensor:
        tokens = torch.tensor(prompts).to(device.torch_device, non_blocking=True)
        cache = DynamicCache(config=model.config)
        with torch.inference_mode():
            logits: torch.Tensor = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        return logits[:, -1]

    return read


def work(make: Callable[[Device, Keys], Read], device: Device, keys: Keys) -> Work:
    """Prefill all prompts of a case at once."""
    read = make(device, keys)
    return Work([read], lambda: check(read(), device, keys), rates(keys), timing="wall")


def rates(keys: Keys) -> dict[str, Rate]:
    """Return the operations and the tokens of a prefill."""
    batch, prompt = number(keys, "batch"), number(keys, "prompt")
    return {
        "throughput": Rate("FLOP/s", batch * cost.prefill_flops(shape_of(keys), prompt)),
        "token_rate": Rate("token/s", batch * prompt),
    }


def check(found: torch.Tensor, device: Device, keys: Keys) -> None:
    """Check the logits after the last prompt against fp32."""
    decoder = models.decoder(str(keys["model"]), "bf16", device.torch_device)
    last = models.prompts_for(keys, number(keys, "batch"), number(keys, "prompt"))[-1:]
    wanted = exact.logits(decoder, torch.tensor(last).to(device.torch_device), 1)[0, -1]
    error = exact.relative_error(found[-1], wanted)
    accepted = ACCEPTED_ERROR * (2 if shape_of(keys).layers >= DEEP else 1)
    assert error <= accepted, f"the relative error is {error:.1e}, and at most {accepted:.0e} is accepted"


def contender(make: Callable[[Device, Keys], Read], *libraries: str) -> Contender:
    """Return a prefill as a contender."""
    return Contender(
        lambda device, keys: work(make, device, keys), frozenset({"gpu", "bf16"}), libraries=(*libraries, "cublas")
    )


def cases(device: Device) -> Sequence[Keys]:
    """Return short and long prompts; on a CPU none, which would take minutes for each."""
    if not device.is_gpu:
        return []
    return [
        {"model": model, "batch": batch, "prompt": prompt}
        for (model, batch), prompts in PROMPTS.items()
        for prompt in prompts
    ]


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes: weights, two caches, what passes between operations, and the check's scores."""
    shape, batch, prompt = shape_of(keys), number(keys, "batch"), number(keys, "prompt")
    activations = 16 * batch * prompt * (shape.intermediate + shape.hidden)
    checking = 4 * (3 * shape.heads * prompt**2 + 4 * prompt * shape.intermediate + 2 * shape.vocab * shape.hidden)
    return weights_needed(keys) + 2 * cache_needed(keys, prompt) + activations + checking


PREFILL = Benchmark(
    name="prefill",
    title="Reading prompts",
    question="How long does a prompt take to read, and at which length does arithmetic become the limit?",
    contenders={"gpuguide": contender(ours), "transformers": contender(hugging_face, "transformers")},
    cases=cases,
    memory=bytes_needed,
    budget=0.2,
)
