from __future__ import annotations

import pytest
import torch
from fake_devices import on

from gpuguide.benchmarks.inference import decode, models, texts
from gpuguide.costs import presets
from gpuguide.hardware import device as devices
from gpuguide.inference import Engine, cost
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner
from gpuguide.measure.benchmark import Keys, find_missing_feature, too_large

DECODE = declarations.get("decode")
SMALL: Keys = {"model": "tiny-llama", "batch": 3, "weights": "bf16", "prompt": 12, "new_tokens": 20}


# --- declarations ----------------------------------------------------------------------------------------


def test_slow_peers_write_with_batches_of_1_and_32_and_16_bits_only() -> None:
    device = on(141)
    for name in ("hf-dynamic", "hf-static", "torch-compile"):
        skip_reason = DECODE.contenders[name].skip_reason
        measured = [keys for keys in DECODE.cases(device) if not skip_reason(device, keys)]
        assert {keys["batch"] for keys in measured} == {1, 32}
        assert {keys["weights"] for keys in measured} == {"bf16"}
        assert {("gpt2-small", 1), ("gpt2-small", 32)} <= {(keys["model"], keys["batch"]) for keys in measured}


def test_pytorchs_and_torchaos_kernels_write_with_the_weights_that_they_are_for() -> None:
    device = on(141)
    for name, weights in (("torch-int8", {"int8"}), ("torch-int4", {"int4"}), ("torchao", {"int8", "int4"})):
        skip_reason = DECODE.contenders[name].skip_reason
        measured = [keys for keys in DECODE.cases(device) if not skip_reason(device, keys)]
        assert {keys["weights"] for keys in measured} == weights
        assert 1 in {keys["batch"] for keys in measured}


def test_where_contenders_are_measured_there_are_cases() -> None:
    for places in (decode.DYNAMIC, decode.COMPILED, *decode.TORCH.values(), decode.TORCHAO):
        for where, batches in places.items():
            assert set(batches) <= set(decode.BATCHES[where])


def test_what_is_left_out_is_said_in_a_sentence() -> None:
    reason = DECODE.contenders["torch-int4"].skip_reason(on(80), SMALL)
    assert reason == (
        "multiplies by narrow weights with PyTorch's own kernel, and is measured with llama-7b-shape in int4 at a "
        "batch of 1 only"
    )


def test_a_processor_is_not_asked() -> None:
    assert DECODE.cases(devices.cpu()) == []
    assert all(find_missing_feature(contender.needs, devices.cpu()) for contender in DECODE.contenders.values())


def test_small_cards_get_the_small_models() -> None:
    def fitting(gigabytes: int) -> set[object]:
        device = on(gigabytes)
        return {keys["model"] for keys in DECODE.cases(device) if not too_large(DECODE, keys, device)}

    assert fitting(8) == {"gpt2-small"}
    assert fitting(16) == fitting(24) == {"gpt2-small", "llama-1b-shape"}
    assert not any(too_large(DECODE, keys, on(80)) for keys in DECODE.cases(on(80)))


def test_the_bytes_of_a_step_are_those_of_the_weights_and_of_the_cache_on_average() -> None:
    """Of 256 tokens the first comes from the prefill; before the 255 steps there are 64 to 318 tokens in the cache."""
    shape = presets.shape("llama-2-7b")
    keys: Keys = {"model": "llama-7b-shape", "batch": 8, "weights": "int8", "prompt": 64, "new_tokens": 256}
    steps = [
        cost.bytes_moved(cost.decode_step(shape, 8, context, cost.make_storage("int8")))
        for context in range(64, 64 + 255)
    ]
    assert texts.step_bytes(keys) == pytest.approx(sum(steps) / 255)
    assert texts.rates(keys)["throughput"].per_call == 8 * 256


# --- work ------------------------------------------------------------------------------------------------

OURS = {
    "gpuguide": (decode.ours, SMALL),
    "gpuguide-int8": (decode.ours, {**SMALL, "weights": "int8"}),
    "gpuguide-int4": (decode.ours, {**SMALL, "weights": "int4", "model": "tiny-gpt2"}),
    "torch-compile": (decode.plain_compiled, SMALL),
    "torch-int8": (decode.plain_with_torch_kernels, {**SMALL, "weights": "int8"}),
}


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the compiler out: it takes minutes on a processor."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("name", OURS)
def test_our_loops_write_whole_texts_and_know_the_time_of_a_step(name: str) -> None:
    build, keys = OURS[name]
    work = build(devices.cpu(), keys)
    assert work.check is not None
    assert work.sample is not None
    work.check()
    times = [work.sample() for _ in range(3)]
    found = work.further()
    assert found["step"].unit == "s"
    assert len(found["step"].samples) == 3
    for whole, step, bandwidth in zip(times, found["step"].samples, found["bandwidth"].samples, strict=True):
        assert 0 < 19 * step < whole
        assert bandwidth == pytest.approx(texts.step_bytes(keys) / step, rel=1e-5)


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("model", ["tiny-gpt2", "tiny-llama"])
def test_transformers_writes_what_the_check_accepts(model: str, static: bool) -> None:
    work = decode.hugging_face(devices.cpu(), {**SMALL, "model": model}, static=static)
    assert work.check is not None
    assert work.sample is not None
    work.check()
    assert work.sample() > 0
    assert work.further() == {}


@pytest.mark.usefixtures("nothing_compiled")
def test_torchao_writes_what_the_check_accepts() -> None:
    pytest.importorskip("torchao")
    work = decode.torchao(devices.cpu(), {**SMALL, "weights": "int8"})
    assert work.check is not None
    work.check()


def test_texts_of_another_model_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check looks at the model of the case, whoever has written."""
    work = decode.ours(devices.cpu(), {**SMALL, "model": "tiny-llama-untied"})
    assert work.check is not None
    other = models.decoder("tiny-llama", "bf16", "cpu")
    monkeypatch.setattr(models, "decoder", lambda name, weights, device: other)
    with pytest.raises(AssertionError, match="standard deviations below the best"):
        work.check()


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_what_is_accepted_of_torchao_is_what_rounding_makes_and_no_other_model(weights: str) -> None:
    keys: Keys = {**SMALL, "weights": weights}
    check = decode.check_of({**keys, "weights": "bf16"}, devices.cpu(), decode.ACCEPTED_OF_TORCHAO[weights])
    engine = Engine(models.decoder("tiny-llama", weights, "cpu"), 3, 32)
    engine.start(decode.prompts_of(keys))
    for _ in range(19):
        engine.step()
    check(engine.texts[:, :32])
    with pytest.raises(AssertionError, match="standard deviations below the best"):
        check(torch.randint(512, (3, 32), generator=torch.Generator().manual_seed(0)))


# --- on a GPU --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_contenders_are_right_on_a_gpu(weights: str) -> None:
    device = devices.current()
    keys: Keys = {"model": "llama-1b-shape", "batch": 1, "weights": weights, "prompt": 64, "new_tokens": 32}
    for case in runner.measure_case(DECODE, keys, device, quick=True):
        assert case.status in ("ok", "skipped"), case
        assert case.contender != "gpuguide" or {"time", "step", "bandwidth"} <= set(case.measured)
