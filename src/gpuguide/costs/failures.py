"""How often a job should save its state, and what share of its time it loses to saves and failures.

Failures come as a Poisson process, for all GPUs alike, and also during restarts. A save stalls training until it is
written, or only until it is copied to the memory of the host. In the second case, a failure undoes the work since the
save before as well if it comes before the file is complete; that is counted as a longer restart.

The formulas stand in ``failures.toml`` next to this module; the calculator on the site computes the same ones.
:mod:`gpuguide.clusters.failures` derives and simulates them.

>>> plan = plan_saves(gpus=512, failures=173, state=980, rate=10)
>>> round(plan.interval / 60), round(plan.lost, 3)
(138, 0.024)

References
----------
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22, 2006.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from gpuguide.costs.fields import faults_of, raise_first, read_fields, read_rules
from gpuguide.costs.formulas import Formulas

TABLES: Mapping[str, Any] = tomllib.loads(
    resources.files("gpuguide.costs").joinpath("failures.toml").read_text(encoding="utf-8")
)
FIELDS = read_fields(TABLES["fields"])
RULES = read_rules(TABLES["rules"])
FORMULAS = Formulas(TABLES["formulas"], TABLES["constants"])
FIRST: Mapping[str, Any] = TABLES["first"]
"""What the calculator shows at first: a 70B model with Adam on 512 GPUs that fail as often as Llama 3's did"""


@dataclass(frozen=True)
class SavingPlan:
    """How often to save, and what is lost. Times in seconds."""

    mean_time_between_failures: float
    write: float
    """To write one checkpoint"""
    interval: float
    """Work between two saves"""
    kept: float
    """Share of the time that leads to the result"""
    saves: float
    """Share of the time that training waits for saves that are used"""
    repeated: float
    """Share of the time that goes into restarts and into work that a failure undoes"""

    @property
    def lost(self) -> float:
        """Share of the time that does not lead to the result."""
        return self.saves + self.repeated


def plan_saves(
    *,
    gpus: int,
    failures: int,
    state: int,
    rate: int,
    saving: str = "blocking",
    stall: int = 100,
    restart: int = 300,
) -> SavingPlan:
    """Return the interval between saves that loses least time, and what is lost with it.

    Parameters
    ----------
    gpus : int
        GPUs of the job. A failure of one stops all.
    failures : int
        Failures of 1,000 GPUs in a year.
    state : int
        GB of a checkpoint.
    rate : int
        GB/s at which all processes together write.
    saving : str
        How long training waits: ``"blocking"``, until it is written, or ``"asynchronous"``, until it is copied to the
        memory of the host.
    stall : int
        Milliseconds that training waits for the copy, where saving is asynchronous.
    restart : int
        Seconds from a failure until training goes on.

    Raises
    ------
    GpuguideError
        If a number makes no sense, or the job would fail before it gets anywhere.
    """
    given = {
        "gpus": gpus,
        "failures": failures,
        "state": state,
        "rate": rate,
        "saving": saving,
        "stall": stall,
        "restart": restart,
    }
    raise_first(faults_of(FIELDS, RULES, given, FORMULAS))
    found = FORMULAS.values(given)
    return SavingPlan(found["M"], found["write"], found["tau"], found["kept"], found["saves"], found["repeated"])
