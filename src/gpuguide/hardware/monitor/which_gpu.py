"""Numbers of GPUs as CUDA counts, ``CUDA_VISIBLE_DEVICES`` and UUIDs, while NVML counts all GPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware.monitor.driver import decode_text, handle_by_uuid

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


def find_gpu(nvml: Any, device: int | str | None = None) -> Any:
    """Return NVML's handle of the GPU that :func:`~gpuguide.hardware.monitor.watching.watch` means by ``device``."""
    text = str(device).removeprefix("cuda:") if device is not None else None
    number = int(text) if text is not None and text.lstrip("-").isdigit() else None
    if text is None or number is not None:
        if uuid := _torch_uuid(number):
            return handle_by_uuid(nvml, uuid)
        return _find_by_number(visible_gpus(nvml), number or 0)
    everything = _all_gpus(nvml)
    known = {_uuid(nvml, gpu): gpu for gpu in [*everything, *_instances(nvml, everything)]}
    found = [gpu for uuid, gpu in known.items() if _is_named(uuid, text)]
    if len(found) != 1:
        raise unknown("GPU", text, known)
    return found[0]


def visible_gpus(nvml: Any) -> list[Any]:
    """Return NVML's handles of the GPUs that ``CUDA_VISIBLE_DEVICES`` leaves visible, in its order.

    As in CUDA, an entry that names no GPU ends the list. One may name an instance of a GPU in MIG mode by its UUID:
    NVML gives the memory of an instance, while power, clocks and temperature are those of its GPU, which has a UUID of
    its own. Sources: CUDA C++ Programming Guide, environment variables; MIG User Guide, "Device Enumeration".
    """
    everything = _all_gpus(nvml)
    wanted = os.environ.get(VISIBLE_VARIABLE)
    if wanted is None:
        return everything
    named_ones = [(gpu, _uuid(nvml, gpu)) for gpu in [*everything, *_instances(nvml, everything)]]
    found: list[Any] = []
    for entry in map(str.strip, wanted.split(",")):
        if entry.isdigit():
            named = everything[int(entry) : int(entry) + 1]
        else:
            named = [gpu for gpu, uuid in named_ones if _is_named(uuid, entry)]
        if len(named) != 1:
            break
        found.append(named[0])
    return found


def _all_gpus(nvml: Any) -> list[Any]:
    return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]


def _instances(nvml: Any, gpus: Sequence[Any]) -> list[Any]:
    """Return NVML's handles of the instances into which GPUs in MIG mode are divided. Most GPUs have no such mode."""
    found: list[Any] = []
    for gpu in gpus:
        with suppress(nvml.NVMLError, AttributeError):
            if not nvml.nvmlDeviceGetMigMode(gpu)[0]:
                continue
            for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
                with suppress(nvml.NVMLError):  # a place without an instance
                    found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place))
    return found


def _find_by_number(gpus: Sequence[Any], number: int) -> Any:
    if not gpus:
        raise GpuguideError(none_visible())
    if not 0 <= number < len(gpus):
        there_are = "there is one, number 0" if len(gpus) == 1 else f"there are {len(gpus)}, from 0 to {len(gpus) - 1}"
        hidden = (
            f", as {VISIBLE_VARIABLE}={os.environ[VISIBLE_VARIABLE]} says" if VISIBLE_VARIABLE in os.environ else ""
        )
        raise GpuguideError(f"There is no GPU number {number}: {there_are}{hidden}. Name one of these, or a UUID.")
    return gpus[number]


def none_visible() -> str:
    """Return what to say where no GPU is visible."""
    wanted = os.environ.get(VISIBLE_VARIABLE)
    if wanted is None:
        return "The NVIDIA driver is here and knows no GPU. 'nvidia-smi -L' should list one."
    return (
        f"{VISIBLE_VARIABLE}={wanted!r} leaves no GPU visible. Unset it, or name a GPU or an instance of one that "
        "'nvidia-smi -L' lists."
    )


def _torch_uuid(number: int | None) -> str | None:
    """Return the UUID of a GPU by PyTorch's number, if PyTorch is in use: it alone knows CUDA's order for certain."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    chosen = torch.cuda.current_device() if number is None else number
    if not 0 <= chosen < torch.cuda.device_count():
        return None
    return str(torch.cuda.get_device_properties(chosen).uuid)


def _uuid(nvml: Any, gpu: Any) -> str:
    return decode_text(nvml.nvmlDeviceGetUUID(gpu)) or ""


def _is_named(uuid: str, text: str) -> bool:
    """Return whether ``text`` begins a UUID, with ``GPU-`` or ``MIG-`` before it or without."""
    kind, rest = _split_uuid(uuid)
    wanted_kind, beginning = _split_uuid(text)
    return bool(beginning) and rest.startswith(beginning) and wanted_kind in ("", kind)


def _split_uuid(text: str) -> tuple[str, str]:
    """Return whether a UUID says to be of a GPU or an instance, and the rest of it."""
    lowered = text.lower()
    kind = next((kind for kind in ("gpu-", "mig-") if lowered.startswith(kind)), "")
    return kind, lowered.removeprefix(kind)
