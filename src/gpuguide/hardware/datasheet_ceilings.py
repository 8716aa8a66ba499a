"""Ceilings of a GPU: its rates of arithmetic and its bandwidths, each with its origin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from gpuguide.errors import GpuguideError
from gpuguide.hardware import capacities, datasheet

Origin = Literal["measured", "datasheet"]
FORMATS = {"bf16": "bf16_dense", "fp16": "fp16_dense", "tf32": "tf32_dense", "fp32": "fp32", "fp8": "fp8_dense"}
"""Number format to the key of its rate in the datasheet, without sparsity"""


@dataclass(frozen=True)
class Ceiling:
    """One rate that a GPU can reach."""

    value: float
    """FLOP/s, B/s or, for a launch, s"""
    origin: Origin
    reference: str = ""
    """The measurement that reached it, such as ``copy-size/copy:bandwidth working_set=65536``; empty where printed"""


@dataclass(frozen=True)
class GpuCeilings:
    """The ceilings of one GPU. What is absent, it lacks, or nobody has printed or measured."""

    id: str
    name: str
    capacity: float
    """Bytes of memory: as a driver reports them, or as printed where we know of no report"""
    arithmetic: Mapping[str, Ceiling]
    """Rate of matmuls by number format, FLOP/s: the best of a short burst"""
    bandwidth: Mapping[str, Ceiling]
    """B/s: of memory where bytes are only ``read`` and where they are read and written (``copy``), of the ``link`` to
    other GPUs and of the ``host`` connection, each way"""
    sustained: Mapping[str, Ceiling] = field(default_factory=lambda: MappingProxyType({}))
    """Rate of matmuls by number format over seconds without a pause, FLOP/s, where it was measured"""
    launch: Ceiling | None = None
    """Seconds from one kernel to the next in a CUDA graph, at least"""
    capacity_origin: Literal["driver", "printed"] = "printed"
    link_name: str = "PCIe"
    """``NVLink``, or ``PCIe`` for a GPU without"""

    def rate(self, format: str) -> Ceiling:
        """Return the rate of matmuls in a format.

        Raises
        ------
        GpuguideError
            If the GPU has none; the message says which formats it has.
        """
        if format not in self.arithmetic:
            raise GpuguideError(f"{self.name} has no rate for {format}; choose one of {', '.join(self.arithmetic)}.")
        return self.arithmetic[format]


def load(gpu_id: str) -> GpuCeilings:
    """Return a GPU's ceilings as its vendor prints them.

    Raises
    ------
    GpuguideError
        If the table has no such GPU.
    """
    gpu = datasheet.get(gpu_id)
    figures = gpu.figures
    arithmetic = {name: Ceiling(figures[key].value, "datasheet") for name, key in FORMATS.items() if key in figures}
    nvlink = "nvlink_per_direction" in figures
    wanted = {
        "copy": "memory_bandwidth",
        "read": "memory_bandwidth",
        "link": "nvlink_per_direction" if nvlink else "pcie_per_direction",
        "host": "pcie_per_direction",
    }
    bandwidth = {name: Ceiling(figures[key].value, "datasheet") for name, key in wanted.items() if key in figures}
    reported = capacities.load_capacities().get(gpu.id)
    return GpuCeilings(
        gpu.id,
        gpu.name,
        reported.bytes if reported else figures["memory"].value,
        MappingProxyType(arithmetic),
        MappingProxyType(bandwidth),
        capacity_origin="driver" if reported else "printed",
        link_name="NVLink" if nvlink else "PCIe",
    )
