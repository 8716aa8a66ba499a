from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.costs import limits, presets
from gpuguide.errors import GpuguideError
from gpuguide.hardware import datasheet
from gpuguide.hardware import machines as printed_machines
from gpuguide.hardware.machines import Ceiling, Machine
from gpuguide.measure import machines, reference, reference_gpu, store

LLAMA = presets.get("llama-3.1-8b").shape
ROUND = Machine(
    "round",
    "A GPU with round figures",
    80e9,
    {"bf16": Ceiling(1000e12, "datasheet"), "fp32": Ceiling(50e12, "datasheet")},
    {"memory": Ceiling(4e12, "datasheet"), "link": Ceiling(500e9, "datasheet"), "host": Ceiling(50e9, "datasheet")},
)


# --- counts ----------------------------------------------------------------------------------------------


def test_attention_is_two_products_a_head() -> None:
    whole = limits.attention(2, 32, 8, 128, 1024, causal=False)
    product = limits.matmul(1024, 128, 1024)
    assert whole.flops == 2 * 32 * 2 * product.flops
    half = limits.attention(2, 32, 8, 128, 1024, causal=True)
    assert half.flops / whole.flops == 1025 / 2048
    assert half.moved == whole.moved == 2 * 1024 * 128 * 2 * (32 + 8 + 8 + 32)


def test_a_decode_step_reads_every_weight_once_and_the_whole_cache() -> None:
    one = limits.decode_step(LLAMA, 1, 1)
    embedding = 128256 * 4096
    assert one.moved - 2 * LLAMA.keys * 2 * 32 * 2 == 2 * (LLAMA.parameters() - embedding + 4096)
    assert one.flops == pytest.approx(2 * (LLAMA.parameters() - embedding), rel=1e-3)
    assert limits.decode_step(LLAMA, 64, 1).flops == 64 * one.flops
    longer = limits.decode_step(LLAMA, 1, 8192)
    assert longer.moved - one.moved == 8191 * 128 * 1024  # bytes that a position takes in this model's cache


def test_fewer_bits_move_fewer_bytes_and_compute_the_same() -> None:
    steps = [limits.decode_step(LLAMA, 1, 128, weights) for weights in ("fp32", "bf16", "int8", "int4")]
    assert [step.moved for step in steps] == sorted((step.moved for step in steps), reverse=True)
    assert len({step.flops for step in steps}) == 1
    assert [step.format for step in steps] == ["fp32", "bf16", "bf16", "bf16"]


def test_an_all_reduce_moves_twice_all_but_its_own_share() -> None:
    assert limits.all_reduce(2**30, 8).moved == 2 * 2**30 * 7 / 8
    assert limits.all_reduce(2**30, 2).moved == 2**30
    assert limits.all_reduce(2**30, 8).through == "link"


def test_a_scan_reads_every_value_once() -> None:
    found = limits.scan(10**9, 3, 8, "host")
    assert (found.moved, found.flops, found.through) == (24e9, 3e9, "host")


# --- time and bound --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "time", "bound"),
    [
        (limits.matmul(8192, 8192, 8192), 2 * 8192**3 / 1000e12, "arithmetic"),
        (limits.matmul(1, 8192, 8192), (8192**2 + 2 * 8192) * 2 / 4e12, "memory"),
        (limits.all_reduce(10**9, 2), 1e9 / 500e9, "link"),
        (limits.scan(10**9, 1, 8, "host"), 8e9 / 50e9, "host"),
    ],
)
def test_the_slower_ceiling_decides(operation: limits.Operation, time: float, bound: str) -> None:
    found = limits.limit(operation, ROUND)
    assert found.time == pytest.approx(time)
    assert found.bound == bound
    assert (operation.intensity < found.ridge) is (bound != "arithmetic")


def test_a_small_operation_is_bound_by_its_launch_where_that_is_measured() -> None:
    small = limits.matmul(16, 16, 16)
    assert limits.limit(small, ROUND).bound == "memory"
    ours = machines.machine(reference_gpu.sheet().id)
    found = limits.limit(small, ours)
    assert found.bound == "launch"
    assert ours.launch
    assert ours.launch.value < found.time < 1.01 * ours.launch.value


@given(size=st.integers(1, 2**16), gpu=st.sampled_from(list(datasheet.load())))
def test_no_time_is_under_either_floor(size: int, gpu: str) -> None:
    machine = machines.machine(gpu)
    for format in machine.arithmetic:
        found = limits.limit(limits.matmul(size, size, size, format), machine)
        assert found.time >= max(found.arithmetic_time, found.moving_time) > 0
        assert found.throughput <= machine.arithmetic[format].value * (1 + 1e-12)


# --- ceilings --------------------------------------------------------------------------------------------


def test_ceilings_are_measured_where_there_is_a_record_and_say_so() -> None:
    ours = machines.machine(reference_gpu.sheet().id)
    record = store.published("ceilings")
    assert {ceiling.origin for ceiling in ours.arithmetic.values()} == {"measured"}
    assert ours.bandwidth["memory"].value == record.case("copy").metrics["bandwidth"].summary.median
    assert (ours.bandwidth["link"].origin, ours.bandwidth["host"].origin) == ("datasheet", "measured")
    a100 = machines.machine("a100-sxm-80gb")
    assert {ceiling.origin for ceiling in (*a100.arithmetic.values(), *a100.bandwidth.values())} == {"datasheet"}
    assert a100.launch is None


def test_printed_ceilings_are_those_of_the_datasheet() -> None:
    for gpu in datasheet.load().values():
        machine = printed_machines.printed(gpu.id)
        assert machine.bandwidth["memory"].value == gpu.figures["memory_bandwidth"].value
        assert (machine.link_name == "NVLink") is ("nvlink_per_direction" in gpu.figures)
        assert all(
            gpu.figures[printed_machines.FORMATS[name]].value == rate.value for name, rate in machine.arithmetic.items()
        )


def at_most_its_floor() -> float:
    """How many times as fast as its floor a product may be.

    A ceiling is the rate of a product that draws all the power allowed, which holds its clock down. One that draws less
    runs at a higher clock and is faster, but no more so than a product of zeros, which draws the least.
    """
    return reference.ratio("timing-mistakes/zeros/right:throughput shape=square").summary.median


def test_measured_products_take_their_floor_and_large_ones_little_more() -> None:
    """FP8 is the last to come near its ceiling: its arithmetic is over soonest."""
    ours = machines.machine(reference_gpu.sheet().id)
    for case in store.published("matmul-size").cases:
        size = int(case.keys["size"])
        found = limits.limit(limits.matmul(size, size, size, case.contender.removeprefix("matmul-")), ours)
        share = found.time / case.metrics["time"].summary.median
        assert share <= at_most_its_floor()
        if size >= 4096 or (size == 2048 and case.contender != "matmul-fp8"):
            assert share >= 0.8


def test_measured_heads_take_their_floor() -> None:
    """Where arithmetic and memory take equally long, neither hides behind the other; elsewhere little is lost."""
    ours = machines.machine(reference_gpu.sheet().id)
    for case in store.published("lm-head").cases:
        tokens, hidden, vocab = (int(case.keys[name]) for name in ("tokens", "hidden", "vocab"))
        if vocab % 64:
            continue
        found = limits.limit(limits.matmul(tokens, hidden, vocab), ours)
        share = found.time / case.metrics["time"].summary.median
        by_both = 0.5 < found.arithmetic_time / found.moving_time < 2.5
        assert (0.65 if by_both else 0.8) <= share <= at_most_its_floor()


# --- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: limits.matmul(0, 1, 1), "rows is 0; it must be a whole number from 1 to 1000000000000."),
        (lambda: limits.matmul(1, 1, 1, "fp4"), "format is fp4; choose one of bf16, fp16, tf32, fp32, fp8."),
        (lambda: limits.attention(1, 8, 3, 64, 64), "kv_heads is 3; it must divide the 8 heads."),
        (lambda: limits.all_reduce(100, 1), "gpus is 1; an all-reduce needs at least 2."),
        (lambda: limits.scan(1, 1, 17), "element_size is 17; a value has from 1 to 16 bytes."),
        (lambda: limits.scan(1, 1, 8, "disk"), "place is disk; choose one of memory, host."),
        (lambda: limits.decode_step(LLAMA, 1, 10**6), "context is 1000000; the model knows 131072 positions."),
    ],
)
def test_an_operation_that_makes_no_sense_is_refused(call: Any, says: str) -> None:
    with pytest.raises(GpuguideError) as error:
        call()
    assert str(error.value) == says


def test_a_format_that_a_gpu_lacks_is_refused() -> None:
    with pytest.raises(GpuguideError, match="NVIDIA T4 has no rate for bf16; choose one of"):
        limits.limit(limits.matmul(8, 8, 8, "bf16"), machines.machine("t4"))
    bare = Machine("bare", "A GPU without links", 1e9, {"fp32": Ceiling(1e12, "datasheet")}, {})
    with pytest.raises(GpuguideError, match="bandwidth of the memory of A GPU without links is not known"):
        limits.limit(limits.matmul(8, 8, 8, "fp32"), bare)


def test_an_unknown_gpu_is_named_with_near_ones() -> None:
    with pytest.raises(GpuguideError, match="h100-sxm"):
        machines.machine("h100-sxn")
