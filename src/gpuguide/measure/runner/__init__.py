"""The runner: set up every contender of a case, check it, time them in turn, and keep what is finished.

:mod:`~gpuguide.measure.runner.session` goes through the cases of benchmarks and stores each,
:mod:`~gpuguide.measure.runner.case` measures one, :mod:`~gpuguide.measure.runner.environment` describes the machine.
"""

from __future__ import annotations

from gpuguide.measure.runner.case import measure_case
from gpuguide.measure.runner.session import RunOutcome, RunProgress, forecast, record_path, run

__all__ = ["RunOutcome", "RunProgress", "forecast", "measure_case", "record_path", "run"]
