"""The library's own digests, and the modules that pages use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from written_package import write

from gpuguide.errors import GpuguideError
from gpuguide.measure import benchmark, digest
from gpuguide.measure.digest.definitions import is_harness


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package in place of gpuguide: a benchmark, three topics that import each other, and a harness."""
    files = {
        "errors.py": "x = 1",
        "measure/benchmark.py": "from gpuguide import errors",
        "measure/units.py": "y = 1",
        "benchmarks/one.py": "from gpuguide import topic\nfrom gpuguide.measure.benchmark import Benchmark\n"
        "ONE = Benchmark(name='one')\nTWO = Benchmark(name='two')",
        "topic/__init__.py": "from .plain import f",
        "topic/plain.py": "def f():\n    from gpuguide import deep\n",
        "deep.py": "import gpuguide.topic\nvalue = 1",
        "apart.py": "value = 1",
    }
    write(tmp_path, files)
    monkeypatch.setattr(digest, "PACKAGE_FOLDER", tmp_path)
    digest.benchmark_modules.cache_clear()
    yield tmp_path
    for function in (digest.benchmark_modules, digest.benchmark_digest, digest._module_digest):
        function.cache_clear()


def test_imports_are_found_wherever_they_stand() -> None:
    source = """
import os, torch, gpuguide.costs.roofline
from gpuguide import __version__
from gpuguide.systems import ceilings
from gpuguide.measure.timing import format_quantity
import gpuguide.hardware.device as devices
import gpuguidance
def late():
    if True:
        from gpuguide.measure import store
try:
    import gpuguide.nothing
except ImportError:
    pass
text = "import gpuguide.cli"
"""
    assert digest.imports_of(source) == {
        "gpuguide",
        "gpuguide.costs",
        "gpuguide.costs.roofline",
        "gpuguide.systems",
        "gpuguide.systems.ceilings",
        "gpuguide.measure.timing",
        "gpuguide.hardware",
        "gpuguide.hardware.device",
        "gpuguide.measure",
        "gpuguide.measure.store",
    }


@pytest.mark.parametrize(
    ("source", "parent", "found"),
    [
        ("from . import timing", "gpuguide.measure", {"gpuguide.measure", "gpuguide.measure.timing"}),
        ("from .timing import significant", "gpuguide.measure", {"gpuguide.measure.timing"}),
        ("from .. import costs", "gpuguide.measure", {"gpuguide", "gpuguide.costs"}),
        ("from ..hardware.device import fake", "gpuguide.measure", {"gpuguide.hardware.device"}),
        ("def f():\n from .timing import x", "gpuguide.measure", {"gpuguide.measure.timing"}),
    ],
)
def test_relative_imports_are_resolved(source: str, parent: str, found: set[str]) -> None:
    assert digest.tree().modules_imported(source, parent) == found


def test_imports_are_followed_through_circles_and_packages(package: Path) -> None:
    assert digest.transitive(["gpuguide.benchmarks.one"]) == {
        "gpuguide",
        "gpuguide.benchmarks",
        "gpuguide.benchmarks.one",
        "gpuguide.topic",
        "gpuguide.topic.plain",
        "gpuguide.deep",
        "gpuguide.errors",
        "gpuguide.measure",
        "gpuguide.measure.benchmark",
    }


def test_a_digest_of_modules_does_not_depend_on_their_order(package: Path) -> None:
    modules = ["gpuguide.deep", "gpuguide.apart"]
    assert digest.source_digest(modules) == digest.source_digest(modules[::-1] + modules)
    assert digest.source_digest(modules) != digest.source_digest(modules[:1])


def test_it_holds_their_names_their_code_and_no_comments(package: Path) -> None:
    (package / "same.py").write_text("value = 1  # as apart")
    assert digest.source_digest(["gpuguide.same"]) != digest.source_digest(["gpuguide.apart"])
    before = digest.source_digest(["gpuguide.same"])
    (package / "same.py").write_bytes(b"# another\r\nvalue = 1\r\n")
    digest._module_digest.cache_clear()
    assert digest.source_digest(["gpuguide.same"]) == before
    (package / "same.py").write_text("value = 2")
    digest._module_digest.cache_clear()
    assert digest.source_digest(["gpuguide.same"]) != before


def test_unknown_names(package: Path) -> None:
    with pytest.raises(GpuguideError, match=r"no module gpuguide\.nothing"):
        digest.source_digest(["gpuguide.nothing"])
    with pytest.raises(GpuguideError, match="Did you mean one"):
        digest.benchmark_digest("onee")


def test_benchmarks_are_found_without_importing_them() -> None:
    code = (
        "import sys; from gpuguide.measure.benchmark import names; print(*names()); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == benchmark.names()
    assert set(benchmark.names()) >= {"ceilings", "copy-size", "matmul-size", "transfer-size", "timing-mistakes"}


def test_every_declared_name_is_that_of_the_benchmark() -> None:
    for name in benchmark.names():
        assert benchmark.get(name).name == name
    with pytest.raises(GpuguideError, match=r"no benchmark named 'copysize'\. Did you mean copy-size"):
        benchmark.get("copysize")


def test_no_benchmark_depends_on_the_harness_the_site_or_the_command_line() -> None:
    for name, module in digest.benchmark_modules().items():
        counted = {definition.module for definition in digest.find_reached_definitions(digest.tree(), name)}
        assert module in counted, name
        assert not {found for found in counted if is_harness(found)}, name
        assert not {found for found in counted if found.startswith(("gpuguide.site", "gpuguide.cli"))}, name


def test_every_benchmark_reaches_what_it_measures() -> None:
    """A definition that a benchmark runs and its digest does not see would let a stale record count as fresh."""
    wanted = {
        "attention": {"forward"},
        "attention-traffic": {"run_under_profiler"},
        "bytes-in-flight": {"Flight", "SOURCE"},
        "copy-size": {"copy_bytes"},
        "dataframe": {"serve", "OPERATIONS"},
        "dataframe-mistakes": {"report_steps"},
        "linear-cross-entropy": {"linear_cross_entropy"},
        "memory-latency": {"compile_kernel"},
        "sample-token": {"draw", "sample_token"},
        "softmax": {"softmax"},
        "training-memory": {"GPT2"},
    }
    for name, definitions in wanted.items():
        found = {definition.name for definition in digest.find_reached_definitions(digest.tree(), name)}
        assert definitions <= found, name


def test_the_files_that_a_function_uses_are_known_by_the_name_that_readers_import() -> None:
    found = {
        path.relative_to(digest.PACKAGE_FOLDER).as_posix() for path in digest.files_reached("gpuguide.logits.softmax")
    }
    assert "logits/probabilities.py" in found
    assert not [path for path in found if path.startswith(("site", "benchmarks"))]
    with pytest.raises(GpuguideError, match=r"no gpuguide\.logits\.nothing"):
        digest.files_reached("gpuguide.logits.nothing")
