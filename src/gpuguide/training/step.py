"""A whole training step as one call: forward, backward and AdamW, compiled, and on a GPU captured in a CUDA graph.

Adapters turn each matmul into five or six small ones, and a small model has many layers: launched one after another by
the host they take longer to launch than to run. A compiler joins what lies between the matmuls, and a CUDA graph
launches the whole step at once. Everything must then have its place: shapes are fixed, and batches are copied to where
the graph reads. A process that makes steps of many models calls ``torch.compiler.reset()`` between them: the compiler
counts them as one function that changes too often.

Parameters in bf16 keep a copy in fp32, which the optimizer changes: near 0.02 the numbers of bf16 lie 0.0001 apart, and
most updates are smaller. The copies of all parameters are read and written together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gpuguide.errors import GpuguideError
from gpuguide.triton_support.graphs import workspace_of_its_own

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From tokens and targets, ``(batch, seq)`` both, to their mean loss"""
WARM_UP = 3
"""Steps before the graph is captured, in which libraries choose their kernels; they change nothing that lasts"""


@dataclass(frozen=True)
class StepSettings:
    """Settings of a training step.

    Parameters
    ----------
    learning_rate, weight_decay, betas
        Of AdamW.
    clip : float, optional
        Largest norm of all gradients together.
    backend : str, optional
        What ``torch.compile`` calls: ``inductor`` makes kernels, ``eager`` only traces. ``None`` compiles nothing.
    mode : str, optional
        Of ``inductor``: ``max-autotune-no-cudagraphs`` tries more kernels, and compiles longer.
    graphed : bool, optional
        Whether the step is captured in a CUDA graph: on a GPU, if it is left out.
    masters : bool
        Whether parameters that are not in fp32 keep a copy that is.

    Raises
    ------
    GpuguideError
        If a number is out of its range.
    """

    learning_rate: float = 3e-4
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = None
    backend: str | None = "inductor"
    mode: str | None = None
    graphed: bool | None = None
    masters: bool = True

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise GpuguideError(f"learning_rate is {self.learning_rate}; it must be a positive number.")
        if self.mode is not None and self.backend != "inductor":
            raise GpuguideError(f"mode is {self.mode!r}, and only the backend inductor has modes; leave it out.")
        if self.weight_decay < 0:
            raise GpuguideError(f"weight_decay is {self.weight_decay}; it must be 0 or more.")
        if self.clip is not None and not self.clip > 0:
            raise GpuguideError(f"clip is {self.clip}; it must be a positive number, or None.")


class TrainingStep:
    """A step that is called with batches of one shape.

    Parameters
    ----------
    loss : callable
        From tokens and targets to their mean loss, for example :meth:`gpuguide.training.loss.WithoutHead.loss`.
    parameters : iterable of nn.Parameter
        What may be trained; those that ask for no gradient are left out.
    batch, seq_len : int
        Shape of the batches.
    settings : StepSettings, optional
        How the step is taken.
    pool : optional
        Memory that its graph shares with others which never run at the same time, as
        ``torch.cuda.graph_pool_handle()`` gives it.

    Raises
    ------
    GpuguideError
        If no parameter asks for a gradient, or a graph is asked for without a GPU.
    """

    def __init__(
        self,
        loss: Loss,
        parameters: Iterable[nn.Parameter],
        batch: int,
        seq_len: int,
        settings: StepSettings | None = None,
        *,
        pool: Any = None,
    ) -> None:
        self.settings = settings or StepSettings()
        self.parameters = [each for each in parameters if each.requires_grad]
        if not self.parameters:
            raise GpuguideError("No parameter asks for a gradient; add adapters, or unfreeze a layer.")
        self.device = self.parameters[0].device
        self.tokens = torch.zeros(batch, seq_len, dtype=torch.int64, device=self.device)
        self.targets = torch.zeros_like(self.tokens)
        self.masters = _Masters(self.parameters, self.settings.masters)
        self.optimizer = _optimizer(self.masters.trained, self.settings, self.device)
        self.loss = _compile(loss, self.settings)
        self._pool = pool
        self.graph: torch.cuda.CUDAGraph | None = None
        self._result = torch.zeros((), device=self.device)
        wanted = self.settings.graphed
        if wanted and self.device.type != "cuda":
            raise GpuguideError(f"A CUDA graph needs a GPU, and the parameters are on {self.device}.")
        self._graphed = self.device.type == "cuda" if wanted is None else wanted

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
                    f"{tuple(given.shape)} in {given.dtype}."
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

    def _step(self) -> torch.Tensor:
        """Take one step with the batch that is in place."""
        for parameter in self.parameters:
            parameter.grad = None
        loss = self.loss(self.tokens, self.targets)
        loss.backward()
        self.masters.fetch_gradients()
        if self.settings.clip is not None:
            nn.utils.clip_grad_norm_(self.masters.trained, self.settings.clip)
        self.optimizer.step()
        self.masters.store_values()
        return loss.detach().float()

    def _capture(self) -> None:
        """Capture a step, and leave parameters and optimizer as they were before.

        At a learning rate of zero no parameter changes, and no copy of all has to wait for the end.
        """
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
        self._forget()

    @torch.no_grad()
    def _forget(self) -> None:
        """Set what the optimizer has seen to zero."""
        for state in self.optimizer.state.values():
            for kept in state.values():
                if isinstance(kept, torch.Tensor):
                    kept.zero_()


class _Masters:
    """Master weights of the optimizer: the parameters, or copies in fp32 of those in fewer bits."""

    def __init__(self, parameters: Sequence[nn.Parameter], wanted: bool) -> None:
        narrow = [each for each in parameters if wanted and each.dtype in (torch.bfloat16, torch.float16)]
        copies = {id(each): nn.Parameter(each.detach().float()) for each in narrow}
        self.trained = [copies.get(id(each), each) for each in parameters]
        self.narrow: list[torch.Tensor] = [*narrow]
        self.wide: list[torch.Tensor] = [copies[id(each)] for each in narrow]
        self.gradients = [torch.zeros_like(each) for each in self.wide]
        for each, gradient in zip(self.wide, self.gradients, strict=True):
            each.grad = gradient

    def fetch_gradients(self) -> None:
        """Copy the gradients to those of the copies, all in one call."""
        found = [each.grad for each in self.narrow if each.grad is not None]
        if found:
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


def _optimizer(parameters: Sequence[nn.Parameter], settings: StepSettings, device: torch.device) -> torch.optim.AdamW:
    """Return AdamW; on a GPU as few kernels, which a graph can hold, with a learning rate that can be changed."""
    more: dict[str, Any] = {"lr": settings.learning_rate}
    if device.type == "cuda":
        more = {"lr": torch.tensor(settings.learning_rate, device=device), "fused": True, "capturable": True}
    return torch.optim.AdamW(parameters, betas=settings.betas, weight_decay=settings.weight_decay, **more)


def _compile(loss: Loss, settings: StepSettings) -> Loss:
    if settings.backend is None:
        return loss
    compiled: Loss = torch.compile(loss, fullgraph=True, dynamic=False, backend=settings.backend, mode=settings.mode)
    return compiled
