"""The training step against one that PyTorch's parts make, and what each wrong order does."""

from __future__ import annotations

import contextlib
import copy
import math
import shutil
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch._inductor.utils import fresh_cache
from torch.nn import functional

from gpuguide.precision import (
    WRONG_STEPS,
    LossScaler,
    StepResult,
    TrainingSetup,
    autocast,
    list_supported_formats,
    require,
    train_step,
)

VOCABULARY = 7
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here for torch.compile")


class Bomb(nn.Module):
    """Passes on what it gets; where it is armed, a gradient becomes what it was armed with."""

    def __init__(self) -> None:
        super().__init__()
        self.armed: float | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Arm the gradient."""
        if self.armed is not None and x.requires_grad:
            x.register_hook(lambda gradient: gradient.clone().fill_(self.armed))
        return x


def make(
    format: str = "fp32", *, clip: float = 1.0, learning_rate: float = 0.1, scale: float = 2.0**16
) -> TrainingSetup:
    """A small model, with a schedule that halves the learning rate at each step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, 8), Bomb(), nn.Linear(8, VOCABULARY))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    return TrainingSetup(model, optimizer, LossScaler(scale), schedule, format, clip)


def batches(*lengths: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Micro-batches of tokens, of some lengths."""
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randint(VOCABULARY, (2, length), generator=generator),
            torch.randint(VOCABULARY, (2, length), generator=generator),
        )
        for length in lengths
    ]


def whole_batch_gradients(
    training: TrainingSetup, parts: list[tuple[torch.Tensor, torch.Tensor]]
) -> list[torch.Tensor]:
    """The gradients of the mean loss of all targets, in one piece and without a scaler."""
    model = copy.deepcopy(training.model)
    logits = torch.cat([model(inputs).flatten(0, 1) for inputs, _ in parts])
    functional.cross_entropy(logits, torch.cat([targets.flatten() for _, targets in parts])).backward()
    return [each.grad for each in model.parameters() if each.grad is not None]


def parameters(training: TrainingSetup) -> list[torch.Tensor]:
    return [each.detach().clone() for each in training.model.parameters()]


def gradients(training: TrainingSetup) -> list[torch.Tensor]:
    return [each.grad for each in training.model.parameters() if each.grad is not None]


def norm(tensors: list[torch.Tensor]) -> float:
    return float(torch.cat([each.flatten() for each in tensors]).norm())


def far(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """How far gradients are from others, relative to those."""
    return norm([one - other for one, other in zip(some, others, strict=True)]) / norm(others)


def wrong(name: str) -> Callable[[TrainingSetup, list[tuple[torch.Tensor, torch.Tensor]]], StepResult]:
    return WRONG_STEPS[name]  # type: ignore[return-value]


def test_gradients_are_those_of_the_whole_batch() -> None:
    training, parts = make(clip=math.inf), batches(3, 11, 1)
    expected = whole_batch_gradients(training, parts)
    outcome = train_step(training, parts)
    assert far(gradients(training), expected) < 1e-5
    assert outcome.norm == pytest.approx(norm(expected), rel=1e-5)
    assert outcome.stepped


def test_equals_pytorchs_recipe() -> None:
    """Ten steps in fp16 autocast on the CPU, written with torch.amp.GradScaler, give the same bits."""
    ours, theirs = make("fp16", clip=0.2), make("fp16", clip=0.2)
    scaler = torch.amp.GradScaler("cpu")
    parts = batches(5, 2)
    assert theirs.schedule is not None
    for _ in range(10):
        train_step(ours, parts)
        theirs.optimizer.zero_grad()
        for inputs, targets in parts:
            with torch.autocast("cpu", torch.float16):
                logits = theirs.model(inputs)
                loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum") / 14
            scaler.scale(loss).backward()
        scaler.unscale_(theirs.optimizer)
        nn.utils.clip_grad_norm_(theirs.model.parameters(), 0.2)
        scaler.step(theirs.optimizer)
        scaler.update()
        theirs.schedule.step()
    assert all(torch.equal(one, other) for one, other in zip(parameters(ours), parameters(theirs), strict=True))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_an_infinite_gradient_changes_nothing_but_the_scale(value: float) -> None:
    training, parts = make(), batches(4, 4)
    train_step(training, parts)
    before, state = parameters(training), copy.deepcopy(training.optimizer.state_dict())
    training.model[2].armed = value  # type: ignore[index]
    outcome = train_step(training, parts)
    assert not outcome.stepped
    assert not math.isfinite(outcome.norm)
    assert all(torch.equal(one, other) for one, other in zip(parameters(training), before, strict=True))
    assert repr(training.optimizer.state_dict()) == repr(state)
    assert training.scaler.current == outcome.scale / 2 == 2.0**15
    assert training.optimizer.param_groups[0]["lr"] == 0.05
    training.model[2].armed = None  # type: ignore[index]
    assert train_step(training, parts).stepped
    assert training.optimizer.param_groups[0]["lr"] == 0.025


def test_ignored_targets_do_not_count() -> None:
    training, parts = make(clip=math.inf), batches(4, 4)
    parts[1][1][:, 1:] = -100
    expected = whole_batch_gradients(training, parts)
    train_step(training, parts)
    assert far(gradients(training), expected) < 1e-5
    parts[0][1].fill_(-100)
    parts[1][1].fill_(-100)
    with pytest.raises(ValueError, match="2 micro-batches hold no target that counts"):
        train_step(training, parts)


def test_clipping_scaled_gradients_makes_the_step_tiny() -> None:
    right, tiny = make(clip=0.1), make(clip=0.1)
    train_step(right, batches(4))
    outcome = wrong("clip before unscale")(tiny, batches(4))
    assert outcome.norm > 1000
    assert norm(gradients(tiny)) == pytest.approx(norm(gradients(right)) / 2**16, rel=0.01)


def test_without_unscaling_the_step_is_the_scale_times_too_large() -> None:
    right, wild = make(clip=math.inf), make(clip=math.inf)
    train_step(right, batches(4))
    wrong("never unscale")(wild, batches(4))
    assert norm(gradients(wild)) == pytest.approx(norm(gradients(right)) * 2**16, rel=1e-4)
    wild.model[2].armed = math.inf  # type: ignore[index]
    wrong("never unscale")(wild, batches(4))
    assert not all(bool(each.isfinite().all()) for each in parameters(wild))


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_schedule_that_does_not_ask_advances_on_skipped_steps() -> None:
    training = make()
    training.model[2].armed = math.inf  # type: ignore[index]
    before = parameters(training)
    for _ in range(3):
        assert not wrong("schedule skipped steps")(training, batches(4)).stepped
    assert training.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 8)
    assert all(torch.equal(one, other) for one, other in zip(parameters(training), before, strict=True))


def test_unscaling_each_micro_batch_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"unscale_\(\) follows unscale_\(\)"):
        wrong("unscale each micro-batch")(make(), batches(4, 4))


def test_updating_each_micro_batch_loses_all_but_the_last() -> None:
    training, parts = make(clip=math.inf), batches(4, 4)
    expected = whole_batch_gradients(training, parts)
    last = [each / 2 for each in whole_batch_gradients(training, parts[1:])]
    wrong("update each micro-batch")(training, parts)
    assert far(gradients(training), last) < 1e-3
    assert far(gradients(training), expected) > 0.2


def test_zeroing_each_micro_batch_loses_all_but_the_last() -> None:
    training, parts = make(clip=math.inf), batches(4, 4)
    last = [each / 2 for each in whole_batch_gradients(training, parts[1:])]
    wrong("zero gradients each micro-batch")(training, parts)
    assert far(gradients(training), last) < 1e-5


def test_means_of_unequal_micro_batches_weigh_the_short_one_too_much() -> None:
    parts = batches(1, 15)
    training = make(clip=math.inf)
    expected = whole_batch_gradients(training, parts)
    wrong("mean of means")(training, parts)
    assert far(gradients(training), expected) > 0.2
    even, parts = make(clip=math.inf), batches(8, 8)
    expected = whole_batch_gradients(even, parts)
    wrong("mean of means")(even, parts)
    assert far(gradients(even), expected) < 1e-5


def test_means_that_are_summed_are_as_many_times_too_large() -> None:
    training, parts = make(clip=math.inf), batches(4, 4, 4, 4)
    expected = [4 * each for each in whole_batch_gradients(training, parts)]
    wrong("sum of means")(training, parts)
    assert far(gradients(training), expected) < 1e-5


def test_every_wrong_step_is_shown_failing() -> None:
    with open(__file__, encoding="utf-8") as source:
        text = source.read()
    assert all(f'wrong("{name}")' in text for name in WRONG_STEPS)


# --- formats and devices -------------------------------------------------------------------------------


def capabilities() -> Iterator[tuple[tuple[int, int], tuple[str, ...]]]:
    """GPUs of some generations, and what their tensor cores take."""
    yield (6, 1), ("fp32",)
    yield (7, 5), ("fp32", "fp16")
    yield (8, 0), ("fp32", "tf32", "fp16", "bf16")
    yield (9, 0), ("fp32", "tf32", "fp16", "bf16", "e4m3", "e5m2")
    yield (10, 0), ("fp32", "tf32", "fp16", "bf16", "e4m3", "e5m2", "e2m1")


@pytest.mark.parametrize(("capability", "formats"), list(capabilities()))
def test_a_format_that_a_gpu_lacks_is_refused_with_those_that_it_has(
    capability: tuple[int, int], formats: tuple[str, ...]
) -> None:
    assert list_supported_formats("cuda", capability) == formats
    for name in ("tf32", "fp16", "bf16", "e4m3", "e2m1"):
        if name in formats:
            assert require(name, "cuda", capability).name == name
        else:
            with pytest.raises(ValueError, match=f"does not multiply in {name}; it supports {', '.join(formats)}"):
                require(name, "cuda", capability)


def test_autocast_follows_the_device() -> None:
    x = torch.randn(4, 4)
    for format, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16), ("fp32", torch.float32)):
        with autocast(format, "cpu"):
            assert (x @ x).dtype == dtype
    with pytest.raises(ValueError, match="cpu does not multiply in e4m3; it supports fp32, fp16, bf16"):
        autocast("e4m3", "cpu")
    with pytest.raises(ValueError, match="There is no format 'half'"):
        autocast("half", "cpu")


def test_what_is_compiled_is_cached_by_the_format_of_autocast() -> None:
    tags = [torch.compiler.config.cache_key_tag]
    for format in ("fp16", "bf16", "fp32"):
        with contextlib.suppress(RuntimeError), autocast(format, "cpu"):
            tags.append(torch.compiler.config.cache_key_tag)
            raise RuntimeError
    outside, fp16, bf16, fp32 = tags
    assert outside == fp32 == torch.compiler.config.cache_key_tag
    assert len({outside, fp16, bf16}) == 3


@needs_compiler
def test_a_model_compiled_for_bf16_is_not_the_one_that_was_compiled_for_fp16() -> None:
    """The cache of PyTorch 2.11 would hand that one out, since both take fp32 and return it."""
    small = torch.full((4, 4), 1e-9)
    with fresh_cache():
        for format, found in (("fp16", 0.0), ("bf16", 4e-9)):
            torch.compiler.reset()
            summed = torch.compile(lambda x: (x @ torch.ones(4, 4)).float())
            with autocast(format, "cpu"):
                assert summed(small)[0, 0].item() == pytest.approx(found, rel=0.01), format


@pytest.mark.gpu
def test_autocast_refuses_tf32_which_is_a_setting() -> None:
    with pytest.raises(ValueError, match="Autocast computes in fp16 and bf16, not in tf32"):
        autocast("tf32", "cuda")


@pytest.mark.gpu
def test_a_step_on_the_gpu_is_near_that_in_fp32() -> None:
    parts = [(inputs.cuda(), targets.cuda()) for inputs, targets in batches(8, 8)]
    exact = make()
    exact.model.cuda()
    train_step(exact, parts)
    for format in ("fp16", "bf16"):
        training = make(format)
        training.model.cuda()
        outcome = train_step(training, parts)
        assert outcome.stepped
        assert far(gradients(training), gradients(exact)) < 0.03
