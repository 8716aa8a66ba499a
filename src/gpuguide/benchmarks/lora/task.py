"""A real task learnt with adapters, with all weights and with the last layer; score, time and memory.

``main`` learns which type a function returns (:mod:`gpuguide.finetuning.return_types`). Each run is one training by the
loop of :mod:`gpuguide.finetuning.comparison`; what is timed is its own steps. The settings around the usual ones change
one thing at a time. Learning rates are to be chosen by the validation functions; the held-out ones decide nothing.

``counted`` is what the loss counts: the answer alone, the whole text, or the padding after it too, as in scripts that
copy padded inputs as labels.

Of the usual run of all weights, the update of each matrix is taken apart (:mod:`gpuguide.lora.update`): its singular
values, and the score of the model whose updates are cut to a rank.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import mean

import torch

from gpuguide import lora, models
from gpuguide.finetuning import comparison
from gpuguide.finetuning.comparison import Setting, TrainingHistory
from gpuguide.finetuning.return_types import Encoded, Score
from gpuguide.hardware.device import Device
from gpuguide.lora import update
from gpuguide.measure import records
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work
from gpuguide.measure.records import Metric
from gpuguide.models.gpt2 import GPT2

LOOKS = 16
"""Points of a training at which the held-out functions are answered"""
STEPS_TIMED = 20
CHECKED = 64
"""Functions whose logits are checked"""
ACCEPTED_ERROR = 1e-4
"""Largest accepted error of the trained model's logits against fp64, as a ratio of norms"""
CUTS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Ranks to which updates are cut"""
RATES = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
LOW, MIDDLE, HIGH = (3e-5, 1e-4, 3e-4, 1e-3), (1e-4, 3e-4, 1e-3, 3e-3), (3e-4, 1e-3, 3e-3, 1e-2)
RATES_OF_RANKS = {1: HIGH, 4: HIGH, 16: MIDDLE, 64: LOW, 128: LOW}
"""Ranks of adapters, each with rates on both sides of its best, which falls as the rank and alpha with it rise"""
SCALE = 2.0
"""alpha over rank, unless it is varied"""
SQUARES = ((1, 1), (4, 2), (64, 8))
"""Ranks, and their roots, at which alpha stays as it is, and grows as the root"""
USUAL: Keys = {
    "rank": 16,
    "alpha": 32.0,
    "learning_rate": 1e-3,
    "batch": 32,
    "epochs": 4,
    "samples": 0,
    "counted": "answer",
    "seed": 0,
}
"""Functions of all files where ``samples`` is 0"""
AGAIN = {
    "lora": MIDDLE,
    "full": (1e-5, 3e-5, 1e-4),
    "last-layer": (1e-4, 3e-4, 1e-3),
}
"""Rates at which each is trained with other seeds, too; adapters of other ranks at those of their rank"""
SEEDS = (1, 2)
NOTES: Keys = {**USUAL, "learning_rate": 3e-4, "batch": 4, "epochs": 3, "samples": 200}
"""200 samples, three epochs of batches of four"""


# --- work ------------------------------------------------------------------------------------------------


def work(make: Callable[[Keys, str], GPT2], device: Device, keys: Keys) -> Work:
    """Train once, and time the steps of that training."""
    before = measure_allocated(device)
    model = make(keys, device.torch_device)
    data = parts(keys)
    held_out = data["held-out"].to(device.torch_device)
    course = comparison.train(model, data["training"], setting(keys), held_out, LOOKS if device.is_gpu else 1)
    peak = torch.cuda.max_memory_allocated() - before if device.is_gpu else 0
    found = {
        "training": comparison.score(model, data["training"]),
        "validation": comparison.score(model, data["validation"]),
    }
    times = iter(course.step_seconds[-STEPS_TIMED:])

    def further() -> Mapping[str, Metric]:
        measured = dict(results(course, found))
        if device.is_gpu:
            measured["peak_memory"] = records.metric("B", [peak])
        return measured | score_updates(model, held_out) if is_taken_apart(model, keys) else measured

    return Work([lambda: None], lambda: check(model, course, held_out), sample=times.__next__, further=further)


def setting(keys: Keys) -> Setting:
    """Return how a case is trained."""
    return Setting(
        learning_rate=float(keys["learning_rate"]),
        batch=int(keys["batch"]),
        epochs=int(keys["epochs"]),
        counted=str(keys["counted"]),
        seed=int(keys["seed"]),
    )


def parts(keys: Keys) -> Mapping[str, Encoded]:
    """Return the functions of a case as tokens."""
    return _parts(int(keys["samples"]) or None)


@cache
def _parts(samples: int | None) -> Mapping[str, Encoded]:
    return comparison.encode_splits(models.load("main").tokenizer, samples)


def measure_allocated(device: Device) -> int:
    """Return the bytes in use on the device, after what nobody needs is freed, and count the highest from here on."""
    if not device.is_gpu:
        return 0
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()  # so that each training's own count
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def results(course: TrainingHistory, found: Mapping[str, Score]) -> Mapping[str, Metric]:
    """Return what came of a training. Curves are samples in the order of time.

    ``steps_to_half`` is when the held-out loss was first seen at half of what it was before.
    """
    last = course.scores[-1][1]
    size = -(-len(course.losses) // LOOKS)
    blocks = [mean(course.losses[start : start + size]) for start in range(0, len(course.losses), size)]
    single = {
        "accuracy": ("1", last.accuracy),
        "loss": ("nat", last.loss),
        "validation_accuracy": ("1", found["validation"].accuracy),
        "validation_loss": ("nat", found["validation"].loss),
        "training_accuracy": ("1", found["training"].accuracy),
        "training_loss": ("nat", found["training"].loss),
        "training_time": ("s", sum(course.step_seconds)),
    }
    begun = course.scores[0][1].loss
    halved = [step for step, score in course.scores if score.loss <= begun / 2]
    if halved:
        single["steps_to_half"] = ("1", float(halved[0]))
    curves = {
        "loss_by_step": ("nat", blocks),
        "held_out_loss_by_step": ("nat", [score.loss for _, score in course.scores]),
        "held_out_accuracy_by_step": ("1", [score.accuracy for _, score in course.scores]),
    }
    return {name: records.metric(unit, [value]) for name, (unit, value) in single.items()} | {
        name: records.metric(unit, values) for name, (unit, values) in curves.items()
    }


# --- check -----------------------------------------------------------------------------------------------


def check(model: GPT2, course: TrainingHistory, held_out: Encoded) -> None:
    """Raise unless a training began at the base, changed only what it should, and its model is right in fp64.

    Raises
    ------
    AssertionError
        Saying what is wrong.
    """
    base = comparison.all_weights(device=str(next(model.parameters()).device))
    begun, of_base = course.scores[0][1], comparison.score(base, held_out)
    assert begun == of_base, f"before the first step the model scores {begun}, and the base {of_base}"
    frozen = base.state_dict()
    for name, each in model.named_parameters():
        if not each.requires_grad:
            assert torch.equal(each, frozen[name.replace(".base.", ".")]), f"{name} is frozen and was changed"
    some = held_out.select(torch.arange(CHECKED))
    wanted = comparison.answer_logits(merge_into_fp64(model, base), some)
    error = float((comparison.answer_logits(model, some) - wanted).norm() / wanted.norm())
    assert error <= ACCEPTED_ERROR, f"the relative error is {error:.1e}, and at most {ACCEPTED_ERROR:.0e} is accepted"


@torch.no_grad()
def merge_into_fp64(model: GPT2, base: GPT2) -> GPT2:
    """Return a model's weights in a base of fp64, adapters added to them, which no code of adapters does."""
    wide = base.double()
    adapted = lora.find_adapted_layers(model)
    if not adapted:
        wide.load_state_dict(model.state_dict())
    for name, layer in adapted.items():
        adapter = layer.adapter("default")
        weight = wide.get_submodule(name).weight
        assert isinstance(weight, torch.Tensor)
        weight += adapter.settings.scale * (adapter.up.double() @ adapter.down.double())
    return wide


# --- the update of all weights ---------------------------------------------------------------------------


def is_taken_apart(model: GPT2, keys: Keys) -> bool:
    """Return whether the updates of a case's training are looked at: that of all weights, at its usual rate."""
    every = all(each.requires_grad for each in model.parameters())
    return every and dict(keys) == {**USUAL, "learning_rate": AGAIN["full"][1]}


@torch.no_grad()
def score_updates(model: GPT2, held_out: Encoded) -> dict[str, Metric]:
    """Return the singular values of the updates of all blocks' matrices, and scores with the updates cut to ranks.

    Values are means over matrices, each divided by the largest of its matrix; those of the weights stand beside them.
    ``cut`` leaves everything else as it was before: embeddings, biases and norms. ``matrices`` is the score with the
    whole updates of the same matrices.
    """
    base = comparison.all_weights(device=str(next(model.parameters()).device))
    before = {name: each for name, each in base.named_parameters() if name.startswith("blocks.") and each.ndim == 2}
    after = {name: each for name, each in model.named_parameters() if name in before}
    changes = update.updates({name: each.clone() for name, each in before.items()}, after)
    parts = {name: torch.linalg.svd(change, full_matrices=False) for name, change in changes.items()}
    spectra = [values for _, values, _ in parts.values()]
    found: dict[str, tuple[str, Sequence[float]]] = {
        "singular_values": ("1", average_spectra(spectra)),
        "singular_values_of_weights": (
            "1",
            average_spectra([update.singular_values(each) for each in before.values()]),
        ),
        "rank_for_half": ("1", [float(update.rank_for(values, 0.5)) for values in spectra]),
        "rank_for_nine_tenths": ("1", [float(update.rank_for(values, 0.9)) for values in spectra]),
    }
    for rank in (*CUTS, None):
        added = changes if rank is None else {name: update.strongest(each, rank) for name, each in parts.items()}
        score = score_with_updates(base, added, held_out)
        label = "matrices" if rank is None else f"cut_to_{rank}"
        found[f"accuracy_{label}"], found[f"loss_{label}"] = ("1", [score.accuracy]), ("nat", [score.loss])
    return {name: records.metric(unit, values) for name, (unit, values) in found.items()}


def score_with_updates(base: GPT2, changes: Mapping[str, torch.Tensor], held_out: Encoded) -> Score:
    """Return how a base answers with updates added to it; the base stays as it is."""
    places = dict(base.named_parameters())
    kept = {name: places[name].detach().clone() for name in changes}
    for name, change in changes.items():
        places[name].copy_((kept[name].double() + change).float())
    score = comparison.score(base, held_out)
    for name, weight in kept.items():
        places[name].copy_(weight)
    return score


def average_spectra(spectra: Sequence[torch.Tensor]) -> list[float]:
    """Return the mean of spectra of one length, each divided by its largest value."""
    return torch.stack([values / values[0] for values in spectra]).mean(0).tolist()


# --- declaration -----------------------------------------------------------------------------------------


def cases(device: Device) -> Sequence[Keys]:
    """Return the usual case first, then one change at a time; on a processor a single short training."""
    if not device.is_gpu:
        return [{**USUAL, "batch": 8, "epochs": 3, "samples": 64}]
    again = {rate for rates in AGAIN.values() for rate in rates}
    found = [USUAL]
    found += [{**USUAL, "learning_rate": rate} for rate in RATES]
    found += [{**USUAL, "learning_rate": rate, "seed": seed} for seed in SEEDS for rate in RATES if rate in again]
    found += [
        {**USUAL, "rank": rank, "alpha": SCALE * rank, "learning_rate": rate, "seed": seed}
        for rank, rates in RATES_OF_RANKS.items()
        for rate in rates
        for seed in (0, *SEEDS)
    ]
    found += [{**USUAL, "rank": rank, "alpha": alpha} for rank, root in SQUARES for alpha in (32.0, 8.0 * root)]
    found += [{**USUAL, "alpha": alpha} for alpha in (2.0, 8.0, 128.0, 512.0)]
    found += [{**USUAL, "batch": batch} for batch in (4, 16, 128)]
    found += [{**USUAL, "epochs": epochs} for epochs in (1, 2, 8, 16)]
    found += [{**USUAL, "samples": samples} for samples in (200, 600)]
    found += [{**NOTES, "counted": counted} for counted in comparison.COUNTED]
    unique = {tuple(sorted(keys.items())): keys for keys in found}
    return list(unique.values())


def restrict_cases(name: str) -> Callable[[Device, Keys], str | None]:
    """Return a contender's ``skip_reason``: the cases in which a training method is not measured."""

    def skip_reason(device: Device, keys: Keys) -> str | None:
        others = find_differences(keys) - {"learning_rate", "seed"}
        if name != "lora" and others and device.is_gpu and not (name == "full" and is_case_of_few_samples(keys)):
            return "is measured with the usual settings only, at several learning rates"
        rates = RATES_OF_RANKS.get(int(keys["rank"]), ()) if name == "lora" else AGAIN[name]
        if keys["seed"] != USUAL["seed"] and keys["learning_rate"] not in rates:
            return "is trained with other seeds at the rates around its best"
        return None

    return skip_reason


def is_case_of_few_samples(keys: Keys) -> bool:
    """Return whether a case is that of few samples in small batches."""
    return {**keys, "counted": NOTES["counted"]} == NOTES


def find_differences(keys: Keys) -> set[str]:
    """Return what differs from the usual case."""
    return {name for name in keys if keys[name] != USUAL[name]}


def contender(name: str, make: Callable[[Keys, str], GPT2]) -> Contender:
    """Return a training method as a contender."""

    def build(device: Device, keys: Keys) -> Work:
        return work(make, device, keys)

    return Contender(build, skip_reason=restrict_cases(name))


def adapters(keys: Keys, device: str) -> GPT2:
    """Return the model of a case with its adapters."""
    return comparison.load_with_adapters(int(keys["rank"]), float(keys["alpha"]), seed=int(keys["seed"]), device=device)


LORA_TASK = Benchmark(
    name="lora-task",
    title="A task learnt with adapters, with all weights, and in the last layer",
    question="How well does each fine-tuning method learn a real task, in how much time and memory?",
    contenders={
        "lora": contender("lora", adapters),
        "full": contender("full", lambda keys, device: comparison.all_weights(device=device)),
        "last-layer": contender("last-layer", lambda keys, device: comparison.last_layer(device=device)),
    },
    cases=cases,
    memory=lambda keys: 4 * 2**30 * max(1.0, int(keys["batch"]) / 32),
    budget=0.5,
    samples=STEPS_TIMED,
)
