"""Why a parameter has no gradient: frozen, never called, called without recording, cut off, or nobody called backward.

Autograd records a graph of operations from the loss back to the parameters. A parameter gets a gradient if a path leads
from the loss to it and ``backward()`` walks that path. :func:`why_none` runs the forward pass once more with hooks on
the modules, follows the graph from the loss, and compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from gpuguide.errors import GpuguideError

Cause = Literal["frozen", "never called", "under no_grad", "checkpointed", "cut", "no backward"]
Run = Callable[[], torch.Tensor]
"""Function that runs the forward pass of a step and returns its loss, a scalar"""


@dataclass(frozen=True)
class Reason:
    """Why one parameter has no gradient."""

    name: str
    cause: Cause
    module: str
    """Module that holds the parameter; empty for the model itself"""
    before: str = ""
    """Where the cause is ``"cut"``: the next module from which a path leads to the loss; empty if there is none"""

    def __str__(self) -> str:
        """Say it in a sentence, with the remedy."""
        where = self.module or "the model"
        if self.cause == "frozen":
            return f"{self.name} is frozen (requires_grad=False); call requires_grad_() to train it."
        if self.cause == "never called":
            return f"{self.name} has no gradient because {where} is never called in the forward pass."
        if self.cause == "under no_grad":
            return (
                f"{self.name} has no gradient because {where} runs under torch.no_grad() or inference_mode(), where "
                "autograd records nothing."
            )
        if self.cause == "checkpointed":
            return (
                f"{self.name} has no gradient because {where} is checkpointed with use_reentrant=True and none of the "
                "inputs asks for a gradient; pass use_reentrant=False."
            )
        if self.cause == "no backward":
            return f"{self.name} has no gradient although the loss depends on it; call backward() on the loss."
        place = f" before {self.before}" if self.before else ""
        return (
            f"{self.name} has no gradient because the output of {where} is cut off from the loss{place}: look for "
            "detach(), .data, .item(), NumPy or argmax, or an output that nobody uses."
        )


@dataclass
class _Calls:
    """What a forward pass did, by the name of a module."""

    recorded: dict[str, bool] = field(default_factory=dict)
    """Whether autograd recorded a call, in the order of the first calls"""
    checkpointed: set[str] = field(default_factory=set)
    outputs: dict[str, list[Any]] = field(default_factory=dict)
    """Nodes of the graph that made the outputs"""


def why_none(model: nn.Module, run: Run) -> list[Reason]:
    """Return why each parameter without a gradient has none.

    Parameters
    ----------
    model : nn.Module
        Model whose parameters are asked about.
    run : callable
        Runs the forward pass of the step and returns the loss. It is called once, and ``backward()`` is not.

    Returns
    -------
    list of Reason
        In the order of ``model.named_parameters()``; empty if every parameter has a gradient.

    Raises
    ------
    GpuguideError
        If the loss is no scalar.
    """
    model = getattr(model, "_orig_mod", model)  # that of torch.compile
    calls = _Calls()
    hooks = [hook for name, module in model.named_modules() for hook in _watch(name, module, calls)]
    try:
        loss = run()
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise GpuguideError(f"run returned {shape}; it must return the loss, a tensor with one value.")
    nodes = _walk(loss.grad_fn)
    reached = {id(node.variable) for node in nodes if hasattr(node, "variable")}
    if loss.grad_fn is None and loss.requires_grad:  # the loss is itself a parameter
        reached.add(id(loss))
    return [
        _reason(name, parameter, calls, nodes, id(parameter) in reached)
        for name, parameter in model.named_parameters()
        if parameter.grad is None
    ]


def _reason(name: str, parameter: nn.Parameter, calls: _Calls, nodes: set[Any], is_reached: bool) -> Reason:
    module = name.rpartition(".")[0]
    if not parameter.requires_grad:
        return Reason(name, "frozen", module)
    if is_reached:
        return Reason(name, "no backward", module)
    if module not in calls.recorded:
        return Reason(name, "never called", module)
    if module in calls.checkpointed:
        return Reason(name, "checkpointed", module)
    if not calls.recorded[module]:
        return Reason(name, "under no_grad", module)
    return Reason(name, "cut", module, _next_linked(module, calls, nodes))


def _next_linked(module: str, calls: _Calls, nodes: set[Any]) -> str:
    """Return the first module called after another, and not around it, whose output leads to the loss."""
    order = list(calls.recorded)
    for name in order[order.index(module) + 1 :]:
        if any(node in nodes for node in calls.outputs.get(name, ())):
            return name
    return ""


def _watch(name: str, module: nn.Module, calls: _Calls) -> list[Any]:
    """Have a module note its calls, and return the hooks."""

    def before(*_: Any) -> None:
        calls.recorded[name] = calls.recorded.get(name, False) or torch.is_grad_enabled()
        if not torch.is_grad_enabled() and _inside_checkpoint():
            calls.checkpointed.add(name)

    def after(module: nn.Module, given: Any, output: Any) -> None:
        made = [leaf.grad_fn for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        calls.outputs.setdefault(name, []).extend(node for node in made if node is not None)

    return [module.register_forward_pre_hook(before), module.register_forward_hook(after)]


def _inside_checkpoint() -> bool:
    """Return whether a reentrant checkpoint is running, which runs the forward pass without recording it."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name == "forward" and frame.f_code.co_filename.endswith("torch/utils/checkpoint.py"):
            return True
    return False


def _walk(start: Any) -> set[Any]:
    """Return all nodes of the graph from which a loss was made."""
    seen, waiting = set[Any](), [start]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting.extend(following for following, _ in node.next_functions)
    return seen
