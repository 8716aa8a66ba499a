from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpuguide.benchmarks.inference import serving
from gpuguide.benchmarks.inference.serving import Latencies, Served
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.inference.serving import Request, Scheduler
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner
from gpuguide.measure.benchmark import Keys, too_large

BATCHING = declarations.get("continuous-batching")
CPU = devices.cpu()
SMALL: Keys = {"model": "tiny-llama", "requests": 7, "slots": 3, "prompt_median": 12, "text_median": 8}
MAKERS: dict[str, Callable[[Device, Keys], serving.Serve]] = {
    "gpuguide": lambda device, keys: serving.ours(device, keys, "continuous"),
    "static": lambda device, keys: serving.ours(device, keys, "static"),
    "hf-continuous": lambda device, keys: serving.hugging_face(device, keys, "paged|sdpa"),
}


@pytest.fixture(autouse=True)
def short_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CAPACITY", 96)
    monkeypatch.setattr(serving, "CHUNK", 64)
    monkeypatch.setattr(serving, "BLOCK", 16)


def test_more_requests_than_slots_with_lengths_that_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for keys in BATCHING.cases(devices.fake("h100-sxm")):
        assert list(keys) == ["model", "requests", "slots", "prompt_median", "text_median"]
        assert int(keys["requests"]) >= 4 * int(keys["slots"])
        lengths = sorted(request.new_tokens for request in serving.requests_of(keys))
        assert lengths[len(lengths) * 9 // 10] > 2 * lengths[len(lengths) // 2]
    assert BATCHING.cases(CPU) == []


def test_it_fits_a_card_of_24_gb_and_none_of_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    (keys,) = BATCHING.cases(devices.fake("h100-sxm"))
    device = devices.fake("h100-sxm")
    assert too_large(BATCHING, keys, replace(device, memory=24 * 10**9)) is None
    assert too_large(BATCHING, keys, replace(device, memory=8 * 10**9)) is not None


@pytest.mark.parametrize("name", MAKERS)
def test_every_contender_serves_all_requests_again_and_again(name: str) -> None:
    if name == "hf-continuous":
        pytest.importorskip("transformers")
    before = set(threading.enumerate())  # of other tests: a bar that shows progress keeps one
    work = serving.work(MAKERS[name], CPU, SMALL)
    assert work.check is not None
    assert work.sample is not None
    work.check()
    times = [work.sample() for _ in range(2)]
    assert work.rates["throughput"].per_call == sum(request.new_tokens for request in serving.requests_of(SMALL))
    found = work.further()
    assert set(found) == {"first_token_median", "first_token_p95", "between_tokens_median", "between_tokens_p95"}
    for metric in found.values():
        assert len(metric.samples) == 2
        assert all(0 < seconds < whole for seconds, whole in zip(metric.samples, times, strict=True))
    for at in ("first_token", "between_tokens"):
        assert found[f"{at}_median"].samples <= found[f"{at}_p95"].samples
    left = [thread.name for thread in set(threading.enumerate()) - before if thread.name != "tqdm_monitor"]
    assert left == [], "a thread is left that computes"


def test_no_run_profits_from_the_prompts_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Scheduler] = []

    def make(*given: Any, **settings: Any) -> Scheduler:
        made.append(Scheduler(*given, **settings))
        return made[-1]

    monkeypatch.setattr(serving, "Scheduler", make)
    serve = MAKERS["gpuguide"](CPU, SMALL)
    for _ in range(2):
        serve()
        assert [text.shared for text in made[0].texts.values()] == [0] * 7


def test_latencies_are_those_of_all_requests() -> None:
    latencies = Latencies()
    latencies.add(Served([[1, 2], [3]], [[1.0, 1.5], [3.0]]))
    latencies.add(Served([[1, 2], [3]], [[2.0, 2.25], [2.0]]))
    found = {name: metric.samples for name, metric in latencies.metrics().items()}
    assert found["first_token_median"] == (2.0, 2.0)
    assert found["first_token_p95"] == (pytest.approx(2.9), 2.0)
    assert found["between_tokens_median"] == found["between_tokens_p95"] == (0.5, 0.25)


def test_texts_that_are_too_short_or_somebody_elses_are_found() -> None:
    requests = serving.requests_of(SMALL)
    _, served = MAKERS["gpuguide"](CPU, SMALL)()
    serving.check(served, requests, CPU, SMALL)
    with pytest.raises(AssertionError, match="another length"):
        serving.check(Served([served.texts[0][:-1], *served.texts[1:]], []), requests, CPU, SMALL)
    wrong = [[(token + 1) % 512 for token in text] for text in served.texts]
    with pytest.raises(AssertionError, match="standard deviations below the best"):
        serving.check(Served(wrong, []), requests, CPU, SMALL)


def manager(results: list[Any], *, runs: bool = True) -> Any:
    """Return what looks like a manager of ``transformers`` and has these results."""
    names = iter(f"req_{number}" for number in range(10))
    return SimpleNamespace(
        add_request=lambda tokens, **settings: next(names),
        get_result=lambda timeout: results.pop(0) if results else None,
        is_running=lambda: runs,
        background_thread_status=SimpleNamespace(fatal_error="out of memory"),
    )


def result(name: str, *, error: str | None = None) -> Any:
    """Return what looks like a result."""
    return SimpleNamespace(
        request_id=name, error=error, is_finished=lambda: True, generated_tokens=[int(name[-1])], timestamps=[5.0]
    )


def test_results_are_put_in_the_order_of_the_requests() -> None:
    requests = [Request([1], 1), Request([2], 1)]
    served = serving.submit_and_wait(manager([result("req_1"), result("req_0")]), requests, 2.0)
    assert served == Served([[0], [1]], [[3.0], [3.0]])


def test_a_request_that_failed_and_a_thread_that_ended_are_said() -> None:
    requests = [Request([1], 1)]
    with pytest.raises(RuntimeError, match="a request failed: too long"):
        serving.submit_and_wait(manager([result("req_0", error="too long")]), requests, 0.0)
    with pytest.raises(RuntimeError, match="the manager's thread has ended: out of memory"):
        serving.submit_and_wait(manager([], runs=False), requests, 0.0)


@pytest.mark.gpu
def test_contenders_are_right_on_a_gpu() -> None:
    keys: Keys = {**SMALL, "model": "llama-1b-shape"}
    for case in runner.measure_case(BATCHING, keys, devices.current(), quick=True):
        assert case.status in ("ok", "skipped"), case
