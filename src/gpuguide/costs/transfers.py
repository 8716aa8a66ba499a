"""How long it takes to move things over a link: weights, caches, gradients, activations.

A transfer takes a latency and its bytes over the link's bandwidth (the α–β model); transfers that wait for one another
cost a latency each. The bandwidth is the rate of the table of links, one way, and ``efficiency`` the share of it that
is reached. Both the share and the latency are the caller's: measure some sizes, and
:func:`gpuguide.interconnect.fit_alpha_beta` finds both; what it finds can take the link's place. With what they are if
left out, an efficiency of 1 and no latency, the time is a floor.

What is assumed: nothing else uses the link; both ends are fast enough; sums over GPUs go round a ring. A ring is what
moves the fewest bytes, and not what waits least: for small arrays trees and all-to-all exchanges are faster.

The formulas stand in ``transfers.toml`` beside this module; the calculator on the site computes the same ones.

>>> round(time_to_move(10**9, "pcie-5-x16"), 4)
0.0159

References
----------
R. Hockney, "The communication challenge for MPP: Intel Paragon and Meiko CS-2", Parallel Computing 20, 1994: latency
and bandwidth of a transfer.
P. Patarasuk, X. Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009: the ring.
M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism", 2019,
section 3: two all-reduces a layer in the forward pass.
Y. Sheng et al., "FlexGen: High-Throughput Generative Inference of Large Language Models with a Single GPU", 2023,
section 4: layers that are loaded while the one before computes.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache as cached
from importlib import resources
from typing import Any, Literal, Protocol

from gpuguide.costs.fields import Rule, faults_of, raise_first, read_fields, read_rules
from gpuguide.costs.formulas import Formulas
from gpuguide.costs.memory import Shape
from gpuguide.costs.memory.model import TABLES as MEMORY
from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware import links
from gpuguide.hardware.links import Link

TABLES: Mapping[str, Any] = tomllib.loads(
    resources.files("gpuguide.costs").joinpath("transfers.toml").read_text(encoding="utf-8")
)
FIELDS = read_fields(TABLES["fields"])
WAY = read_fields(TABLES["way"])
THINGS: Mapping[str, Mapping[str, Any]] = TABLES["things"]
"""What can be moved, by name"""
TIME = Formulas(TABLES["time"])


@dataclass(frozen=True)
class Transfer:
    """What moving something takes, whatever the link."""

    moved: float
    """Bytes that cross the link in one direction, at each GPU"""
    messages: int
    """Transfers that wait for one another"""

    @property
    def size(self) -> float:
        """Bytes of one of the messages; 0 where there is none."""
        return self.moved / self.messages if self.messages else 0.0


class FittedTimes(Protocol):
    """A fit of measured times, such as :class:`gpuguide.interconnect.AlphaBeta`."""

    def time(self, size: float) -> float:
        """Return the seconds that a transfer of ``size`` bytes takes."""
        ...


@dataclass(frozen=True)
class OffloadedForward:
    """A forward pass whose layers come over a link, each while the one before computes. Times in seconds."""

    load: float
    """To bring one layer"""
    compute: float
    """Of one layer"""
    layers: int

    @property
    def bound(self) -> Literal["link", "compute"]:
        """What takes longer for a layer."""
        return "link" if self.load > self.compute else "compute"

    @property
    def time(self) -> float:
        """One pass alone: the first layer's load and the last one's computation have nothing to hide behind."""
        return self.load + (self.layers - 1) * max(self.load, self.compute) + self.compute

    @property
    def steady_time(self) -> float:
        """A pass among many: the first layer comes while the last one of the pass before computes."""
        return self.layers * max(self.load, self.compute)


def time_to_move(
    what: float | Transfer, link: str | Link | FittedTimes, *, latency: float = 0.0, efficiency: float = 1.0
) -> float:
    """Return the seconds that a transfer takes: ``messages · latency + bytes / (bandwidth · efficiency)``.

    With a fit in place of the link, it is the time of one message by the fit, times the number of messages.

    Parameters
    ----------
    what : float or Transfer
        Bytes that go in one message, or what one of the functions of this module returned.
    link : str, Link or FittedTimes
        An id of the table of links such as ``"pcie-5-x16"``, a link, or what a fit to measured times found.
    latency : float
        Seconds that each message costs beside its bytes.
    efficiency : float
        Share of the link's rate, after coding, that is reached: above 0, at most 1.

    Raises
    ------
    GpuguideError
        If the link is unknown, a number makes no sense, or a fit is given together with a latency or an efficiency.
    """
    given = what if isinstance(what, Transfer) else Transfer(_number(what, "the size", "bytes"), 1)
    if not isinstance(link, str | Link):
        if latency or efficiency != 1:
            raise GpuguideError(
                f"A fit has its own latency and bandwidth; leave out latency={latency!r} and efficiency={efficiency!r}."
            )
        return given.messages * link.time(given.size)
    found = links.get(link) if isinstance(link, str) else link
    if isinstance(efficiency, bool) or not 0 < efficiency <= 1:
        raise GpuguideError(f"The efficiency is {efficiency!r}; it must be above 0 and at most 1.")
    values = {
        "moved": given.moved,
        "messages": given.messages,
        "bandwidth": found.per_direction.value,
        "share": efficiency,
        "latency": _number(latency, "the latency", "seconds"),
    }
    return float(TIME.values(values)["time"])


def model_weights(shape: Shape, weights: str = "bf16") -> Transfer:
    """Return what it takes to move a model's weights once, stored in a format of :data:`FIELDS`."""
    return transfer("weights", {"weights": weights}, shape)


def offloaded_layers(shape: Shape, weights: str = "bf16") -> Transfer:
    """Return what it takes to bring every layer once, one after another, as offloading does for each forward pass.

    Embedding, last norm and head stay on the GPU.
    """
    return transfer("offload", {"weights": weights}, shape)


def offloaded_forward(
    shape: Shape,
    link: str | Link | FittedTimes,
    compute: float,
    *,
    weights: str = "bf16",
    latency: float = 0.0,
    efficiency: float = 1.0,
) -> OffloadedForward:
    """Return what a forward pass takes at best whose layers come over a link.

    While one layer computes, the next one comes into a second buffer. The activations stay on the GPU.

    Parameters
    ----------
    shape : Shape
        The model.
    link : str, Link or FittedTimes
        As for :func:`time_to_move`.
    compute : float
        Seconds that a layer computes; :func:`gpuguide.costs.limits.limit` gives a floor.
    weights : str
        The format in which the layers come.
    latency, efficiency : float
        As for :func:`time_to_move`.

    Raises
    ------
    GpuguideError
        If the link or the format is unknown, or a number makes no sense.
    """
    whole = offloaded_layers(shape, weights)
    one = Transfer(whole.size, 1)
    load = time_to_move(one, link, latency=latency, efficiency=efficiency)
    return OffloadedForward(load, _number(compute, "the computation of a layer", "seconds"), shape.layers)


def kv_cache(shape: Shape, batch: int, context: int, cache: str = "bf16") -> Transfer:
    """Return what it takes to move the keys and values of ``context`` tokens of each of ``batch`` sequences."""
    return transfer("cache", {"batch": batch, "context": context, "cache": cache}, shape)


def gradient_all_reduce(shape: Shape, gpus: int, gradients: str = "bf16") -> Transfer:
    """Return what it takes to add up a model's gradients over ``gpus`` GPUs, around a ring.

    Each GPU sends ``2 (gpus - 1) / gpus`` times the bytes, in ``2 (gpus - 1)`` steps. One GPU alone sends nothing.
    """
    return transfer("gradients", {"gpus": gpus, "gradients": gradients}, shape)


def tensor_parallel_step(shape: Shape, gpus: int, tokens: int = 1, activations: str = "bf16") -> Transfer:
    """Return what GPUs that share each matrix exchange in one forward pass over ``tokens`` tokens, around a ring.

    Two all-reduces a layer, each of the hidden states of all tokens.
    """
    return transfer("activations", {"gpus": gpus, "tokens": tokens, "activations": activations}, shape)


def transfer(name: str, given: Mapping[str, Any], shape: Shape | None = None) -> Transfer:
    """Return what it takes to move a thing of ``transfers.toml``.

    Parameters
    ----------
    name : str
        One of :data:`THINGS`.
    given : Mapping
        Its fields, a model aside.
    shape : Shape, optional
        The model, where the thing has one.

    Raises
    ------
    GpuguideError
        If there is no such thing, or a field makes no sense.
    """
    if name not in THINGS:
        raise unknown("thing to move", name, THINGS)
    first = THINGS[name]["first"]
    for field in first:
        if field not in given and (field != "model" or shape is None):
            raise GpuguideError(f"To move {THINGS[name]['label']} needs {field}; say what it is.")
    # Of a model `context` is what it knows, and of a cache what is in it.
    model = {**asdict(shape), "tensor_parallel": 1, "cached": given.get("context")} if shape else {}
    fields = {field: FIELDS[field] for field in first if field != "model"}
    raise_first(faults_of(fields, [], given, formulas(name)))
    values = {**given, **model}
    raise_first(faults_of({}, rules(name), values, formulas(name)))
    found = formulas(name).values(values)
    return Transfer(float(found["moved"]), int(found["messages"]))


@cached
def formulas(name: str) -> Formulas:
    """Return the formulas of a thing, with those of a model's parts."""
    own = {key: text for key, text in THINGS[name].items() if isinstance(text, str) and key != "label"}
    constants = {**MEMORY["constants"], **TABLES["constants"]}
    return Formulas({**MEMORY["formulas"], **own} if "model" in THINGS[name]["first"] else own, constants)


@cached
def rules(name: str) -> list[Rule]:
    """Return what must hold between the fields of a thing."""
    return read_rules(THINGS[name].get("rules", []))


def _number(value: float, what: str, unit: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise GpuguideError(f"{what[0].upper()}{what[1:]} is {value!r}; write {unit}, 0 or more.")
    return float(value)
