"""Counters in the chip that say how much of a GPU worked: NVML's "GPM", from Hopper on."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

CHIP_COUNTERS = {
    "sm_activity": "NVML_GPM_METRIC_SM_UTIL",
    "sm_occupancy": "NVML_GPM_METRIC_SM_OCCUPANCY",
    "tensor_activity": "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
    "bandwidth_share": "NVML_GPM_METRIC_DRAM_BW_UTIL",
}
"""Quantities that counters in the chip give, and NVML's names of them. Source: NVML API reference, "GPM Enums"."""
RENEWAL = 0.1
"""Seconds between two looks at the chip's counters. Sooner the driver has nothing new, and says zero. Source: NVML API
reference, ``nvmlGpmSampleGet``."""
CERTAIN = 2 * RENEWAL
"""Seconds over which a zero is believed. The driver renews the counters by a clock of its own, which is not exact: two
looks that are :data:`RENEWAL` apart may still find the same ones."""


class ChipCounters:
    """Counters in the chip between two readings: NVML's "GPM", which GPUs have from Hopper on.

    A reading that comes before they are renewed repeats the one before. Where all of them are zero, nothing ran or
    nothing was renewed; the next look tells, and goes back as far as the last one that counted. Unlike utilisation they
    say how much of the GPU worked. DCGM reads the same kind of counters on older GPUs, with rights that a program of a
    user often lacks.
    """

    def __init__(self, nvml: Any, gpu: Any) -> None:
        self._nvml, self._gpu = nvml, gpu
        self._samples: list[Any] = []
        self._refused: BaseException | None = None
        self._last: tuple[float, ...] | None = None
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
                raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
            for _ in range(2):
                self._samples.append(nvml.nvmlGpmSampleAlloc())
            nvml.nvmlGpmSampleGet(gpu, self._samples[0])
        except (nvml.NVMLError, AttributeError) as error:
            self._refused = error
        self._looked = self._counted_from = time.perf_counter()

    def wait(self) -> None:
        """Wait until there has been enough time to count in, even for a zero, if there are counters."""
        if self._refused is None:
            threading.Event().wait(max(0.0, self._counted_from + CERTAIN - time.perf_counter()))

    def read(self) -> tuple[float, ...]:
        """Return the share of each of :data:`CHIP_COUNTERS`; NaN for one that the driver did not give this time."""
        if self._refused is not None:
            raise self._refused
        moment = time.perf_counter()
        if self._last is not None and moment < self._looked + RENEWAL:
            return self._last
        self._looked = moment
        shares = self._ask_since_last_counted()
        is_renewed = any(share > 0 for share in shares) or moment >= self._counted_from + CERTAIN
        if self._last is not None and not is_renewed:
            return self._last
        self._counted_from, self._last = moment, shares
        self._samples.reverse()
        return shares

    def _ask_since_last_counted(self) -> tuple[float, ...]:
        before, now = self._samples
        self._nvml.nvmlGpmSampleGet(self._gpu, now)
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = self._nvml.NVML_GPM_METRICS_GET_VERSION, len(CHIP_COUNTERS)
        asked.sample1, asked.sample2 = before, now
        for position, name in enumerate(CHIP_COUNTERS.values()):
            asked.metrics[position].metricId = getattr(self._nvml, name)
        self._nvml.nvmlGpmMetricsGet(asked)
        given = asked.metrics[: len(CHIP_COUNTERS)]
        if all(each.nvmlReturn != 0 for each in given):
            raise self._nvml.NVMLError(given[0].nvmlReturn)
        return tuple(math.nan if each.nvmlReturn else each.value / 100 for each in given)

    def close(self) -> None:
        """Free the driver's memory of the two looks."""
        while self._samples:
            self._nvml.nvmlGpmSampleFree(self._samples.pop())
