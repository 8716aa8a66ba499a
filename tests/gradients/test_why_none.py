"""Why a parameter has no gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.gradients import WIRINGS, WiredModel, norm_by_layer, why_none
from gpuguide.gradients.depth import norms_of_wirings
from gpuguide.gradients.failures import TwoParts, batch


def causes(model: nn.Module, run: object) -> dict[str, str]:
    return {reason.name: reason.cause for reason in why_none(model, run)}  # type: ignore[arg-type]


def test_each_reason_is_told() -> None:
    model, (x, _) = TwoParts(), batch()
    model.encoder.bias.requires_grad_(False)

    def run() -> torch.Tensor:
        with torch.no_grad():
            second = model.second(x)
        return model.head(second).sum()

    found = causes(model, run)
    assert found == {
        "encoder.weight": "never called",
        "encoder.bias": "frozen",
        "second.weight": "under no_grad",
        "second.bias": "under no_grad",
        "head.weight": "no backward",
        "head.bias": "no backward",
    }
    run().backward()
    assert set(causes(model, run)) == {"encoder.weight", "encoder.bias", "second.weight", "second.bias"}


def test_a_cut_is_placed_before_the_next_module_that_leads_to_the_loss() -> None:
    model, (x, _) = TwoParts(), batch()
    reasons = why_none(model, lambda: model.head(model.encoder(x).detach() + model.second(x)).sum())
    (encoder,) = [reason for reason in reasons if reason.name == "encoder.weight"]
    assert (encoder.cause, encoder.module, encoder.before) == ("cut", "encoder", "second")
    assert "cut off from the loss before second" in str(encoder)
    (last,) = [r for r in why_none(model, lambda: model.head(x).detach().sum()) if r.name == "head.weight"]
    assert (last.cause, last.before) == ("cut", "")


def test_a_parameter_with_no_reason_has_none() -> None:
    model, (x, _) = TwoParts(), batch()
    model(x).sum().backward()
    assert why_none(model, lambda: model(x).sum()) == []


def test_hooks_are_gone_after_an_error() -> None:
    model = TwoParts()
    with pytest.raises(ZeroDivisionError):
        why_none(model, lambda: torch.tensor(1 / 0))
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())


def test_a_run_without_a_loss_says_so() -> None:
    model, (x, _) = TwoParts(), batch()
    with pytest.raises(GpuguideError, match=r"run returned \(16, 3\)"):
        why_none(model, lambda: model(x))
    with pytest.raises(GpuguideError, match="run returned NoneType"):
        why_none(model, lambda: None)  # type: ignore[arg-type, return-value]


# --- depth -------------------------------------------------------------------------------------------------


def test_the_addition_saves_gradients_wherever_the_norm_is() -> None:
    norms = norms_of_wirings(layers=24)
    assert set(norms) == set(WIRINGS)
    for wiring in ("pre-norm", "post-norm", "no-norm"):
        assert 0.5 < norms[wiring][0] / norms[wiring][-1] < 20, wiring
    assert norms["neither"][0] == 0
    assert norms["neither"][-1] > 1e-3


def test_the_norm_of_a_layer_is_that_of_its_parameters_together() -> None:
    model = WiredModel(16, 8, 2, 2, 8)
    model(torch.arange(8)[None]).square().sum().backward()
    gradients = [each.grad for each in model.blocks[1].parameters() if each.grad is not None]
    assert norm_by_layer(model)[1] == pytest.approx(float(nn.utils.get_total_norm(gradients)))


def test_bad_wirings_and_models_without_layers_say_so() -> None:
    with pytest.raises(GpuguideError, match=r"no wiring named 'prenorm'.* Did you mean pre-norm"):
        WiredModel(16, 8, 2, 2, 8, "prenorm")
    with pytest.raises(GpuguideError, match="no start named 'he'"):
        WiredModel(16, 8, 2, 2, 8, start="he")
    with pytest.raises(GpuguideError, match=r"has no nn\.ModuleList"):
        norm_by_layer(TwoParts())
    with pytest.raises(GpuguideError, match="Layer 0 has no gradient"):
        norm_by_layer(WiredModel(16, 8, 2, 2, 8))
