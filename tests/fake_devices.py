"""Devices that compute nothing."""

from __future__ import annotations

from dataclasses import replace

from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device


def on(gigabytes: int) -> Device:
    """Return a device that has everything but memory."""
    return replace(devices.fake("h100-sxm"), memory=gigabytes * 10**9)
