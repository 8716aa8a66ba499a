from __future__ import annotations

import ctypes
import importlib
import re
from importlib import metadata
from typing import Any

import pytest
import torch

from gpuguide.errors import GpuguideError
from gpuguide.measure import benchmark, libraries


def test_every_library_that_a_benchmark_names_is_known() -> None:
    for name in benchmark.names():
        for contender in benchmark.get(name).contenders.values():
            for library in contender.libraries:
                assert libraries.get(library).title


def test_an_unknown_library_names_the_near_ones() -> None:
    with pytest.raises(GpuguideError, match="Did you mean cudnn"):
        libraries.get("cudn")


@pytest.mark.parametrize("name", ["torch", "numpy", "pandas", "polars", "duckdb", "pyarrow", "transformers"])
def test_versions_are_those_of_the_modules(name: str) -> None:
    module = importlib.import_module(libraries.get(name).module)
    assert libraries.version(name).split("+")[0] == module.__version__.split("+")[0]
    assert libraries.why_not_here(name) is None


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        ({"cudf-cu13": "26.2.1", "cudf": "0.6"}, "26.2.1"),
        ({"cudf-cu12": "25.10.0"}, "25.10.0"),
        ({"cudf": "25.4"}, "25.4"),
    ],
)
def test_one_library_comes_under_several_names(
    packages: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package not in packages:
            raise metadata.PackageNotFoundError(package)
        return packages[package]

    monkeypatch.setattr(metadata, "version", version)
    assert libraries.versions(["cudf"]) == {"cudf": expected}


@pytest.mark.parametrize(("number", "text"), [(91900, "9.19.0"), (90101, "9.1.1"), (8907, "8.9.7"), (8200, "8.2.0")])
def test_the_number_of_cudnn_is_written_with_dots(number: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: number)
    assert libraries.version("cudnn") == text


def test_cublas_is_known_by_its_package_where_none_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(libraries, "find_loaded_cublas", lambda major: None)
    monkeypatch.setattr(
        libraries, "find_installed_version", lambda packages: dict.fromkeys(packages, "13.1.0.3").get("nvidia-cublas")
    )
    assert libraries.version("cublas") == "13.1.0.3"


def test_a_cublas_that_tells_nothing_is_there_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be skipped for it: a PyTorch for CUDA cannot be without."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(libraries, "find_loaded_cublas", lambda major: None)
    monkeypatch.setattr(libraries, "find_installed_version", lambda packages: None)
    assert libraries.version("cublas") == "unknown"
    libraries.why_not_here.cache_clear()
    assert libraries.why_not_here("cublas") is None
    libraries.why_not_here.cache_clear()


@pytest.mark.parametrize(("status", "text"), [(0, "13.2.1"), (7, None)])
def test_the_cublas_that_is_loaded_is_asked(status: int, text: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loaded:
        def __init__(self, name: str, mode: int) -> None:
            assert name == "libcublas.so.13"

        def cublasGetProperty(self, part: int, number: Any) -> int:
            number._obj.value = (13, 2, 1)[part]
            return status

    monkeypatch.setattr(ctypes, "CDLL", Loaded)
    assert libraries.find_loaded_cublas("13") == text


@pytest.mark.gpu
def test_the_libraries_of_cuda_tell_their_versions() -> None:
    assert torch.version.cuda is not None
    found = libraries.versions(libraries.OF_CUDA)
    assert set(found) == set(libraries.OF_CUDA)
    assert all(re.fullmatch(r"\d+(\.\d+){2,3}", text) for text in found.values())
    assert found["cublas"].partition(".")[0] == torch.version.cuda.partition(".")[0]
    assert int(found["cudnn"].partition(".")[0]) >= 8
