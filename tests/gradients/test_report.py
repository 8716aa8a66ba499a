"""The report names what is wrong, and nothing where nothing is."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import small_adapted as small
import torch
from torch import nn
from torch.nn import functional

from gpuguide import lora, models
from gpuguide.errors import GpuguideError
from gpuguide.gradients import FAILURES, WiredModel, report
from gpuguide.gradients.failures import Step, TwoParts, adamw, batch


@pytest.fixture(autouse=True)
def quiet_checkpoint() -> Any:
    """Reentrant checkpoints warn of what is planted here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")
        yield


@pytest.mark.parametrize("name", FAILURES)
def test_the_report_names_each_failure_and_its_parameters(name: str) -> None:
    failure = FAILURES[name]
    step = failure.plant()
    findings = report(step.model, step.optimizer, step.run).findings
    assert failure.kind in {finding.kind for finding in findings}
    named = {each for finding in findings if finding.kind == failure.kind for each in finding.names}
    assert set(failure.names) <= named


@pytest.mark.parametrize("name", FAILURES)
def test_nothing_is_wrong_once_a_failure_is_mended(name: str) -> None:
    step = FAILURES[name].mend()
    found = report(step.model, step.optimizer, step.run)
    assert found.findings == ()
    assert str(found).startswith("Nothing is wrong with the gradients of 6 parameters")


@pytest.mark.parametrize(
    ("name", "cause"),
    [("forgotten", "never called"), ("detached", "cut off from the loss"), ("checkpointed", "use_reentrant=False")],
)
def test_the_sentence_says_why_a_gradient_is_missing(name: str, cause: str) -> None:
    step = FAILURES[name].plant()
    assert cause in str(report(step.model, step.optimizer, step.run))
    (unknown,) = report(step.model, step.optimizer).findings
    assert unknown.names == FAILURES[name].names


# --- no false alarm ----------------------------------------------------------------------------------------


def language_step(model: nn.Module, vocab_size: int, logits: Any = None) -> Step:
    """Take two steps as a training does, and a third up to its backward pass."""
    tokens = torch.randint(vocab_size, (2, 17), generator=torch.Generator().manual_seed(3))
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4)

    def run() -> torch.Tensor:
        return functional.cross_entropy((logits or model)(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    for _ in range(2):
        run().backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    run().backward()
    return Step(model, optimizer, run)


def assert_no_alarm(model: nn.Module, vocab_size: int, logits: Any = None) -> None:
    step = language_step(model, vocab_size, logits)
    found = report(step.model, step.optimizer, step.run)
    assert found.findings == (), str(found)
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    assert found.norm == pytest.approx(float(nn.utils.get_total_norm(gradients)), rel=1e-5)
    trained = [row for row in found.rows if row.state != "frozen"]
    assert all(row.update is not None for row in trained if row.weight_norm)


@pytest.mark.parametrize("name", models.PACKAGED)
def test_no_alarm_on_the_models_of_the_site(name: str) -> None:
    assert_no_alarm(models.load(name).model.train(), 2048)


def test_no_alarm_on_a_model_with_dropout_although_the_step_cannot_be_repeated() -> None:
    assert_no_alarm(nn.Sequential(nn.Embedding(50, 16), nn.Dropout(0.5), nn.Linear(16, 50)), 50)


@pytest.mark.parametrize("wiring", ["pre-norm", "post-norm", "no-norm"])
def test_no_alarm_on_deep_models_with_residual_connections(wiring: str) -> None:
    assert_no_alarm(WiredModel(32, 16, 12, 2, 16, wiring), 32)


@pytest.mark.parametrize("begun", [False, True])
def test_no_alarm_on_adapters_whose_first_gradients_are_zero(begun: bool) -> None:
    model = small.model()
    lora.add_adapters(model, ["attention.out", "up"], lora.Settings(rank=2))
    if begun:
        return assert_no_alarm(model, 61)
    functional.cross_entropy(model(small.TOKENS[:, :-1]).flatten(0, 1), small.TOKENS[:, 1:].flatten()).backward()
    found = report(model, torch.optim.AdamW([each for each in model.parameters() if each.requires_grad]))
    assert {row.state for row in found.rows} == {"ok", "zero", "frozen"}
    return None if not found.findings else pytest.fail(str(found))


@pytest.mark.needs("transformers")
def test_no_alarm_on_gpt2_of_transformers() -> None:
    import transformers

    config = transformers.GPT2Config(vocab_size=61, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    assert_no_alarm(model.train(), 61, lambda tokens: model(tokens).logits)


@pytest.mark.needs("peft")
def test_no_alarm_on_adapters_of_peft() -> None:
    import peft
    import transformers

    config = transformers.GPT2Config(vocab_size=61, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    settings = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    model = peft.get_peft_model(transformers.GPT2LMHeadModel(config), settings)
    tokens = torch.randint(61, (2, 9))
    model(tokens, labels=tokens).loss.backward()
    found = report(model, torch.optim.AdamW([each for each in model.parameters() if each.requires_grad]))
    assert found.findings == (), str(found)


# --- other findings ----------------------------------------------------------------------------------------


def kinds(step: Step, **more: Any) -> set[str]:
    return {finding.kind for finding in report(step.model, step.optimizer, **more).findings}


def plain_step(scale: float = 1.0, rate: float = 1e-3, **backward: Any) -> Step:
    torch.manual_seed(0)
    model = TwoParts()
    inputs, targets = batch()

    def run() -> torch.Tensor:
        return functional.cross_entropy(model(inputs), targets)

    (scale * run()).backward(**backward)
    return Step(model, adamw(model, rate), run)


def test_a_gradient_that_was_never_unscaled_is_named_with_its_factor() -> None:
    step = plain_step(scale=1024.0)
    (finding,) = report(step.model, step.optimizer, step.run).findings
    assert finding.kind == "scaled"
    assert "1.02e+03 times" in finding.sentence


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph")
def test_a_gradient_that_keeps_its_graph_is_named() -> None:
    step = plain_step(create_graph=True)
    assert kinds(step) == {"keeps graph"}
    step.model.zero_grad()


def test_a_learning_rate_that_is_too_high_is_named() -> None:
    assert kinds(plain_step(rate=0.3)) == {"update too large"}
    assert kinds(plain_step(rate=0.01)) == set()


def test_gradients_that_are_all_nan_are_named() -> None:
    step = plain_step(scale=math.nan)
    (finding,) = report(step.model, step.optimizer, step.run).findings
    assert finding.kind == "not finite"
    assert len(finding.names) == 6


def test_a_dead_part_is_named() -> None:
    model = TwoParts()
    inputs, targets = batch()
    dead = torch.relu(model.encoder(inputs) - 100)
    functional.cross_entropy(model.head(dead + torch.tanh(model.second(inputs))), targets).backward()
    (finding,) = report(model).findings
    assert finding.kind == "all zero"
    assert finding.names == ("encoder.weight", "encoder.bias")


def test_layers_whose_gradient_vanishes_are_named() -> None:
    model = WiredModel(32, 16, 6, 2, 16, "neither")
    tokens = torch.randint(32, (2, 17), generator=torch.Generator().manual_seed(0))
    functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    names = {name for finding in report(model).findings if finding.kind == "vanishing" for name in finding.names}
    assert "blocks.0" in names
    assert "blocks.5" not in names


def test_an_optimizer_that_holds_what_the_model_lost_is_named() -> None:
    step = FAILURES["replaced-head"].plant()
    assert kinds(step) == {"not in optimizer", "not in model"}


def test_an_optimizer_of_master_weights_is_no_failure() -> None:
    model = TwoParts().bfloat16()
    masters = [nn.Parameter(each.detach().float()) for each in model.parameters()]
    inputs, targets = batch()
    functional.cross_entropy(model(inputs.bfloat16()).float(), targets).backward()
    assert report(model, torch.optim.AdamW(masters)).findings == ()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_the_update_is_what_the_optimizer_subtracts(kind: Any, momentum: float) -> None:
    step = plain_step()
    more = {"momentum": momentum} if kind is torch.optim.SGD else {"weight_decay": 0.0}
    optimizer = kind(step.model.parameters(), lr=1e-3, **more)
    weight = step.model.get_parameter("head.weight")
    for taken in range(3):
        before = weight.detach().clone()
        first = report(step.model, optimizer).row("head.weight").update
        optimizer.step()
        expected = float((weight.detach() - before).norm() / before.norm())
        after = report(step.model, optimizer).row("head.weight").update
        assert taken or first == pytest.approx(expected, rel=1e-3)  # before the first step it is the first update
        assert after == pytest.approx(expected, rel=1e-2)


def test_rows_hold_norms_and_shares_of_zeros() -> None:
    model = nn.ModuleDict({"a": nn.Embedding(10, 4), "b": nn.Linear(4, 3, dtype=torch.float64)})
    model.requires_grad_(True)
    hidden: torch.Tensor = model["a"](torch.tensor([1, 1, 7]))
    model["b"](hidden.double()).square().sum().backward()
    found = report(model)
    for name, each in model.named_parameters():
        assert each.grad is not None
        row = found.row(name)
        assert row.norm == pytest.approx(float(each.grad.norm()), rel=1e-6)
        assert row.weight_norm == pytest.approx(float(each.detach().norm()), rel=1e-6)
        assert row.zeros == pytest.approx(float((each.grad == 0).double().mean()), abs=1e-6)
    assert found.row("a.weight").zeros == pytest.approx(0.8)


def test_a_sparse_gradient_and_a_compiled_model_are_read() -> None:
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    compiled = torch.compile(model, backend="eager")
    model(torch.tensor([1, 2])).sum().backward()
    found = report(compiled)  # type: ignore[arg-type]
    assert [row.name for row in found.rows] == ["0.weight", "1.weight", "1.bias"]
    assert found.findings == ()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of one."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_of_a_sharded_model_the_part_of_this_process_is_read() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = TwoParts()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    inputs, targets = batch()

    def run() -> torch.Tensor:
        return functional.cross_entropy(model(inputs), targets)

    optimizer = adamw(model)
    for _ in range(2):
        optimizer.zero_grad()
        run().backward()
        found = report(model, optimizer, run)
        assert found.findings == ()
        assert "this process's part" in str(found)
        optimizer.step()
    assert found.norm == pytest.approx(float(nn.utils.get_total_norm([each.grad for each in model.parameters()])))  # type: ignore[misc]


@pytest.mark.gpu
@pytest.mark.parametrize("name", FAILURES)
def test_the_report_reads_a_gpu(name: str) -> None:
    with torch.device("cuda"):
        failure = FAILURES[name]
        for step, expected in ((failure.plant(), {failure.kind}), (failure.mend(), set())):
            found = {finding.kind for finding in report(step.model, step.optimizer, step.run).findings}
            assert found - {"not in model"} == expected


@pytest.mark.gpu
def test_no_alarm_on_a_model_on_a_gpu_with_a_fused_optimizer() -> None:
    model = WiredModel(64, 16, 4, 2, 32).cuda()
    tokens = torch.randint(64, (4, 17), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(3e-4, device="cuda"), fused=True, capturable=True)

    def run() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    for _ in range(3):
        optimizer.zero_grad()
        run().backward()
        found = report(model, optimizer, run)
        optimizer.step()
        assert found.findings == (), str(found)


# --- bad input ---------------------------------------------------------------------------------------------


def test_a_report_before_backward_says_so() -> None:
    with pytest.raises(GpuguideError, match=r"^No parameter has a gradient; call report after backward\(\)\.$"):
        report(TwoParts())


def test_a_model_of_inference_mode_says_so() -> None:
    with torch.inference_mode():
        model = TwoParts()
    with pytest.raises(GpuguideError, match=r"TwoParts were made in torch\.inference_mode"):
        report(model)


def test_a_model_of_integers_says_so() -> None:
    model = nn.Module()
    model.codes = nn.Parameter(torch.zeros(3, dtype=torch.int8), requires_grad=False)
    with pytest.raises(GpuguideError, match="no floating-point parameters"):
        report(model)


def test_an_unknown_row_says_so() -> None:
    step = plain_step()
    with pytest.raises(GpuguideError, match="no parameter 'heads'"):
        report(step.model).row("heads")
