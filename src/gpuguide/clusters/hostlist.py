"""Slurm's short form of host names: ``n[1-3,7]`` is n1, n2, n3 and n7.

Source: Slurm, "scontrol", command ``show hostnames``, which does the same on a machine with Slurm.
"""

from __future__ import annotations

import itertools
import re

from gpuguide.errors import GpuguideError

__all__ = ["expand"]

_HOST = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(hosts: str) -> list[str]:
    """Return the host names that a list of Slurm stands for, in its order.

    Parameters
    ----------
    hosts : str
        For example the value of ``SLURM_JOB_NODELIST``. Leading zeros count as part of the name.

    Raises
    ------
    GpuguideError
        If the brackets do not match, or the second number of a range is smaller than the first.

    >>> expand("gpu[08-10],login")
    ['gpu08', 'gpu09', 'gpu10', 'login']
    """
    return [name for host in _split(hosts) for name in _expand_one(host, hosts)]


def _split(hosts: str) -> list[str]:
    """Return the parts of a list between the commas that stand outside brackets."""
    parts = [match.group() for match in _HOST.finditer(hosts)]
    if not parts or ",".join(parts) != hosts.strip():
        raise GpuguideError(
            f"{hosts!r} is no list of hosts as Slurm writes it, such as 'n[1-3,7],login': look at its brackets and "
            f"commas."
        )
    return parts


def _expand_one(host: str, hosts: str) -> list[str]:
    """Return the names that one part stands for, which may hold several brackets."""
    choices = []
    for brackets, plain in _PART.findall(host):
        choices.append([plain] if plain else [name for part in brackets.split(",") for name in _count(part, hosts)])
    return ["".join(parts) for parts in itertools.product(*choices)]


def _count(part: str, hosts: str) -> list[str]:
    """Return the numbers of a range such as ``08-10``, as wide as its first number is written."""
    match = _RANGE.fullmatch(part)
    first, last = (match[1], match[2] or match[1]) if match else ("", "")
    if not match or int(last) < int(first):
        raise GpuguideError(
            f"{part!r} in {hosts!r} is no range of host numbers; write two numbers, the smaller first: [1-3]."
        )
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
