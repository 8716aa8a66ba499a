from __future__ import annotations

import pytest

from gpuguide.collectives import mapping, plan
from gpuguide.costs import presets
from gpuguide.errors import GpuguideError
from gpuguide.interconnect import AlphaBeta

LARGE, MIXTURE = presets.shape("llama-3.1-70b"), presets.shape("mixtral-8x7b")
FAST, SLOW = "nvlink-4", "infiniband-ndr"


def test_each_division_sends_what_its_papers_say() -> None:
    tokens, gpus = 4096, 8
    found = plan(LARGE, gpus, [FAST], tokens=tokens)
    weights = 2 * LARGE.parameters()
    assert found["data parallel"].moved == pytest.approx(2 * 7 / 8 * weights)
    assert found["sharded"].moved == pytest.approx(1.5 * found["data parallel"].moved)  # ZeRO, section 7
    assert found["data parallel"].messages == 2 * 7
    assert found["sharded"].messages == 3 * 7 * LARGE.layers
    states = 2 * tokens * gpus * LARGE.hidden
    assert found["tensor parallel"].moved == pytest.approx(4 * LARGE.layers * 2 * 7 / 8 * states)  # Megatron, section 3
    assert found["tensor parallel"].messages == 4 * LARGE.layers * 2 * 7
    assert found["pipeline"].moved == 2 * 2 * tokens * gpus * LARGE.hidden
    assert "expert parallel" not in found
    mixed = plan(MIXTURE, gpus, [FAST], tokens=tokens)["expert parallel"]
    assert mixed.moved == 4 * MIXTURE.layers * 2 * tokens * MIXTURE.hidden * 2 * 7 / 8


def test_tensor_parallelism_stays_inside_a_node_and_the_others_need_not() -> None:
    found = plan(LARGE, 8, [FAST, SLOW])
    assert found["tensor parallel"].in_time == (FAST,)
    for name in ("data parallel", "sharded", "pipeline"):
        assert found[name].in_time == (FAST, SLOW)
    assert found["data parallel"].exposed(FAST) == 0.0
    assert found["tensor parallel"].slowdown(SLOW) > 1


def test_a_fit_takes_the_place_of_a_link() -> None:
    line = AlphaBeta(1e-5, 1 / 100e9)
    (found,) = {plan(LARGE, 2, {"measured": line})["data parallel"].times["measured"]}
    assert found == pytest.approx(2e-5 + 2 * LARGE.parameters() / 100e9)


def test_what_cannot_be_divided_is_left_out() -> None:
    assert "tensor parallel" not in plan(LARGE, 48, [FAST])
    assert "pipeline" not in plan(LARGE, 64, [FAST])
    assert "expert parallel" not in plan(MIXTURE, 16, [FAST])


def test_of_a_mixture_only_the_experts_used_compute() -> None:
    assert mapping.active_parameters(LARGE) == LARGE.parameters()
    assert 0.25 < mapping.active_parameters(MIXTURE) / MIXTURE.parameters() < 0.3


@pytest.mark.parametrize(
    ("given", "said"),
    [({"gpus": 1}, "gpus is 1"), ({"tokens": 0}, "tokens is 0"), ({"flops": 0}, "flops is 0"), ({"links": ["x"]}, "x")],
)
def test_numbers_that_make_no_sense_are_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(GpuguideError, match=said):
        plan(LARGE, **{"gpus": 8, "links": [FAST], **given})  # type: ignore[arg-type]
