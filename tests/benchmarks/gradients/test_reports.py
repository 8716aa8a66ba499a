"""Each way to look at gradients gives the right numbers."""

from __future__ import annotations

from typing import Any

import pytest

from gpuguide.benchmarks.gradients import reports
from gpuguide.hardware import device as devices
from gpuguide.models.gpt2 import GPT2Config

TINY = GPT2Config(vocab_size=61, context=64, layers=1, heads=2, hidden=32)


@pytest.mark.parametrize(
    "measure", [reports.by_report, reports.by_report_with_optimizer, reports.by_loop, reports.by_clipping]
)
def test_all_give_the_numbers_of_float64(measure: Any) -> None:
    made = reports.work(measure, devices.cpu(), {"model": "gpt2-small"}, TINY)
    assert made.check is not None
    made.check()
    made.calls[0]()


def test_wrong_numbers_are_found() -> None:
    for wrong in (lambda *given: 2 * reports.by_clipping(*given), lambda *given: doubled(reports.by_loop(*given))):
        made = reports.work(wrong, devices.cpu(), {"model": "gpt2-small"}, TINY)
        assert made.check is not None
        with pytest.raises(AssertionError, match="the norm"):
            made.check()


def doubled(numbers: Any) -> Any:
    return {name: (2 * norm, zeros, weight) for name, (norm, zeros, weight) in numbers.items()}
