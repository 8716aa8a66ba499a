"""What each way of dividing a model over GPUs sends in a training step, and over which links that is in time.

=================  =====================================================  =====================================
division           what a GPU sends in a step                             when
=================  =====================================================  =====================================
data parallel      all-reduce of all gradients                            behind the backward pass
sharded (FSDP)     all-gather of each layer twice, reduce-scatter of its  behind the layers before and after
                   gradients
tensor parallel    four all-reduces of activations a layer                computation waits for each
pipeline           activations of its last layer, their gradients back    a micro-batch behind another one
expert parallel    four all-to-alls of tokens a layer                     computation waits for each
=================  =====================================================  =====================================

A division is *in time* over a link if what cannot be hidden takes a small share of the step's computation. What is
counted: transfers at a share of the link's rate in the table, with a latency, or by a fit. What is not: waiting for
slower ranks, the bubble of a pipeline, experts that get more tokens than others.

References
----------
M. Shoeybi et al., "Megatron-LM", 2019, section 3: two all-reduces a layer in each direction.
S. Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020, section 7.
Y. Huang et al., "GPipe", 2019, section 2. D. Lepikhin et al., "GShard", 2021, section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpuguide.collectives.cost import AnyLink, ring
from gpuguide.costs.memory import Shape
from gpuguide.costs.transfers import (
    Transfer,
    gradient_all_reduce,
    model_weights,
    tensor_parallel_step,
    time_to_move,
)
from gpuguide.errors import GpuguideError
from gpuguide.hardware.links import Link

NUMBER_SIZE = 2
"""Bytes of an activation in bf16"""
FLOPS = 400e12
"""Operations a second of a training step on an H100 or H200, from which :func:`plan` has its computation by default"""
ACCEPTED = 0.25
"""Share of the computation that what cannot be hidden may take"""
BACKWARD = 2 / 3
"""Share of a step's operations in the backward pass"""


@dataclass(frozen=True)
class Division:
    """A way of dividing the work of a step."""

    moved: float
    """Bytes that a GPU sends in a step"""
    messages: int
    """Messages of a GPU that wait for one another"""
    hidden: float
    """Seconds of computation that transfers can hide behind; 0 where computation waits for them"""
    computation: float
    """Seconds of computation of a GPU in a step"""
    times: Mapping[str, float]
    """Seconds of the transfers by the name of the link"""

    def exposed(self, link: str) -> float:
        """Return the seconds of the transfers over a link that nothing hides."""
        return max(0.0, self.times[link] - self.hidden)

    def slowdown(self, link: str) -> float:
        """Return the exposed seconds as a share of the computation."""
        return self.exposed(link) / self.computation

    @property
    def in_time(self) -> tuple[str, ...]:
        """Names of the links over which the exposed share is small."""
        return tuple(link for link in self.times if self.slowdown(link) <= ACCEPTED)


def plan(
    shape: Shape,
    gpus: int,
    links: Iterable[str | Link] | Mapping[str, AnyLink],
    *,
    tokens: int = 8192,
    micro_batches: int = 8,
    flops: float = FLOPS,
    latency: float = 5e-6,
    efficiency: float = 0.8,
) -> dict[str, Division]:
    """Return what each division of a model over ``gpus`` GPUs sends in a step, and what that takes over each link.

    Every division has the same step: ``tokens`` tokens for each GPU. Tensor, pipeline and expert parallel GPUs share
    the tokens of all, and each computes its part of them.

    Parameters
    ----------
    shape : Shape
        The model, such as ``presets.shape("llama-3.1-8b")``.
    gpus : int
        GPUs that share the work in one way.
    links : iterable of str or Link, or mapping
        What may join them: ids of the table of links, or names with links or fits.
    tokens : int
        Tokens of a step for each GPU.
    micro_batches : int
        Parts of the step that follow one another through a pipeline.
    flops : float
        Operations that a GPU makes in a second.
    latency : float
        Seconds of a message over a link that is no fit.
    efficiency : float
        Share of the rate of a link that is reached, where it is no fit.

    Returns
    -------
    dict
        From ``data parallel``, ``sharded``, ``tensor parallel``, ``pipeline`` and, for a mixture of experts,
        ``expert parallel`` to a :class:`Division`. What cannot be divided by so many GPUs is left out.

    Raises
    ------
    GpuguideError
        If there are fewer than two GPUs, a number makes no sense, or a link is unknown.

    Examples
    --------
    >>> from gpuguide.costs import presets
    >>> found = plan(presets.shape("llama-3.1-70b"), 8, ["nvlink-4", "infiniband-ndr"])
    >>> found["tensor parallel"].in_time, found["pipeline"].in_time
    (('nvlink-4',), ('nvlink-4', 'infiniband-ndr'))
    """
    for name, value in (("gpus", gpus), ("tokens", tokens), ("micro_batches", micro_batches), ("flops", flops)):
        least = 2 if name == "gpus" else 1
        if isinstance(value, bool) or not value >= least:
            raise GpuguideError(f"{name} is {value!r}; it must be {least} or more.")
    over: dict[str, AnyLink] = {}
    if isinstance(links, Mapping):
        over |= links
    else:
        over |= {each if isinstance(each, str) else each.id: each for each in links}
    computation = 6 * active_parameters(shape) * tokens / flops
    found = {}
    for name, (transfer, hidden) in transfers(shape, gpus, tokens, micro_batches).items():
        times = {
            link: time_to_move(transfer, given, latency=latency, efficiency=efficiency)
            if isinstance(given, str | Link)
            else time_to_move(transfer, given)
            for link, given in over.items()
        }
        found[name] = Division(transfer.moved, transfer.messages, hidden * computation, computation, times)
    return found


def transfers(shape: Shape, gpus: int, tokens: int, micro_batches: int = 8) -> dict[str, tuple[Transfer, float]]:
    """Return what each division sends in a step, and the share of the computation that it can hide behind.

    Parameters
    ----------
    shape : Shape
        The model.
    gpus, tokens, micro_batches : int
        As for :func:`plan`.
    """
    gathered = ring("all-gather", model_weights(shape).moved, gpus)
    found = {
        "data parallel": (gradient_all_reduce(shape, gpus), BACKWARD),
        "sharded": (_times(3, Transfer(gathered.moved, shape.layers * gathered.messages)), 1.0),
    }
    if shape.heads % gpus == 0:
        found["tensor parallel"] = (_times(2, tensor_parallel_step(shape, gpus, tokens * gpus)), 0.0)
    if shape.layers % gpus == 0:
        states = NUMBER_SIZE * tokens * gpus * shape.hidden  # of all tokens, which the stages share
        crossings = Transfer(2.0 * states, 2 * micro_batches)
        found["pipeline"] = (crossings, 1 - 1 / micro_batches)
    if shape.experts > 1 and shape.experts % gpus == 0:
        # A GPU's own tokens, each in as many copies as it goes through experts, there and back in both directions.
        copies = NUMBER_SIZE * tokens * shape.hidden * shape.experts_used
        found["expert parallel"] = (_times(4 * shape.layers, ring("all-to-all", copies, gpus)), 0.0)
    return found


def active_parameters(shape: Shape) -> int:
    """Return the parameters that a token goes through: of a mixture of experts, the experts that are used."""
    return replace(shape, experts=shape.experts_used, experts_used=shape.experts_used).parameters()


def _times(count: int, transfer: Transfer) -> Transfer:
    """Return a transfer that is made several times."""
    return Transfer(count * transfer.moved, count * transfer.messages)
