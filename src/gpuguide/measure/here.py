"""Measure one case on this machine now, and say it beside the published value: for notebooks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuguide.errors import GpuguideError
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import reference, runner
from gpuguide.measure.records import Metric
from gpuguide.measure.units import format_quantity


@dataclass(frozen=True)
class Comparison:
    """A published measurement and the same one made here."""

    published: reference.Measurement
    yours: Metric
    device_name: str
    """The device that measured ``yours``"""

    def __str__(self) -> str:
        """Return both values, each with the device it was measured on."""
        yours = format_quantity(self.yours.summary.median, self.yours.unit)
        published = f"published {self.published.text} on {self.published.run.device_name}"
        return f"{published} / yours {yours} on {self.device_name}"


def here(text: str) -> Comparison:
    """Measure on this machine what a reference names, and compare it with the published value.

    Nothing is stored; ``gpuguide bench run`` measures whole benchmarks and stores them.

    Parameters
    ----------
    text : str
        As in the pages: ``copy-size/copy:bandwidth working_set=65536``.

    Raises
    ------
    GpuguideError
        If nothing published matches, or this machine cannot run it; the message says why.
    """
    published = reference.measurement(text)
    declared = declarations.get(published.record.benchmark)
    contender = published.case.contender
    alone = replace(declared, contenders={contender: declared.contenders[contender]})
    device = devices.current() if "gpu" in declared.contenders[contender].needs else devices.current_or_cpu()
    case = runner.measure_case(alone, published.case.keys, device)[0]
    if case.status != "ok":
        raise GpuguideError(f"{text} on {device.name}: {case.status}, {case.reason}.")
    return Comparison(published, case.metrics[published.name], device.name)
