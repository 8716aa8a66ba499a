"""Why a parameter has no gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpuguide.errors import GpuguideError
from gpuguide.gradients import WIRINGS, WiredModel, gradients_between, kept_bytes, norm_by_layer, report, why_none
from gpuguide.gradients.depth import example, norms_of_wirings
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


def test_norms_far_below_the_root_of_the_smallest_number_are_not_zero() -> None:
    model = WiredModel(16, 8, 2, 2, 8)
    for each in model.parameters():
        each.grad = torch.full_like(each, 1e-30)
    assert norm_by_layer(model)[0] == pytest.approx(
        1e-30 * sum(each.numel() for each in model.blocks[0].parameters()) ** 0.5
    )
    assert {row.state for row in report(model).rows} == {"ok"}


def test_the_stream_carries_the_gradient_back_where_there_is_an_addition() -> None:
    for wiring in WIRINGS:
        model, run = example(6, wiring)
        first, *_, last = gradients_between(model.blocks, run)
        similar = float(functional.cosine_similarity(first.flatten(), last.flatten(), dim=0))
        assert (similar > 0.7) == ("x + " in WIRINGS[wiring]), wiring
        assert all(each.grad is None for each in model.parameters())


def test_gradients_between_layers_are_those_of_autograd() -> None:
    layers = [nn.Linear(3, 3), nn.Tanh()]
    x = torch.randn(2, 3, requires_grad=True)
    hidden = layers[0](x)
    output = layers[1](hidden)
    expected = torch.autograd.grad(output.square().sum(), [x, hidden, output])
    found = gradients_between(layers, lambda: layers[1](layers[0](x)).square().sum())
    torch.testing.assert_close(found, list(expected))


def test_kept_bytes_count_each_tensor_once_and_no_weights() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    x = torch.randn(5, 4)
    assert kept_bytes(lambda: model(x), model.parameters()) == 4 * (
        5 * 4 + 5 * 8
    )  # tanh and the second layer keep the same tensor
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert kept_bytes(lambda: model(x), model.parameters()) == 0


def test_bad_wirings_and_models_without_layers_say_so() -> None:
    with pytest.raises(GpuguideError, match=r"no wiring named 'prenorm'.* Did you mean pre-norm"):
        WiredModel(16, 8, 2, 2, 8, "prenorm")
    with pytest.raises(GpuguideError, match="no start named 'he'"):
        WiredModel(16, 8, 2, 2, 8, start="he")
    with pytest.raises(GpuguideError, match=r"has no nn\.ModuleList"):
        norm_by_layer(TwoParts())
    with pytest.raises(GpuguideError, match="Layer 0 has no gradient"):
        norm_by_layer(WiredModel(16, 8, 2, 2, 8))
