"""The draw as an operator: compiled, with fake tensors, and mapped, against the same draw without all that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from gpuguide.sampling import operators, sample_token

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
SETTINGS: list[dict[str, Any]] = [{}, {"temperature": 0.7, "top_k": 5, "top_p": 0.8}, {"temperature": 0.0}]
each_setting = pytest.mark.parametrize("given", SETTINGS, ids=["plain", "kept", "greedy"])


def problem(device: str, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(*shape, 301, generator=generator).to(device)
    return logits, torch.arange(logits[..., 0].numel(), device=device).view(shape)


@on_each_device
@each_setting
def test_the_operator_keeps_pytorchs_rules(device: str, given: dict[str, Any]) -> None:
    logits, seeds = problem(device, 2, 3)
    step = torch.tensor(4, device=device)
    settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | given
    torch.library.opcheck(operators.sample_token.default, (logits, seeds, step, *settings.values()))


@on_each_device
@each_setting
def test_compiled_without_a_break(device: str, given: dict[str, Any]) -> None:
    logits, seeds = problem(device, 5)

    def draw(logits: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return sample_token(logits * 2, seeds, step=step, **given)

    torch.compiler.reset()
    compiled = torch.compile(draw, fullgraph=True)
    for number in range(3):
        step = torch.tensor(number, device=device)
        assert torch.equal(compiled(logits, step), draw(logits, step))
    torch.compiler.reset()
    assert torch.equal(
        torch.compile(lambda logits: sample_token(logits, seeds, step=7, **given), fullgraph=True)(logits),
        sample_token(logits, seeds, step=7, **given),
    )


@on_each_device
@each_setting
def test_mapped_over_rows_and_over_seeds(device: str, given: dict[str, Any]) -> None:
    logits, seeds = problem(device, 4, 3)
    together = sample_token(logits, seeds, step=2, **given)

    def draw(logits: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
        return sample_token(logits, seeds, step=2, **given)

    assert torch.equal(torch.vmap(draw)(logits, seeds), together)
    assert torch.equal(torch.vmap(draw, in_dims=1, out_dims=1)(logits, seeds), together)
    several = torch.stack([sample_token(logits[0], some, step=2, **given) for some in seeds])
    assert torch.equal(torch.vmap(draw, in_dims=(None, 0))(logits[0], seeds), several)


@each_setting
def test_fake_tensors_on_a_gpu_need_none(given: dict[str, Any]) -> None:
    with FakeTensorMode():
        logits, seeds = (torch.empty_like(each, device="cuda") for each in problem("cpu", 2, 3))
        tokens = sample_token(logits, seeds, step=torch.zeros((), dtype=torch.int64, device="cuda"), **given)
    assert (tokens.shape, tokens.dtype, tokens.device) == (seeds.shape, torch.int64, seeds.device)


def test_steps_of_their_own_are_refused() -> None:
    logits, seeds = problem("cpu", 2)
    with pytest.raises(ValueError, match="The step of sample_token cannot be mapped over"):
        torch.vmap(lambda step: sample_token(logits, seeds, step=step))(torch.arange(3))
