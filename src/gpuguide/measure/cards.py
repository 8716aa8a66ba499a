"""Cards whose memory is known: by our records, by a published report of the driver, or as the vendor prints it.

>>> find_card("16GiB").bytes == 16 * 2**30
True
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuguide.errors import GpuguideError, unknown
from gpuguide.hardware import capacities, datasheet
from gpuguide.measure import measured_ceilings

SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(G|GB|GiB|MiB)", re.IGNORECASE)
"""A capacity: ``16GiB``; as cards are sold, ``16GB`` is the same"""


@dataclass(frozen=True)
class Card:
    """A GPU and the bytes of its memory."""

    id: str
    name: str
    bytes: float
    origin: str
    """``driver``, ``printed`` or ``given``"""


def load_cards() -> list[Card]:
    """Return all cards whose memory is known, the smallest first."""
    sheet = [measured_ceilings.load(gpu) for gpu in datasheet.load()]
    found = [Card(gpu.id, gpu.name.removeprefix("NVIDIA "), gpu.capacity, gpu.capacity_origin) for gpu in sheet]
    named = [card for card in capacities.load_capacities().values() if card.name]
    found += [Card(card.id, card.name, card.bytes, "driver") for card in named]
    return sorted(found, key=lambda card: card.bytes)


def find_card(name: str) -> Card:
    """Return a card by its id, such as ``rtx-4090``, or one of a size, such as ``16GiB``.

    Raises
    ------
    GpuguideError
        If there is no such card, with the near ones, or the size is zero.
    """
    if size := SIZE.fullmatch(name.strip()):
        scale = 2**20 if size[2].lower() == "mib" else 2**30
        count = float(size[1]) * scale
        if not count:
            raise GpuguideError(f"A GPU of {name} has no memory; give a size such as 16GiB.")
        return Card("given", f"a GPU of {size[1]} {'MiB' if scale == 2**20 else 'GiB'}", count, "given")
    cards = {card.id: card for card in load_cards()}
    if name.lower() not in cards:
        raise unknown("GPU", name, cards)
    return cards[name.lower()]
