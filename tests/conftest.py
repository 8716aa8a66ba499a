"""What all tests share: no reader's own records, which tests run and where, and the report at the end."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import busy
import forked
import hypothesis
import pytest
import report
from find_browser import HOW_TO_ENABLE, find_browser

REPOSITORY = Path(__file__).resolve().parent.parent

EXTRAS = {
    "bs4": "test",
    "cudf": "cuda12 or cuda13",
    "liger_kernel": "peers",
    "peft": "peers",
    "pynvml": "test, cuda12 or cuda13",
    "transformers": "test or peers",
}
"""What a test may mark as ``needs``, and what brings it"""

# A few examples, the same every time; `make test-thoroughly` draws many new ones and prints how to draw them again.
hypothesis.settings.register_profile("usual", max_examples=20, derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("thorough", max_examples=500, deadline=None, print_blob=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `make test-thoroughly` ask for what takes longer, and the nightly tests for a busy machine."""
    parser.addoption("--thorough", action="store_true", help="also run what is marked `thorough`, with many examples")
    parser.addoption("--busy", type=int, default=0, metavar="LOOPS", help="run so many busy loops beside the tests")


def pytest_configure(config: pytest.Config) -> None:
    """Read the published records only, whatever the person who runs the tests has measured."""
    os.environ["GPUGUIDE_RECORDS"] = ""
    os.environ.pop("GPUGUIDE_DECLARED", None)
    if instructions := os.environ.get("ATEN_CPU_CAPABILITY"):  # PyTorch would take what it compiled with others
        cache = Path(tempfile.gettempdir()) / f"torchinductor-{instructions}"
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
    hypothesis.settings.load_profile("thorough" if config.getoption("thorough") else "usual")
    gc.disable()  # until all tests are collected
    config.option.loadscopereorder = False  # else files with few tests come last, and those are the slowest
    config.pluginmanager.register(report)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(report.Report(config.getoption("thorough")))
        loops = busy.start(config.getoption("busy"))
        config.add_cleanup(lambda: busy.stop(loops))


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group the tests of a file in one process, unless they may stand apart; skip, with the reason, what cannot run.

    Files with slow tests come first, so that no process is left alone with one at the end. What has the GPU alone comes
    last and in one process: until the others let go of the GPU, a process that waits for it does nothing else.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (_has_gpu_alone(item), item.path not in slow))
    for item in items:
        if not item.get_closest_marker("xdist_group") and (group := _group(item)):
            item.add_marker(pytest.mark.xdist_group(group))
        if item.get_closest_marker("thorough") and not config.getoption("thorough"):
            item.add_marker(pytest.mark.skip(reason="runs with `make test-thoroughly`"))
        if item.get_closest_marker("gpu") and (reason := _why_no_gpu()):
            item.add_marker(pytest.mark.skip(reason=reason))
        for marker in item.iter_markers("needs"):
            for reason in filter(None, map(why_missing, marker.args)):
                item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("browser") and find_browser() is None:
            item.add_marker(pytest.mark.skip(reason=HOW_TO_ENABLE))


def pytest_collection_finish() -> None:
    """Keep the collector from going through all tests and modules again, a second each time, for they stay anyway."""
    _freeze()
    gc.enable()


def pytest_runtest_setup() -> None:
    """Do the same with modules that earlier tests have imported."""
    if len(sys.modules) > _frozen[0] + 100:
        _freeze()


_frozen = [0]
"""How many modules there were when the collector was last told to leave them"""


def _freeze() -> None:
    gc.collect()
    gc.freeze()
    _frozen[0] = len(sys.modules)


def _group(item: pytest.Item) -> str | None:
    """Return what is run in one process: a file, or of one that may stand apart, what looks at the same page."""
    file = item.nodeid.split("::")[0]
    if _has_gpu_alone(item):
        return "alone"
    if not item.get_closest_marker("apart"):
        return file
    name = getattr(item, "callspec", None) and item.callspec.params.get("name")  # type: ignore[attr-defined]
    return f"{file} {name}" if name else None


def _has_gpu_alone(item: pytest.Item) -> bool:
    marker = item.get_closest_marker("gpu")
    return marker is not None and bool(marker.kwargs.get("alone"))


def why_missing(package: str) -> str | None:
    """Return what to install for a test that imports an optional package, or ``None`` if that is installed.

    One that is installed and cannot be imported is no reason to skip: the test fails, and says why.
    """
    if importlib.util.find_spec(package) is not None:
        return None
    return f"{package} is not installed; it comes with the extra {EXTRAS[package]}"


@functools.cache
def _why_no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "no CUDA GPU here; run `pytest -m gpu` on a machine that has one"


@pytest.fixture(autouse=True)
def _same_draws() -> None:
    """Draw the same numbers in every test, whichever tests ran before."""
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def _share_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let tests of several processes share the GPU, but a test that measures time or memory have it alone."""
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    import fcntl

    with Path(tempfile.gettempdir(), "gpuguide-tests.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if _has_gpu_alone(request.node) else fcntl.LOCK_SH)
        yield
        _give_back_gpu_memory()


def _give_back_gpu_memory() -> None:
    """Give back what PyTorch and cuDF keep for their next use of it, because other processes share the GPU."""
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized() and torch.cuda.memory_reserved() > 2**30:
        gc.collect()
        torch.cuda.empty_cache()
    frames = sys.modules.get("gpuguide.dataframes.engines.cudf_frames")
    if frames and frames.use_pool.cache_info().currsize:
        frames.use_pool.cache_clear()
        resources = sys.modules["rmm"].mr
        resources.set_current_device_resource(resources.CudaMemoryResource())
        gc.collect()


@pytest.fixture(scope="session", autouse=True)
def _fork_ranks() -> Iterator[None]:
    """Have the ranks of a team start soon, where no GPU makes that unsafe."""
    safe = sys.platform == "linux" and _why_no_gpu() is not None
    with forked.ranks() if safe else contextlib.nullcontext():
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return REPOSITORY


@pytest.fixture(scope="session")
def browser_path() -> Path:
    """The Chromium or Chrome that the browser tests start."""
    path = find_browser()
    if path is None:
        pytest.skip(HOW_TO_ENABLE)
    return path
