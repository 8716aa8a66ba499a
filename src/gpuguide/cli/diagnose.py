"""``gpuguide diagnose``: which limit holds for a step of a program, and what would make it faster."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuguide.cli.screen import err
from gpuguide.errors import GpuguideError, unknown

if TYPE_CHECKING:
    from gpuguide.fusion.cost import Machine


def diagnose(
    target: Annotated[
        str, typer.Argument(metavar="FILE:FUNCTION", help="A Python file, and a function in it without arguments.")
    ],
    gpu: Annotated[
        str | None, typer.Option(help="Without a GPU: the one to predict for, such as h100-sxm; by default the site's.")
    ] = None,
) -> None:
    """Say what limits a step, and what a CUDA graph, torch.compile or both would gain.

    On a GPU the function runs up to 120 times: the step is timed and its kernels are counted. Without a GPU it runs
    twice: its operations are counted, and times are predicted from the published ceilings of a GPU.

    Example: gpuguide diagnose train.py:step
    """
    step = load_step(target)
    import torch

    from gpuguide.fusion.diagnose import diagnose as examine

    machine = None
    if not torch.cuda.is_available():
        machine, name = published_machine(gpu)
        err.print(f"There is no CUDA GPU here, so times are predicted for {name}; the counts hold on any GPU.")
    try:
        diagnosis = examine(step, machine)
    except GpuguideError:
        raise
    except Exception as error:
        raise GpuguideError(f"{target} failed: {type(error).__name__}: {error}") from error
    print(diagnosis)


def load_step(target: str) -> Callable[[], object]:
    """Return the function that ``FILE:FUNCTION`` names.

    Raises
    ------
    typer.BadParameter
        If there is no colon.
    GpuguideError
        If the file is missing or cannot be imported, has no such function, or the function needs arguments.
    """
    file, colon, name = target.rpartition(":")
    if not colon or not name or not file:
        raise typer.BadParameter(f"{target} has no FILE:FUNCTION; write it as in train.py:step.")
    path = Path(file)
    if not path.is_file():
        raise GpuguideError(f"There is no file {file}.")
    module = import_file(path)
    functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    step = getattr(module, name, None)
    if not callable(step):
        raise unknown(f"function in {file}", name, functions)
    try:
        inspect.signature(step).bind()
    except TypeError as error:
        raise GpuguideError(
            f"{name}{inspect.signature(step)} in {file} needs arguments. Add a function without any, which makes its "
            f"inputs once outside: def step(): return {name}(...)."
        ) from error
    return step


def import_file(path: Path) -> Any:
    """Return the module of a file; its folder is searched for what it imports, as if Python had started it."""
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise GpuguideError(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise GpuguideError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def published_machine(gpu: str | None) -> tuple[Machine, str]:
    """Return the published ceilings of a GPU, with the launch of the machine that the site measures on, and its name.

    Raises
    ------
    GpuguideError
        If there is no such GPU, or it has no bf16 rate.
    """
    from gpuguide.fusion.cost import Machine
    from gpuguide.measure import citation, measured_ceilings

    ceilings = measured_ceilings.load(gpu) if gpu else measured_ceilings.load_reference()
    host = citation.measurement("ceilings/launch:time").value
    in_graph = citation.measurement("ceilings/launch-graph:time").value
    return Machine(host, in_graph, ceilings.bandwidth["copy"].value, ceilings.rate("bf16").value), ceilings.name
