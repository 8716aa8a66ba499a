"""Connections of GPUs, as the driver reports them: PCI Express, NVLink, and the part of the host that each is near.

Everything comes from NVML, but for the NUMA node, which the Linux kernel knows. What is refused is ``None``.

Sources: NVML API reference, "Device queries", "NvLink methods" and "Field value enums"; Linux kernel documentation,
``sysfs-bus-pci``, ``numa_node``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuguide.hardware.monitor.driver import BoardState, _asking, decode_text

MOST_NVLINKS = 18
"""Most NVLink links of one GPU, where nvidia-ml-py does not say it"""
NVLINK_SPEED = 164
"""NVML's field for the rate of one link, ``NVML_FI_DEV_NVLINK_GET_SPEED``, in MB/s"""
PCI_DEVICES = Path("/sys/bus/pci/devices")
ANCESTORS = {
    0: "one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one PCIe host bridge",
    40: "one NUMA node",
    50: "several NUMA nodes",
}
"""Parts of the path between two GPUs over PCIe, by NVML's ``nvmlGpuTopologyLevel_t``"""


@dataclass(frozen=True)
class NvLinks:
    """The NVLinks of one GPU that are up."""

    count: int
    version: int | None = None
    """NVML's number of the generation as it gives it"""
    rate: float | None = None
    """B/s of one link, one way, as the driver says"""
    remote: tuple[str, ...] = ()
    """PCI address of the GPU or switch at the other end of each link"""


@dataclass(frozen=True)
class Connections:
    """Connections of one GPU."""

    address: str | None = None
    """Address on the PCI bus, as ``0000:1b:00.0``"""
    board: BoardState = field(default_factory=BoardState)
    """PCI Express: generation and width, now and at most"""
    board_generation: int | None = None
    """PCIe generation that the GPU itself could have in another slot"""
    numa_node: int | None = None
    """The part of the host's memory and cores that is nearest; None where the host has only one"""
    nvlink: NvLinks = field(default_factory=lambda: NvLinks(0))
    ancestors: tuple[str | None, ...] = ()
    """Path to each GPU asked about over PCIe, from :data:`ANCESTORS`"""


def read_connections(uuid: str | None = None, others: Sequence[str] = ()) -> Connections:
    """Read how one GPU is connected.

    Parameters
    ----------
    uuid : str, optional
        As PyTorch reports it; without it the first GPU is read.
    others : sequence of str
        UUIDs of the GPUs to which the path over PCIe is asked.
    """
    with _asking(uuid) as (nvml, ask):
        if nvml is None:
            return Connections()
        place = ask("nvmlDeviceGetPciInfo")
        address = None if place is None else pci_address(decode_text(place.busId) or "")
        return Connections(
            address=address,
            board=BoardState(
                link_generation=ask("nvmlDeviceGetCurrPcieLinkGeneration"),
                most_link_generation=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
                link_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
                most_link_width=ask("nvmlDeviceGetMaxPcieLinkWidth"),
            ),
            board_generation=ask("nvmlDeviceGetGpuMaxPcieLinkGeneration"),
            numa_node=numa_node(address),
            nvlink=_nvlinks(nvml, ask),
            ancestors=tuple(_ancestor(nvml, ask, other) for other in others),
        )


def _nvlinks(nvml: Any, ask: Callable[..., Any]) -> NvLinks:
    """Count the links that are up, and ask what is at their other ends."""
    most = int(getattr(nvml, "NVML_NVLINK_MAX_LINKS", MOST_NVLINKS))
    up = [link for link in range(most) if ask("nvmlDeviceGetNvLinkState", link) == 1]
    if not up:
        return NvLinks(0)
    ends = [ask("nvmlDeviceGetNvLinkRemotePciInfo", link) for link in up]
    remote = tuple(pci_address(decode_text(end.busId) or "") for end in ends if end is not None)
    return NvLinks(len(up), ask("nvmlDeviceGetNvLinkVersion", up[0]), _rate(ask, up[0]), remote)


def _rate(ask: Callable[..., Any], link: int) -> float | None:
    """Return the rate of one link in B/s; NVML answers in MB/s."""
    values = ask("nvmlDeviceGetFieldValues", [(NVLINK_SPEED, link)])
    if not values or values[0].nvmlReturn != 0 or not values[0].value.uiVal:
        return None
    return float(values[0].value.uiVal) * 1e6


def _ancestor(nvml: Any, ask: Callable[..., Any], other: str) -> str | None:
    """Return the path to another GPU."""
    from gpuguide.hardware.monitor.driver import handle_by_uuid

    with suppress(nvml.NVMLError, AttributeError):
        return ANCESTORS.get(ask("nvmlDeviceGetTopologyCommonAncestor", handle_by_uuid(nvml, other)))
    return None


def pci_address(bus_id: str) -> str:
    """Return an address as Linux writes it: NVML gives the domain eight digits, and the kernel four.

    >>> pci_address("00000000:1B:00.0")
    '0000:1b:00.0'
    """
    domain, _, rest = bus_id.strip("\x00").lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def numa_node(address: str | None, devices: Path = PCI_DEVICES) -> int | None:
    """Return the NUMA node that a PCI device is near, as the kernel knows it; ``None`` where there is only one."""
    if address is None:
        return None
    try:
        node = int((devices / address / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if node < 0 else node


def narrower(board: BoardState, *, at_work: bool = False) -> str | None:
    """Return a sentence on a PCIe link that has fewer lanes than the board allows, or ``None``.

    An idle GPU may lower the generation to save power, but not the width, so that the generation counts only where the
    GPU was at work when it was read.
    """
    width, most = board.link_width, board.most_link_width
    if width is not None and most is not None and width < most:
        return (
            f"The PCIe link has {width} of the {most} lanes that the board allows, so it carries "
            f"{width / most:.0%} of what it could. Check the slot and the riser, seat the card again, "
            "and look for lanes that the firmware divides among slots."
        )
    now, best = board.link_generation, board.most_link_generation
    if at_work and now is not None and best is not None and now < best:
        return (
            f"The PCIe link runs at generation {now} under load, and board and slot allow {best}. "
            "Check the slot, the riser and the firmware's setting of the link speed."
        )
    return None
