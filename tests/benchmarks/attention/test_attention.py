from __future__ import annotations

import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fake_devices import on

from gpuguide.benchmarks.attention import contenders, speed, tiles
from gpuguide.benchmarks.attention import problem as problems
from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner
from gpuguide.measure.benchmark import Keys, too_large

ATTENTION = declarations.get("attention")
TILES = declarations.get("attention-tiles")
SMALL: Keys = {
    "pass": "forward-backward",
    "head_dim": 16,
    "seq_len": 50,
    "causal": True,
    "batch": 2,
    "heads": 4,
    "kv_heads": 4,
    "dtype": "bf16",
}
GROUPED: Keys = {**SMALL, "kv_heads": 2}
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton has no build for this system"
)


def left_out(device: Device) -> dict[tuple[str, str], list[Keys]]:
    """Return the cases that each contender leaves out, by contender and reason."""
    found: dict[tuple[str, str], list[Keys]] = {}
    for keys in ATTENTION.cases(device):
        for name, contender in ATTENTION.contenders.items():
            if reason := contender.skip_reason(device, keys):
                found.setdefault((name, reason), []).append(keys)
    return found


# --- declarations ----------------------------------------------------------------------------------------


def test_without_bf16_the_format_is_fp16_and_a_processor_is_not_asked() -> None:
    assert {keys["dtype"] for keys in ATTENTION.cases(devices.fake("t4"))} == {"fp16"}
    assert ATTENTION.cases(devices.cpu()) == []
    assert TILES.cases(devices.cpu()) == []


@pytest.mark.parametrize("gigabytes", [8, 16, 24, 48, 80, 141])
def test_all_but_the_naive_formula_fits_every_gpu(gigabytes: int) -> None:
    """Of the kernels' cases only those with twice as many heads are too large for 8 GB."""
    device = on(gigabytes)
    skipped = [keys for keys in ATTENTION.cases(device) if too_large(ATTENTION, keys, device)]
    assert {(int(keys["heads"]) * int(keys["head_dim"]), gigabytes) for keys in skipped} <= {(4096, 8), (768, 8)}
    assert not any(too_large(TILES, keys, device) for keys in TILES.cases(device))


def test_where_the_formula_and_what_is_compiled_are_left_out() -> None:
    found: Counter[tuple[str, str]] = Counter()
    for (name, reason), keys in left_out(on(80)).items():
        found[name, reason.split(",")[0].split(".")[0]] += len(keys)
    compiled = "is compiled anew for each shape"
    assert found == {
        ("sdpa-efficient", "this backend has no grouped-query attention"): 4,
        ("sdpa-efficient", "is the backend for what the others do not take"): 28,
        ("fa3", "this build of the library has the forward pass only"): 20,
        ("fa3", "is one more library with the same algorithm"): 16,
        ("flex", compiled): 34,
        ("flex-flash", compiled): 38,
        ("naive", "the naive formula is measured with the heads that all lengths are measured with"): 8,
        ("naive", "the naive formula does the same work without a mask as with one"): 8,
        ("naive", "needs 102"): 1,
        ("naive-compile", compiled): 34,
    }


def test_what_is_compiled_for_each_shape_is_measured_at_few() -> None:
    device, found = on(80), set()
    for name in ("flex", "naive-compile"):
        skip_reason = ATTENTION.contenders[name].skip_reason
        measured = [keys for keys in ATTENTION.cases(device) if not skip_reason(device, keys)]
        assert {keys["head_dim"] for keys in measured} == {64, 128}
        assert all(keys["causal"] and keys["kv_heads"] == 2048 // int(keys["head_dim"]) for keys in measured)
        found |= {(name, keys["pass"], keys["seq_len"]) for keys in measured}
    assert found == {
        ("flex", "forward", 2048),
        ("flex", "forward", 8192),
        ("flex", "forward-backward", 8192),
        ("naive-compile", "forward", 1024),
        ("naive-compile", "forward", 8192),
        ("naive-compile", "forward-backward", 1024),
    }


def test_flexattention_on_flashattention_4_is_measured_with_one_shape() -> None:
    device, skip_reason = on(80), ATTENTION.contenders["flex-flash"].skip_reason
    measured = [keys for keys in ATTENTION.cases(device) if not skip_reason(device, keys)]
    assert [keys["pass"] for keys in measured] == ["forward", "forward-backward"]
    assert {(keys["head_dim"], keys["seq_len"], keys["causal"], keys["kv_heads"]) for keys in measured} == {
        (128, 8192, True, 16)
    }


@pytest.mark.parametrize(("gigabytes", "longest"), [(16, 2048), (24, 4096), (48, 8192), (80, 16384), (141, 16384)])
def test_how_long_a_sequence_the_naive_formula_takes(gigabytes: int, longest: int) -> None:
    device = on(gigabytes)
    fitting = [
        int(keys["seq_len"])
        for keys in ATTENTION.cases(device)
        if keys["pass"] == "forward-backward" and keys["head_dim"] == 128
        if not ATTENTION.contenders["naive"].skip_reason(device, keys)
    ]
    assert max(fitting) == longest


def test_every_contender_is_measured_on_long_sequences() -> None:
    (attention,) = runner.run([ATTENTION], devices.fake("h100-sxm"), None, commit="c0ffee").records
    wanted = {(True, 8192, head_dim, name) for head_dim in (64, 128) for name in speed.PASSES}
    for contender in ("gpuguide-triton", "gpuguide-gluon", "sdpa-flash", "sdpa-cudnn", "sdpa-efficient"):
        measured = [case.keys for case in attention.cases_of(contender)]
        assert wanted <= {(keys["causal"], keys["seq_len"], keys["head_dim"], keys["pass"]) for keys in measured}


# --- formulas --------------------------------------------------------------------------------------------


def test_not_a_number_is_an_error_of_its_own() -> None:
    with pytest.raises(AssertionError, match="the relative error is nan"):
        problems.check_errors([1e-3, float("nan"), 1e-3], SMALL)


@pytest.mark.parametrize("positions_first", [False, True])
def test_tensors_lie_as_a_contender_wants_them(positions_first: bool) -> None:
    problem = problems.AttentionTensors.draw(GROUPED, "cpu", positions_first=positions_first)
    for tensor, heads in ((problem.q, 4), (problem.k, 2), (problem.v, 2), (problem.d_out, 4)):
        assert tensor.shape == (2, heads, 50, 16)
        assert (tensor.transpose(1, 2) if positions_first else tensor).is_contiguous()


def test_operations_are_counted_by_the_convention() -> None:
    full: Keys = {**SMALL, "pass": "forward", "causal": False}
    assert problems.attention_flops(full) == 4 * 2 * 4 * 50 * 50 * 16
    assert problems.attention_flops({**full, "causal": True}) == 4 * 2 * 4 * (50 * 51 / 2) * 16
    assert problems.attention_flops({**full, "pass": "backward"}) == 2.5 * problems.attention_flops(full)
    assert problems.attention_flops({**full, "pass": "forward-backward"}) == 3.5 * problems.attention_flops(full)
    assert problems.attention_flops({**full, "kv_heads": 1}) == problems.attention_flops(full)


# --- errors ----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def few_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the reference take short sequences in several parts, the last one smaller."""
    monkeypatch.setattr(problems, "CHECKED_ROWS_AT_ONCE", 16)


def in_float64(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return attention by the formula."""
    group = q.shape[1] // k.shape[1]
    k, v = (part.double().repeat_interleave(group, dim=1) for part in (k, v))
    scores = q.double() @ k.mT / q.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return torch.softmax(scores, dim=-1) @ v


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("keys", [SMALL, GROUPED], ids=["own keys", "grouped"])
def test_the_reference_agrees_with_autograd_in_float64(keys: Keys, causal: bool) -> None:
    torch.manual_seed(0)
    problem = problems.AttentionTensors.draw({**keys, "causal": causal}, "cpu")
    wanted = problem.with_gradients(lambda q, k, v: in_float64(q, k, v, causal))
    group = problem.q.shape[1] // problem.k.shape[1]
    batch, kv_head = 1, problem.k.shape[1] - 1
    heads = slice(kv_head * group, (kv_head + 1) * group)
    for found, exact_squares, place in zip(
        problems.exact(problem, batch, kv_head), wanted, (heads, heads, kv_head, kv_head), strict=True
    ):
        torch.testing.assert_close(found.double(), exact_squares[batch, place].double(), rtol=1e-2, atol=1e-2)


def exactly(causal: bool) -> problems.Attend:
    return lambda q, k, v: in_float64(q, k, v, causal).to(q.dtype)


@pytest.mark.parametrize("keys", [SMALL, GROUPED], ids=["own keys", "grouped"])
def test_the_error_of_what_is_only_rounded_is_that_of_the_format(keys: Keys) -> None:
    torch.manual_seed(0)
    problem = problems.AttentionTensors.draw(keys, "cpu")
    for results in (problem.forward(exactly(True)), problem.with_gradients(exactly(True))):
        assert all(1e-4 < error < 2**-8 for error in problems.relative_errors(problem, results))
    assert [len(problem.forward(exactly(True))), len(problem.with_gradients(exactly(True)))] == [1, 4]


WRONG: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "no mask": exactly(False),
    "scale": lambda q, k, v: exactly(True)(q * 1.1, k, v),
    "dQ": lambda q, k, v: exactly(True)(q.detach() + (q - q.detach()) * 1.1, k, v),
    "dK": lambda q, k, v: exactly(True)(q, k.detach() + (k - k.detach()) * 1.1, v),
    "dV": lambda q, k, v: exactly(True)(q, k, v.detach() + (v - v.detach()) * 1.1),
    "last head": lambda q, k, v: exactly(True)(q, k, v) * torch.tensor([1.0, 1, 1, 1.1]).view(4, 1, 1).to(q.dtype),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_found(what: str) -> None:
    torch.manual_seed(0)
    problem = problems.AttentionTensors.draw(SMALL, "cpu")
    errors = problems.relative_errors(problem, problem.with_gradients(WRONG[what]))
    with pytest.raises(AssertionError, match=r"the relative error is .*, and at most 3e-02 is accepted"):
        problems.check_errors(errors, SMALL)


@pytest.mark.parametrize("name", speed.PASSES)
def test_the_naive_formula_passes_and_its_error_is_recorded(name: str) -> None:
    keys: Keys = {**SMALL, "pass": name}
    torch.manual_seed(0)
    work = speed.work(contenders.naive, devices.cpu(), keys)
    assert work.check is not None
    work.check()
    found = work.further()
    each = [] if name == "forward" else ["output_error", "dq_error", "dk_error", "dv_error"]
    assert list(found) == ["error", *each]
    for error in found.values():
        assert error.unit == "1"
        assert 0 < error.summary.median <= found["error"].summary.median <= problems.ACCEPTED_ERROR[name]
    assert work.timing == "graph"
    assert work.rates["throughput"].per_call == problems.attention_flops(keys)
    assert work.footprint == 4 * 2 * 2 * 4 * 50 * 16


def test_flash_attention_3_is_given_its_order_of_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    def stand_in(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> torch.Tensor:
        """Attend as the library does, with tensors (batch, length, heads, head_dim)."""
        assert all(part.is_contiguous() for part in (q, k, v))
        return exactly(causal)(*(part.transpose(1, 2) for part in (q, k, v))).transpose(1, 2)

    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", SimpleNamespace(flash_attn_func=stand_in))
    work = speed.work(contenders.fa3, devices.cpu(), {**SMALL, "pass": "forward"}, positions_first=True)
    assert work.check is not None
    work.check()


def test_inference_keeps_nothing_for_gradients() -> None:
    seen: list[bool] = []

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_grad_enabled() and q.requires_grad)
        return exactly(True)(q, k, v)

    problem = problems.AttentionTensors.draw(SMALL, "cpu")
    problem.forward(attend)
    problem.with_gradients(attend)
    assert seen == [False, True]


# --- one change at a time --------------------------------------------------------------------------------


def test_every_change_is_tried_for_every_kernel_and_size_of_a_head() -> None:
    cases = TILES.cases(on(80))
    for name, variants in tiles.VARIANTS.items():
        for head_dim in (64, 128):
            chosen = [keys for keys in cases if (keys["kernel"], keys["head_dim"]) == (name, head_dim)]
            for causal in {bool(keys["causal"]) for keys in chosen}:
                assert [keys["variant"] for keys in chosen if keys["causal"] == causal] == list(variants)
    assert {keys["seq_len"] for keys in cases} == {8192}


@pytest.mark.parametrize(
    ("kernel", "name"), [("forward", "forward"), ("keys", "backward"), ("backward-by-hand", "backward")]
)
def test_the_pass_and_the_shape_of_a_case_follow_from_its_keys(kernel: str, name: str) -> None:
    shape = tiles.with_shape({"kernel": kernel, "head_dim": 64, "seq_len": 8192})
    assert (shape["pass"], shape["batch"], shape["heads"], shape["kv_heads"]) == (name, 2, 32, 32)


def test_the_schedule_by_hand_is_for_one_generation() -> None:
    other = replace(on(80), capability=(8, 0))
    assert len(left_out(other)["gpuguide-gluon", contenders.require_hopper(other, SMALL) or ""]) == len(
        ATTENTION.cases(other)
    )
    assert contenders.require_hopper(on(80), SMALL) is None
    assert {keys["kernel"] for keys in TILES.cases(other)} == {"forward", "keys", "queries"}


@needs_triton
def test_every_change_is_one_of_the_launch_or_the_schedule() -> None:
    from gpuguide.attention import gluon_backward, gluon_flash, triton_flash

    for head_dim in (64, 128):
        by_hand = {
            "forward-by-hand": gluon_flash.DEFAULT_SCHEDULE,
            "backward-by-hand": gluon_backward.SCHEDULES[head_dim],
        }
        for name, variants in tiles.VARIANTS.items():
            for changes in variants.values():
                replace(by_hand.get(name) or triton_flash.HOPPER[name, head_dim], **changes)


# --- on a GPU --------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("name", speed.PASSES)
@pytest.mark.parametrize(("seq_len", "kv_heads"), [(1024, 32), (2048, 32), (1000, 4)])
def test_every_contender_is_right_and_can_be_captured(name: str, seq_len: int, kv_heads: int) -> None:
    shape = {"head_dim": 64, "seq_len": seq_len, "causal": True, "batch": 2, "heads": 32, "kv_heads": kv_heads}
    device = devices.current()
    keys = speed.case(device, **{"pass": name}, **shape)
    for case in runner.measure_case(ATTENTION, keys, device, quick=True):
        assert case.status in ("ok", "skipped"), case
        if case.status == "ok":
            assert {"time", "error", "peak_memory"} <= set(case.measured)
            assert case.correct == "yes"


@pytest.mark.gpu
def test_the_naive_formula_holds_the_scores_and_tiles_do_not() -> None:
    device = devices.current()
    shape = {"head_dim": 64, "seq_len": 2048, "causal": True, "batch": 1, "heads": 32, "kv_heads": 32}
    keys = speed.case(device, **{"pass": "forward"}, **shape)
    cases = {case.contender: case for case in runner.measure_case(ATTENTION, keys, device, quick=True)}
    scores = 2 * 32 * 2048**2
    assert cases["naive"].metrics["peak_memory"].summary.median >= scores
    assert cases["gpuguide-triton"].metrics["peak_memory"].summary.median < scores / 4
