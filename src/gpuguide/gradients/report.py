"""A report on the gradients of a model: one row for each parameter, and sentences that name what is wrong.

Most broken gradients raise no error: the loss falls more slowly, or not at all. :func:`report` is called once, between
``backward()`` and ``optimizer.step()``. It computes all norms with a few kernels and waits for the device once, so that
it can stay in a training loop and run every hundredth step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.gradients.why_none import Run, why_none

State = Literal["ok", "zero", "not finite", "none", "frozen"]
Kind = Literal[
    "no gradient",
    "frozen in optimizer",
    "not in optimizer",
    "not in model",
    "not finite",
    "clipped with infinite norm",
    "all zero",
    "vanishing",
    "keeps graph",
    "reversed",
    "scaled",
    "holds more than this batch",
    "rounded away",
    "update too large",
]
"""Names of what can be wrong"""
LARGEST_UPDATE = 0.1
"""Share of the weights' norm that one update may have; a training that works is mostly between 1e-4 and 1e-2"""
VANISHING = 1e-6
"""Gradient norm of a layer as a share of the largest among layers, below which it is said to vanish"""
SAME = 0.05
"""Share of a gradient's norm by which it may differ from the gradient of the batch, in 16 bits for example"""
MOST_NAMES = 3
LAYER = re.compile(r"(.*?\.)?(\d+)\.")
"""Name of a parameter of a numbered layer, as of an ``nn.ModuleList``"""


class GradientRow(NamedTuple):
    """Gradient of one parameter."""

    name: str
    shape: tuple[int, ...]
    state: State
    norm: float = 0.0
    """Norm of the gradient; NaN or infinite where the gradient is not finite"""
    weight_norm: float = 0.0
    zeros: float = 0.0
    """Share of the gradient's values that are exactly zero; NaN where it is not finite"""
    update: float | None = None
    """Norm of the optimizer's update relative to that of the weights; ``None`` without an optimizer that is known"""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    kind: Kind
    names: tuple[str, ...]
    """Parameters concerned"""
    sentence: str


@dataclass(frozen=True)
class GradientReport:
    """Rows and findings; ``print`` shows the findings."""

    rows: tuple[GradientRow, ...]
    findings: tuple[Finding, ...]
    norm: float
    """Norm of all gradients together"""
    notes: tuple[str, ...] = ()
    """What is worth knowing, and not wrong"""

    def __str__(self) -> str:
        """Return the sentences, or one that nothing is wrong."""
        trained = sum(row.state != "frozen" for row in self.rows)
        fine = [f"Nothing is wrong with the gradients of {trained} parameters; their norm is {self.norm:.3g}."]
        return "\n".join([*([finding.sentence for finding in self.findings] or fine), *self.notes])

    def row(self, name: str) -> GradientRow:
        """Return the row of a parameter.

        Raises
        ------
        GpuguideError
            If there is none.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise GpuguideError(f"There is no parameter {name!r}; model.named_parameters() lists them.")


def report(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, run: Run | None = None) -> GradientReport:
    """Return the gradient of every parameter, and what is wrong.

    Parameters
    ----------
    model : nn.Module
        After ``backward()``. A compiled module is taken as the one that was compiled; of a sharded parameter (DTensor)
        the part of this process is looked at.
    optimizer : torch.optim.Optimizer, optional
        Which parameters it holds is checked, and the update is computed: of Adam and AdamW the one that their averages
        gave last, or will give first, of SGD that of the gradient or of its momentum, each without weight decay.
    run : callable, optional
        Runs the forward pass of the same step and returns its loss, the same loss in each call. The report then takes
        one more forward and backward pass, says why a gradient is missing, and compares ``.grad`` with the gradient of
        the batch: it may be reversed, scaled, or hold the gradient of another batch as well.

    Returns
    -------
    GradientReport
        ``.findings`` is empty if nothing is wrong.

    Raises
    ------
    GpuguideError
        If no parameter has a gradient, the model has no floating-point parameter, or it was made in inference mode.
    """
    model = getattr(model, "_orig_mod", model)  # that of torch.compile
    named = [(_plain(name), parameter) for name, parameter in model.named_parameters() if parameter.is_floating_point()]
    _check(model, named)
    updates = {} if optimizer is None else _updates(optimizer)
    rows = _measure(named, updates)
    findings = [
        *_missing(model, rows, run),
        *([] if optimizer is None else _membership(named, optimizer)),
        *_values(named, rows),
        *([] if run is None else _against_batch(named, run)),
        *_steps(named, rows, updates),
    ]
    notes = []
    if any(_is_sharded(parameter) for _, parameter in named):
        notes.append("Norms and shares are those of this process's part of each sharded parameter.")
    total = math.sqrt(sum(row.norm**2 for row in rows))
    return GradientReport(tuple(rows), tuple(findings), total, tuple(notes))


def _check(model: nn.Module, named: Sequence[tuple[str, nn.Parameter]]) -> None:
    name = type(model).__name__
    if not named:
        raise GpuguideError(f"{name} has no floating-point parameters, and integers have no gradients.")
    if any(parameter.is_inference() for _, parameter in named):
        raise GpuguideError(
            f"The parameters of {name} were made in torch.inference_mode(), so they can have no gradients; build or "
            "load the model outside of it."
        )
    if all(parameter.grad is None for _, parameter in named):
        raise GpuguideError("No parameter has a gradient; call report after backward().")


# --- one row a parameter -----------------------------------------------------------------------------------


@torch.no_grad()
def _measure(named: Sequence[tuple[str, nn.Parameter]], updates: dict[nn.Parameter, torch.Tensor]) -> list[GradientRow]:
    """Return the rows; the device is waited for once for each format of parameters."""
    groups: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for _, parameter in named:
        if parameter.grad is not None:
            groups.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    numbers: dict[int, tuple[float, ...]] = {}
    for alike in groups.values():
        numbers |= zip(map(id, alike), _norms(alike, updates), strict=True)
    rows = []
    for name, parameter in named:
        shape = tuple(parameter.shape)
        if parameter.grad is None:
            rows.append(GradientRow(name, shape, "none" if parameter.requires_grad else "frozen"))
            continue
        norm, nonzero, weight, update = numbers[id(parameter)]
        is_finite = math.isfinite(norm)
        state: State = "not finite" if not is_finite else "zero" if nonzero == 0 else "ok"
        zeros = 1 - nonzero / max(_local(parameter.grad).numel(), 1) if is_finite else math.nan
        ratio = update / weight if parameter in updates and weight else None
        rows.append(GradientRow(name, shape, state, norm, weight, zeros, ratio))
    return rows


def _norms(alike: Sequence[nn.Parameter], updates: dict[nn.Parameter, torch.Tensor]) -> Iterable[tuple[float, ...]]:
    """Return four numbers of each parameter of one format, computed together and fetched with one wait.

    They are the norm of the gradient, how many of its values are not zero (the sum of the magnitudes of their signs),
    the norm of the weights, and that of the update, 0 where none is known.
    """
    gradients = [_local(cast(torch.Tensor, parameter.grad)) for parameter in alike]
    weights = [_local(parameter.detach()) for parameter in alike]
    changes = [updates[parameter] for parameter in alike if parameter in updates]
    wide = torch.float64 if alike[0].dtype == torch.float64 else torch.float32
    columns = [
        torch._foreach_norm(gradients, 2, wide),
        torch._foreach_norm(torch._foreach_sign(gradients), 1, wide),
        torch._foreach_norm(weights, 2, wide),
        torch._foreach_norm(changes, 2, wide) if changes else (),
    ]
    numbers = torch.stack([scalar for column in columns for scalar in column]).tolist()
    count = len(alike)
    changed = iter(numbers[3 * count :])
    update = [next(changed) if parameter in updates else 0.0 for parameter in alike]
    return zip(numbers[:count], numbers[count : 2 * count], numbers[2 * count : 3 * count], update, strict=True)


def _is_sharded(tensor: torch.Tensor) -> bool:
    return hasattr(tensor, "to_local")


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this process holds of a tensor, and of a sparse gradient its values."""
    if _is_sharded(tensor):
        tensor = cast(Any, tensor).to_local()
    return tensor.coalesce().values() if tensor.is_sparse else tensor


def _plain(name: str) -> str:
    """Return the name of a parameter without what ``torch.compile`` puts in for compiled parts."""
    return name.replace("_orig_mod.", "")


# --- what the optimizer does -------------------------------------------------------------------------------


@torch.no_grad()
def _updates(optimizer: torch.optim.Optimizer) -> dict[nn.Parameter, torch.Tensor]:
    """Return what an optimizer subtracts from each parameter, without weight decay; nothing for an unknown one."""
    found: dict[nn.Parameter, torch.Tensor] = {}
    for group in optimizer.param_groups:
        graded = [parameter for parameter in group["params"] if parameter.grad is not None]
        begun = [parameter for parameter in graded if optimizer.state.get(parameter)]
        if isinstance(optimizer, torch.optim.Adam):  # AdamW too
            first = [parameter for parameter in graded if not optimizer.state.get(parameter)]
            found |= {parameter: _first_adam_update(group, _local(parameter.grad)) for parameter in first}
            found |= zip(begun, _adam_updates(group, [optimizer.state[parameter] for parameter in begun]), strict=True)
        elif isinstance(optimizer, torch.optim.SGD):
            momenta = {parameter: optimizer.state[parameter].get("momentum_buffer") for parameter in begun}
            for parameter in graded:
                momentum = momenta.get(parameter)
                found[parameter] = group["lr"] * _local(parameter.grad if momentum is None else momentum)
    return found


def _first_adam_update(group: dict[str, Any], gradient: torch.Tensor) -> torch.Tensor:
    """Return the first update of Adam: the gradient divided by its own size."""
    return group["lr"] * gradient / (gradient.abs() + group["eps"])


def _adam_updates(group: dict[str, Any], states: Sequence[dict[str, Any]]) -> Sequence[torch.Tensor]:
    """Return the last updates of Adam, all in a few calls; all parameters of a group have taken as many steps."""
    if not states:
        return ()
    beta_1, beta_2 = group["betas"]
    step = float(states[0]["step"])
    size = torch._foreach_sqrt([_local(state["exp_avg_sq"]) for state in states])
    torch._foreach_div_(size, math.sqrt(1 - beta_2**step))
    torch._foreach_add_(size, group["eps"])
    updates = torch._foreach_div([_local(state["exp_avg"]) for state in states], size)
    torch._foreach_mul_(updates, float(group["lr"]) / (1 - beta_1**step))
    return updates


# --- what is wrong -----------------------------------------------------------------------------------------


def _missing(model: nn.Module, rows: Sequence[GradientRow], run: Run | None) -> list[Finding]:
    """Name parameters that ask for a gradient and have none, by the reason if the step can be run again."""
    names = [row.name for row in rows if row.state == "none"]
    if not names:
        return []
    if run is None:
        sentence = (
            f"{_list(names)} asked for a gradient and got none, although others did: never called, run under no_grad, "
            "or cut off from the loss. Pass run, which tells which."
        )
        return [Finding("no gradient", tuple(names), sentence)]
    reasons: dict[tuple[str, str], list[Any]] = {}
    for reason in why_none(model, run):
        if reason.cause != "frozen":
            reasons.setdefault((reason.cause, reason.module), []).append(reason)
    return [
        Finding("no gradient", tuple(_plain(reason.name) for reason in alike), str(alike[0]))
        for alike in reasons.values()
    ]


def _membership(named: Sequence[tuple[str, nn.Parameter]], optimizer: torch.optim.Optimizer) -> list[Finding]:
    """Compare the parameters of the model with those of the optimizer."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    owned = {id(parameter) for _, parameter in named}
    frozen = [name for name, parameter in named if id(parameter) in held and not parameter.requires_grad]
    outside = [name for name, parameter in named if id(parameter) not in held and parameter.grad is not None]
    strangers = len(held - owned)
    findings = []
    if frozen:
        sentence = (
            f"{_list(frozen)}: frozen (requires_grad=False), and the optimizer holds it nevertheless. Unfreeze it, or "
            "leave it out of the optimizer."
        )
        findings.append(Finding("frozen in optimizer", tuple(frozen), sentence))
    if outside and not _holds_copies(optimizer, named):
        sentence = (
            f"{_list(outside)}: has a gradient, and no group of the optimizer holds it, so it never changes. Make the "
            "optimizer after the last change of the model."
        )
        findings.append(Finding("not in optimizer", tuple(outside), sentence))
        if strangers:
            sentence = (
                f"The optimizer holds {strangers} parameters that are not the model's: it was made before a part of "
                "the model was replaced."
            )
            findings.append(Finding("not in model", (), sentence))
    return findings


def _holds_copies(optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, nn.Parameter]]) -> bool:
    """Return whether an optimizer holds copies of all trained parameters, as with master weights in fp32."""
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    trained = [parameter for _, parameter in named if parameter.requires_grad]
    owned = {id(parameter) for parameter in trained}
    shapes = sorted(tuple(parameter.shape) for parameter in trained)
    return (
        not any(id(parameter) in owned for parameter in held)
        and sorted(tuple(parameter.shape) for parameter in held) == shapes
    )


def _values(named: Sequence[tuple[str, nn.Parameter]], rows: Sequence[GradientRow]) -> list[Finding]:
    """Name gradients that are not finite, zero, vanishing, or parts of a graph."""
    findings = []
    broken = [row.name for row in rows if row.state == "not finite"]
    zero = [row.name for row in rows if row.state == "zero"]
    graphed = [name for name, parameter in named if parameter.grad is not None and parameter.grad.requires_grad]
    if broken and zero and not any(row.state == "ok" for row in rows):
        sentence = (
            f"{_list(broken)}: not finite, and every other gradient is exactly zero. The gradients were clipped with "
            "an infinite norm, which multiplies finite ones by 0 and turns infinite ones into NaN. Pass "
            "error_if_nonfinite=True to clip_grad_norm_, or skip the step."
        )
        findings.append(Finding("clipped with infinite norm", tuple(broken), sentence))
    elif broken:
        sentence = (
            f"{_list(broken)}: infinite or NaN. Call gpuguide.precision.trace_nonfinite, which names the operation "
            "that began it; in fp16 one step now and then is normal under a loss scaler, which skips it."
        )
        findings.append(Finding("not finite", tuple(broken), sentence))
    elif zero := [name for name in zero if not _has_cause(name, named)]:
        sentence = (
            f"{_list(zero)}: the gradient is exactly zero. Look for a dead ReLU, a saturated softmax or sigmoid, "
            "underflow in 16 bits, or a loss that is multiplied by 0."
        )
        findings.append(Finding("all zero", tuple(zero), sentence))
    if graphed:
        sentence = (
            f"{_list(graphed)}: the gradient itself has a history, because backward() was called with "
            "create_graph=True, and keeps the graph of each step in memory. Take torch.autograd.grad for second "
            "derivatives, or call zero_grad(set_to_none=True)."
        )
        findings.append(Finding("keeps graph", tuple(graphed), sentence))
    return findings + ([] if broken else _vanishing(rows))


def _has_cause(name: str, named: Sequence[tuple[str, nn.Parameter]]) -> bool:
    """Return whether a zero gradient is a matter of course: a matrix near it is zero, as LoRA's B is at first."""
    layer = ".".join(name.split(".")[:-3])
    return bool(layer) and any(
        other != name and other.startswith(f"{layer}.") and parameter.ndim >= 2 and not bool(parameter.detach().any())
        for other, parameter in named
    )


def _vanishing(rows: Sequence[GradientRow]) -> list[Finding]:
    """Name layers whose gradient is a vanishing share of that of another layer."""
    stacks: dict[str, dict[int, float]] = {}
    for row in rows:
        if row.state in ("ok", "zero") and (found := LAYER.match(row.name)):
            norms = stacks.setdefault(found[1] or "", {})
            norms[int(found[2])] = math.hypot(norms.get(int(found[2]), 0.0), row.norm)
    prefix, norms = max(stacks.items(), key=lambda stack: len(stack[1]), default=("", {}))
    largest = max(norms.values(), default=0.0)
    weak = [number for number, norm in sorted(norms.items()) if norm < VANISHING * largest]
    if not weak:
        return []
    sentence = (
        f"The gradients of {len(weak)} of {len(norms)} layers vanish: that of layer {weak[0]} has a norm of "
        f"{norms[weak[0]]:.1e}, and the largest {largest:.1e}. Add residual connections, or check the ones there are."
    )
    return [Finding("vanishing", tuple(f"{prefix}{number}" for number in weak), sentence)]


def _against_batch(named: Sequence[tuple[str, nn.Parameter]], run: Run) -> list[Finding]:
    """Compare ``.grad`` with the gradient that the batch gives when it is computed anew."""
    held = [
        parameter
        for _, parameter in named
        if parameter.grad is not None and bool(_local(parameter.grad).isfinite().all())
    ]
    if not held:
        return []
    ours = _flat(cast(torch.Tensor, parameter.grad) for parameter in held)
    if not bool(ours.any()):
        return []
    fresh = _fresh(held, named, run)
    along = float(ours @ fresh / fresh.square().sum()) if bool(fresh.any()) else 0.0
    remainder = float((ours - along * fresh).norm() / ours.norm())
    if remainder > SAME:
        again = _fresh(held, named, run)
        if float((again - fresh).norm()) > 0.1 * SAME * float(fresh.norm()):
            return []  # the step has chance in it, dropout for example, and cannot be compared
        sentence = (
            f"{remainder:.0%} of the gradients' norm is not from this batch: zero_grad() was not called since another "
            "backward(). Call optimizer.zero_grad() in each step."
        )
        return [Finding("holds more than this batch", (), sentence)]
    if along < 0:
        sentence = (
            f"The gradients are {along:.3g} times those of this batch, so that each step climbs. Look for a negative "
            "max_norm in clip_grad_norm_, or a loss with the wrong sign."
        )
        return [Finding("reversed", (), sentence)]
    if along > 1 + SAME:
        sentence = (
            f"The gradients are {along:.3g} times those of this batch. Unscale them if there is a loss scaler, divide "
            "by the number of micro-batches, or call zero_grad() in each step."
        )
        return [Finding("scaled", (), sentence)]
    return []


def _fresh(held: Sequence[nn.Parameter], named: Sequence[tuple[str, nn.Parameter]], run: Run) -> torch.Tensor:
    """Return the gradients of a run for some parameters, all in one vector; ``.grad`` is as it was afterwards."""
    kept = [parameter.grad for _, parameter in named]
    try:
        for _, parameter in named:
            parameter.grad = None
        with torch.enable_grad():
            run().backward()
        return _flat(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for parameter in held)
    finally:
        for (_, parameter), gradient in zip(named, kept, strict=True):
            parameter.grad = gradient


def _flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return all values in one vector, in fp32 and on the device of the first tensor."""
    parts = [_local(tensor.detach()).flatten().float() for tensor in tensors]
    return torch.cat([part.to(parts[0].device) for part in parts])


@torch.no_grad()
def _steps(
    named: Sequence[tuple[str, nn.Parameter]], rows: Sequence[GradientRow], updates: dict[nn.Parameter, torch.Tensor]
) -> list[Finding]:
    """Name updates that rounding swallows, and an update that is too large."""
    findings = []
    narrow = [
        (name, parameter)
        for name, parameter in named
        if parameter in updates and parameter.dtype in (torch.bfloat16, torch.float16)
    ]
    stuck, count = torch.zeros(()), torch.zeros(())
    for _, parameter in narrow:
        update, weight = updates[parameter].float(), _local(parameter.detach())
        stuck = stuck + (((weight.float() - update).to(weight.dtype) == weight) & (update != 0)).sum()
        count = count + (update != 0).sum()
    share = float(stuck / count) if narrow else 0.0  # NaN without an update
    if share > 0.5:
        names = tuple(name for name, _ in narrow)
        sentence = (
            f"{share:.0%} of the updates of {_list(names)} are rounded away, since the weights are in "
            f"{str(narrow[0][1].dtype).removeprefix('torch.')}. Keep the weights in fp32 and use autocast, or keep a "
            "copy in fp32."
        )
        findings.append(Finding("rounded away", names, sentence))
    known = [row for row in rows if row.update is not None]
    weights = math.sqrt(sum(row.weight_norm**2 for row in known))
    moved = math.sqrt(sum((cast(float, row.update) * row.weight_norm) ** 2 for row in known))
    if weights and moved > LARGEST_UPDATE * weights:
        sentence = (
            f"One update has {moved / weights:.2g} times the norm of the weights; a training that works is mostly "
            "between 1e-4 and 1e-2. Lower the learning rate."
        )
        findings.append(Finding("update too large", tuple(row.name for row in known), sentence))
    return findings


def _list(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
