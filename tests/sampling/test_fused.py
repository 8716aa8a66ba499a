"""The sampler's kernels against a sort in float64: interpreted on the processor, and compiled on a GPU."""

from __future__ import annotations

import importlib.util
from typing import Any

import interpreted
import pytest
import torch
from interpreted import needs_triton

from gpuguide import logits as distributions
from gpuguide.sampling import NO_TOKEN, reference, sample_token
from gpuguide.sampling.reference import SamplingSettings

VOCABULARIES = (1, 7, 300, 1003, 5000)
LARGE_VOCABULARIES = (50304, 128256, 262144)
SETTINGS = [
    SamplingSettings(),
    SamplingSettings(temperature=0.8, top_k=50, top_p=0.9),
    SamplingSettings(top_k=1),
    SamplingSettings(top_k=128, top_p=0.95),
    SamplingSettings(top_k=129, top_p=0.95),
    SamplingSettings(top_k=40, min_p=1.0),
    SamplingSettings(top_k=60, top_p=1e-9),
    SamplingSettings(temperature=0.8, min_p=0.05),
    SamplingSettings(temperature=1.7, top_p=0.9),
    SamplingSettings(top_p=0.5, min_p=0.1),
]
UNLIMITED = [
    SamplingSettings(top_p=0.9),
    SamplingSettings(temperature=0.8, top_p=0.5, min_p=0.001),
    SamplingSettings(top_k=4000, top_p=0.95),
]
"""Those that add up many probabilities, in fp32"""
ACCEPTED_MASS = 1e-6
"""How far from p the sum may lie at which a sum in fp32 cuts"""
SEED_OF_LARGEST_WORD, SEED_OF_ZERO = 2189433366, 4320717320
"""With these the random word of token 4 at step 0 is the largest there is, and zero"""


def rows_of(vocab: int, device: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return logits of several kinds, two rows of each."""
    normal = torch.randn(2, vocab, generator=torch.Generator().manual_seed(seed + vocab))
    kinds = {
        "normal": normal,
        "peaked": normal * 5,
        "tied": (normal * 2).round(),
        "equal": torch.zeros(2, vocab),
        "sorted": normal.sort(dim=-1, descending=True).values,
        "clamped": normal.clamp_min(0.25) - 0.25,  # half of them and more are zero, and that is the smallest
        "signed zeros": torch.where(normal > 1, 1.0, normal.sign() * 0.0),
        "partly excluded": normal.where(normal > -0.5, -torch.inf).index_fill(-1, torch.tensor([vocab // 2]), 0.0),
    }
    return {name: rows.to(device) for name, rows in kinds.items()}


def draw(
    rows: torch.Tensor, settings: SamplingSettings, step: int = 4
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what the kernels draw, what the plain version draws, and the smallest logit that the kernels kept."""
    from gpuguide.sampling import fused

    seeds = torch.arange(rows[..., 0].numel(), device=rows.device).reshape(rows.shape[:-1]) * 977 + 3
    steps = torch.tensor(step, device=rows.device)
    tokens, lowest = fused.draw(rows, seeds, steps, settings)
    return tokens, reference.sample_token(rows, seeds, steps, settings), lowest


def kept_by_sort(rows: torch.Tensor, settings: SamplingSettings) -> torch.Tensor:
    """Return which tokens the plain version keeps, in float64."""
    return distributions.adjust(rows.double(), **vars(settings)) > -torch.inf


def kept_from(rows: torch.Tensor, lowest: torch.Tensor) -> torch.Tensor:
    """Return which tokens are kept if that is all from a logit on."""
    return (rows >= lowest.unsqueeze(-1)) & (rows > -torch.inf)


def compare(rows: torch.Tensor, settings: SamplingSettings, name: str) -> None:
    """Assert that the kernels keep and draw the same as the plain version."""
    tokens, expected, lowest = draw(rows, settings)
    kept, right = kept_from(rows, lowest), kept_by_sort(rows, settings)
    assert torch.equal(kept, right), (name, settings, f"kept {kept.sum(-1)} and not {right.sum(-1)}")
    assert torch.equal(tokens, expected), (name, settings, tokens, expected)


# --- what is compared, in parts ---------------------------------------------------------------------------


def same_tokens_are_kept_and_drawn(device: str) -> None:
    """The interpreter is slow, and takes every third setting: other ones for each kind of logits."""
    kinds = [(f"{name}, {vocab}", rows) for vocab in VOCABULARIES for name, rows in rows_of(vocab, device).items()]
    for number, (name, rows) in enumerate(kinds):
        for settings in SETTINGS[number % 3 :: 3] if device == "cpu" else SETTINGS:
            compare(rows, settings, name)


def formats_strides_and_leading_axes(device: str) -> None:
    settings = SamplingSettings(0.8, 20, 0.9)
    wide = torch.randn(6, 1009, generator=torch.Generator().manual_seed(1)).to(device)
    for dtype in (torch.bfloat16, torch.float16):
        for each in (settings, SamplingSettings(), SamplingSettings(top_p=0.9)):
            compare(wide[:2].to(dtype), each, str(dtype))
    shapes = {
        "cut from longer rows": wide[:, 5:905],
        "every other": wide[:, ::2],
        "transposed": wide.reshape(1009, 6).t(),
        "repeated": wide[:1].expand(4, 1009),
        "leading axes": wide[:, :1000].reshape(2, 3, 1000).transpose(0, 1),
        "one row": wide[2],
    }
    for name, rows in shapes.items():
        for each in (settings, SamplingSettings()):
            compare(rows, each, name)


def rows_that_are_no_distribution(device: str) -> None:
    """Also where the row is cut into pieces, and the fault lies in another piece than the likely tokens."""
    for vocab in (1003, 20011):
        rows = torch.randn(6, vocab, generator=torch.Generator().manual_seed(2)).to(device)
        rows[0], rows[1, 3], rows[2, vocab - 1], rows[3] = -torch.inf, torch.inf, torch.nan, -torch.inf
        rows[3, vocab - 77] = -5.0
        rows[4, 10:] = -torch.inf
        for settings in (
            SamplingSettings(),
            SamplingSettings(top_k=50, top_p=0.9),
            SamplingSettings(top_p=0.9),
            SamplingSettings(top_k=200),
        ):
            tokens, expected, lowest = draw(rows, settings)
            assert tokens[:4].tolist() == [NO_TOKEN, NO_TOKEN, NO_TOKEN, vocab - 77]
            assert torch.equal(tokens, expected)
            assert torch.equal(kept_from(rows, lowest)[3:], kept_by_sort(rows[3:], settings))


def numbers_at_the_ends(device: str) -> None:
    """Logits and settings far from the usual, and the largest and the smallest random word."""
    from gpuguide.sampling import fused

    normal = torch.randn(2, 300, generator=torch.Generator().manual_seed(3)).to(device)
    masked = normal.clone()
    masked[:, 100:] = torch.finfo(torch.float32).min
    for name, rows in {"huge": normal * 1e38, "denormal": normal * 1e-42, "masked": masked}.items():
        for settings in (
            SamplingSettings(),
            SamplingSettings(top_k=5),
            SamplingSettings(top_k=150, top_p=0.95),
            SamplingSettings(top_p=0.877),
        ):
            compare(rows, settings, name)
    for temperature in (1e-300, 1e-39, 1e-30, 1e30):
        for settings in (
            SamplingSettings(temperature),
            SamplingSettings(temperature, top_k=5),
            SamplingSettings(temperature, min_p=0.5),
        ):
            compare(normal, settings, "temperature")
    compare(normal, SamplingSettings(1e-39, top_p=0.9), "temperature")
    for settings in (
        SamplingSettings(top_p=5e-324),
        SamplingSettings(top_p=5e-324, top_k=5),
        SamplingSettings(min_p=5e-324),
    ):
        compare(normal, settings, "smallest number")
    for settings in (SamplingSettings(5e-324), SamplingSettings(5e-324, top_k=5), SamplingSettings(5e-324, top_p=0.9)):
        assert torch.equal(draw(normal, settings)[0], normal.argmax(dim=-1)), settings
    seeds = torch.tensor([SEED_OF_ZERO, SEED_OF_LARGEST_WORD], device=device)
    rows = torch.full((2, 5), -torch.inf, device=device)
    rows[0, 0], rows[:, 4] = 15.0, 0.0
    for settings in (SamplingSettings(), SamplingSettings(min_p=1e-9), SamplingSettings(top_p=0.9999999)):
        assert fused.draw(rows, seeds, torch.tensor(0, device=device), settings)[0].tolist() == [4, 4], settings


def thresholds_lie_in_their_brackets(device: str) -> None:
    """The estimate is good enough that rows without very many ties are read twice, flat or peaked."""
    from gpuguide.sampling import nucleus

    vocab = 40000 if device == "cpu" else 128256
    normal = torch.randn(2, vocab, generator=torch.Generator().manual_seed(7)).to(device)
    kinds = {"flat": normal, "wide": normal * 2, "peaked": normal * 5, "sorted": normal.sort(dim=-1).values}
    kinds |= {"bf16": normal.bfloat16(), "shifted": normal - 700}
    for name, rows in kinds.items():
        for p in (0.1, 0.5, 0.9, 0.99):
            settings = SamplingSettings(temperature=0.8, top_p=p)
            low, high = nucleus.choose_brackets(rows, settings)[:, 1:3].unbind(-1)
            inside = (rows >= low.unsqueeze(-1)) & (rows < high.unsqueeze(-1))
            smallest = rows.where(kept_by_sort(rows, settings), torch.inf).amin(dim=-1)
            assert bool(((smallest >= low) & (smallest < high)).all()), (name, p, smallest, low, high)
            assert int(inside.sum(dim=-1).max()) <= nucleus.CAPACITY * 3 // 4, (name, p, inside.sum(dim=-1))


def the_limit_in_time_loses_no_winner(device: str) -> None:
    """Also for rows with few kept tokens, which are otherwise perturbed without a look at the limit."""
    from gpuguide.sampling import nucleus

    few = nucleus.FEW
    nucleus.FEW = 0
    try:
        for name, rows in rows_of(5000, device).items():
            for settings in SETTINGS[-3:] if device == "cuda" else [SamplingSettings(temperature=1.7, top_p=0.9)]:
                compare(rows, settings, name)
    finally:
        nucleus.FEW = few


def transformers_keeps_the_same(device: str) -> None:
    if importlib.util.find_spec("transformers") is None:
        return
    from transformers.generation import logits_process

    rows = torch.randn(4, 2003, generator=torch.Generator().manual_seed(4)).to(device) * 3
    for settings in (
        SamplingSettings(0.7, 50, 0.9, 0.02),
        SamplingSettings(1.3, 7, 0.8),
        SamplingSettings(1.0, 300, 0.95),
        SamplingSettings(2.0, top_p=0.6),
    ):
        theirs = rows.double()
        for warper, off in {
            logits_process.TemperatureLogitsWarper(settings.temperature): settings.temperature == 1,
            logits_process.TopKLogitsWarper(settings.top_k or 1): settings.top_k == 0,
            logits_process.TopPLogitsWarper(settings.top_p): settings.top_p == 1,
            logits_process.MinPLogitsWarper(settings.min_p): settings.min_p == 0,
        }.items():
            theirs = theirs if off else warper(torch.zeros(4, 1, dtype=torch.int64, device=device), theirs)
        tokens, _, lowest = draw(rows, settings)
        assert torch.equal(kept_from(rows, lowest), theirs > -torch.inf), settings
        assert bool((theirs.gather(-1, tokens.unsqueeze(-1)) > -torch.inf).all())


PARTS = {
    part.__name__: part
    for part in (
        same_tokens_are_kept_and_drawn,
        formats_strides_and_leading_axes,
        rows_that_are_no_distribution,
        numbers_at_the_ends,
        thresholds_lie_in_their_brackets,
        the_limit_in_time_loses_no_winner,
        transformers_keeps_the_same,
    )
}
every_part = pytest.mark.parametrize("part", PARTS)


@needs_triton
@every_part
def test_kernels_interpreted(part: str) -> None:
    interpreted.run(__file__, f"PARTS[{part!r}]('cpu')")


@needs_triton
def test_kernels_are_compiled_for_hopper() -> None:
    """Compiled for a GPU that is not here, because the interpreter accepts types that the compiler refuses."""
    interpreted.run(__file__, "compile_all()", interpret=False)


def compile_all() -> None:
    from gpuguide.sampling import fused, nucleus

    for kernel in nucleus.survey_kernel, nucleus.race_kernel, nucleus.finish_kernel, fused.gumbel_max_kernel:
        compile_kernel(kernel)


def compile_kernel(kernel: Any) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {"BRACKET": 2048, "BINS": 64, "SLOTS": 32, "BLOCK": 4096, "CHUNK": 1024, "FEW": 3072, "THREADS": 128}
    constants |= {"TILES": 2, "CAPACITY": 4096, "WORDS": 4096, "PAIRS": 256}
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    types = {"logits": "*bf16", "brackets": "*fp64"}
    types |= dict.fromkeys(("seeds", "steps", "tokens"), "*i64")
    types |= dict.fromkeys(("temperature", "p", "log_min_p"), "i64")
    types |= dict.fromkeys(("lowest", "maxima", "sums", "rests", "masses", "partials", "value_workspace"), "*fp32")
    types |= dict.fromkeys(("counts", "finished_pieces", "piece_winners", "column_workspace"), "*i32")
    types["bits"] = "*i32" if "words" in kernel.arg_names else "*i16"
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    options = {"num_warps": 8 if "lowest" in signature else 4}
    triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.gpu
@every_part
def test_kernels_on_a_gpu(part: str) -> None:
    PARTS[part]("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("vocab", LARGE_VOCABULARIES)
def test_large_vocabularies(vocab: int) -> None:
    """Without top-k, top-p may cut a token sooner or later, if its sum lies that near to p."""
    for name, rows in rows_of(vocab, "cuda").items():
        for settings in SETTINGS[:-2]:
            if (name, settings.top_k) == ("tied", 129):
                continue  # thousands of tokens tie with the last: sums in fp32 decide
            compare(rows, settings, f"{name}, {vocab}")
        for settings in UNLIMITED:
            tokens, expected, lowest = draw(rows, settings)
            kept, right = kept_from(rows, lowest), kept_by_sort(rows, settings)
            for row in range(len(rows)):
                differing = (kept[row] != right[row]).nonzero().flatten()
                if len(differing):
                    limited = distributions.keep_top_k(rows[row].double() / settings.temperature, settings.top_k)
                    shares = torch.softmax(limited, dim=-1)
                    before = shares[rows[row] > rows[row][differing].max()].sum()
                    assert len(rows[row][differing].unique()) == 1, (name, settings, len(differing))
                    assert abs(float(before) - settings.top_p) < ACCEPTED_MASS, (name, settings)
                else:
                    assert tokens[row] == expected[row], (name, settings)


@pytest.mark.gpu
def test_many_rows_draw_what_the_plain_version_draws() -> None:
    """The kernels let tokens race in fp32: about one race in a million may end otherwise."""
    rows = torch.randn(4096, 5000, generator=torch.Generator().manual_seed(5)).cuda() * 2
    for settings in (SamplingSettings(), SamplingSettings(0.8, 50, 0.9), SamplingSettings(top_p=0.9)):
        tokens, expected, _ = draw(rows, settings)
        assert int((tokens != expected).sum()) <= 1, settings


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 0.8, "top_k": 50, "top_p": 0.9}, {"top_p": 0.9}, {"min_p": 0.05}]
)
def test_a_captured_graph_draws_anew_at_each_step(settings: dict[str, float]) -> None:
    rows = torch.randn(8, 50304, generator=torch.Generator().manual_seed(6)).cuda()
    seeds, step = torch.arange(8, device="cuda"), torch.zeros((), dtype=torch.int64, device="cuda")
    eager = [sample_token(rows, seeds, step=number, **settings) for number in range(5)]  # type: ignore[arg-type]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = sample_token(rows, seeds, step=step, **settings)  # type: ignore[arg-type]
        step.add_(1)
    for expected in eager:
        graph.replay()
        assert torch.equal(captured, expected)
    assert len({tuple(tokens.tolist()) for tokens in eager}) == 5


@pytest.mark.gpu
def test_nothing_waits_for_the_gpu() -> None:
    """The host goes on while the GPU still works: a step that waited would raise here."""
    rows, seeds = torch.randn(4, 50304, device="cuda"), torch.arange(4, device="cuda")
    step = torch.zeros((), dtype=torch.int64, device="cuda")
    every = ({}, {"temperature": 0.0}, {"top_k": 50, "top_p": 0.9}, {"top_p": 0.9, "min_p": 0.1}, {"min_p": 0.1})
    for settings in every:
        sample_token(rows, seeds, step=step, **settings)  # type: ignore[arg-type]
    torch.cuda.set_sync_debug_mode("error")
    try:
        for settings in every:
            sample_token(rows, seeds, step=step, **settings)  # type: ignore[arg-type]
            sample_token(rows, seeds, step=3, **settings)  # type: ignore[arg-type]
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_more_than_two_to_the_31_logits() -> None:
    """Offsets exceed 32 bits in the last rows, which draw what they draw alone."""
    vocab = 262144
    count = 2**31 // vocab + 2
    if torch.cuda.get_device_properties(0).total_memory < 3 * count * vocab:
        pytest.skip("needs 6.5 GB of GPU memory")
    torch.manual_seed(0)
    rows = torch.empty(count, vocab, dtype=torch.bfloat16, device="cuda").normal_()
    seeds = torch.arange(count, device="cuda")
    for settings in ({}, {"top_k": 50, "top_p": 0.9}, {"top_p": 0.9}):
        together = sample_token(rows, seeds, **settings)  # type: ignore[arg-type]
        assert torch.equal(together[-3:], sample_token(rows[-3:].clone(), seeds[-3:], **settings))  # type: ignore[arg-type]
        assert len(set(together[-3:].tolist())) == 3
