"""The map of the loss over batch size and learning rate, from a small record."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import synthetic_records

from gpuguide import plotting
from gpuguide.measure import records, store
from gpuguide.measure.records import Case, Record
from gpuguide.plotting import training_map
from gpuguide.training import noise

LOSSES = {(4, 1e-3): (2.5, 2.6), (4, 2e-3): (2.3, 2.4), (64, 1e-3): (2.2,), (64, 2e-3): (2.1, math.inf)}
"""By batch and rate, of each seed; infinite where it diverged"""


def is_chance(first: Sequence[float], second: Sequence[float]) -> bool:
    return not noise.compare(first, second).beyond_chance


@pytest.fixture
def record() -> Record:
    """Return a record of four settings."""
    cases = []
    for (batch, rate), losses in LOSSES.items():
        for seed, loss in enumerate(losses):
            keys = {"model": "small", "batch": batch, "learning_rate": rate, "seed": seed}
            measured = {
                "time": records.metric("s", [1.0, 2.0]),
                "diverged": records.metric("1", [float(not math.isfinite(loss))]),
                "training_loss": records.metric("nat", [7.0, 3.0 + seed]),
            }
            if math.isfinite(loss):
                measured["loss"] = records.metric("nat", [loss])
            cases.append(Case(keys, "fixed-beta2", 0, "ok", correct="yes", measured=measured))
    return synthetic_records.record("training-runs", cases, synthetic_records.PUBLISHED)


def test_settings_have_their_seeds_and_the_curve_of_the_first(record: Record) -> None:
    found = training_map.settings(record)
    assert [(one.batch, one.rate) for one in found] == list(LOSSES)
    assert found[1].losses == (2.3, 2.4)
    assert found[1].loss == pytest.approx(2.35)
    assert found[1].curve == (7.0, 3.0)
    assert training_map.settings(record, model="gpt2-small") == []


def test_a_setting_with_a_diverged_seed_is_never_the_best(record: Record) -> None:
    found = training_map.settings(record)
    assert (found[3].losses, found[3].diverged, found[3].loss) == ((2.1,), 1, math.inf)
    best = training_map.best_by_batch(found)
    assert {batch: one.rate for batch, one in best.items()} == {4: 2e-3, 64: 1e-3}


def test_the_map_shows_the_best_rates_and_hands_all_settings_to_its_script(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "load_published", lambda name: record)
    figure = plotting.map_to_try(is_chance)
    assert "2e-3 for batch 4, 1e-3 for batch 64" in figure.alt
    settings = figure.interactive["settings"]
    assert [each["losses"] for each in settings] == [[2.5, 2.6], [2.3, 2.4], [2.2], [2.1]]
    assert [each["loss"] for each in settings] == [2.55, 2.35, 2.2, None]
    assert [each["diverged"] for each in settings] == [0, 0, 0, 1]
    assert [each["good"] for each in settings] == [True, True, True, False]


def test_rates_are_good_that_chance_does_not_tell_apart_from_the_best() -> None:
    losses = {1e-3: (2.0, 2.1, 2.2), 2e-3: (2.1, 2.2, 2.3), 4e-3: (2.8, 2.9, 3.0), 8e-3: (2.15,)}
    found = [training_map.Setting(4, rate, each, 0, ()) for rate, each in losses.items()]
    assert training_map.good_by_batch(found, is_chance) == {4: {1e-3, 2e-3}}
    alone = training_map.Setting(8, 1e-3, (2.0,), 0, ())
    assert training_map.good_by_batch([alone], is_chance) == {8: {1e-3}}


@pytest.mark.parametrize(("rate", "name"), [(1.25e-4, "1.25e-4"), (1e-3, "1e-3"), (1.6e-2, "1.6e-2")])
def test_a_rate_is_written_as_in_code(rate: float, name: str) -> None:
    assert training_map.name_rate(rate) == name
    assert float(name) == rate
