"""A captured step refuses memory that is not the one it was captured with."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from random_models import random_gpt2

from gpuguide.inference import GREEDY, Engine, prepare
from gpuguide.inference.graph import WARM_UPS, Captured

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def counting(total: torch.Tensor, by: torch.Tensor) -> tuple[Captured, list[int]]:
    """Return a captured function that adds one tensor to another, and a list that is longer after every call of it."""
    calls: list[int] = []
    before = total.clone()

    def add() -> torch.Tensor:
        calls.append(len(calls))
        return total.add_(by)

    return Captured(add, [total, by], lambda: total.copy_(before)), calls


@on_each_device
def test_calls_work_on_the_tensors_as_they_are_now(device: str) -> None:
    """Warming up leaves nothing behind."""
    total, by = torch.full((3,), 7.0, device=device), torch.ones(3, device=device)
    captured, calls = counting(total, by)
    assert total.tolist() == [7.0] * 3
    assert captured([total, by]).tolist() == [8.0] * 3
    by.fill_(10)
    assert captured([total, by]).tolist() == total.tolist() == [18.0] * 3
    assert len(calls) == (2 if device == "cpu" else WARM_UPS + 1)  # a GPU replays what was launched


CHANGES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "replaced": (lambda by: by.clone(), "torch.float32 of shape (4,) on"),
    "cut": (lambda by: by[:3], "torch.float32 of shape (3,) on"),
    "reshaped": (lambda by: by.view(2, 2), "torch.float32 of shape (2, 2) on"),
    "read as another format": (lambda by: by.view(torch.int32), "torch.int32 of shape (4,) on"),
    "moved on": (lambda by: torch.ones(5, device=by.device)[1:], "torch.float32 of shape (4,) on"),
}


@on_each_device
@pytest.mark.parametrize("change", CHANGES)
def test_another_tensor_is_refused(device: str, change: str) -> None:
    total, by = torch.zeros(4, device=device), torch.ones(4, device=device)
    captured, calls = counting(total, by)
    done = len(calls)
    change_of, words = CHANGES[change]
    with pytest.raises(
        ValueError, match=f"^Tensor 1 of a captured step was .* and is now {re.escape(words)}"
    ) as raised:
        captured([total, change_of(by)])
    assert str(raised.value).endswith("A graph reads the memory it was captured with; capture the step again.")
    assert len(calls) == done
    assert total.tolist() == [0.0] * 4
    assert captured([total, by]).tolist() == [1.0] * 4  # the right ones are still taken


@on_each_device
def test_the_number_of_tensors_is_part_of_it(device: str) -> None:
    total, by = torch.zeros(4, device=device), torch.ones(4, device=device)
    captured, _ = counting(total, by)
    with pytest.raises(ValueError, match="argument"):
        captured([total])


STATE = ["tokens", "lengths", "writing", "seeds", "texts"]


@on_each_device
@pytest.mark.parametrize("name", [*STATE, "keys", "values", "table"])
def test_an_engine_refuses_to_go_on_with_a_tensor_that_was_replaced(device: str, name: str) -> None:
    engine = Engine(prepare(random_gpt2(heads=2, hidden=32), device=device), 2, 20, GREEDY)
    engine.start([[1, 2], [3]])
    engine.step()
    owner = engine if name in STATE else engine.cache
    setattr(owner, name, getattr(owner, name).clone())
    with pytest.raises(ValueError, match="capture the step again"):
        engine.step()
