"""Thread-block clusters for few long rows: when they are used, and what compiles. ``test_fused`` has their results."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import interpreted
import pytest
import torch
from interpreted import needs_triton

from gpuguide import logits

FORMATS = {"bf16": torch.bfloat16, "fp32": torch.float32}


def rows_like(rows: int, vocab: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(rows, vocab, dtype=dtype, device="meta")


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, major: int, multiprocessors: int) -> None:
    properties = SimpleNamespace(major=major, multi_processor_count=multiprocessors)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)


@needs_triton
def test_few_long_rows_take_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuguide.logits.clusters import ClusterSplit

    pretend_gpu(monkeypatch, 9, 132)
    for rows, vocab, dtype in ((64, 32768, "bf16"), (1, 131072, "bf16"), (64, 65536, "fp32"), (64, 50257, "bf16")):
        assert ClusterSplit.for_few_rows(rows_like(rows, vocab, FORMATS[dtype])) is not None
    many, short, long = rows_like(4096, 32768), rows_like(64, 16384), rows_like(1, 2**18 + 1)
    barely_long = rows_like(1, 2**18 - 1)  # where it begins late, 16 pieces of 32 KiB do not hold it
    assert [ClusterSplit.for_few_rows(rows) for rows in (many, short, long, barely_long)] == [None] * 4
    assert ClusterSplit.for_few_rows(rows_like(64, 32768).view(8, 8, 32768)) is not None


@needs_triton
def test_clusters_that_lose_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that fill the GPU twice take clusters only if no thread idles, and rows in fp32 only if they are aligned."""
    from gpuguide.logits.clusters import ClusterSplit

    pretend_gpu(monkeypatch, 9, 132)
    taken = [(64, 262144, "bf16"), (64, 131072, "fp32"), (64, 128256, "bf16"), (64, 50304, "bf16"), (64, 50257, "bf16")]
    left = [(64, 262144, "fp32"), (64, 151936, "bf16"), (64, 50257, "fp32"), (133, 131072, "bf16"), (64, 70000, "bf16")]
    for cases, used in ((taken, True), (left, False)):
        for rows, vocab, dtype in cases:
            found = ClusterSplit.for_few_rows(rows_like(rows, vocab, FORMATS[dtype]))
            assert (found is not None) == used, (rows, vocab, dtype)


@needs_triton
@pytest.mark.parametrize(("major", "multiprocessors"), [(8, 108), (10, 148), (12, 170), (9, 16)])
def test_other_gpus_and_small_slices_take_none(
    monkeypatch: pytest.MonkeyPatch, major: int, multiprocessors: int
) -> None:
    from gpuguide.logits.clusters import ClusterSplit

    pretend_gpu(monkeypatch, major, multiprocessors)
    assert ClusterSplit.for_few_rows(rows_like(2, 131072)) is None


@needs_triton
def test_pieces_cover_a_row_wherever_it_begins() -> None:
    from gpuguide.logits.clusters import ClusterSplit, vector_elements

    for columns in (1, 63, 64, 65, 1000, 16385, 50257, 50304, 128256, 262143, 262144):
        for dtype in FORMATS.values():
            split = ClusterSplit.from_size(columns, dtype.itemsize)
            before = vector_elements(torch.empty(1, columns, dtype=dtype)) - 1
            assert before + columns <= split.pieces * split.length
            assert split.length % 64 == 0
            assert split.length <= split.block
            assert split.block & (split.block - 1) == 0


@needs_triton
def test_rows_are_read_in_vectors_only_where_they_are_aligned_alike() -> None:
    from gpuguide.logits.clusters import vector_elements

    storage = torch.empty(8 * 1003 + 8, dtype=torch.bfloat16)
    assert storage.data_ptr() % 16 == 0
    assert vector_elements(storage[: 8 * 1003].view(8, 1003)) == 8
    assert vector_elements(storage[: 8 * 1003].float().view(8, 1003)) == 4
    assert vector_elements(storage[1 : 8 * 1003 + 1].view(8, 1003)) == 1
    assert vector_elements(storage[: 8 * 1000].view(8, 1000)) == 1


@needs_triton
@pytest.mark.parametrize("vocab", [65536, 50257, 131072])
def test_the_kernel_compiles_for_hopper(vocab: int) -> None:
    interpreted.run(__file__, f"compile_for({vocab})", interpret=False)


def compile_for(vocab: int) -> None:
    """Count the cluster's barriers, and look for accesses of 16 bytes."""
    from gpuguide.logits import clusters

    split = clusters.ClusterSplit.from_size(vocab, 2)
    accesses = split.block // (32 * split.warps * 8)
    for keep in (True, False):
        ptx = compile_kernel(split, 1 if vocab % 8 == 0 else 8, vocab, keep)
        assert ptx.count("barrier.cluster.arrive") == ptx.count("barrier.cluster.wait") == 2
        assert ptx.count("st.shared::cluster") == 1
        assert accesses <= ptx.count("ld.global") <= accesses + 1
        assert accesses <= ptx.count("st.global") <= accesses + 1


def compile_kernel(split: Any, vector: int, vocab: int, keep: bool) -> str:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gpuguide.logits.clusters import softmax_cluster_kernel as kernel

    arguments = split.kernel_arguments() | {"VECTOR": vector, "KEEP": keep}
    constants = {name: value for name, value in arguments.items() if name in kernel.arg_names}
    options = {name: value for name, value in arguments.items() if name not in kernel.arg_names}
    types = {"logits": "*bf16", "probabilities": "*bf16"}
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    aligned = ["logits", "probabilities", "length"]
    if vocab % 16 == 0:
        aligned += ["row_stride", "vocab_size"]
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, signature, constants, attributes)
    return str(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("offset", [0, 1, 8])
def test_rows_of_gpt2s_vocabulary(dtype: torch.dtype, offset: int) -> None:
    """Each row begins elsewhere between multiples of 16 bytes, and its neighbours write into the same bytes."""
    storage = torch.randn(offset + 70 * 50257, generator=torch.Generator().manual_seed(offset)).to("cuda", dtype)
    rows = storage[offset:].view(70, 50257)
    expected = torch.softmax(rows.double(), dim=-1)
    for _ in range(3):
        found = logits.fused_softmax(rows)
        torch.testing.assert_close(found.double(), expected, rtol=2 * torch.finfo(dtype).eps + 2e-5, atol=2**-24)


@pytest.mark.gpu
def test_clusters_of_several_streams_at_a_time() -> None:
    sizes = ((64, 131072), (64, 50257), (64, 262144), (8, 32768), (4096, 32768))
    all_rows = [torch.randn(size, dtype=torch.bfloat16, device="cuda") for size in sizes]
    expected = [logits.fused_softmax(rows) for rows in all_rows]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in sizes]
    differing = []
    for _ in range(20):
        for stream, rows, same in zip(streams, all_rows, expected, strict=True):
            with torch.cuda.stream(stream):
                differing.append((logits.fused_softmax(rows) != same).sum())
    torch.cuda.synchronize()
    assert sum(map(int, differing)) == 0
