"""The greedy cycle of kernels against the plain one: interpreted on the processor, and compiled on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import interpreted
import pytest
import torch
from interpreted import needs_triton
from random_models import random_gpt2, random_llama, random_prompts

from gpuguide import models
from gpuguide.inference import PAGE, Decoder, prepare
from gpuguide.inference.speculative import PromptLookup, Speculator
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.llama import Llama
from gpuguide.sampling.reference import SamplingSettings

VOCAB = 97


def gpt2(seed: int = 1) -> GPT2:
    return random_gpt2(seed, layers=1, heads=1, hidden=16)


def llama(seed: int = 0) -> Llama:
    return random_llama(seed, layers=1, heads=2, kv_heads=1, hidden=32, inner=40)


@dataclass
class Case:
    """Who writes, and what."""

    target: GPT2 | Llama
    draft: GPT2 | Llama | None = None
    """By default the target with noise, so that it is right here and there"""
    noise: float = 0.15
    """How much of it is in the weights of the draft's logits"""
    k: int = 3
    prompts: Sequence[int] = (7,)
    """Tokens of each prompt"""
    new: int = 9
    room: int = 0
    """By how many tokens the capacity exceeds what is written"""
    spare: int = 0
    """Rows without a text"""


CASES = {
    "one row": lambda: Case(llama(1), new=8),
    "one guess": lambda: Case(gpt2(), k=1, new=5),
    "seven guesses": lambda: Case(gpt2(), noise=0.04, k=7, new=10),
    "several rows, over a page's end": lambda: Case(llama(), noise=0.3, k=2, prompts=[5, PAGE - 4, 1], new=6, spare=1),
    "a poor draft": lambda: Case(llama(), gpt2(5), prompts=[3, 9], new=3),
    "a draft like the target": lambda: Case(gpt2(), noise=0, prompts=[2, 6], new=1 + 2 * 4),
    "room to spare": lambda: Case(gpt2(), k=4, prompts=[4, 1], new=7, room=20),
    "guesses beyond the capacity": lambda: Case(gpt2(), k=6, prompts=[PAGE - 8, 2], new=6),
}


def decoders(case: Case, device: str) -> tuple[Decoder, Decoder]:
    """Return the target and the draft."""
    target, draft = (prepare(model, device=device) for model in (case.target, case.draft or case.target))
    weight = draft.head.weight
    random = torch.randn(weight.shape, generator=torch.Generator().manual_seed(7)).to(device)
    draft.head.weight = weight + case.noise * weight.std() * random
    return target, draft


@contextmanager
def kernels_everywhere() -> Iterator[None]:
    """Have models on the processor read by kernels, which are interpreted there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "suits_kernels", lambda _: True)
        yield


def writers(case: Case, device: str) -> tuple[Speculator, Speculator]:
    """Return who writes with kernels on a device, and who writes plainly on the processor."""
    rows = len(case.prompts) + case.spare
    capacity = max(case.prompts) + case.new + case.room
    options: dict[str, Any] = {"rows": rows, "capacity": capacity, "k": case.k}
    expected = Speculator(*decoders(case, "cpu"), **options)
    assert expected._greedy is None
    with kernels_everywhere():
        found = Speculator(*decoders(case, device), **options)
    assert found._greedy is not None
    if device == "cpu":
        for step in steps_of(found):
            step.processors = 1  # few programs are interpreted sooner
    return found, expected


def steps_of(writer: Speculator) -> list[Any]:
    """Return the steps of a cycle of kernels."""
    cycle = writer._greedy
    assert cycle is not None
    return [cycle.read_two, cycle.read_one, cycle.verify]


def compare(name: str, device: str) -> None:
    """Assert that every cycle does what a plain one does, and that the text is what the target writes by itself."""
    case: Case = CASES[name]()
    found, expected = writers(case, device)
    prompts = random_prompts(case.prompts, vocab_size=VOCAB)
    for writer in (found, expected):
        writer.start(prompts, case.new)
    gains = [-1]
    while any(gains):  # at last there is a cycle where all texts are complete
        gains = expected.cycle().tolist()
        assert found.cycle().tolist() == gains
        assert_same_state(found, expected)
    texts = [models.generate(case.target, prompt, case.new) for prompt in prompts]
    assert found.read_new_tokens() == expected.read_new_tokens() == texts
    assert found.tokens_per_cycle() == expected.tokens_per_cycle()
    assert found.acceptance() == expected.acceptance()
    assert_case_is_what_it_says(name, case, found)


def assert_same_state(found: Speculator, expected: Speculator) -> None:
    """Assert that both have come equally far, and that the steps are ready for the next cycle."""
    from gpuguide.inference.fused.step import LOWEST

    assert found.outcomes.tolist() == expected.outcomes.tolist()
    assert found.lengths.tolist() == expected.lengths.tolist()
    assert found.read_new_tokens() == expected.read_new_tokens()
    for step in steps_of(found):
        assert (step.best == LOWEST).all()


def assert_case_is_what_it_says(name: str, case: Case, writer: Speculator) -> None:
    cycles = writer.outcomes[: len(case.prompts), 1:].sum(dim=0)
    if name == "a poor draft":
        assert writer.acceptance() < 0.2
    elif name == "a draft like the target":
        assert cycles.tolist() == [0] * case.k + [2 * len(case.prompts)]
    else:
        assert writer.acceptance() < 1
        assert cycles[-1] > 0, "the draft's cache lacks a token after one cycle at least"


def a_row_is_used_again(device: str) -> None:
    """A text leaves nothing behind for the next one, be there fewer of them."""
    case = Case(gpt2(), k=2, prompts=[6, 3], new=3, room=8)
    writer, _ = writers(case, device)
    prompts = random_prompts(case.prompts, vocab_size=VOCAB)
    first = writer.write(prompts, 3)
    assert writer.write(prompts[1:], 5)[0][:3] == first[1]
    assert writer.write(prompts, 3) == first


def what_needs_logits_has_no_such_cycle(device: str) -> None:
    """Draws, and a draft without a model."""
    target, draft = decoders(Case(gpt2(), gpt2(1)), device)
    options: dict[str, Any] = {"rows": 1, "capacity": 8, "k": 2}
    with kernels_everywhere():
        assert Speculator(target, draft, **options)._greedy is not None
        assert Speculator(target, draft, **options, settings=SamplingSettings(temperature=0.5))._greedy is None
        assert Speculator(target, PromptLookup(), **options)._greedy is None


PARTS = {part.__name__: part for part in (a_row_is_used_again, what_needs_logits_has_no_such_cycle)}


@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_cycles_interpreted(name: str) -> None:
    interpreted.run(__file__, f"compare({name!r}, 'cpu')")


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_cycles_on_a_gpu(name: str) -> None:
    compare(name, "cuda")


@needs_triton
@pytest.mark.parametrize("part", PARTS)
def test_rows_and_settings_interpreted(part: str) -> None:
    interpreted.run(__file__, f"PARTS[{part!r}]('cpu')")


@pytest.mark.gpu
@pytest.mark.parametrize("part", PARTS)
def test_rows_and_settings_on_a_gpu(part: str) -> None:
    PARTS[part]("cuda")


# --- launched while their predecessors run -------------------------------------------------------------------


@needs_triton
@pytest.mark.parametrize("overlap", [True, False])
def test_kernels_read_nothing_before_their_predecessors_have_ended(overlap: bool) -> None:
    """Compiled for a GPU that is not here: the interpreter runs kernels one after another, and would not notice."""
    interpreted.run(__file__, f"compiled_kernels_wait({overlap})", interpret=False)


def compiled_kernels_wait(overlap: bool) -> None:
    from gpuguide.inference.speculative import kernels

    for kernel in (kernels.embed_guess_kernel, kernels.move_on_kernel):
        code = compiled_for_hopper(kernel, overlap)
        assert code.count("griddepcontrol.wait") == int(overlap), kernel
        if overlap:
            before, after = code.split("griddepcontrol.wait")
            assert not any(access in before for access in ("ld.global", "st.global")), kernel
            assert "ld.global" in after, kernel


def compiled_for_hopper(kernel: Any, overlap: bool) -> str:
    """Return the PTX of a kernel."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    sizes = {"K": 4, "PLACES": 8, "SEQ": 2, "COUNT": 5, "WIDTH": 96, "BLOCK": 128}
    constants = sizes | {"POSITIONS": True, "LOWEST_ORDER": -(2**63), "PDL": overlap}
    numbers = ("text_width", "capacity", "given_stride")
    of_the_model = {"embedding": "*bf16", "position_embedding": "*bf16", "hidden": "*fp32"}
    signature = {
        name: "constexpr" if name in constants else "i32" if name in numbers else of_the_model.get(name, "*i64")
        for name in kernel.arg_names
    }
    source = ASTSource(kernel, signature, {name: constants[name] for name in kernel.arg_names if name in constants})
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
    return str(compiled.asm["ptx"])
