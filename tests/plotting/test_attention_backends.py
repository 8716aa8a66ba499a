"""What attention backends support: declared consistently, and true of what this machine and the library can tell."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import sys
import types
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpuguide.attention import known_bugs, reference
from gpuguide.plotting import attention_backends
from gpuguide.plotting.attention_backends import (
    BACKENDS,
    CALLS,
    PIECES,
    PREFERENCES,
    RULES,
    SETTINGS,
    USUAL,
    Preference,
    find_backend,
    reasons,
)
from gpuguide.plotting.pictures import choosing

PAGE = Path(__file__).parents[2] / "tutorials" / "23-choose-attention.md"
WIDEST = 88
"""Columns of code on a page"""


@pytest.fixture(autouse=True)
def published_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_RECORDS", "")


@cache
def preferences() -> list[Preference]:
    """The orders that were declared, and those of the published records."""
    return choosing.preferences()


def all_settings() -> Iterator[dict[str, str]]:
    """Every call that can be described."""
    for values in itertools.product(*SETTINGS.values()):
        yield dict(zip(SETTINGS, values, strict=True))


def test_conditions_name_settings_that_there_are() -> None:
    whens = [each.when for each in (*RULES, *PREFERENCES, *CALLS)]
    whens += [when for texts in PIECES.values() for when, _ in texts]
    whens += [each.timed_when for each in preferences()]
    for when in whens:
        for name, values in when.items():
            assert set(values) <= set(SETTINGS[name])
    assert {each.backend for each in (*RULES, *CALLS)} == set(BACKENDS)
    assert all(sorted(each.backends) == sorted(BACKENDS) for each in preferences())


def test_every_call_has_an_answer_that_can_be_copied_unless_all_refuse() -> None:
    without = []
    for settings in all_settings():
        found = find_backend(settings, preferences())
        if not found.backend:
            without.append(settings)
            assert all(found.refusals.values())
            continue
        assert not found.refusals[found.backend]
        compile(found.code, "call", "exec")
        assert max(map(len, found.code.splitlines())) <= WIDEST
    assert {(each["gpu"], each["work"], each["mask"]) for each in without} == {("cpu", "train", "softcap")}


def test_a_backend_without_a_limit_is_taken_before_those_with_one() -> None:
    for settings in all_settings():
        found = find_backend(settings, preferences())
        plain = [name for name in found.order if not found.refusals[name] and not found.limits[name]]
        assert found.backend == plain[0] if plain else found.limited or not found.backend


# --- the page and the chooser agree ----------------------------------------------------------------------------

ROWS = [
    ("training; prefill of more than", {}, "FlashAttention-4"),
    ("training; prefill of more than", {"work": "prefill"}, "FlashAttention-4"),
    ("without a package, shorter prefill", {"alone": "yes"}, "cuDNN"),
    ("without a package, shorter prefill", {"work": "short-prefill"}, "cuDNN"),
    ("without a package, shorter prefill", {"head": "wide"}, "cuDNN"),
    ("| data-centre Blackwell | FlashAttention-4", {"gpu": "blackwell"}, "FlashAttention-4"),
    ("causal or no mask, heads up to 256 | A100", {"gpu": "ampere", "head": "wide"}, "FlashAttention-2"),
    ("decode: one new token | Hopper", {"work": "decode"}, "cuDNN"),
    ("decode: one new token | A100", {"work": "decode", "gpu": "ampere"}, "FlashAttention-2"),
    ("decode: one new token | data-centre Blackwell", {"work": "decode", "gpu": "blackwell"}, "FlashAttention-2"),
    ("m new tokens after a cache", {"work": "extend"}, "FlashAttention-2"),
    ("documents, prefix, soft cap", {"mask": "rule"}, "FlexAttention"),
    ("documents, prefix, soft cap", {"mask": "softcap", "gpu": "ampere"}, "FlexAttention"),
    ("[packed sequences]", {"mask": "packed"}, "FlashAttention-2"),
    ("other mask, as a tensor", {"mask": "tensor"}, "memory-efficient"),
    ("fp32; heads above 256", {"format": "fp32"}, "memory-efficient"),
    ("fp32; heads above 256", {"head": "wider", "gpu": "ampere"}, "memory-efficient"),
    ("T4 and older; CPU", {"gpu": "turing"}, "memory-efficient"),
    ("T4 and older; CPU", {"gpu": "cpu"}, "CPU kernel"),
]


@pytest.mark.parametrize(("row", "changed", "name"), ROWS)
def test_the_chooser_names_what_the_table_of_the_page_names(row: str, changed: dict[str, str], name: str) -> None:
    found = find_backend({**USUAL, **changed}, preferences())
    assert name in found.name
    (line,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|") and row in line]
    if (changed.get("gpu"), changed.get("work")) == ("blackwell", "decode"):
        assert "not cuDNN" in line
        name = "enable_cudnn_sdp(False)"
        assert name in found.code
    assert name in line


def test_a_short_prefill_is_one_with_which_cudnn_leads() -> None:
    assert find_backend({**USUAL, "work": "short-prefill"}, preferences()).times["fa4"] > 1
    assert choosing.short_prefill() in (512, 1024, 2048)


# --- the declaration and the library agree -------------------------------------------------------------------

CAPABILITIES = {"hopper": (9, 0), "blackwell": (10, 0), "ampere": (8, 0), "turing": (7, 5)}


@pytest.mark.parametrize("gpu", CAPABILITIES)
@pytest.mark.parametrize("work", ["train", "prefill", "decode"])
@pytest.mark.parametrize("mask", ["causal", "tensor"])
def test_reported_bugs_of_cudnn_are_those_that_the_library_avoids(
    gpu: str, work: str, mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = SimpleNamespace(capability=CAPABILITIES[gpu], cudnn=91900)
    monkeypatch.setattr(known_bugs, "describe_gpu", lambda index: fake)
    queries = 1 if work == "decode" else 704

    def tensor(length: int) -> Any:
        device = SimpleNamespace(index=0)
        return SimpleNamespace(is_cuda=True, device=device, shape=(1, 1, length, 64), requires_grad=work == "train")

    bug = known_bugs.find_cudnn_bug(tensor(queries), tensor(704), tensor(704), has_mask=mask == "tensor")
    settings = {**USUAL, "gpu": gpu, "work": work, "mask": mask}
    said = [
        *reasons(attention_backends.REFUSES, settings)["sdpa-cudnn"],
        *reasons(attention_backends.LIMIT, settings)["sdpa-cudnn"],
    ]
    assert (bug is not None) == any("pytorch#" in each for each in said)
    if bug is not None:
        assert re.findall(r"pytorch#\d+", bug) == re.findall(r"pytorch#\d+", " ".join(said))


def test_a_cpu_computes_no_gradients_of_flex_attention() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.zeros(1, 1, 16, 16, requires_grad=True)
    with pytest.raises((NotImplementedError, RuntimeError)):
        flex_attention(q, q, q).sum().backward()


# --- the calls compute attention -------------------------------------------------------------------------------

HEADS, HEAD_DIM, KEYS = 4, 16, 24


def inputs(settings: dict[str, str]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    queries = {"decode": 1, "extend": 5}.get(settings["work"], KEYS)
    kv_heads = HEADS // 2 if settings["grouped"] == "yes" else HEADS
    return (
        torch.randn(1, HEADS, queries, HEAD_DIM),
        torch.randn(1, kv_heads, KEYS, HEAD_DIM),
        torch.randn(1, kv_heads, KEYS, HEAD_DIM),
    )


def expected_output(mask: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """What the library's reference computes without a mask tensor; the window is wider than the sequences here."""
    if mask == "softcap":
        scores = 20 * torch.tanh(reference.compute_scores(q, k) / 20)
        hidden = ~reference.causal_mask(q.shape[2], KEYS, q.device)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ reference.repeat_heads(v, HEADS)
    return reference.attention(q, k, v, causal=mask != "none")


def test_every_call_computes_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU: the choice of a kernel is left out, and FlashAttention-4 is stood in for by the reference."""

    def flash_attn_func(q: Any, k: Any, v: Any, causal: bool = False) -> tuple[torch.Tensor, None]:
        heads_first = (each.transpose(1, 2) for each in (q, k, v))
        return reference.attention(*heads_first, causal=causal).transpose(1, 2), None

    package, cute = types.ModuleType("flash_attn"), types.ModuleType("flash_attn.cute")
    cute.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    monkeypatch.setattr("torch.nn.attention.sdpa_kernel", lambda *args, **options: contextlib.nullcontext())
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda enabled: None)
    seen: set[tuple[str, ...]] = set()
    for settings in all_settings():
        found = find_backend(settings, preferences())
        described = (found.code, settings["work"], settings["mask"], settings["grouped"])
        if not found.code or "varlen_attn" in found.code or described in seen:
            continue
        seen.add(described)
        q, k, v = inputs(settings)
        mask = torch.rand(q.shape[2], KEYS) < 0.7
        mask[:, 0] = True
        names: dict[str, Any] = {"q": q, "k": k, "v": v, "mask": mask}
        exec(found.code.replace("torch.compile(flex_attention)", "flex_attention"), names)
        uses_mask = "attn_mask=mask" in found.code and "causal_lower_right" not in found.code
        plain = expected_output(settings["mask"], q, k, v)
        wanted = reference.attention(q, k, v, mask=mask) if uses_mask else plain
        torch.testing.assert_close(names["output"], wanted, msg=f"{described}")
    assert len(seen) > 40


def test_packed_sequences_are_passed_as_pytorch_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    signature = inspect.signature(varlen.varlen_attn)
    calls = []
    monkeypatch.setattr(varlen, "varlen_attn", lambda *args, **options: calls.append(signature.bind(*args, **options)))
    for grouped in SETTINGS["grouped"]:
        code = find_backend({**USUAL, "mask": "packed", "grouped": grouped}, preferences()).code
        exec(code, {"q": "q", "k": "k", "v": "v", "starts": "starts", "longest": 7})
    assert [call.arguments.get("enable_gqa", False) for call in calls] == [False, True]
    assert all(call.arguments["window_size"] == (-1, 0) for call in calls)
