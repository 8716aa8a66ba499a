"""Ranks of a team forked from one process that has imported PyTorch; each would import it again, for two seconds."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

import pytest


@contextmanager
def ranks() -> Iterator[None]:
    """Fork what asks to be spawned."""
    right = multiprocessing.get_context
    context = Forking()
    context.set_forkserver_preload(["torch.distributed.distributed_c10d", "gpuguide.interconnect.processes"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiprocessing, "get_context", lambda way=None: context if way == "spawn" else right(way))
        yield


class Forking(ForkServerContext):
    """Starts processes with the environment that there is now, as spawned ones have it."""

    def Process(self, *, target: Callable[..., Any], args: tuple[Any, ...], daemon: bool) -> BaseProcess:  # type: ignore[override]
        """Return a process that has not started."""
        return super().Process(target=call, args=(dict(os.environ), target, *args), daemon=daemon)


def call(environment: dict[str, str], target: Callable[..., Any], *arguments: Any) -> None:
    """Do what a process is for, in an environment."""
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments)
