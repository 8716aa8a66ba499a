"""The kernels of a decode step against the plain version: interpreted on the processor, and compiled on a GPU."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import interpreted
import pytest
import torch
from hypothesis import given
from interpreted import needs_triton
from random_models import random_gpt2, random_llama, random_prompts, shuffled_cache

from gpuguide import models
from gpuguide.inference import GREEDY, PAGE, Cache, Decoder, Engine, plain, prepare
from gpuguide.models import corpus
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama
from gpuguide.sampling.reference import SamplingSettings

CAPACITY = 4 * PAGE
ACCEPTED_IN_FP32 = 2e-4
"""Largest error of a logit, key or value, as a share of the largest one: sums of four-bit weights lose some bits"""
ACCEPTED_IN_BF16 = 0.03
"""The same as a ratio of norms: both versions round what they hand on, at different places"""
BORDERS = (PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 1)


@dataclass
class Case:
    """A model, how its weights are kept, and what is asked of a step."""

    model: GPT2 | Llama
    weights: str = "plain"
    group: int = 128
    lengths: Sequence[int] = BORDERS
    """Tokens of each row that the cache holds before"""
    rows: Sequence[int] = (0,)
    """Whose next tokens the step takes, one each"""
    constants: dict[str, int] = field(default_factory=dict)
    """Limits of the kernels that are made small, so that small models reach them"""
    processors: int = 1
    """For how many multiprocessors vectors are tiled, where there is no GPU: few programs are interpreted sooner"""


def gpt2(**sizes: Any) -> GPT2:
    return random_gpt2(**{"vocab_size": 101, "heads": 3, "hidden": 96, "layers": 1} | sizes)


def llama(**sizes: Any) -> Llama:
    return random_llama(
        **{"vocab_size": 101, "heads": 6, "kv_heads": 2, "hidden": 96, "inner": 88, "layers": 1} | sizes
    )


def narrow() -> Llama:
    """Return a Llama whose feed-forward part is wide for its size."""
    return llama(heads=3, kv_heads=1, hidden=48, inner=262)


PARTS_OF_KEYS = {"SMALLEST_PART": 16 * PAGE, "PROGRAMS_PER_PROCESSOR": 8}
PAGE_BY_PAGE = {"AT_ONCE": 1, "AT_ONCE_OF_FEW": 1}
TWO_PAGES = {"AT_ONCE": 2 * 16 * PAGE, "AT_ONCE_OF_FEW": 2 * 16 * PAGE}
LONG = {"LONG_PART": 1, "SMALLEST_PART": 16 * PAGE}
PARTS_OF_VECTORS = {"LONGEST_PART": 128}
TOGETHER = {"LARGEST_GEMV": 0}
ONE_TOKEN = {
    "gpt2": lambda: Case(gpt2(), lengths=[63], processors=4),
    "llama, 3 heads share": lambda: Case(
        llama(layers=2), lengths=[64], constants=PARTS_OF_KEYS | PAGE_BY_PAGE, processors=4
    ),
    "llama, none shares": lambda: Case(llama(heads=3, kv_heads=3), lengths=[129], constants=PARTS_OF_KEYS | TWO_PAGES),
    "llama, page by page": lambda: Case(llama(heads=3, kv_heads=3), lengths=[129], constants=PAGE_BY_PAGE),
    "llama, two pages at a time": lambda: Case(llama(heads=3, kv_heads=3), lengths=[130], constants=TWO_PAGES),
    "llama, pages ahead": lambda: Case(llama(), lengths=[3 * PAGE], constants=LONG | PAGE_BY_PAGE),
    "llama, two pages ahead": lambda: Case(llama(), lengths=[3 * PAGE + 9], constants=LONG | TWO_PAGES),
    "gpt2 in 8 bits": lambda: Case(gpt2(heads=1, hidden=64), "int8", lengths=[65]),
    "llama in 8 bits": lambda: Case(llama(heads=3, kv_heads=1, hidden=48), "int8", lengths=[1]),
    "gpt2 in 4 bits": lambda: Case(gpt2(), "int4", 32, lengths=[128]),
    "llama in 4 bits": lambda: Case(llama(heads=5, kv_heads=5, hidden=80), "int4", 64, lengths=[0]),
    "llama in 4 bits, large groups": lambda: Case(llama(), "int4", 128, lengths=[2]),
}
VECTORS_IN_PARTS = {
    "gpt2": lambda: Case(gpt2(), lengths=[3], constants=PARTS_OF_VECTORS),
    "llama": lambda: Case(llama(heads=3, kv_heads=1, inner=300), lengths=[3], constants=PARTS_OF_VECTORS),
    "llama in 8 bits": lambda: Case(narrow(), "int8", lengths=[3], constants=PARTS_OF_VECTORS),
    "gpt2 in 4 bits": lambda: Case(gpt2(heads=2, hidden=64), "int4", 32, lengths=[3], constants=PARTS_OF_VECTORS),
    "llama in 4 bits": lambda: Case(narrow(), "int4", 128, lengths=[3], constants=PARTS_OF_VECTORS),
    "several rounds of rows": lambda: Case(gpt2(heads=5, hidden=320), lengths=[3],
                                           constants=PARTS_OF_VECTORS),
}  # fmt: skip
SIDE_BY_SIDE = {
    "gpt2": lambda: Case(gpt2(layers=2), rows=[2, 0], processors=4),
    "llama, rows that repeat": lambda: Case(llama(), rows=[1, 1, 1, 0, 2, 2], constants=PARTS_OF_KEYS),
    "vectors in parts": lambda: Case(gpt2(heads=2, hidden=64), rows=[0, 1, 1], constants=PARTS_OF_VECTORS),
    "in 8 bits": lambda: Case(llama(heads=3, kv_heads=1, hidden=48), "int8", rows=[0, 3]),
    "in 4 bits": lambda: Case(gpt2(), "int4", 32, rows=[0, 1]),
}
SEVERAL_TOKENS = {
    "gpt2": lambda: Case(gpt2(layers=2), rows=[2, 0], constants=PAGE_BY_PAGE),
    "llama": lambda: Case(
        llama(layers=2), rows=[3, 1, 0, 2, 4], lengths=[*BORDERS, 0], constants=PARTS_OF_KEYS | PAGE_BY_PAGE
    ),
    "rows that repeat": lambda: Case(llama(), rows=[1, 1, 1, 0, 2, 2], constants=PARTS_OF_KEYS | TWO_PAGES),
    "rows that repeat, none shares": lambda: Case(gpt2(), rows=[0, 0, 0, 1], constants=PARTS_OF_KEYS),
    "pages ahead": lambda: Case(llama(heads=3, kv_heads=1, hidden=48), rows=[3, 0], constants=LONG | PAGE_BY_PAGE),
    "inputs in parts": lambda: Case(llama(heads=2, kv_heads=1, hidden=32, inner=1100, layers=2), rows=[0, 1, 2]),
    "inputs in parts, 4 bits": lambda: Case(gpt2(heads=2, hidden=32, layers=2), "int4", 32, rows=[0, 1, 2]),
    "gpt2 in 8 bits": lambda: Case(gpt2(), "int8", rows=range(5), lengths=[*BORDERS, 7]),
    "llama in 8 bits": lambda: Case(llama(heads=5, kv_heads=1, hidden=80), "int8", rows=range(17), lengths=range(17)),
    "gpt2 in 4 bits": lambda: Case(gpt2(), "int4", 64, rows=[0, 1]),
    "llama in 4 bits": lambda: Case(llama(), "int4", 128, rows=[1, 0, 1]),
    "33 tokens": lambda: Case(llama(heads=2, kv_heads=1, hidden=32), rows=range(33), lengths=range(50, 83)),
    "33 tokens in 8 bits": lambda: Case(gpt2(heads=2, hidden=32), "int8", rows=range(33), lengths=range(33)),
    "33 tokens in 4 bits": lambda: Case(
        llama(heads=2, kv_heads=1, hidden=32), "int4", 32, rows=range(33), lengths=range(33)
    ),
    "66 tokens": lambda: Case(gpt2(heads=1, hidden=16), rows=[*range(33)] * 2, lengths=range(33)),
}
KINDS = {
    "one token": ONE_TOKEN,
    "vectors in parts": VECTORS_IN_PARTS,
    "side by side": SIDE_BY_SIDE,
    "several tokens": SEVERAL_TOKENS,
}
every_case = pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, cases in KINDS.items() for name in cases]
)


# --- what is compared ------------------------------------------------------------------------------------


def filled_cache(decoder: Decoder, prompts: list[list[int]]) -> Cache:
    """Return a cache that holds prompts, and NaN beyond; the page that is nobody's too."""
    cache = shuffled_cache(decoder, len(prompts), CAPACITY)
    longest = max(map(len, prompts))
    if longest:
        tokens = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts], device=decoder.device)
        counts = torch.tensor([len(prompt) for prompt in prompts], device=decoder.device)
        plain.prefill(decoder, cache, tokens, torch.arange(len(prompts), device=decoder.device), 0, counts)
    cache.keys[:, 0] = cache.values[:, 0] = torch.nan
    return cache


def one_after_the_other(
    decoder: Decoder, cache: Cache, tokens: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor
) -> torch.Tensor:
    """Return the plain version's logits, ``(count, vocab_size)``, token after token."""
    each = [plain.decode(decoder, cache, tokens[place, None, None], rows[place, None], positions[place, None])[0, 0]
            for place in range(len(rows))]  # fmt: skip
    return torch.stack(each)


def assert_close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Assert that two tensors are near, and not a number at the same places."""
    assert torch.equal(found.isnan(), expected.isnan())
    difference = (found.float() - expected.float()).nan_to_num()
    expected = expected.float().nan_to_num()
    if dtype == torch.float32:
        error, accepted = difference.abs().max() / expected.abs().max(), ACCEPTED_IN_FP32
    else:
        error, accepted = difference.norm() / expected.norm(), ACCEPTED_IN_BF16
    assert error <= accepted, float(error)


def compare(kind: str, name: str, device: str, dtype: torch.dtype = torch.float32) -> None:
    """Assert that a step gives the plain version's logits, tokens, keys and values, and writes nowhere else."""
    case: Case = KINDS[kind][name]()
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
        from gpuguide.inference import fused
        from gpuguide.inference.fused import attention, step, tiling

        together = TOGETHER if kind == "several tokens" else {}
        for constant, small in (case.constants | together).items():
            for module in (tiling, step, attention):
                if hasattr(module, constant):
                    patch.setattr(module, constant, small)
        decoder = prepare(case.model, weights=case.weights, dtype=dtype, group=case.group, device=device)
        prompts = random_prompts(case.lengths, vocab_size=101)
        before = [list(case.rows[:place]).count(row) for place, row in enumerate(case.rows)]
        rows = torch.tensor(list(case.rows), device=device)
        lengths = torch.tensor(
            [case.lengths[row] + times for row, times in zip(case.rows, before, strict=True)], device=device
        )
        tokens = torch.tensor(random_prompts([len(rows)], vocab_size=101, seed=1)[0], device=device)

        cache, expected_cache = filled_cache(decoder, prompts), filled_cache(decoder, prompts)
        expected = one_after_the_other(decoder, expected_cache, tokens, rows, lengths)
        step = fused.DecodeStep(decoder, cache, rows)
        if device == "cpu":
            step.processors = case.processors
        assert step.uses_gemv == (kind != "several tokens")
        check_that_limits_are_reached(step, case)
        found = step(tokens, lengths)
        assert found.dtype == torch.float32
        assert_close(found, expected, dtype)
        assert_close(cache.keys, expected_cache.keys, dtype)
        assert_close(cache.values, expected_cache.values, dtype)
        assert torch.equal(best_tokens(step), found.argmax(dim=-1))
        assert (
            int(step.counters.abs().sum()) == int(step.attention.counters.abs().sum()) == 0
        )  # ready for the next step


def best_tokens(step: Any) -> torch.Tensor:
    """Return what a step found to be the most likely tokens."""
    from gpuguide.inference import fused

    texts = torch.zeros(step.count, 9, dtype=torch.int64, device=step.best.device)
    tokens, lengths = texts[:, 0].clone(), texts[:, 0].clone()
    fused.advance(step, None, tokens, lengths, texts[:, 0].bool(), texts)
    assert (step.best == fused.step.LOWEST).all()
    return tokens


def check_that_limits_are_reached(step: Any, case: Case) -> None:
    """Assert that a case tests what its name says."""
    from gpuguide.inference import fused

    assert step.attention.tiling.ahead == ("LONG_PART" in case.constants)
    if "SMALLEST_PART" in case.constants:
        assert step.attention.tiling.parts > 1
    if "LONGEST_PART" in case.constants:
        tiling = fused.vector_tiling(step.layers[0].down, step.processors, can_cut=True)
        assert tiling.parts > 1
        assert tiling.rounds > 1 or step.decoder.shape.hidden < 320 or step.processors > case.processors


@needs_triton
@every_case
def test_kernels_interpreted(kind: str, name: str) -> None:
    interpreted.run(__file__, f"compare({kind!r}, {name!r}, 'cpu')")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@every_case
def test_kernels_on_a_gpu(kind: str, name: str, dtype: torch.dtype) -> None:
    compare(kind, name, "cuda", dtype)


# --- the end of a step -----------------------------------------------------------------------------------


def the_first_of_the_best_logits_is_taken(device: str) -> None:
    """Whatever their sign and size. Normed hidden states are all ones, so a logit is the sum of its token's vector.

    Vectors are powers of two, of which sums are exact.
    """
    from gpuguide.inference import fused

    decoder = prepare(llama(heads=1, kv_heads=1, hidden=16, inner=16), device=device)
    decoder.final_norm.weight.zero_()
    decoder.final_norm.bias = torch.ones(16, device=device)
    values = ((-4.0, -8.0), (2.0**-100, -(2.0**90)), (-(2.0**-90), -4.0), (8.0, 4.0))
    for (best, others), limit in itertools.product(values, (0, fused.step.LARGEST_GEMV)):
        head = torch.full((101, 16), others / 16, device=device)
        head[[100, 30, 31, 77]] = best / 16
        decoder.head.weight = head
        with pytest.MonkeyPatch.context() as patch, torch.inference_mode():
            patch.setattr(fused.step, "LARGEST_GEMV", limit)
            step = fused.DecodeStep(decoder, shuffled_cache(decoder, 2, CAPACITY), torch.arange(2, device=device))
            logits = step(torch.arange(2, device=device), torch.zeros(2, dtype=torch.int64, device=device))
        assert step.uses_gemv == bool(limit)
        assert logits[:, 29:32].tolist() == [[others, best, best]] * 2
        assert best_tokens(step).tolist() == [30] * 2


def rows_advance_by_what_was_drawn(device: str) -> None:
    """A full text goes nowhere, a row without one neither; no token at all becomes token 0."""
    from gpuguide.inference import fused

    texts = torch.full((4, 11), -7, dtype=torch.int64, device=device)
    tokens = torch.tensor([1, 2, 3, 4], device=device)
    lengths = torch.tensor([3, 9, 0, 5], device=device)
    writing = torch.tensor([True, True, False, True], device=device)
    drawn = torch.tensor([5, 6, 7, -1], device=device)
    step: Any = SimpleNamespace(count=4, best=tokens.clone(), overlap=False)
    fused.advance(step, drawn, tokens, lengths, writing, texts)
    assert tokens.tolist() == [5, 6, 7, 0]
    assert lengths.tolist() == [4, 9, 0, 6]
    assert [texts[row, place].item() for row, place in enumerate((4, 10, 0, 6))] == [5, 6, 7, 0]
    assert int((texts == -7).sum()) == 40


def narrow_products_take_vectors_of_any_size(device: str) -> None:
    """Zeros, tiny and huge numbers, and one that is far above all others: sums in fp16 are of scaled numbers."""
    from gpuguide.inference import fused

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    generator = torch.Generator().manual_seed(3)
    usual = torch.randn(1, 96, generator=generator)
    outlier = usual.clone()
    outlier[0, 5] = 900.0
    for weights, group in (("int8", 128), ("int4", 32), ("int4", 128)):
        decoder = prepare(gpt2(), weights=weights, dtype=dtype, group=group, device=device)
        with torch.inference_mode():
            row = torch.zeros(1, dtype=torch.int64, device=device)
            step = fused.DecodeStep(decoder, shuffled_cache(decoder, 1, CAPACITY), row)
            linear = decoder.layers[0].out
            for x in (usual, 0 * usual, 1e-30 * usual, 1e30 * usual, outlier):
                given = x.to(device, dtype)
                step.hidden.zero_()
                step._gemv_and_add(step.layers[0].out, given)
                expected = given.double() @ linear.weight.dequantize().double().T + linear.bias.double()
                error = (step.hidden - expected).norm() / expected.norm()
                assert error <= 3e-3, (weights, group, float(x.abs().max()), float(error))


PARTS = {
    part.__name__: part
    for part in (
        the_first_of_the_best_logits_is_taken,
        rows_advance_by_what_was_drawn,
        narrow_products_take_vectors_of_any_size,
    )
}
every_part = pytest.mark.parametrize("part", PARTS)


@needs_triton
@every_part
def test_the_end_of_a_step_interpreted(part: str) -> None:
    interpreted.run(__file__, f"PARTS[{part!r}]('cpu')")


@pytest.mark.gpu
@every_part
def test_the_end_of_a_step_on_a_gpu(part: str) -> None:
    PARTS[part]("cuda")


# --- how products are cut up -----------------------------------------------------------------------------


@needs_triton
@given(
    outputs=st.integers(1, 200_000),
    inputs=st.integers(1, 16_384),
    bits=st.sampled_from([0, 4, 8]),
    group=st.sampled_from([32, 64, 128]),
    processors=st.integers(1, 160),
    can_cut=st.booleans(),
    count=st.integers(2, 300),
    element_size=st.sampled_from([2, 4]),
)
def test_tilings_cover_all_inputs_and_outputs(
    outputs: int,
    inputs: int,
    bits: int,
    group: int,
    processors: int,
    can_cut: bool,
    count: int,
    element_size: int,
) -> None:
    from gpuguide.inference import fused

    multiple = {0: 1, 4: group, 8: fused.tiling.WIDTH}[bits]
    stored = -(-inputs // multiple) * multiple * max(bits, 1) // (32 if bits else 1)
    weight = torch.empty(outputs, stored, device="meta")
    matrix = fused.Matrix(weight, weight, weight, False, outputs, inputs, 1, bits, group if bits == 4 else 1)
    vector = fused.vector_tiling(matrix, processors, can_cut=can_cut)
    assert vector.programs * vector.rounds * vector.rows >= outputs
    assert vector.parts * vector.length >= inputs
    assert vector.padded >= vector.length
    assert vector.length % fused.tiling.WIDTH == 0
    assert all(power.bit_count() == 1 for power in (vector.padded, vector.rows, vector.warps))
    assert 2 <= vector.rows <= 64
    assert vector.warps <= 16
    assert vector.parts == 1 or can_cut
    assert not can_cut or vector.length <= fused.tiling.LONGEST_PART

    tiling = fused.matrix_tiling(matrix, count, processors, element_size=element_size, can_split=can_cut)
    blocks = -(-inputs // tiling.block)
    assert tiling.parts * -(-blocks // tiling.parts) >= blocks
    assert 1 <= tiling.parts <= 8
    assert tiling.parts == 1 or can_cut
    assert tiling.block == group or bits != 4
    assert all(power.bit_count() == 1 for power in (tiling.tokens, tiling.rows, tiling.block, tiling.warps))
    assert min(tiling.tokens, tiling.rows) >= 8


@needs_triton
def test_inputs_are_split_where_multiprocessors_would_be_idle() -> None:
    from gpuguide.inference.fused.tiling import split_k_parts

    assert split_k_parts(blocks=32, programs=64, processors=132, resident=264) == 4
    assert split_k_parts(blocks=6, programs=12, processors=132, resident=264) == 6  # short parts, rather than idle ones
    assert split_k_parts(blocks=86, programs=64, processors=132, resident=396) == 6
    assert split_k_parts(blocks=86, programs=32, processors=132, resident=396) == 8  # no more than the norm adds up
    assert split_k_parts(blocks=32, programs=344, processors=132, resident=264) == 1


@needs_triton
def test_a_gpu_has_work_for_all_its_processors() -> None:
    from gpuguide.inference.fused.attention import tiling_for

    def parts(count: int, kv_heads: int, capacity: int, head_dim: int = 64) -> int:
        return tiling_for(count, 4, kv_heads, head_dim, capacity, processors=132, shared_numbers=0).parts

    assert parts(count=1, kv_heads=8, capacity=8192) == 32  # no part below 256 keys
    assert parts(count=1, kv_heads=8, capacity=4096, head_dim=128) == 32  # nor below 128 of twice the size
    assert parts(count=1, kv_heads=32, capacity=8192) == 8  # not 9: some programs would come after all the others
    assert parts(count=64, kv_heads=32, capacity=8192) == 1
    assert parts(count=1, kv_heads=8, capacity=2**20) == 32  # not 33, which the last program would hold as 64
    assert parts(count=3, kv_heads=8, capacity=2**20) == 11
    assert parts(count=1, kv_heads=1, capacity=2**20) == 64
    assert parts(count=1, kv_heads=8, capacity=64) == 1


@needs_triton
def test_of_few_programs_each_takes_more_keys_at_a_time() -> None:
    from gpuguide.inference.fused.attention import tiling_for

    def block(count: int, head_dim: int) -> int:
        return tiling_for(count, 1, 12, head_dim, capacity=320, processors=132, shared_numbers=0).block

    assert [block(1, head_dim) for head_dim in (16, 64, 128, 512)] == [256, 256, 128, PAGE]
    assert [block(32, head_dim) for head_dim in (16, 64, 128, 512)] == [256, 128, PAGE, PAGE]


@needs_triton
def test_long_sequences_get_one_program_for_each_processor() -> None:
    from gpuguide.inference.fused.attention import DecodeTiling, tiling_for

    def tiling(
        count: int, kv_heads: int, capacity: int, head_dim: int = 128, numbers: int = 227 * 2**9, group: int = 4
    ) -> DecodeTiling:
        return tiling_for(count, group, kv_heads, head_dim, capacity, processors=132, shared_numbers=numbers)

    assert tiling(count=1, kv_heads=8, capacity=16384) == DecodeTiling(16, PAGE, 4, ahead=True)
    assert tiling(count=8, kv_heads=8, capacity=2048) == DecodeTiling(2, PAGE, 4, ahead=True)
    assert tiling(count=1, kv_heads=4, capacity=2**20).parts == 32  # not 33, which the last program would hold as 64
    assert tiling(count=1, kv_heads=8, capacity=2**20, head_dim=64).block == 2 * PAGE  # as many numbers
    assert not tiling(count=1, kv_heads=8, capacity=8192).ahead  # too short
    assert not tiling(count=1, group=1, kv_heads=32, capacity=16384).ahead  # measured: 73 us, and 67 with two programs
    assert not tiling(count=8, kv_heads=32, capacity=2**20).ahead  # more heads than processors
    assert not tiling(count=1, kv_heads=8, capacity=2**20, numbers=99 * 2**9).ahead  # too little shared memory
    assert not tiling(count=1, kv_heads=8, capacity=2**20, head_dim=256).ahead


@needs_triton
@pytest.mark.parametrize("head_dim", [64, 128])
def test_keys_of_a_long_sequence_are_loaded_ahead(head_dim: int) -> None:
    interpreted.run(__file__, f"compiled_for_hopper({head_dim})", interpret=False)


def compiled_for_hopper(head_dim: int) -> None:
    """While a block is multiplied, keys and values of the next two are under way."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from gpuguide.inference.fused.attention import attend_kernel, tiling_for

    tiling = tiling_for(1, 4, 8, head_dim, capacity=2**20, processors=132, shared_numbers=2**17)
    assert tiling.ahead
    constants = {"KV_HEADS": 8, "GROUP": 4, "GROUP_PAD": 16, "HEAD_DIM": head_dim, "PAGE": PAGE, "PDL": False}
    constants |= {"BLOCK": tiling.block, "PARTS": tiling.parts, "PARTS_PAD": tiling.parts, "STAGES": tiling.stages}
    constants["AHEAD"] = True
    types = dict.fromkeys(["queries", "keys", "values", "out"], "*bf16")
    types |= dict.fromkeys(["partial", "statistics"], "*fp32") | dict.fromkeys(["table", "counters"], "*i32")
    types |= dict.fromkeys(["cache_rows", "positions"], "*i64") | {"table_width": "i32", "scale": "fp32"}
    names = attend_kernel.arg_names
    signature = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(names)
        if name not in constants and name != "scale"
    }
    built = triton.compile(
        ASTSource(attend_kernel, signature, constants, aligned),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": 4},
    )
    assert re.search(r"cp\.async\.wait_group\s+4;", built.asm["ptx"])
    assert built.metadata.shared <= 227 * 2**10


# --- whole texts, on a GPU -------------------------------------------------------------------------------

NEW = 60


def written(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    """Return what an engine writes after prompts, whose seeds are 0, 1 and so on."""
    engine.start(prompts)
    for _ in range(NEW - 1):
        engine.step(len(prompts))
    return [engine.texts[row, len(prompt) : len(prompt) + NEW].tolist() for row, prompt in enumerate(prompts)]


def texts_to_begin(count: int) -> list[list[int]]:
    tokens = models.load("main").tokenizer.encode(corpus.load_held_out())
    return [tokens[300 * number : 300 * number + 1 + 31 * number] for number in range(count)]


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 2, 5, 17])
def test_texts_of_main_are_those_of_the_uncached_model(count: int) -> None:
    """In fp32, where the kernels' graph is replayed; a row that has no text changes nothing."""
    main = models.load("main").model
    prompts = texts_to_begin(min(count, 5)) * (1 if count <= 5 else 3)
    engine = Engine(prepare(main, device="cuda"), count, 300)
    expected = {tuple(prompt): models.generate(main, prompt, NEW) for prompt in prompts}
    for _ in range(2):  # the second time all graphs are there
        assert written(engine, prompts[:count]) == [expected[tuple(prompt)] for prompt in prompts[:count]]
    engine.start(prompts[:1])
    for _ in range(NEW - 1):
        engine.step()
    found = engine.texts[0, len(prompts[0]) : len(prompts[0]) + NEW].tolist()
    assert found == expected[tuple(prompts[0])]


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings", [GREEDY, SamplingSettings(temperature=0.9, top_k=40, top_p=0.95)], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("weights", ["plain", "int8", "int4"])
@pytest.mark.parametrize("count", [1, 3])
def test_texts_are_those_of_the_processor(settings: SamplingSettings, weights: str, count: int) -> None:
    for model in (random_gpt2(vocab_size=101), random_llama(vocab_size=101)):
        prompts = random_prompts([1, 64, 129][-count:], vocab_size=101)
        found, expected = (
            written(
                Engine(prepare(model, weights=weights, device=device, group=32), count, CAPACITY, settings), prompts
            )
            for device in ("cuda", "cpu")
        )
        assert found == expected


@pytest.mark.gpu
def test_a_full_text_goes_nowhere() -> None:
    """Nor does it write into its neighbour's pages."""
    model = random_gpt2(vocab_size=101)
    prompts = random_prompts([PAGE - 3, 4], vocab_size=101)
    engine = Engine(prepare(model, device="cuda"), 2, PAGE)
    engine.start(prompts)
    for _ in range(PAGE - 5):
        engine.step()
    assert engine.texts[0, PAGE - 3 : PAGE].tolist() == models.generate(model, prompts[0], 3)
    assert engine.texts[1, 4:PAGE].tolist() == models.generate(model, prompts[1], PAGE - 4)
    assert engine.lengths.tolist() == [PAGE - 1, PAGE - 1]


@pytest.mark.gpu
def test_a_step_does_not_wait_for_the_gpu() -> None:
    engine = Engine(prepare(random_llama(), device="cuda"), 2, CAPACITY, SamplingSettings(top_k=5))
    engine.start(random_prompts([3, 70]))
    engine.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
