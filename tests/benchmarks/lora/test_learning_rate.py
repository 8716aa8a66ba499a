from __future__ import annotations

from gpuguide.benchmarks.lora import task
from gpuguide.benchmarks.lora.learning_rate import LOWER, RANKS, RATES
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure.benchmark import Keys

BENCHMARK = declarations.get("lora-learning-rate")
DEVICE = devices.fake("h100-sxm")


def cases_of(name: str) -> list[Keys]:
    return [keys for keys in BENCHMARK.cases(DEVICE) if not BENCHMARK.contenders[name].leaves_out(DEVICE, keys)]


def test_every_rank_has_every_rate_with_two_seeds() -> None:
    found = [(keys["rank"], keys["learning_rate"], keys["seed"]) for keys in cases_of("lora")]
    assert sorted(found) == sorted((rank, rate, seed) for rank in RANKS for rate in RATES for seed in (0, 1))
    assert all(keys["alpha"] == 2 * keys["rank"] for keys in cases_of("lora"))


def test_all_weights_have_rates_on_either_side_of_the_best_of_the_task() -> None:
    found = [(keys["learning_rate"], keys["seed"]) for keys in cases_of("full")]
    assert sorted(found) == sorted((rate, seed) for rate in LOWER for seed in (0, 1, 2))
    assert min(LOWER) < min(task.AGAIN["full"]) in LOWER


def test_somebody_takes_part_in_each_case_and_only_what_is_named_differs_from_the_task() -> None:
    taken = [*cases_of("lora"), *cases_of("full")]
    for keys in BENCHMARK.cases(DEVICE):
        assert keys in taken
        assert task.varied(keys) <= {"rank", "alpha", "learning_rate", "seed"}
    assert not BENCHMARK.cases(devices.choose("cpu"))
