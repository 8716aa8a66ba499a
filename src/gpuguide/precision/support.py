"""Formats in which a device multiplies, to be checked before a run.

Sources: NVIDIA, "CUDA C++ Programming Guide", tables of features by compute capability, and "Parallel Thread Execution
ISA", section on ``mma`` instructions, for the first compute capability with each format.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.compiler.config

from gpuguide.precision.formats import FloatFormat, format_by_name

SINCE = {"tf32": (8, 0), "fp16": (7, 0), "bf16": (8, 0), "e4m3": (8, 9), "e5m2": (8, 9), "e2m1": (10, 0)}
"""First compute capability whose tensor cores support a format"""
AUTOCAST = ("fp16", "bf16")
"""Formats that autocast computes in, on a GPU and on the CPU"""


def list_supported_formats(device: torch.device | str, capability: tuple[int, int] | None = None) -> tuple[str, ...]:
    """Return the names of the formats in which a device multiplies, the widest first.

    A CPU supports fp32 and, through autocast, fp16 and bf16, which need not be faster there.

    Parameters
    ----------
    device : torch.device or str
        A CUDA GPU or the CPU.
    capability : (int, int), optional
        Compute capability; by default that of the GPU.
    """
    if torch.device(device).type != "cuda":
        return ("fp32", *AUTOCAST)
    has = torch.cuda.get_device_capability(device) if capability is None else capability
    return ("fp32", *(name for name, first in SINCE.items() if has >= first))


def require(
    format: str | FloatFormat | torch.dtype, device: torch.device | str, capability: tuple[int, int] | None = None
) -> FloatFormat:
    """Return a format, or raise if the device does not multiply in it.

    Raises
    ------
    ValueError
        If the device does not multiply in the format; the message names those that it supports. Also if there is no
        such format.
    """
    wanted, has = format_by_name(format), list_supported_formats(device, capability)
    if wanted.name not in has:
        place = torch.device(device)
        what = torch.cuda.get_device_name(place) if place.type == "cuda" and capability is None else str(place)
        raise ValueError(f"{what} does not multiply in {wanted.name}; it supports {', '.join(has)}.")
    return wanted


def autocast(
    format: str | FloatFormat | torch.dtype, device: torch.device | str
) -> contextlib.AbstractContextManager[None]:
    """Return the context in which a model's forward pass computes in a format: autocast, or nothing for fp32.

    PyTorch's own autocast is given the type of a device. With ``"cuda"`` on a machine without a GPU it warns and does
    nothing, and with ``"cpu"`` it does nothing to a model on a GPU. Here it follows the device.

    What is compiled within it is cached under the name of the format. The cache of ``torch.compile`` in PyTorch 2.11
    asks only whether autocast is on (2.13 asks for the format, https://github.com/pytorch/pytorch/pull/181564). A model
    compiled for bf16 then computes in fp16 where that was compiled before, in the same process or another, and its
    gradients underflow without a loss scaler.

    Parameters
    ----------
    format : str, FloatFormat or torch.dtype
        ``"fp16"``, ``"bf16"`` or ``"fp32"``.
    device : torch.device or str
        Where the model is.

    Raises
    ------
    ValueError
        If autocast has no such format, or the device does not multiply in it.
    """
    wanted = require(format, device)
    if wanted.name == "fp32":
        return contextlib.nullcontext()
    if wanted.name not in AUTOCAST or wanted.dtype is None:
        raise ValueError(f"Autocast computes in {' and '.join(AUTOCAST)}, not in {wanted.name}.")
    entered = torch.autocast(torch.device(device).type, wanted.dtype)
    return entered if torch.compiler.is_compiling() else _tag_compile_cache(entered, wanted.name)


@contextlib.contextmanager
def _tag_compile_cache(entered: torch.autocast, name: str) -> Iterator[None]:
    """Enter autocast, with the name of its format in the keys of all that ``torch.compile`` caches."""
    others = torch.compiler.config.cache_key_tag
    with torch.compiler.config.patch(cache_key_tag=f"{others} autocast {name}"), entered:  # type: ignore[attr-defined]
        yield
