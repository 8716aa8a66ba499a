"""What all tests share: no reader's own records, and markers that need a GPU or a browser."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from find_browser import HOW_TO_ENABLE, find_browser

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_configure() -> None:
    """Read the published records only, whatever the person who runs the tests has measured."""
    os.environ["GPUGUIDE_RECORDS"] = ""
    os.environ.pop("GPUGUIDE_DECLARED", None)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Skip, with the reason, what needs a GPU or a browser that is not here."""
    for item in items:
        if item.get_closest_marker("gpu") and (reason := _why_no_gpu()):
            item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("browser") and find_browser() is None:
            item.add_marker(pytest.mark.skip(reason=HOW_TO_ENABLE))


@functools.cache
def _why_no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "no CUDA GPU here; run `pytest -m gpu` on a machine that has one"


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
