"""A whole training step as one call: forward, backward and AdamW, compiled, and on a GPU captured in a CUDA graph.

:meth:`TrainingStep._step` is the step, from top to bottom. The rest of the class gives everything its place, since a
graph fixes shapes and addresses: batches are copied to where it reads, and the learning rate is a tensor.

A small model, or one with adapters, has many small operations: launched one after another by the host they take longer
to launch than to run. A compiler joins what lies between the matmuls, and a CUDA graph launches the whole step at once.
A process that makes steps of many models calls ``torch.compiler.reset()`` between them: the compiler counts them as one
function that changes too often.

Parameters in bf16 keep a copy in fp32, which the optimizer changes: near 0.02 the numbers of bf16 lie 0.0001 apart, and
most updates are smaller. The copies of all parameters are read and written together, and gradients of micro-batches
are added up in fp32.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpuguide.errors import GpuguideError, unknown
from gpuguide.precision.support import autocast
from gpuguide.training.adamw import OnePassAdamW
from gpuguide.triton_support.graphs import workspace_of_its_own

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From tokens and targets, ``(batch, seq)`` both, to their mean loss"""
Synchronised = Callable[[bool], AbstractContextManager[object]]
"""From whether a micro-batch is the last of its step to the context of its forward and backward pass, in which
gradients are added up over processes, or not"""
WARM_UP = 3
"""Steps before the graph is captured, in which libraries choose their kernels; they change nothing that lasts"""
ATTENTION = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
"""Kernels of ``scaled_dot_product_attention``; ``math`` writes all scores to memory"""
GRAPHS_OF_THEIR_OWN = ("reduce-overhead", "max-autotune")
"""Modes of ``inductor`` that capture the forward and the backward pass in graphs"""


@dataclass(frozen=True)
class StepSettings:
    """Settings of a training step.

    Parameters
    ----------
    learning_rate, betas
        Of AdamW.
    weight_decay : float
        Of AdamW, for matrices and embeddings; norms and biases are left alone.
    clip : float, optional
        Largest norm of all gradients together.
    micro_batch : int, optional
        Sequences per forward and backward pass, if not all of the step (gradient accumulation), for less memory. All
        micro-batches weigh the same, which is right where all targets count.
    autocast : str
        Format of matmuls where parameters are in fp32: ``bf16``, ``fp16``, which takes a loss scaler, or ``fp32``.
    attention : str, optional
        Kernels that ``scaled_dot_product_attention`` takes where it can, one of :data:`ATTENTION`; PyTorch's choice,
        if it is left out.
    backend : str, optional
        What ``torch.compile`` calls: ``inductor`` makes kernels, ``eager`` only traces. ``None`` compiles nothing.
    mode : str, optional
        Of ``inductor``: ``max-autotune-no-cudagraphs`` tries more kernels, and compiles longer.
    graphed : bool, optional
        Whether the step is captured in a CUDA graph: on a GPU, if it is left out, but for fp16.
    masters : bool
        Whether parameters that are not in fp32 keep a copy that is.
    fused : bool
        Whether AdamW on a GPU is one kernel for many parameters; else it is a few for all (``foreach``).
    one_pass : bool
        Whether parameters in 16 bits, their copies, clipping and AdamW take one pass over memory
        (:mod:`gpuguide.training.adamw`), where all parameters are in 16 bits.

    Raises
    ------
    GpuguideError
        If a number is out of its range, or two settings exclude each other.
    """

    learning_rate: float = 3e-4
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = None
    micro_batch: int | None = None
    autocast: str = "fp32"
    attention: str | None = None
    backend: str | None = "inductor"
    mode: str | None = None
    graphed: bool | None = None
    masters: bool = True
    fused: bool = True
    one_pass: bool = False

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise GpuguideError(f"learning_rate is {self.learning_rate}; it must be a positive number.")
        if self.mode is not None and self.backend != "inductor":
            raise GpuguideError(f"mode is {self.mode!r}, and only the backend inductor has modes; leave it out.")
        if self.weight_decay < 0:
            raise GpuguideError(f"weight_decay is {self.weight_decay}; it must be 0 or more.")
        if self.clip is not None and not self.clip > 0:
            raise GpuguideError(f"clip is {self.clip}; it must be a positive number, or None.")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise GpuguideError(f"micro_batch is {self.micro_batch}; it must be 1 or more, or None.")
        if self.attention is not None and self.attention not in ATTENTION:
            raise unknown("attention", self.attention, ATTENTION)
        if self.mode in GRAPHS_OF_THEIR_OWN and (self.micro_batch is not None or self.graphed is not False):
            raise GpuguideError(
                f"mode is {self.mode!r}, whose graphs write each gradient to the place of the last one: micro-batches "
                "would overwrite what they should add up, and no graph holds another. Leave the mode out: the step is "
                "captured as a whole, with all of its micro-batches. For one batch, graphed=False goes with it."
            )
        if self.autocast == "fp16" and self.graphed:
            raise GpuguideError("A step in fp16 asks each time whether its gradients are finite; leave graphed out.")


class TrainingStep:
    """A step that is called with batches of one shape.

    Parameters
    ----------
    loss : callable
        From tokens and targets to their mean loss, for example :meth:`gpuguide.training.WithoutHead.loss`.
    parameters : iterable of nn.Parameter
        What may be trained; those that ask for no gradient are left out.
    batch, seq_len : int
        Shape of the batches.
    settings : StepSettings, optional
        How the step is taken.
    synchronised : callable, optional
        Context of each micro-batch, given whether it is the last one: :func:`gpuguide.training.synchronise_last`.
    pool : optional
        Memory that its graph shares with others which never run at the same time, as
        ``torch.cuda.graph_pool_handle()`` gives it.

    Raises
    ------
    GpuguideError
        If no parameter asks for a gradient, a graph is asked for without a GPU, micro-batches do not divide the batch,
        or one pass is asked for where parameters have no copies.
    """

    def __init__(
        self,
        loss: Loss,
        parameters: Iterable[nn.Parameter],
        batch: int,
        seq_len: int,
        settings: StepSettings | None = None,
        *,
        synchronised: Synchronised | None = None,
        pool: Any = None,
    ) -> None:
        self.settings = settings or StepSettings()
        self.parameters = [each for each in parameters if each.requires_grad]
        if not self.parameters:
            raise GpuguideError("No parameter asks for a gradient; add adapters, or unfreeze a layer.")
        self.device = self.parameters[0].device
        self.micro_batch = self.settings.micro_batch or batch
        if batch % self.micro_batch:
            raise GpuguideError(f"Micro-batches of {self.micro_batch} sequences do not divide a batch of {batch}.")
        self.tokens = torch.zeros(batch, seq_len, dtype=torch.int64, device=self.device)
        self.targets = torch.zeros_like(self.tokens)
        adds_up = self.micro_batch < batch or not self.settings.one_pass
        self.masters = _Masters(self.parameters, self.settings.masters, adds_up)
        if self.settings.one_pass and len(self.masters.narrow) < len(self.parameters):
            raise GpuguideError("one_pass is for parameters that are all in 16 bits and have copies; leave it out.")
        if synchronised and self.masters.narrow and self.micro_batch < batch:
            raise GpuguideError(
                f"Gradients of parameters in {self.masters.narrow[0].dtype} are added up outside of them, where other "
                "processes do not see them. Keep the parameters in fp32, with autocast to bf16, or leave micro_batch "
                "out."
            )
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.settings.autocast == "fp16")
        wanted = self.settings.graphed
        if wanted and self.device.type != "cuda":
            raise GpuguideError(f"A CUDA graph needs a GPU, and the parameters are on {self.device}.")
        can_be = self.device.type == "cuda" and not self.scaler.is_enabled() and synchronised is None
        self._graphed = can_be if wanted is None else wanted
        self.optimizer = _optimizer(self.masters, self.settings, self.device, self._graphed)
        self.loss = _compile(loss, self.settings)
        self.grad_norm: torch.Tensor | None = None
        """Norm of all gradients together in the last step, before clipping; ``None`` if nothing is clipped"""
        self._synchronised = synchronised or (lambda last: nullcontext())
        self._share = torch.tensor(self.micro_batch / batch, device=self.device)
        self._pool = pool
        self.graph: torch.cuda.CUDAGraph | None = None
        self._result = torch.zeros((), device=self.device)

    def __call__(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Take one step.

        Parameters
        ----------
        tokens, targets : torch.Tensor
            ``(batch, seq_len)``, int64, on any device; a target of -100 does not count.

        Returns
        -------
        torch.Tensor
            The loss before the step, a scalar in fp32 on the device. Nobody has waited for it.

        Raises
        ------
        GpuguideError
            If the batch has another shape or format.
        """
        for name, given in (("tokens", tokens), ("targets", targets)):
            if given.shape != self.tokens.shape or given.dtype != torch.int64:
                raise GpuguideError(
                    f"This step takes {name} of the shape {tuple(self.tokens.shape)} in int64; given "
                    f"{tuple(given.shape)} in {given.dtype}. A step is made for one shape: pad, or make another one."
                )
        self.tokens.copy_(tokens, non_blocking=True)
        self.targets.copy_(targets, non_blocking=True)
        if not self._graphed:
            return self._step()
        if self.graph is None:
            self._capture()
        assert self.graph is not None
        self.graph.replay()
        return self._result.clone()

    def _step(self) -> torch.Tensor:
        """Take one step with the batch that is in place."""
        losses = []
        micro_batches = list(
            zip(self.tokens.split(self.micro_batch), self.targets.split(self.micro_batch), strict=True)
        )
        for number, (tokens, targets) in enumerate(micro_batches):
            is_first, is_last = number == 0, number == len(micro_batches) - 1
            # -- forget the gradients of the last step; those in fp32 add up over micro-batches by themselves
            for parameter in self.parameters if is_first else self.masters.narrow:
                parameter.grad = None
            # -- only the last micro-batch adds up over processes
            with self._synchronised(is_last):
                # -- forward
                with _attention(self.settings.attention), autocast(self.settings.autocast, self.device):
                    loss = self.loss(tokens, targets)
                # -- backward; each micro-batch has its share of the mean
                loss.backward(self.scaler.scale(self._share.to(loss.dtype)))
            # -- add gradients in 16 bits to those of the copies, in fp32
            self.masters.fetch_gradients(add=not is_first)
            losses.append(loss.detach().float())
        # -- clip
        self.scaler.unscale_(self.optimizer)
        if self.settings.clip is not None:
            self.grad_norm = self._clip(self.settings.clip)
        # -- AdamW; a scaler leaves out a step whose gradients are not finite
        self.scaler.step(self.optimizer)
        self.scaler.update()
        # -- round the copies to the parameters
        if not isinstance(self.optimizer, OnePassAdamW):
            self.masters.store_values()
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients of the last step as they were used, clipped, in the order of ``parameters``."""
        if isinstance(self.optimizer, OnePassAdamW):
            return [self.optimizer.gradient_of(each) * self.optimizer.factor for each in self.masters.trained]
        return [each.grad for each in self.masters.trained if each.grad is not None]

    @torch.no_grad()
    def _clip(self, limit: float) -> torch.Tensor:
        """Scale gradients down to a norm, or have the optimizer do it on its way, and return what the norm was."""
        if not isinstance(self.optimizer, OnePassAdamW):
            return nn.utils.clip_grad_norm_(self.masters.trained, limit)
        found = [self.optimizer.gradient_of(each) for each in self.masters.trained]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(found, 2, torch.float32)))
        torch.clamp(limit / (norm + 1e-6), max=1.0, out=self.optimizer.factor)
        return norm

    def set_learning_rate(self, learning_rate: float) -> None:
        """Change the learning rate, also of a step that is captured already."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(learning_rate)
            else:
                group["lr"] = learning_rate

    @torch.no_grad()
    def load(self, values: Sequence[torch.Tensor]) -> None:
        """Give the parameters other values, in the order of ``parameters``. The optimizer's state stays."""
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)
        self.masters.fetch_values()

    def state(self) -> dict[str, Any]:
        """Return all that later steps depend on: the values of the parameters in fp32, and the optimizer's state."""
        return {
            "values": [each.detach() for each in self.masters.trained],
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    @torch.no_grad()
    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state that :meth:`state` gave, of a step of the same parameters."""
        if self._graphed and self.graph is None:
            self._capture()  # first, since it sets to zero what the optimizer has seen
        for own, value in zip(self.masters.trained, state["values"], strict=True):
            own.copy_(value)
        self.masters.store_values()
        self.scaler.load_state_dict(state["scaler"])
        if not self.optimizer.state:
            self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # it would keep the tensors themselves
            return
        ordered = [each for group in self.optimizer.param_groups for each in group["params"]]
        for number, parameter in enumerate(ordered):
            for name, own in self.optimizer.state[parameter].items():
                own.copy_(state["optimizer"]["state"][number][name])  # in its place, where a graph reads it

    @torch.enable_grad()
    def _capture(self) -> None:
        """Capture a step, and leave parameters and optimizer as they were before.

        At a learning rate of zero AdamW in one kernel changes no parameter. In several it divides by the rate, so the
        values wait on the host for the end.
        """
        kept = [] if self.settings.fused else [each.detach().cpu() for each in self.masters.trained]
        rates = [group["lr"].clone() for group in self.optimizer.param_groups]
        self.set_learning_rate(0.0)
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._step()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        for parameter in self.parameters:
            parameter.grad = None
        self.graph = torch.cuda.CUDAGraph()
        with workspace_of_its_own(), torch.cuda.graph(self.graph, pool=self._pool):
            self._result.copy_(self._step())
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"].copy_(rate)
        self._forget(kept)

    @torch.no_grad()
    def _forget(self, values: Sequence[torch.Tensor]) -> None:
        """Set what the optimizer has seen to zero, and the parameters to values, if there are any."""
        for parameter, value in zip(self.masters.trained if values else [], values, strict=True):
            parameter.copy_(value)
        if values:
            self.masters.store_values()
        for state in self.optimizer.state.values():
            for kept in state.values():
                if isinstance(kept, torch.Tensor):
                    kept.zero_()


class _Masters:
    """Master weights of the optimizer: the parameters, or copies in fp32 of those in fewer bits.

    Copies have gradients in fp32, unless the optimizer reads those of the parameters.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], wanted: bool, have_gradients: bool) -> None:
        narrow = [each for each in parameters if wanted and each.dtype in (torch.bfloat16, torch.float16)]
        copies = {id(each): nn.Parameter(each.detach().float()) for each in narrow}
        self.trained = [copies.get(id(each), each) for each in parameters]
        self.narrow: list[torch.Tensor] = [*narrow]
        self.wide: list[torch.Tensor] = [copies[id(each)] for each in narrow]
        self.gradients = [torch.zeros_like(each) for each in self.wide if have_gradients]
        for each, gradient in zip(self.wide, self.gradients, strict=have_gradients):
            each.grad = gradient

    def fetch_gradients(self, add: bool) -> None:
        """Copy the gradients to those of the copies, or add them, all in one call."""
        found = [each.grad for each in self.narrow if each.grad is not None and self.gradients]
        if found and add:
            torch._foreach_add_(self.gradients, found)
        elif found:
            torch._foreach_copy_(self.gradients, found)

    @torch.no_grad()
    def fetch_values(self) -> None:
        """Copy the parameters to the copies."""
        if self.narrow:
            torch._foreach_copy_(self.wide, self.narrow)

    @torch.no_grad()
    def store_values(self) -> None:
        """Round the copies to the parameters."""
        if self.narrow:
            torch._foreach_copy_(self.narrow, self.wide)


def _optimizer(masters: _Masters, settings: StepSettings, device: torch.device, graphed: bool) -> torch.optim.Optimizer:
    """Return AdamW; on a GPU as few kernels, which a graph can hold, with a learning rate that can be changed.

    Without a graph, and not fused, it is PyTorch's default, since what a graph can hold takes many small kernels then.
    """
    more: dict[str, Any] = {"lr": settings.learning_rate}
    if device.type == "cuda" and (settings.fused or graphed):
        rate = torch.tensor(settings.learning_rate, device=device)
        more = {"lr": rate, "fused": settings.fused, "capturable": True}
    matrices = [each for each in masters.trained if each.ndim >= 2 or not settings.weight_decay]
    vectors = [each for each in masters.trained if each.ndim < 2 and settings.weight_decay]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    if settings.one_pass:
        narrow = {id(wide): cast(nn.Parameter, each) for wide, each in zip(masters.wide, masters.narrow, strict=True)}
        rate = torch.tensor(settings.learning_rate, device=device)
        return OnePassAdamW(groups, narrow, rate, settings.betas, settings.weight_decay)
    return torch.optim.AdamW(groups, betas=settings.betas, weight_decay=settings.weight_decay, **more)


def _attention(name: str | None) -> AbstractContextManager[object]:
    """Return the context in which attention takes kernels by name, and others only where these cannot."""
    if name is None:
        return nullcontext()
    return sdpa_kernel([ATTENTION[name], *(each for each in ATTENTION.values() if each != ATTENTION[name])], True)


def _compile(loss: Loss, settings: StepSettings) -> Loss:
    if settings.backend is None:
        return loss
    compiled: Loss = torch.compile(loss, fullgraph=True, dynamic=False, backend=settings.backend, mode=settings.mode)
    return compiled
