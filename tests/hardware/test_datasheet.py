from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gpuguide.errors import GpuguideError
from gpuguide.hardware.datasheet import UNITS, Gpu, find, get, load, parse, sources
from gpuguide.hardware.sources import PrintedValue

GPUS = list(load().values())
each_gpu = pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.id)

# The checks below start from numbers that are independent of the table: the width of an SM (architecture
# whitepapers), the clock to which tensor rates refer, the memory bus and its transfer rate per pin.
FP32_LANES = {"Volta": 64, "Turing": 64, "Ada Lovelace": 128, "Hopper": 128, "Blackwell": 128}
FP32_LANES_OF_AMPERE = {(8, 0): 64, (8, 6): 128}
FP16_FLOPS_PER_CLOCK_AND_SM = {
    "t4": 1024,
    "v100-sxm2-16gb": 1024,
    "v100-sxm2-32gb": 1024,
    "v100-pcie-16gb": 1024,
    "v100-pcie-32gb": 1024,
    "rtx-3090": 512,
    "rtx-4090": 512,
    "rtx-5090": 512,
    "l4": 1024,
    "l40s": 1024,
    "a100-sxm-40gb": 2048,
    "a100-sxm-80gb": 2048,
    "a100-pcie-40gb": 2048,
    "a100-pcie-80gb": 2048,
    "h100-pcie": 4096,
    "h100-sxm": 4096,
    "h200": 4096,
}
TENSOR_CLOCK = {"h100-sxm": 1830e6, "h100-pcie": 1620e6, "h200": 1830e6, "l40s": 2490e6}
MEMORY_BUS = {  # bits, bits a second and pin
    "t4": (256, 10e9),
    "v100-sxm2-16gb": (4096, 2 * 877.5e6),
    "v100-sxm2-32gb": (4096, 2 * 877.5e6),
    "v100-pcie-16gb": (4096, 2 * 877e6),
    "v100-pcie-32gb": (4096, 2 * 877e6),
    "rtx-3090": (384, 19.5e9),
    "rtx-4090": (384, 21e9),
    "rtx-5090": (512, 28e9),
    "l4": (192, 12.5e9),
    "l40s": (384, 18e9),
    "a100-sxm-40gb": (5120, 2 * 1215e6),
    "a100-sxm-80gb": (5120, 2 * 1593e6),
    "a100-pcie-40gb": (5120, 2 * 1215e6),
    "a100-pcie-80gb": (5120, 2 * 1512e6),
    "h100-sxm": (5120, 2 * 2619e6),
    "b200": (7680, 2 * 3996e6),
}
PCIE_GENERATION = {"Volta": 3, "Turing": 3, "Ampere": 4, "Ada Lovelace": 4, "Hopper": 5, "Blackwell": 5}

# Pairs that the vendor itself prints in another ratio than two to one.
PRINTED_UNEVENLY = {("l40s", "fp16"), ("l40s", "bf16")}


def value(gpu: Gpu, key: str) -> float:
    return gpu.figures[key].value


def pairs(gpu: Gpu, one: str, two: str) -> Iterator[tuple[str, float, float]]:
    """Yield (stem, value of stem_one, value of stem_two) for all stems that have either."""
    for stem in ("tf32", "fp16", "bf16", "fp8", "pcie", "nvlink"):
        first, second = f"{stem}_{one}", f"{stem}_{two}"
        if first in gpu.figures and second in gpu.figures:
            yield stem, value(gpu, first), value(gpu, second)


def test_the_table_has_the_gpus_that_readers_have() -> None:
    wanted = {"t4", "rtx-3090", "rtx-4090", "rtx-5090", "l4", "l40s", "h100-pcie", "h100-sxm", "h200", "b200"}
    wanted |= {f"v100-{form}-{size}gb" for form in ("sxm2", "pcie") for size in (16, 32)}
    wanted |= {f"a100-{form}-{size}gb" for form in ("sxm", "pcie") for size in (40, 80)}
    assert set(load()) == wanted


@each_gpu
def test_every_gpu_has_the_figures_that_pages_show(gpu: Gpu) -> None:
    shown = {"memory", "memory_bandwidth", "l2", "sms", "tdp", "fp32", "fp16_dense", "pcie_per_direction"}
    assert shown <= set(gpu.figures)
    for key, figure in gpu.figures.items():
        assert figure.unit == UNITS[key]
        assert figure.source in sources()


def test_every_source_is_used_and_has_an_address() -> None:
    cited = {figure.source for gpu in GPUS for figure in gpu.figures.values()}
    assert cited == set(sources())
    for source in sources().values():
        assert source.url.startswith("https://")
        assert source.is_verified is (source.looked_at != "not verified")


@each_gpu
def test_sparse_is_twice_dense(gpu: Gpu) -> None:
    for stem, dense, sparse in pairs(gpu, "dense", "sparse"):
        if (gpu.id, stem) in PRINTED_UNEVENLY:
            assert "not half" in gpu.figures[f"{stem}_dense"].note
            assert sparse == pytest.approx(2 * dense, rel=0.03)
        else:
            assert sparse == pytest.approx(2 * dense, rel=0.003)


@each_gpu
def test_total_is_twice_one_direction(gpu: Gpu) -> None:
    for _, one, total in pairs(gpu, "per_direction", "total"):
        assert total == pytest.approx(2 * one, rel=1e-9)


def test_only_the_newest_have_no_printed_boost_clock() -> None:
    assert {gpu.id for gpu in GPUS if "boost_clock" not in gpu.figures} == {"h200", "b200"}


@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS if "boost_clock" in gpu.figures], ids=lambda gpu: gpu.id)
def test_fp32_is_two_flops_a_lane_and_clock(gpu: Gpu) -> None:
    lanes = FP32_LANES.get(gpu.architecture) or FP32_LANES_OF_AMPERE[gpu.capability]
    expected = 2 * lanes * value(gpu, "sms") * value(gpu, "boost_clock")
    assert value(gpu, "fp32") == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("gpu_id", FP16_FLOPS_PER_CLOCK_AND_SM)
def test_tensor_rates_follow_from_the_sms_and_the_clock(gpu_id: str) -> None:
    gpu = load()[gpu_id]
    clock = TENSOR_CLOCK.get(gpu_id) or value(gpu, "boost_clock")
    expected = FP16_FLOPS_PER_CLOCK_AND_SM[gpu_id] * value(gpu, "sms") * clock
    assert value(gpu, "fp16_dense") == pytest.approx(expected, rel=0.01)
    if "bf16_dense" in gpu.figures:
        assert value(gpu, "bf16_dense") == value(gpu, "fp16_dense")


@each_gpu
def test_tf32_is_half_and_fp8_twice_the_rate_of_bf16(gpu: Gpu) -> None:
    # 2.5 %: the L40S and the B200 print rounded or uneven values.
    if "tf32_dense" in gpu.figures:
        assert 2 * value(gpu, "tf32_dense") == pytest.approx(value(gpu, "bf16_dense"), rel=0.025)
    if "fp8_dense" in gpu.figures:
        assert value(gpu, "fp8_dense") == pytest.approx(2 * value(gpu, "bf16_dense"), rel=0.025)


@pytest.mark.parametrize("gpu_id", MEMORY_BUS)
def test_memory_bandwidth_is_bus_width_times_transfer_rate(gpu_id: str) -> None:
    bits, rate = MEMORY_BUS[gpu_id]
    assert value(load()[gpu_id], "memory_bandwidth") == pytest.approx(bits / 8 * rate, rel=0.005)


@each_gpu
def test_pcie_is_what_sixteen_encoded_lanes_carry(gpu: Gpu) -> None:
    transfers = 8e9 * 2 ** (PCIE_GENERATION[gpu.architecture] - 3)
    assert value(gpu, "pcie_per_direction") == pytest.approx(16 * transfers * 128 / 130 / 8, rel=1e-4)
    assert gpu.figures["pcie_per_direction"].is_derived
    assert gpu.figures["pcie_total"].is_derived


@pytest.mark.parametrize(
    ("gpu_id", "links", "link"),
    [
        ("v100-sxm2-16gb", 6, 25e9),
        ("a100-sxm-40gb", 12, 25e9),
        ("h100-sxm", 18, 25e9),
        ("h200", 18, 25e9),
        ("b200", 18, 50e9),
        ("rtx-3090", 4, 14.0625e9),
    ],
)
def test_nvlink_is_its_links(gpu_id: str, links: int, link: float) -> None:
    assert value(load()[gpu_id], "nvlink_per_direction") == links * link


@each_gpu
def test_what_a_gpu_supports_follows_from_its_capability(gpu: Gpu) -> None:
    since = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0), "flash-attention": (8, 0), "fp8": (8, 9)}
    for feature, capability in since.items():
        assert (feature in gpu.supports) is (gpu.capability >= capability), feature
    for feature in ("bf16", "tf32", "fp8"):
        assert (feature in gpu.supports) is (f"{feature}_dense" in gpu.figures), feature
    assert ("nvlink" in gpu.supports) is ("nvlink_total" in gpu.figures)


@each_gpu
def test_a_card_with_slower_fp32_accumulate_says_which_rate_it_gives(gpu: Gpu) -> None:
    if "GeForce" in gpu.name:
        for stem in ("fp16", "bf16", "fp8"):
            if f"{stem}_dense" in gpu.figures:
                assert "FP32 accumulate" in gpu.figures[f"{stem}_dense"].note


@each_gpu
def test_l2_is_a_whole_number_of_mebibytes(gpu: Gpu) -> None:
    assert value(gpu, "l2") % 2**20 == 0


@pytest.mark.parametrize(
    ("name", "gpu_id"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("nvidia-h100-80gb-hbm3", "h100-sxm"),
        (" NVIDIA H100 80GB HBM3\0", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("Tesla V100-PCIE-16GB", "v100-pcie-16gb"),
        ("GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
    ],
)
def test_reported_names_resolve(name: str, gpu_id: str) -> None:
    gpu = find(name)
    assert gpu is not None
    assert gpu.id == gpu_id
    assert get(name) is gpu


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA L40",
        "NVIDIA T400",
        "NVIDIA H100",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA GH200 480GB",
        "NVIDIA GB200",
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "Tesla V100-SXM3-32GB",
        "Tesla V100S-PCIE-32GB",
        "AMD Instinct MI300X",
        "AMD EPYC 7763 64-Core Processor",
    ],
)
def test_products_with_other_figures_do_not_resolve(name: str) -> None:
    assert find(name) is None


@each_gpu
def test_a_gpu_is_found_by_its_id_its_name_and_its_aliases(gpu: Gpu) -> None:
    for name in (gpu.id, gpu.id.upper(), gpu.name, *gpu.aliases):
        assert get(name) is gpu


def test_an_unknown_gpu_is_an_error_that_lists_the_near_ones() -> None:
    with pytest.raises(GpuguideError, match=r"'h100-smx'.*h100-sxm"):
        get("h100-smx")


def test_what_is_loaded_cannot_be_changed() -> None:
    gpu = get("h100-sxm")
    with pytest.raises(dataclasses.FrozenInstanceError):
        gpu.name = "another"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        gpu.figures["memory"].value = 1.0  # type: ignore[misc]
    with pytest.raises(TypeError):
        gpu.figures["memory"] = gpu.figures["l2"]  # type: ignore[index]
    with pytest.raises(TypeError):
        load()["h100-sxm"] = gpu  # type: ignore[index]
    assert load() is load()


def test_the_table_needs_no_torch() -> None:
    code = "import sys; from gpuguide.hardware.datasheet import load; load(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


SOURCE = (
    '[sources.paper]\ntitle = "Paper"\nurl = "https://example.org"\npublisher = "Vendor"\nlooked_at = "2026-11-21"\n'
)
GPU = (
    '[gpu.x1]\nname = "Vendor X1"\naliases = ["X1"]\narchitecture = "X"\ncapability = [9, 0]\nform = "PCIe"\n'
    'supports = ["fp16"]\nmemory = { value = 80e9, source = "paper", note = "printed" }\n'
)


def test_a_small_table_is_read() -> None:
    table = parse(SOURCE + GPU, "small.toml")
    gpu = table.gpus["x1"]
    assert gpu.capability == (9, 0)
    assert gpu.supports == {"fp16"}
    assert gpu.figures["memory"] == PrintedValue(80e9, "B", "paper", "printed")
    assert table.sources["paper"].is_verified


def test_a_page_says_whether_and_when_a_document_was_looked_at() -> None:
    assert parse(SOURCE + GPU, "small.toml").sources["paper"].verification == "looked at on 2026-11-21"
    unread = SOURCE.replace("2026-11-21", "not verified")
    assert parse(unread + GPU, "small.toml").sources["paper"].verification == "not verified by us"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[gpu.x1]", "[gpu.x1", r"small\.toml is not valid TOML"),
        ("[gpu.x1]", "[cpu.x1]", r"small\.toml: There is no key named 'cpu'"),
        ("[sources.paper]", "[gpu.paper]", r"has no \[sources\.…\] tables"),
        ("memory =", "memroy =", r"gpu\.x1: There is no key named 'memroy'\. Did you mean .*memory"),
        (', source = "paper"', "", r"gpu\.x1, memory has no source"),
        ('source = "paper"', 'source = "papre"', r"gpu\.x1, memory: There is no source named 'papre'.*paper"),
        ('note = "printed"', 'remark = "printed"', r"gpu\.x1, memory: There is no key named 'remark'"),
        (
            '{ value = 80e9, source = "paper", note = "printed" }',
            "80e9",
            r"gpu\.x1, memory is 80000000000\.0",
        ),
        ("value = 80e9", 'value = "80 GB"', r"gpu\.x1, memory: value is '80 GB'; write a number .* in B"),
        ("value = 80e9", "value = true", r"gpu\.x1, memory: value is True"),
        ("value = 80e9", "value = -1", r"gpu\.x1, memory: value is -1"),
        ("value = 80e9", "value = nan", r"gpu\.x1, memory: value is nan"),
        ("value = 80e9", "value = inf", r"gpu\.x1, memory: value is inf"),
        ("memory =", "l2 =", r"gpu\.x1 has no memory"),
        ("[9, 0]", "9.0", r"gpu\.x1: capability is 9\.0"),
        ("[9, 0]", "[9, 0, 0]", r"gpu\.x1: capability is \[9, 0, 0\]"),
        ('["fp16"]', '["fp61"]', r"gpu\.x1: supports names 'fp61'; known: bf16"),
        ('["X1"]', '"X1"', r"gpu\.x1: aliases is 'X1'; write a list"),
        ('form = "PCIe"\n', "", r"gpu\.x1: form is None"),
        ('title = "Paper"', 'title = ""', r"sources\.paper: title is ''"),
        ('"2026-11-21"', '"last week"', r"sources\.paper: looked_at is 'last week'; write a date"),
    ],
)
def test_a_damaged_table_is_an_error_that_names_the_place(old: str, new: str, message: str) -> None:
    text = SOURCE + GPU
    assert old in text
    with pytest.raises(GpuguideError, match=message):
        parse(text.replace(old, new, 1), "small.toml")


def test_a_name_belongs_to_one_gpu() -> None:
    second = GPU.replace("[gpu.x1]", "[gpu.x2]").replace("Vendor X1", "Vendor X2")
    with pytest.raises(GpuguideError, match=r"'X1' belongs to both x1 and x2"):
        parse(SOURCE + GPU + second, "small.toml")
