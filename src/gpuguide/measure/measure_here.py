"""Measure one case on this machine now and compare it with the published value: for notebooks."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from gpuguide.errors import GpuguideError
from gpuguide.hardware import device as devices
from gpuguide.hardware.processor import processor_name
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import citation, libraries, page_gpu, runner
from gpuguide.measure.records import Metric
from gpuguide.units import format_quantity


@dataclass(frozen=True)
class Comparison:
    """A published measurement and the same one made here."""

    published: citation.CitedMeasurement
    yours: Metric | None
    """Measurement on this machine, if it could be made"""
    where: str
    """The device that measured ``yours``, or why none could"""

    def __str__(self) -> str:
        """Return both values, each with the device it was measured on."""
        published = f"published {self.published.text} on {self.published.where}"
        if self.yours is None:
            return f"{published} / yours: not measured, {self.where}"
        return f"{published} / yours {format_quantity(self.yours.summary.median, self.yours.unit)} on {self.where}"


def here(text: str) -> Comparison:
    """Measure on this machine what a reference names, and compare it with the published value.

    Nothing is stored; ``gpuguide bench run`` measures whole benchmarks and stores them. A machine that cannot measure
    it, for want of a GPU, memory or a number format, gives the published value and the reason. Where the environment
    variable ``GPUGUIDE_QUICK`` is set, as in tests of notebooks, a few samples are enough.

    Parameters
    ----------
    text : str
        As in the pages: ``copy-size/copy:bandwidth working_set=65536``.

    Raises
    ------
    GpuguideError
        If nothing published matches.
    """
    published = citation.measurement(text)
    declared = declarations.get(published.record.benchmark)
    contender = published.case.contender
    alone = replace(declared, contenders={contender: declared.contenders[contender]})
    gpus = page_gpu.count(published.record.device) if declared.gpus == "all" else declared.gpus
    needs_gpu = gpus > 1 or "gpu" in declared.contenders[contender].needs
    device = devices.current_or_cpu()
    if needs_gpu and not device.is_gpu:
        return Comparison(published, None, "PyTorch sees no CUDA GPU here ('gpuguide doctor' says what is missing)")
    try:
        device = devices.several(device, gpus)
    except GpuguideError as error:
        return Comparison(published, None, str(error))
    quick = bool(os.environ.get("GPUGUIDE_QUICK"))
    try:
        case = runner.measure_case(alone, published.case.keys, device, quick)[0]
    finally:
        declared.end()
    if case.status != "ok":
        return Comparison(published, None, f"{case.status} on {device.name}: {case.reason}")
    if published.name not in case.metrics:
        return Comparison(published, None, f"{device.name} gave no {published.name}")
    on_host = libraries.runs_on_host(published.case.libraries)
    return Comparison(published, case.metrics[published.name], processor_name() if on_host else device.name)
