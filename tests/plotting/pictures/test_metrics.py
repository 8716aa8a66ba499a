"""Drawings of a GPU's metrics say what the records say."""

from __future__ import annotations

import pytest
from figure_rows import rows_of

from gpuguide.measure import store
from gpuguide.plotting.pictures import metrics as pictures


def test_one_thread_reads_as_full_and_keeps_one_multiprocessor_busy() -> None:
    spin, bursts, products = rows_of(pictures.what_utilisation_counts())
    assert float(spin["gpu_utilisation"]) > 0.95 < float(products["gpu_utilisation"])
    assert float(spin["sm_activity"]) < 0.05 < 0.9 < float(products["sm_activity"])
    assert 0.3 < float(bursts["gpu_utilisation"]) < 0.7


def test_the_step_as_found_is_the_hosts_part_and_the_gpus() -> None:
    as_found, bf16_alone, once, both = rows_of(pictures.step_and_its_data())
    record = store.load_published("slow-training-step")
    whole = record.case("nvml", step="as-found").metrics["time"].summary.median
    assert float(as_found["host_s"]) + float(as_found["gpu_s"]) == pytest.approx(whole, rel=1e-4)
    assert bf16_alone["host_s"] == as_found["host_s"]
    assert bf16_alone["gpu_s"] == both["gpu_s"]
    assert float(once["host_s"]) == float(both["host_s"]) == 0
