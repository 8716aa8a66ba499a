"""The cost model on made-up times, of which the right answer is known."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.dataframes import cost, data, operations
from gpuguide.dataframes.cost import FileAmounts, FilePrices, Line, MachineParameters, Measurement, QueryTime, fit_line
from gpuguide.dataframes.cost.files import solve_without_negatives
from gpuguide.errors import GpuguideError

HOST, GPU = ("pandas", "polars"), ("cudf", "gpuguide", "cudf-pandas")
COPIED = ("cudf", "gpuguide")
"""Engines of the GPU whose copies are measured"""
ROWS = [10**power for power in range(4, 9)]
TO_GPU = {"cudf": Line(2e-5, 1 / 10e9), "gpuguide": Line(5e-5, 1 / 40e9)}
FROM_GPU = {"cudf": Line(3e-5, 1 / 8e9), "gpuguide": Line(3e-5, 1 / 9e9)}
every_operation = pytest.mark.parametrize("operation", operations.OPERATIONS)


def made_up(spread: float = 0.0) -> tuple[MachineParameters, list[Measurement]]:
    """Return a machine and the times that its parameters give, each wrong by up to a share."""
    chance = random.Random(0)
    machine = MachineParameters({}, {}, TO_GPU, FROM_GPU)
    for place, names, overhead, rate in (("host", HOST, 2e-4, 5e7), ("gpu", GPU, 1e-3, 5e9)):
        lines = {
            (engine, operation): Line(overhead * chance.uniform(0.5, 2), chance.uniform(0.5, 2) / rate)
            for engine in names
            for operation in operations.OPERATIONS
        }
        machine = MachineParameters(**{**vars(machine), place: lines})
    times = []
    for (engine, operation), line in {**machine.host, **machine.gpu}.items():
        for rows in ROWS:
            for transfer in ("none", "in", "in-out") if engine in COPIED else ("none",):
                moved = 0.0 if transfer == "none" else TO_GPU[engine].predict(cost.bytes_in(operation, rows))
                moved += FROM_GPU[engine].predict(cost.bytes_out(operation, rows)) if transfer == "in-out" else 0.0
                seconds = (line.predict(rows) + moved) * (1 + spread * chance.uniform(-1, 1))
                times.append(Measurement(engine, operation, rows, transfer, seconds))
    return machine, times


# --- bytes ------------------------------------------------------------------------------------------------


@every_operation
def test_bytes_are_those_of_the_frames(operation: str) -> None:
    """What Arrow holds; bitmaps that are not needed and the rounding of sizes aside."""
    rows = 200_000
    asked = operations.get(operation)
    table = data.frame(rows, columns=asked.columns)
    lookup = data.lookup(rows) if asked.has_lookup else None
    held = table.nbytes + (lookup.nbytes if lookup is not None else 0)
    assert cost.bytes_in(operation, rows) == pytest.approx(held, rel=0.01)
    result = operations.reference(operation, table, lookup)
    assert cost.rows_of_result(operation, rows) == pytest.approx(result.num_rows, rel=0.02)
    assert cost.bytes_out(operation, rows) == pytest.approx(result.combine_chunks().nbytes, rel=0.05)


def test_the_group_by_reads_twelve_bytes_a_row_and_writes_little() -> None:
    moved = cost.traffic("groupby", 10**8)
    assert moved.read == 12 * 10**8
    assert moved.written == 1000 * 20
    assert moved.floor(3e12) == pytest.approx(4e-4, rel=1e-4)


def test_a_filter_before_costs_a_fused_group_by_nothing() -> None:
    assert cost.traffic("filter-groupby", 10**6) == cost.traffic("groupby", 10**6)


# --- fitting ----------------------------------------------------------------------------------------------


@given(overhead=st.floats(1e-6, 1e-2), each=st.floats(1e-11, 1e-7))
def test_a_line_is_found_again(overhead: float, each: float) -> None:
    found = fit_line(ROWS, [overhead + each * rows for rows in ROWS])
    for rows in ROWS:
        assert found.predict(rows) == pytest.approx(overhead + each * rows, rel=1e-6)


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(1e-7, 1e3)), min_size=1, max_size=8))
def test_no_part_of_a_line_is_negative(points: list[tuple[float, float]]) -> None:
    found = fit_line(*zip(*points, strict=True))
    assert found.overhead >= 0
    assert found.each >= 0
    assert math.isfinite(found.overhead + found.each)


def test_a_line_without_overhead_or_without_growth() -> None:
    assert fit_line([1.0, 10.0], [2.0, 30.0]) == Line(0.0, pytest.approx((1 / 2 + 1 / 3) / (1 / 4 + 1 / 9)))
    assert fit_line([1.0, 10.0], [3.0, 2.0]) == Line(pytest.approx((1 / 3 + 1 / 2) / (1 / 9 + 1 / 4)), 0.0)
    assert fit_line([0.0], [3.0]) == Line(pytest.approx(3.0), 0.0)
    assert fit_line([7.0], [3.0]).predict(7.0) == pytest.approx(3.0)


@pytest.mark.parametrize(("amounts", "seconds"), [([], []), ([1.0], [0.0]), ([1.0, 2.0], [1.0])])
def test_what_cannot_be_fitted_is_told(amounts: list[float], seconds: list[float]) -> None:
    with pytest.raises(GpuguideError, match="as many, above 0, are needed"):
        fit_line(amounts, seconds)


def test_a_machine_is_found_again_from_its_times() -> None:
    machine, times = made_up()
    found = cost.fit_parameters(times, HOST, GPU)
    assert set(found.host) == set(machine.host)
    for pair, line in {**machine.host, **machine.gpu}.items():
        again = {**found.host, **found.gpu}[pair]
        assert (again.overhead, again.each) == (pytest.approx(line.overhead), pytest.approx(line.each))
    assert set(found.to_gpu) == set(found.from_gpu) == set(COPIED)
    for engine in COPIED:
        assert found.to_gpu[engine].each == pytest.approx(TO_GPU[engine].each)
        assert found.from_gpu[engine].overhead == pytest.approx(FROM_GPU[engine].overhead)


@pytest.mark.parametrize("difference", [1e-7, -2e-5])
def test_a_difference_that_is_noise_sets_no_price(difference: float) -> None:
    """Two times that happen to be nearly equal, or the wrong way round, say little of what lies between them."""
    _, times = made_up()
    into = next(each.seconds for each in times if _case(each) == ("cudf", "sort", 10**5, "in"))
    noisy = [
        replace(each, seconds=into + difference) if _case(each) == ("cudf", "sort", 10**5, "in-out") else each
        for each in times
    ]
    back = cost.fit_parameters(noisy, HOST, GPU).from_gpu["cudf"]
    for rows in (10**6, 10**8):
        size = cost.bytes_out("sort", rows)
        assert back.predict(size) == pytest.approx(FROM_GPU["cudf"].predict(size), rel=0.1)


def _case(each: Measurement) -> tuple[str, str, int, str]:
    return each.engine, each.operation, each.rows, each.transfer


def test_what_was_not_measured_is_told() -> None:
    _, times = made_up()
    with pytest.raises(GpuguideError, match="on the gpu was measured"):
        cost.fit_parameters([each for each in times if each.engine in HOST], HOST, GPU)
    with pytest.raises(GpuguideError, match=r"No transfer was measured; .* transfer=in"):
        cost.fit_parameters([each for each in times if each.transfer == "none"], HOST, GPU)
    machine = cost.fit_parameters([each for each in times if each.operation != "sort"], HOST, GPU)
    with pytest.raises(GpuguideError, match="no measured operation named 'sort'"):
        cost.where_to_run("sort", 10, resident=True, machine=machine)


# --- choosing ---------------------------------------------------------------------------------------------


@every_operation
@given(rows=st.integers(0, 10**9), resident=st.sampled_from([None, True, False]), returned=st.booleans())
def test_the_choice_is_the_shorter_predicted_time(
    operation: str, rows: int, resident: bool | None, returned: bool
) -> None:
    machine, _ = MADE_UP
    choice = cost.where_to_run(operation, rows, resident=resident, returned=returned, machine=machine)
    assert (choice.place == "gpu") is (choice.gpu_seconds < choice.host_seconds)
    into = {engine: TO_GPU[engine].predict(cost.bytes_in(operation, rows)) for engine in COPIED}
    back = {engine: FROM_GPU[engine].predict(cost.bytes_out(operation, rows)) for engine in COPIED}
    fetched = min(FROM_GPU[engine].predict(cost.bytes_in(operation, rows)) for engine in COPIED) if resident else 0.0
    handed_on = min(TO_GPU[engine].predict(cost.bytes_out(operation, rows)) for engine in COPIED)
    fetched += handed_on if resident is not None and not returned else 0.0
    host = {engine: machine.host[engine, operation].predict(rows) + fetched for engine in HOST}
    gpu = {
        engine: machine.gpu[engine, operation].predict(rows)
        + (into[engine] if resident is False else 0)
        + (back[engine] if returned else 0)
        for engine in (COPIED if returned or resident is False else GPU)
    }
    assert choice.host_seconds == pytest.approx(min(host.values()))
    assert choice.host_transfer_seconds == pytest.approx(fetched)
    assert choice.gpu_seconds == pytest.approx(min(gpu.values()))
    times = gpu if choice.place == "gpu" else host
    assert times[choice.engine] == pytest.approx(min(times.values()))
    assert (choice.transfer_seconds == 0) is (resident is not False and not returned)


MADE_UP = made_up()


def test_a_frame_on_the_host_is_copied_and_its_result_comes_back_unless_said_otherwise() -> None:
    machine, _ = MADE_UP

    def moving(**given: bool) -> float:
        return cost.where_to_run("sort", 10**6, machine=machine, **given).transfer_seconds  # type: ignore[arg-type]

    machine = MachineParameters(machine.host, {("cudf", "sort"): Line(0.0, 1e-12)}, machine.to_gpu, machine.from_gpu)
    there = TO_GPU["cudf"].predict(cost.bytes_in("sort", 10**6))
    back = FROM_GPU["cudf"].predict(cost.bytes_out("sort", 10**6))
    assert moving(resident=True) == 0
    assert moving(resident=False) == there + back
    assert moving(resident=False, returned=False) == there
    assert moving(resident=True, returned=True) == back


def test_a_frame_on_the_gpu_is_not_sent_to_the_host_for_less_than_the_way_there_costs() -> None:
    """Ten thousand rows: pandas would be done in a fifth of cuDF's time, and fetching them takes longer than that."""
    host, gpu = {("pandas", "filter"): Line(1e-4, 0.0)}, {("cudf", "filter"): Line(5e-4, 0.0)}
    slow_copies = {"cudf": Line(3e-4, 1e-9)}
    machine = MachineParameters(host, gpu, slow_copies, slow_copies)
    there = cost.where_to_run("filter", 10**4, resident=True, machine=machine)
    assert (there.place, there.engine, there.transfer_seconds) == ("gpu", "cudf", 0)
    assert there.host_seconds == pytest.approx(1e-4 + 6e-4 + 2e-5 * 15)
    assert there.reason.startswith("The host would be faster, but by less than the copies")
    wanted_here = cost.where_to_run("filter", 10**4, resident=True, returned=True, machine=machine)
    assert wanted_here.host_transfer_seconds == pytest.approx(3e-4 + 2e-5 * 10)
    assert cost.where_to_run("filter", 10**4, resident=None, machine=machine).place == "cpu"
    nobody_knows = MachineParameters(host, gpu, {}, {})
    assert cost.where_to_run("filter", 10**4, resident=True, machine=nobody_knows).host_seconds == math.inf


def test_the_reason_says_what_decides() -> None:
    host, gpu = {("pandas", "sort"): Line(0.0, 1e-8)}, {("cudf", "sort"): Line(1e-3, 1e-9)}
    machine = MachineParameters(host, gpu, {"cudf": Line(0.0, 1e-9)}, {"cudf": Line(0.0, 1e-9)})

    def reason(rows: int, resident: bool | None) -> str:
        return cost.where_to_run("sort", rows, resident=resident, machine=machine).reason

    assert "too few rows" in reason(100, None)
    assert "than its overhead costs" in reason(10**8, None)
    assert "not by as much as the transfer takes" in reason(10**8, False)


@every_operation
@pytest.mark.parametrize("resident", [None, True, False])
def test_the_choice_changes_at_the_crossover(operation: str, resident: bool | None) -> None:
    machine, _ = MADE_UP
    rows = cost.crossover(operation, resident=resident, machine=machine)
    if rows in (0.0, math.inf):
        far = cost.where_to_run(operation, 10**11, resident=resident, machine=machine)
        assert far.place == ("cpu" if rows else "gpu")
        return
    places = [
        cost.where_to_run(operation, int(rows) + step, resident=resident, machine=machine).place for step in (-1, 0)
    ]
    assert places == ["cpu", "gpu"]


def test_a_gpu_that_never_pays_and_one_that_always_does() -> None:
    slow, fast = Line(1.0, 1.0), Line(0.5, 0.5)
    copies = {"cudf": Line(0.0, 0.0)}
    host_wins = MachineParameters({("pandas", "sort"): fast}, {("cudf", "sort"): slow}, copies, copies)
    gpu_wins = MachineParameters({("pandas", "sort"): slow}, {("cudf", "sort"): fast}, copies, copies)
    assert cost.crossover("sort", resident=True, machine=host_wins) == math.inf
    assert cost.crossover("sort", resident=True, machine=gpu_wins) == 0.0


def test_how_often_the_choice_is_right() -> None:
    _, times = made_up()

    def share_right(measurements: list[Measurement], machine: MachineParameters) -> float:
        right = cost.verdicts(measurements, machine, HOST, GPU)
        return sum(right.values()) / len(right)

    assert share_right(times, cost.fit_parameters(times, HOST, GPU)) == 1.0
    _, noisy = made_up(spread=0.15)
    assert 0.9 <= share_right(noisy, cost.fit_parameters(noisy, HOST, GPU)) <= 1.0
    always_gpu = MachineParameters(
        {pair: Line(1e9, 0.0) for pair in MADE_UP[0].host}, MADE_UP[0].gpu, {"cudf": Line(0, 0)}, {"cudf": Line(0, 0)}
    )
    assert share_right(times, always_gpu) < 0.9


def test_a_rule_of_thumb_is_what_the_choice_has_to_beat() -> None:
    """Counted by hand: of the measured winners, those on the GPU from a number of rows on, and on the host below."""
    _, times = made_up()
    places = cost.sooner(times, HOST, GPU)
    assert set(places) == set(cost.verdicts(times, MADE_UP[0], HOST, GPU))
    for rows in (0, 10**6, 10**12):
        found = cost.verdicts_of_rule(times, HOST, GPU, rows)
        assert found == {point: (point[1] >= rows) == (place == "gpu") for point, place in places.items()}
    assert cost.verdicts_of_rule(times, HOST, GPU) == cost.verdicts_of_rule(times, HOST, GPU, 10**6)
    assert sum(cost.verdicts_of_rule(times, HOST, GPU).values()) < len(places)


@every_operation
def test_memory_that_is_needed_grows_with_what_the_result_repeats(operation: str) -> None:
    rows = 10**6
    own = rows * sum(cost.WIDTH[name] for name in operations.get(operation).columns)
    needed = cost.memory_needed(operation, own, rows)
    assert needed >= own + cost.bytes_out(operation, rows)
    assert cost.memory_needed(operation, own + 5 * rows, rows) == pytest.approx(needed + 10 * rows)


def test_memory_of_a_filter_and_a_sort_is_what_was_watched() -> None:
    """Of a row of 20 bytes, all of which the filter keeps here; of a sort the pairs and numbers are there thrice."""
    assert cost.memory_needed("filter", 20, 1) == 20 + 8 + 1 + 4 + 20
    assert cost.memory_needed("sort", 20, 1) == 80


def test_sizes_that_the_fit_has_not_seen_are_predicted_too() -> None:
    _, times = made_up()
    exact = cost.unseen_verdicts(times, HOST, GPU)
    assert set(exact) == set(cost.verdicts(times, cost.fit_parameters(times, HOST, GPU), HOST, GPU))
    assert len(exact) == len(operations.OPERATIONS) * len(ROWS) * 3
    assert all(exact.values())
    odd = [
        Measurement(each.engine, each.operation, each.rows, each.transfer, each.seconds * 1000)
        if each.rows == 10**8 and each.engine in GPU
        else each
        for each in times
    ]
    wrong = {point for point, is_right in cost.unseen_verdicts(odd, HOST, GPU).items() if not is_right}
    assert {rows for _, rows, _ in wrong} >= {10**8}


def test_an_engine_without_measured_copies_is_asked_for_resident_frames_only() -> None:
    machine = MachineParameters(
        {("pandas", "sort"): Line(1.0, 0.0)}, {("cudf-pandas", "sort"): Line(1e-3, 0.0)}, TO_GPU, FROM_GPU
    )
    assert cost.where_to_run("sort", 10, resident=True, machine=machine).engine == "cudf-pandas"
    with pytest.raises(GpuguideError, match="measured with the copies of 'sort'"):
        cost.where_to_run("sort", 10, resident=False, machine=machine)


def test_the_faster_copy_can_decide() -> None:
    """Our copy is faster, and our group-by is not; which engine is chosen depends on where the frame is."""
    lines = {("cudf", "groupby"): Line(1e-3, 1e-10), ("gpuguide", "groupby"): Line(1e-3, 2e-10)}
    machine = MachineParameters({("pandas", "groupby"): Line(1.0, 1e-6)}, lines, TO_GPU, FROM_GPU)
    assert cost.where_to_run("groupby", 10**8, resident=True, machine=machine).engine == "cudf"
    assert cost.where_to_run("groupby", 10**8, resident=False, machine=machine).engine == "gpuguide"


def test_a_negative_number_of_rows_is_refused() -> None:
    with pytest.raises(GpuguideError, match="cannot have -1 rows"):
        cost.where_to_run("sort", -1, resident=True, machine=MADE_UP[0])


# --- queries on files ------------------------------------------------------------------------------------

PRICES = {
    "polars": FilePrices(numbers=2e-10, codes=4e-10, text=1e-9, work=0.5, query=1e-3),
    "cudf": FilePrices(numbers=1e-11, codes=3e-11, text=0.0, work=1.2, query=2e-2),
}
SIZES = (10**6, 10**7, 10**8)


def query_times(spread: float = 0.0) -> list[QueryTime]:
    """Return the times of ten queries at three sizes that the prices give, each wrong by up to a share."""
    chance, times = random.Random(1), []
    for query in range(10):
        widths, share = [chance.choice((0, 8, 16, 24)) for _ in range(3)], chance.uniform(1e-9, 1e-8)
        for rows in SIZES:
            for engine, prices in PRICES.items():
                work = rows * share * (1 if engine == "polars" else 0.1)
                amounts = FileAmounts(*(float(rows * width) for width in widths), work=work)
                seconds = prices.predict(amounts) * (1 + spread * chance.uniform(-1, 1))
                times.append(QueryTime(engine, f"q{query}", rows, amounts, seconds))
    return times


def test_a_query_on_a_file_is_the_sum_of_its_parts() -> None:
    amounts = FileAmounts(numbers=1e9, codes=2e9, text=3e9, work=0.5)
    assert PRICES["polars"].predict(amounts) == pytest.approx(0.2 + 0.8 + 3.0 + 0.25 + 1e-3)


def test_prices_are_found_again_from_times_of_queries() -> None:
    found = cost.fit_files(query_times())
    assert set(found) == set(PRICES)
    for engine, prices in PRICES.items():
        assert vars(found[engine]) == {name: pytest.approx(price, rel=1e-6) for name, price in vars(prices).items()}
    noisy = cost.fit_files(query_times(0.1))
    for time in query_times():
        assert noisy[time.engine].predict(time.amounts) == pytest.approx(time.seconds, rel=0.15)


AMOUNT = st.just(0.0) | st.floats(1e-6, 10)


@given(st.lists(st.lists(AMOUNT, min_size=3, max_size=3), min_size=1, max_size=6), st.randoms())
def test_no_other_prices_above_zero_fit_better(rows: list[list[float]], chance: random.Random) -> None:
    shares = np.array(rows)
    best = solve_without_negatives(shares)
    assert (best >= 0).all()
    least = ((shares @ best - 1) ** 2).sum()
    for _ in range(20):
        size = chance.choice((1e-3, 0.1, 1.0, 3.0))
        other = np.maximum(0.0, best + np.array([chance.uniform(-size, size) for _ in best]))
        assert ((shares @ other - 1) ** 2).sum() >= least - 1e-6


def test_an_engine_with_few_times_has_no_prices_and_none_without_times() -> None:
    times = query_times()
    few = [time for time in times if time.engine == "polars" or time.query == "q0"]
    assert set(cost.fit_files(few)) == {"polars"}
    assert cost.fit_files([]) == {}
    for wrong in ([], [replace(times[0], seconds=0.0)]):
        with pytest.raises(GpuguideError, match="all above 0"):
            cost.fit_prices(wrong)


def test_queries_are_judged_by_prices_that_were_fitted_without_them() -> None:
    exact = cost.unseen_queries(query_times())
    assert len(exact) == 10 * len(SIZES)
    assert all(verdict.right and verdict.longer == 1.0 for verdict in exact.values())
    assert {verdict.fastest for verdict in exact.values()} == set(PRICES)
    changed = [
        replace(time, seconds=2 * time.seconds)
        if (time.query, time.engine) == ("q3", exact["q3", 10**8].named)
        else time
        for time in query_times()
    ]
    found = cost.unseen_queries(changed)
    for rows in SIZES:
        assert found["q3", rows].named == exact["q3", rows].named, "its own times must not be seen"


@pytest.mark.parametrize(("longer", "right"), [(1.0, True), (1.09, True), (1.11, False)])
def test_ten_percent_longer_than_the_fastest_is_right(longer: float, right: bool) -> None:
    """Of two engines that are alike but at one query, the one named there is the one whose time was made longer."""
    times = [time for time in query_times() if time.engine == "polars"]
    other = [
        replace(time, engine="duckdb", seconds=time.seconds * (1 / longer if time.query == "q0" else 1.001))
        for time in times
    ]
    verdict = cost.unseen_queries([*times, *other])["q0", 10**8]
    assert verdict.named == "polars"
    assert verdict.longer == pytest.approx(longer)
    assert verdict.right is right


def test_the_rule_of_one_engine_is_right_where_that_engine_is_nearly_the_fastest() -> None:
    times = [time for time in query_times() if (time.engine, time.query) != ("cudf", "q0")]
    found = cost.verdicts_of_engine(times, "cudf")
    seconds = {(time.engine, time.query, time.rows): time.seconds for time in times}
    assert len(found) == 9 * len(SIZES)
    for (query, rows), verdict in found.items():
        polars, cudf = seconds["polars", query, rows], seconds["cudf", query, rows]
        assert verdict.named == "cudf"
        assert verdict.right is (cudf <= 1.1 * polars)
    assert 0 < sum(verdict.right for verdict in found.values()) < len(found)


def test_engines_are_compared_where_both_were_measured() -> None:
    times = [time for time in query_times() if (time.engine, time.query, time.rows) != ("cudf", "q0", 10**8)]
    assert cost.unseen_queries(times)["q0", 10**8] == cost.QueryVerdict("polars", "polars", 1.0)
