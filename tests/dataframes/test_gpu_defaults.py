"""What is set in the environment before a file is first read on a GPU."""

from __future__ import annotations

import os

import pytest

from gpuguide.dataframes.query import gpu_defaults

NAMES = ("KVIKIO_NTHREADS", "POLARS_GPU_ENABLE_CUDA_MANAGED_MEMORY")


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (6, 6), (16, 16), (96, 16)])
def test_one_thread_a_core_reads_up_to_sixteen(cores: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)), raising=False)
    assert gpu_defaults.read_threads() == threads


def test_cores_are_counted_where_a_process_has_no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert gpu_defaults.read_threads() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert gpu_defaults.read_threads() == 1


def test_what_a_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {NAMES[0]: "3"})
    gpu_defaults.set_gpu_defaults()
    assert [os.environ[name] for name in NAMES] == ["3", "0"]
