"""Continuous batching: many requests of different lengths, all there from the beginning, and so many slots for them.

Lengths of prompts and of texts are lognormal, with medians that the case names; the list of requests is the same for
every contender. A request has as many tokens as the list says, since with random weights no token ends a text. All
contenders serve so many requests at a time, and share no beginnings of prompts, so that no sample profits from the one
before it.

``static`` is our scheduler with batches that begin together and wait for their longest text. ``hf-continuous`` is the
``ContinuousBatchingManager`` of ``transformers``, which ``generate_batch`` uses and which takes a number of tokens for
each request, with the attention of PyTorch (``paged|sdpa``). It runs eager: with this attention, version 5.17 captures
CUDA graphs only if ``use_cuda_graph=True`` is passed and compiles only if ``default_compile_level`` is set, and neither
is done here. So it is no measure of what ``transformers`` can do. ``hf-continuous-fa4`` is the same with
FlashAttention-4, with which it captures CUDA graphs by default. Serving engines such as vLLM were not measured.

``first_token`` is the time from the beginning to a request's first token and ``between_tokens`` that between two tokens
of a text, as they reach the host: of each run the median and the 95th percentile over all requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpuguide.benchmarks.inference import exact, models
from gpuguide.benchmarks.inference.models import number, shape_of, weights_needed
from gpuguide.benchmarks.inference.texts import synchronize
from gpuguide.hardware.device import Device
from gpuguide.inference import PAGE, Engine, cost
from gpuguide.inference.serving import Request, Scheduler, lognormal_requests
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric, Rate

CAPACITY = 1024
"""Tokens of a prompt and its text"""
CHUNK = 2048
"""Tokens of prompts that are read at a time, by all"""
BLOCK = 256
"""Tokens in a block of the cache of ``transformers``, its default"""
SIGMA = 1.0
SEED = 0
CHECKED = 3
"""Requests whose texts are checked: the first ones"""
CASES: Sequence[Keys] = [
    {"model": "llama-1b-shape", "requests": 64, "slots": 16, "prompt_median": 128, "text_median": 64}
]


@dataclass(frozen=True)
class Served:
    """Outcome of the requests, in their order."""

    texts: list[list[int]]
    """New tokens"""
    times: list[list[float]]
    """Seconds from the beginning until each of them was on the host"""


@dataclass
class Latencies:
    """Latencies of several runs."""

    runs: dict[str, list[float]] = field(default_factory=dict)

    def add(self, served: Served) -> None:
        """Add a run."""
        first = torch.tensor([times[0] for times in served.times])
        between = torch.cat([torch.tensor(times).diff() for times in served.times])
        for name, values in (("first_token", first), ("between_tokens", between)):
            for which, at in (("median", 0.5), ("p95", 0.95)):
                self.runs.setdefault(f"{name}_{which}", []).append(float(values.quantile(at)))

    def metrics(self) -> Mapping[str, Metric]:
        """Return them as a record keeps them."""
        return {name: records.metric("s", values) for name, values in self.runs.items()}


Serve = Callable[[], tuple[float, Served]]
"""Serves all requests of a case, and returns the seconds that it took"""


def requests_of(keys: Keys) -> list[Request]:
    """Return the requests of a case."""
    return lognormal_requests(
        number(keys, "requests"),
        SEED,
        vocab_size=shape_of(keys).vocab,
        capacity=CAPACITY,
        prompt_median=number(keys, "prompt_median"),
        prompt_sigma=SIGMA,
        text_median=number(keys, "text_median"),
        text_sigma=SIGMA,
    )


def ours(device: Device, keys: Keys, policy: str) -> Serve:
    """Return our scheduler, with one of its policies."""
    decoder = models.decoder(str(keys["model"]), "bf16", device.torch_device)
    engine = Engine(decoder, number(keys, "slots"), CAPACITY)
    scheduler = Scheduler(engine, policy=policy, chunk=CHUNK, share=False)
    scheduler.warm_up()
    requests = requests_of(keys)

    def serve() -> tuple[float, Served]:
        synchronize(device)
        scheduler.forget()
        start = time.perf_counter_ns()
        texts = scheduler.run(requests)
        seconds = (time.perf_counter_ns() - start) * 1e-9
        return seconds, Served(texts, [text.times for text in scheduler.texts.values()])

    return serve


def hugging_face(device: Device, keys: Keys, attention: str) -> Serve:
    """Return the manager of ``transformers``, which is started for each run, not timed, and stopped after it.

    It computes in a thread of its own, which would never end. Its cache and its graphs are kept from run to run.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig

    from gpuguide.benchmarks.inference import with_transformers

    model = with_transformers.model(str(keys["model"]), device.torch_device, attention)
    slots, requests = number(keys, "slots"), requests_of(keys)
    settings = GenerationConfig(do_sample=False, **{**with_transformers.TOKENS_WITHOUT_MEANING, "eos_token_id": -1})
    config = ContinuousBatchingConfig(
        block_size=BLOCK,
        num_blocks=slots * CAPACITY // BLOCK,
        max_batch_tokens=CHUNK,
        max_requests_per_batch=slots,
        allow_block_sharing=False,
    )

    def serve() -> tuple[float, Served]:
        with model.continuous_batching_context_manager(
            generation_config=settings, continuous_batching_config=config, persistent_manager=True
        ) as manager:
            synchronize(device)
            start = time.perf_counter()
            served = submit_and_wait(manager, requests, start)
            return time.perf_counter() - start, served

    return serve


def submit_and_wait(manager: Any, requests: Sequence[Request], start: float) -> Served:
    """Give all requests to a manager of ``transformers``, and return what became of them.

    Raises
    ------
    RuntimeError
        If its thread has ended, or a request failed.
    """
    names = [
        manager.add_request(
            list(request.prompt), max_new_tokens=request.new_tokens, record_timestamps=True, eos_token_id=-1
        )
        for request in requests
    ]
    done: dict[str, Any] = {}
    while len(done) < len(names):
        result = manager.get_result(timeout=1)
        if result is None and not manager.is_running():
            raise RuntimeError(f"the manager's thread has ended: {manager.background_thread_status.fatal_error}")
        if result is not None and result.is_finished():
            if result.error is not None:
                raise RuntimeError(f"a request failed: {result.error}")
            done[result.request_id] = result
    in_order = [done[name] for name in names]
    return Served(
        [result.generated_tokens for result in in_order],
        [[moment - start for moment in result.timestamps] for result in in_order],
    )


def work(make: Callable[[Device, Keys], Serve], device: Device, keys: Keys) -> Work:
    """Serve all requests of a case."""
    requests = requests_of(keys)
    rates = {"throughput": Rate("token/s", sum(request.new_tokens for request in requests))}
    serve = make(device, keys)
    _, served = serve()  # compiles, and captures graphs
    latencies = Latencies()

    def sample() -> float:
        seconds, again = serve()
        latencies.add(again)
        return seconds

    return Work([], lambda: check(served, requests, device, keys), rates, sample=sample, further=latencies.metrics)


def check(served: Served, requests: Sequence[Request], device: Device, keys: Keys) -> None:
    """Check that every text is as long as it should be, and the first ones against the model in fp32."""
    lengths = [request.new_tokens for request in requests]
    assert list(map(len, served.texts)) == lengths, "a text has another length than was asked for"
    decoder = models.decoder(str(keys["model"]), "bf16", device.torch_device)
    for request, tokens in list(zip(requests, served.texts, strict=True))[:CHECKED]:
        text = torch.tensor([[*request.prompt, *tokens]]).to(device.torch_device)
        exact.check_texts(decoder, text, len(request.prompt))


def contender(make: Callable[[Device, Keys], Serve], *libraries: str) -> Contender:
    """Return a server as a contender."""
    return Contender(
        lambda device, keys: work(make, device, keys), frozenset({"gpu", "bf16"}), libraries=(*libraries, "cublas")
    )


def bytes_needed(keys: Keys) -> float:
    """Return roughly what a case takes: weights, a cache of each contender, logits and what a chunk leaves."""
    shape = shape_of(keys)
    cached = number(keys, "slots") * (CAPACITY + PAGE) * cost.cache_bytes_per_token(shape)
    passing = CHUNK * (16 * shape.intermediate + 4 * shape.vocab)
    return weights_needed(keys) + 4 * (cached + passing) + 8 * shape.vocab * shape.hidden


CONTINUOUS_BATCHING = Benchmark(
    name="continuous-batching",
    title="Serving requests of different lengths",
    question="How many more tokens a second come of taking in the next request as soon as a slot is free?",
    contenders={
        "gpuguide": contender(lambda device, keys: ours(device, keys, "continuous")),
        "static": contender(lambda device, keys: ours(device, keys, "static")),
        "hf-continuous": contender(lambda device, keys: hugging_face(device, keys, "paged|sdpa"), "transformers"),
        "hf-continuous-fa4": contender(
            lambda device, keys: hugging_face(device, keys, "paged|flash_attention_4"),
            "transformers",
            "flash-attn-4",
        ),
    },
    cases=lambda device: CASES if device.is_gpu else [],
    memory=bytes_needed,
    budget=0.1,
)
