from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.costs import limits, presets
from gpuguide.errors import GpuguideError
from gpuguide.hardware import datasheet, datasheet_ceilings
from gpuguide.hardware.datasheet_ceilings import Ceiling, GpuCeilings
from gpuguide.measure import folders, measured_ceilings, records, reference_gpu, store
from gpuguide.measure.records import Case

LLAMA = presets.get("llama-3.1-8b").shape
ROUND = GpuCeilings(
    "round",
    "A GPU with round figures",
    80e9,
    {"bf16": Ceiling(1000e12, "datasheet"), "fp32": Ceiling(50e12, "datasheet")},
    {
        "copy": Ceiling(4e12, "datasheet"),
        "read": Ceiling(5e12, "datasheet"),
        "link": Ceiling(500e9, "datasheet"),
        "host": Ceiling(50e9, "datasheet"),
    },
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
    assert limits.all_reduce(2**30, 8, in_switch=True).moved == 2**30


def test_a_scan_reads_every_value_once() -> None:
    found = limits.scan(10**9, 3, 8, "host")
    assert (found.moved, found.flops, found.through) == (24e9, 3e9, "host")


# --- time and bound --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "time", "bound"),
    [
        (limits.matmul(8192, 8192, 8192), 2 * 8192**3 / 1000e12, "arithmetic"),
        (limits.matmul(1, 8192, 8192), (8192**2 + 2 * 8192) * 2 / 5e12, "memory"),
        (limits.matmul(8192, 64, 8192), (8192**2 + 2 * 64 * 8192) * 2 / 4e12, "memory"),
        (limits.scan(10**9, 1, 8), 8e9 / 5e12, "memory"),
        (limits.all_reduce(10**9, 2), 1e9 / 500e9, "link"),
        (limits.scan(10**9, 1, 8, "host"), 8e9 / 50e9, "host"),
    ],
)
def test_the_slower_ceiling_decides(operation: limits.OperationCost, time: float, bound: str) -> None:
    found = limits.limit(operation, ROUND)
    assert found.time == pytest.approx(time)
    assert found.bound == bound
    assert (operation.intensity < found.ridge) is (bound != "arithmetic")


def test_a_small_operation_is_bound_by_its_launch_where_that_is_measured() -> None:
    small = limits.matmul(16, 16, 16)
    assert limits.limit(small, ROUND).bound == "memory"
    ours = measured_ceilings.load(reference_gpu.sheet().id)
    found = limits.limit(small, ours)
    assert found.bound == "launch"
    assert ours.launch
    assert found.time == ours.launch.value


@given(size=st.integers(1, 2**16), gpu=st.sampled_from(list(datasheet.load())))
def test_no_time_is_under_either_floor(size: int, gpu: str) -> None:
    machine = measured_ceilings.load(gpu)
    for format in machine.arithmetic:
        operation = limits.matmul(size, size, size, format)
        if operation.held > machine.capacity:
            with pytest.raises(GpuguideError, match="does not fit"):
                limits.limit(operation, machine)
            continue
        found = limits.limit(operation, machine)
        assert found.time >= max(found.arithmetic_time, found.moving_time) > 0
        assert found.throughput <= machine.arithmetic[format].value * (1 + 1e-12)


# --- ceilings --------------------------------------------------------------------------------------------


def test_ceilings_are_measured_where_there_is_a_record_and_say_so() -> None:
    ours = measured_ceilings.load(reference_gpu.sheet().id)
    record = store.load_published("ceilings")
    assert {ceiling.origin for ceiling in ours.arithmetic.values()} == {"measured"}
    assert ours.bandwidth["copy"].value >= record.case("copy").metrics["bandwidth"].summary.p95
    assert (ours.bandwidth["link"].origin, ours.bandwidth["host"].origin) == ("datasheet", "measured")
    a100 = measured_ceilings.load("a100-sxm-80gb")
    assert {ceiling.origin for ceiling in (*a100.arithmetic.values(), *a100.bandwidth.values())} == {"datasheet"}
    assert a100.launch is None


def test_printed_ceilings_are_those_of_the_datasheet() -> None:
    for gpu in datasheet.load().values():
        machine = datasheet_ceilings.load(gpu.id)
        assert {machine.bandwidth[kind].value for kind in ("copy", "read")} == {gpu.figures["memory_bandwidth"].value}
        assert (machine.link_name == "NVLink") is ("nvlink_per_direction" in gpu.figures)
        assert all(
            gpu.figures[datasheet_ceilings.FORMATS[name]].value == rate.value
            for name, rate in machine.arithmetic.items()
        )


GPUS = ["h100-sxm", "h200"]


def fastest(gpu: str, benchmark: str) -> Iterator[tuple[Case, float]]:
    """Yield the cases of a GPU's published record with the 5th percentile of their time."""
    for record in measured_ceilings.records_of(gpu):
        if record.benchmark == benchmark:
            yield from ((case, case.metrics["time"].summary.p5) for case in record.cases if case.status == "ok")


@pytest.mark.parametrize("gpu", GPUS)
def test_no_product_of_our_records_is_faster_than_its_limit(gpu: str) -> None:
    machine, shares = measured_ceilings.load(gpu), []
    for case, time in fastest(gpu, "matmul-size"):
        size = int(case.keys["size"])
        product = limits.matmul(size, size, size, case.contender.removeprefix("matmul-"))
        shares.append(limits.limit(product, machine).time / time)
    for case, time in fastest(gpu, "lm-head"):
        tokens, hidden, vocab = (int(case.keys[name]) for name in ("tokens", "hidden", "vocab"))
        shares.append(limits.limit(limits.matmul(tokens, hidden, vocab), machine).time / time)
    for case, time in fastest(gpu, "ceilings"):
        if case.contender.startswith("matmul-"):
            product = limits.matmul(8192, 8192, 8192, case.contender.removeprefix("matmul-"))
            shares.append(limits.limit(product, machine).time / time)
    assert shares
    assert max(shares) <= 1 + 1e-6  # records round rates and times


def test_no_attention_of_our_records_is_faster_than_its_limit() -> None:
    found = 0
    for path in folders.published_folder().glob("*/attention.json"):
        record = records.load(path)
        machine = measured_ceilings.load(datasheet.find(record.device_name).id)
        for case in record.cases:
            if case.status == "ok" and case.keys["pass"] == "forward":
                sizes = [int(case.keys[name]) for name in ("batch", "heads", "kv_heads", "head_dim", "seq_len")]
                operation = limits.attention(*sizes, causal=bool(case.keys["causal"]))
                assert limits.limit(operation, machine).time <= case.metrics["time"].summary.p5
                found += 1
    assert found > 100


@pytest.mark.parametrize("gpu", GPUS)
def test_no_scan_of_our_records_is_faster_than_its_limit(gpu: str) -> None:
    """Reading logits once is a scan. Sizes that may stay in L2 are left out, as the rule says."""
    machine, least = measured_ceilings.load(gpu), measured_ceilings.L2_MARGIN * datasheet.get(gpu).figures["l2"].value
    found = 0
    for case, time in fastest(gpu, "log-sum-exp"):
        size = {"bf16": 2, "fp32": 4}[str(case.keys["dtype"])]
        operation = limits.scan(int(case.keys["rows"]), int(case.keys["vocab"]), size)
        if operation.moved >= least:
            assert limits.limit(operation, machine).time <= time
            found += 1
    assert found >= 10


@pytest.mark.parametrize("gpu", GPUS)
def test_no_transfer_of_our_records_is_faster_than_its_limit(gpu: str) -> None:
    machine, found = measured_ceilings.load(gpu), 0
    for case, time in fastest(gpu, "transfer-size"):
        if case.contender == "h2d-pinned":
            assert limits.limit(limits.scan(int(case.keys["bytes"]), 1, 1, "host"), machine).time <= time
            found += 1
    assert found >= 10


def test_large_products_come_near_the_limit_of_the_gpu_that_we_measured() -> None:
    ours = reference_gpu.sheet().id
    machine = measured_ceilings.load(ours)
    for case, time in fastest(ours, "matmul-size"):
        if case.keys["size"] == 8192:
            product = limits.matmul(8192, 8192, 8192, case.contender.removeprefix("matmul-"))
            assert limits.limit(product, machine).time / time >= 0.8


def test_heads_come_near_the_limit_where_one_of_the_two_decides() -> None:
    """Where arithmetic and memory take equally long, neither hides behind the other."""
    ours = reference_gpu.sheet().id
    machine = measured_ceilings.load(ours)
    for case, time in fastest(ours, "lm-head"):
        tokens, hidden, vocab = (int(case.keys[name]) for name in ("tokens", "hidden", "vocab"))
        if vocab % 64:
            continue
        found = limits.limit(limits.matmul(tokens, hidden, vocab), machine)
        by_both = 0.5 < found.arithmetic_time / found.moving_time < 2.5
        assert found.time / time >= (0.65 if by_both else 0.77)


# --- what does not fit -----------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_has_no_time() -> None:
    seventy = presets.get("llama-3.1-70b").shape
    with pytest.raises(GpuguideError) as error:
        limits.limit(limits.decode_step(seventy, 1, 4096), measured_ceilings.load("h100-sxm"))
    # 70 553 706 496 weights of 2 bytes, and a cache of 2 × 80 × 8 × 128 × 4097 numbers of 2
    needed = (70_553_706_496 * 2 + 2 * 80 * 8 * 128 * 4097 * 2) / 2**30
    assert str(error.value).startswith(f"It does not fit: the operands take {needed:.1f} GiB, and NVIDIA H100 SXM has ")
    assert limits.limit(limits.decode_step(seventy, 1, 4096, "int4"), measured_ceilings.load("h100-sxm")).time > 0
    with pytest.raises(GpuguideError, match="does not fit"):
        limits.limit(limits.scan(10**11, 1, 8), measured_ceilings.load("h200"))
    assert limits.limit(limits.scan(10**11, 1, 8, "host"), measured_ceilings.load("h200")).bound == "host"


def test_a_step_of_a_mixture_reads_the_experts_that_its_tokens_reach() -> None:
    """Mixtral 8x7B: 8 experts of 3 × 4096 × 14336 numbers in each of 32 layers, of which a token uses 2."""
    mixtral = presets.get("mixtral-8x7b").shape
    expert = 3 * 4096 * 14336
    dense = replace(mixtral, experts=1, experts_used=1)
    one = limits.decode_step(mixtral, 1, 1)
    router = 32 * 8 * 4096
    assert one.moved - limits.decode_step(dense, 1, 1).moved == pytest.approx(2 * (32 * expert + router))
    assert one.flops - limits.decode_step(dense, 1, 1).flops == pytest.approx(2 * (32 * expert + router))
    reached = 8 * (1 - (6 / 8) ** 4)
    four = limits.decode_step(mixtral, 4, 1).moved - limits.decode_step(dense, 4, 1).moved
    assert four == pytest.approx(2 * (32 * (reached - 1) * expert + router))
    assert one.held == pytest.approx(2 * 46_702_792_704 + 2 * 32 * 8 * 128 * 2 * 2)


# --- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: limits.matmul(0, 1, 1), "rows is 0; it must be a whole number from 1 to 1000000000000."),
        (lambda: limits.matmul(1, 1, 1, "fp4"), "format is fp4; choose one of bf16, fp16, tf32, fp32, fp8."),
        (lambda: limits.attention(1, 8, 3, 64, 64), "kv_heads is 3; it must divide the 8 heads."),
        (lambda: limits.all_reduce(100, 1), "gpus is 1; it must be a whole number from 2 to 1000000000000."),
        (lambda: limits.scan(1, 1, 17), "element_size is 17; it must be a whole number from 1 to 16."),
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
        limits.limit(limits.matmul(8, 8, 8, "bf16"), measured_ceilings.load("t4"))
    bare = GpuCeilings("bare", "A GPU without links", 1e9, {"fp32": Ceiling(1e12, "datasheet")}, {})
    with pytest.raises(GpuguideError, match="bandwidth of the memory of A GPU without links is not known"):
        limits.limit(limits.matmul(8, 8, 8, "fp32"), bare)


def test_an_unknown_gpu_is_named_with_near_ones() -> None:
    with pytest.raises(GpuguideError, match="h100-sxm"):
        measured_ceilings.load("h100-sxn")


def test_our_gpus_have_the_memory_that_their_driver_reported() -> None:
    for gpu, mib in (("h100-sxm", 81559), ("h200", 143771)):
        machine = measured_ceilings.load(gpu)
        assert machine.capacity_origin == "driver"
        assert machine.capacity == pytest.approx(mib * 2**20, rel=1e-6)
    assert measured_ceilings.load("l4").capacity_origin == "printed"
