"""Figures that one can try: scripts agree with the library, and work by keyboard, by pointer and without scripts."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packaged import decoder
from small_site import cell, start

from gpuguide import plotting
from gpuguide.attention import cost, tiled
from gpuguide.errors import GpuguideError
from gpuguide.inference import Engine
from gpuguide.inference import cost as serving_cost
from gpuguide.inference.serving import Clock, Request, Scheduler
from gpuguide.logits import adjust, softmax
from gpuguide.measure import folders, measured_ceilings, store
from gpuguide.plotting import attention_backends, interactive, training_map
from gpuguide.plotting.pictures import attention, choosing, serving
from gpuguide.site.theme.assets import THEME

PAGE = f"""
{cell("from gpuguide import plotting; plotting.roofline_to_try()")}

{cell("from gpuguide.plotting import pictures; pictures.attention.online_softmax()")}

{cell("pictures.serving.slots_over_time()")}

{cell('plotting.sampling_to_try([2.0, 1.0, 0.0, -1.0], ["a", "b", "c", "d"], "a word")')}

{cell("pictures.choosing.kernel_lanes()")}

{cell("plotting.limits_to_try()")}

{cell('plotting.rank_to_try([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 1.0]], "a matrix", first=1)')}

{cell("plotting.map_to_try(lambda one, other: abs(sum(one) - sum(other)) < 0.1)")}
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with the figures."""
    made = start(tmp_path_factory.mktemp("site"))
    shutil.copytree(folders.published_folder(), made.library / "records", dirs_exist_ok=True)
    made.page("index", PAGE, benchmarks="attention, ceilings, decode-attention, timing-mistakes, training-runs")
    build = made.build()
    assert build.status == 0, build.output
    return made.html / "index.html"


def opened(browser: Any, path: Path, *, javascript: bool = True, width: int = 1280) -> Any:
    context = browser.new_context(viewport={"width": width, "height": 900}, java_script_enabled=javascript)
    tab = context.new_page()
    tab.on("pageerror", lambda error: pytest.fail(f"{path.name}: {error}"))
    tab.goto(path.as_uri())
    return tab


@pytest.fixture
def tab(browser: Any, page: Path) -> Iterator[Any]:
    found = opened(browser, page)
    yield found
    found.context.close()


@pytest.mark.browser
@pytest.mark.slow
def test_the_knobs_keep_what_the_library_keeps(browser: Any) -> None:
    draw = random.Random(17)
    cases = []
    for _ in range(60):
        row = sorted((draw.gauss(0, 3) for _ in range(40)), reverse=True)
        settings = {
            "temperature": draw.choice([0.0, 0.3, 1.0, 2.5]),
            "top_k": draw.choice([0, 1, 5, 100]),
            "top_p": draw.choice([0.05, 0.5, 0.9, 1.0]),
            "min_p": draw.choice([0.0, 0.1, 1.0]),
        }
        cases.append(([each - row[0] for each in row], settings))
    tab = browser.new_page()
    tab.add_script_tag(path=str(THEME / "static" / "sampling-knobs.js"))
    found = tab.evaluate("cases => cases.map(([row, settings]) => gpuguide.sampling(row, settings))", cases)
    tab.close()
    for (row, settings), shares in zip(cases, found, strict=True):
        expected = softmax(adjust(torch.tensor(row, dtype=torch.float64), **settings))
        torch.testing.assert_close(torch.tensor(shares, dtype=torch.float64), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.browser
@pytest.mark.slow
def test_the_rank_slider_multiplies_what_numpy_multiplies(browser: Any) -> None:
    draw = np.random.default_rng(18)
    tab = browser.new_page()
    tab.add_script_tag(path=str(THEME / "static" / "rank-slider.js"))
    for rows, columns in ((1, 1), (3, 7), (20, 8), (32, 48)):
        update = draw.normal(size=(rows, columns)) * np.exp(-draw.random(columns) * 3)
        shown = plotting.rank_to_try(update, "a matrix", first=0).interactive
        left, values, right = np.linalg.svd(update, full_matrices=False)
        for rank in {0, 1, min(rows, columns) // 2, min(rows, columns)}:
            found = tab.evaluate(
                "([b, a, rank]) => { const [left, right] = [gpuguide.unpacked(b), gpuguide.unpacked(a)];"
                " const whole = gpuguide.lowRank(left, right, left.columns);"
                " const product = gpuguide.lowRank(left, right, rank);"
                " return { values: [...product.values], ...gpuguide.keptOf(whole, product) }; }",
                [shown["b"], shown["a"], rank],
            )
            expected = (left[:, :rank] * values[:rank]) @ right[:rank]
            np.testing.assert_allclose(
                np.reshape(found["values"], update.shape), expected, atol=2e-3 * np.abs(update).max()
            )
            energy = float((values[:rank] ** 2).sum() / (values**2).sum())
            assert found["energy"] == pytest.approx(energy, abs=1e-3)
            assert found["error"] ** 2 == pytest.approx(1 - energy, abs=1e-3)
    tab.close()


@pytest.mark.browser
@pytest.mark.slow
def test_limits_of_a_chain_are_those_of_the_library(browser: Any) -> None:
    tab = browser.new_page()
    tab.add_script_tag(path=str(THEME / "static" / "step-limits.js"))
    machine = plotting.limits_to_try().interactive["machine"]
    for elements in (2**10, 2**20, 2**28):
        for operations in (1, 24):
            for name in interactive.CHAINS:
                found = tab.evaluate(
                    "([machine, elements, operations, way]) => "
                    "gpuguide.chainLimits(machine, elements, operations, way)",
                    [machine, elements, operations, name],
                )
                assert found == pytest.approx(interactive.chain_limits(machine, elements, operations, name))
    tab.close()


@pytest.mark.browser
@pytest.mark.slow
def test_more_elements_make_bytes_the_limit_by_keyboard(tab: Any) -> None:
    answer = tab.locator("#fig-limits-to-try .gg-try-answer")
    assert "One by one, launches are the limit" in answer.text_content()
    tab.get_by_label("Elements of each array").focus()
    tab.keyboard.press("End")
    assert "One by one, bytes are the limit" in answer.text_content()


@pytest.mark.browser
@pytest.mark.slow
def test_a_higher_rank_keeps_more_of_the_update(tab: Any) -> None:
    answer = tab.locator("#fig-rank-to-try .gg-try-answer")
    assert "Rank 1: B A keeps 64% of the update's squared norm; the error is 60%" in answer.text_content()
    tab.get_by_label("Rank r").focus()
    tab.keyboard.press("ArrowRight")
    assert "Rank 2: B A keeps 93%" in answer.text_content()
    assert "2 × (3 + 3) = 12 numbers, 133% of 9" in answer.text_content()
    tab.keyboard.press("Home")
    assert answer.text_content().startswith("Rank 0: nothing is trained")
    assert not tab.locator(".gg-rank-b").is_visible()


@pytest.mark.browser
@pytest.mark.slow
def test_the_map_of_the_loss_shows_the_means_and_best_rates_of_the_library(tab: Any) -> None:
    found = training_map.settings(store.load_published("training-runs"))
    good = training_map.good_by_batch(found, lambda one, other: abs(sum(one) - sum(other)) < 0.1)
    cells = tab.locator("#fig-map-to-try .gg-loss-map button")
    assert cells.count() == len(found)
    for one in found:
        name = f"batch {one.batch}, rate {training_map.name_rate(one.rate)}, "
        named = cells.and_(tab.locator(f'[aria-label^="{name}"]'))
        assert named.text_content() == f"{one.loss:.2f}"
        assert named.evaluate("each => each.classList.contains('gg-best')") == (one.rate in good[one.batch])


@pytest.mark.browser
@pytest.mark.slow
def test_arrows_go_from_cell_to_cell_of_the_map_of_the_loss(tab: Any) -> None:
    found = {(one.batch, one.rate): one for one in training_map.settings(store.load_published("training-runs"))}
    figure = tab.locator("#fig-map-to-try")
    answer, pressed = figure.locator(".gg-try-answer"), figure.locator('.gg-loss-map [aria-pressed="true"]')
    best = min(found.values(), key=lambda one: one.loss)
    assert answer.get_attribute("role") == "status"
    assert answer.text_content().startswith(f"Batch {best.batch:,}, rate {training_map.name_rate(best.rate)}: ")
    assert figure.locator('.gg-loss-map button[tabindex="0"]').count() == 1
    pressed.focus()
    for _ in training_map.best_by_batch(list(found.values())):
        tab.keyboard.press("ArrowRight")  # the last of them stay in the last column
    assert pressed.evaluate("each => each === document.activeElement")
    one = found[max(batch for batch, _ in found), best.rate]
    losses = ", ".join(f"{loss:.3f}" for loss in one.losses)
    assert f"rate {training_map.name_rate(one.rate)}: held-out loss {losses} with" in answer.text_content()
    assert f"for batch {one.batch} and rate" in figure.locator("svg[role=img]").get_attribute("aria-label")
    tab.keyboard.press("ArrowUp")
    assert f"rate {training_map.name_rate(2 * one.rate)}: " in answer.text_content()
    figure.get_by_role("button", name="batch 64, rate 4e-3").click()
    assert answer.text_content().startswith("Batch 64, rate 4e-3: ")
    assert pressed.count() == 1


@pytest.mark.parametrize(("update", "rank"), [([1.0], 1), ([[0.0]], 1), ([[float("nan")]], 1), ([[1.0]], 2)])
def test_an_update_without_that_rank_is_refused(update: Any, rank: int) -> None:
    with pytest.raises(GpuguideError, match="a rank up to its smaller side"):
        plotting.rank_to_try(update, "a matrix", first=rank)


@pytest.mark.browser
@pytest.mark.slow
def test_a_knob_is_turned_by_keyboard_and_back(tab: Any) -> None:
    answer = tab.locator("#fig-sampling-to-try .gg-try-answer")
    assert answer.text_content().startswith("4 of 4 tokens can be drawn")
    tab.get_by_label("Top-k").focus()
    tab.keyboard.press("ArrowRight")
    assert answer.text_content() == "1 of 4 tokens can be drawn; the entropy is 0.00 nats."
    assert tab.get_by_label("Top-k").get_attribute("aria-valuetext") == "1"
    assert tab.locator("#fig-sampling-to-try tr.gg-dropped").count() == 3
    tab.locator("#fig-sampling-to-try").get_by_role("button", name="Reset").click()
    assert answer.text_content().startswith("4 of 4")


@pytest.mark.browser
@pytest.mark.slow
def test_the_roofline_tells_what_bounds_a_kernel_where_one_points(tab: Any) -> None:
    answer = tab.locator("#fig-roofline-to-try .gg-try-answer")
    slider = tab.get_by_label("Operations for each byte")
    slider.focus()
    tab.keyboard.press("Home")
    assert "memory bandwidth is the limit" in answer.text_content()
    box = tab.locator("#fig-roofline-to-try .gg-roofline-place").bounding_box()
    tab.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 0.5 * box["height"])
    assert "arithmetic is the limit" in answer.text_content()
    assert float(slider.input_value()) > 3
    before = answer.text_content()
    tab.locator("#fig-roofline-to-try").get_by_label("Number format").select_option("fp32")
    assert "in fp32" in answer.text_content() != before


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
def test_without_scripts_the_drawings_stand_there(browser: Any, page: Path, width: int) -> None:
    plain = opened(browser, page, javascript=False, width=width)
    seen = "all => all.map(each => each.checkVisibility())"
    assert plain.locator("figure.gg-figure img.only-light").evaluate_all(seen) == [True] * 8
    assert plain.locator(".gg-try :not(script)").count() == 0
    plain.context.close()
    scripted = opened(browser, page, width=width)
    assert scripted.locator("figure.gg-figure img").evaluate_all(seen) == [False] * 16
    assert scripted.evaluate("document.documentElement.scrollWidth") <= width
    scripted.context.close()


def test_a_distribution_that_is_none_is_refused() -> None:
    for logits, tokens in (([], []), ([1.0], ["a", "b"]), ([float("nan")], ["a"])):
        with pytest.raises(GpuguideError, match="finite logit and a text for each token"):
            plotting.sampling_to_try(logits, tokens, "a word")


def test_the_roofline_is_that_of_the_best_records() -> None:
    shown = plotting.roofline_to_try().interactive
    gpu = measured_ceilings.load_reference()
    assert shown["bandwidth"] == gpu.bandwidth["copy"].value
    roofs = {roof["name"]: roof["rate"] for roof in shown["roofs"]}
    assert roofs == {name: gpu.arithmetic[name].value for name in ("fp8", "bf16", "tf32", "fp32")}
    assert [point["name"] for point in shown["points"]] == ["square", "skinny"]


# --- the online softmax ------------------------------------------------------------------------------------


def library_states(scores: list[float], values: list[float], tile: int, query: int, causal: bool) -> dict[str, Any]:
    """Return what the library's online softmax keeps after each tile that it reads, its output and its bytes."""
    row, traffic = slice(query, query + 1), tiled.TileTraffic()
    tiling = tiled.AttentionTiling(len(scores), len(scores), causal, 1, tile)
    all_scores, all_values = (torch.tensor(each, dtype=torch.float64) for each in (scores, values))
    rows = torch.zeros(len(scores), attention.HEAD_DIM, dtype=torch.bfloat16)
    state, kept, read = tiled.initial_state(torch.zeros(1, 1, dtype=torch.float64)), [], []
    for columns in tiling.columns:
        visible = tiling.is_visible(row, columns)
        if visible:
            masked = tiling.apply_causal_mask(all_scores[None, columns], row, columns)
            state = tiled.update_state(state, masked, all_values[columns, None])
            traffic.load(rows[columns]), traffic.load(rows[columns])
        kept.append([float(each) for each in state] + [not visible])
        read.append(traffic.read)
    seen = query + 1 if causal else len(scores)
    full = float(all_scores[:seen].softmax(dim=0) @ all_values[:seen])
    return {"kept": kept, "read": read, "output": float(state.acc / state.l_i), "full": full}


@pytest.mark.browser
@pytest.mark.slow
def test_the_online_softmax_keeps_what_the_library_keeps(browser: Any) -> None:
    draw, cases = random.Random(5), []
    for _ in range(80):
        count, causal = draw.randint(1, 9), draw.random() < 0.5
        spread = draw.choice([0.0, 3.0, 400.0])
        scores, values = ([draw.uniform(-size, size) for _ in range(count)] for size in (spread, 60.0))
        cases.append((scores, values, draw.choice([1, 2, 4]), draw.randrange(count), causal))
    tab = browser.new_page()
    tab.add_script_tag(path=str(THEME / "static" / "online-softmax.js"))
    found = tab.evaluate(
        """([cases, known]) => cases.map(([scores, values, tile, query, causal]) => {
          const visible = causal ? query + 1 : scores.length;
          const { steps, output } = gpuguide.onlineSoftmax(scores, values, { tile, visible });
          const count = { ...known, keys: scores.length, causal };
          return { kept: steps.map(({ m, l, acc, skipped }) => [m, l, acc, skipped]), output,
            full: gpuguide.fullSoftmax(scores, values, visible),
            bytes: steps.map(({ keysRead }) => gpuguide.attentionBytes({ ...count, keysRead })) };
        })""",
        [cases, dict(attention.online_softmax().interactive)],
    )
    tab.close()
    for case, mine in zip(cases, found, strict=True):
        wanted = library_states(*case)
        for kept, expected in zip(mine["kept"], wanted["kept"], strict=True):
            assert kept == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert [each["tiledRows"] for each in mine["bytes"]] == wanted["read"]
        assert mine["output"] == pytest.approx(wanted["output"], rel=1e-9, abs=1e-12)
        assert mine["full"] == pytest.approx(wanted["full"], rel=1e-9, abs=1e-12)
        assert mine["output"] == pytest.approx(mine["full"], rel=1e-6, abs=1e-9)
        lines = cost.naive_forward(cost.problem(1, 1, 1, attention.HEAD_DIM, keys=len(case[0]), causal=case[4]))
        stored = cost.score_passes(lines) * len(case[0]) * 2
        assert mine["bytes"][-1]["storedScores"] == stored
        query_and_mask = 2 * 2 * attention.HEAD_DIM + (len(case[0]) if case[4] else 0)
        assert mine["bytes"][-1]["storedRows"] == cost.bytes_moved(lines) - stored - query_and_mask


@pytest.mark.browser
@pytest.mark.slow
def test_the_online_softmax_is_stepped_by_keyboard_to_the_full_softmax(tab: Any) -> None:
    figure = tab.locator("#fig-online-softmax")
    answer = figure.locator(".gg-try-answer")
    assert answer.text_content().startswith("Tile 1 of 3: the maximum is 3.")
    figure.get_by_role("button", name="Next").focus()
    tab.keyboard.press("Enter")
    assert "jumps from 3 to 5" in answer.text_content()
    tab.keyboard.press("ArrowRight")
    assert "the maximum stays 5, so alpha is 1" in answer.text_content()
    tab.keyboard.press("End")
    assert answer.text_content().endswith("equal to 1e-6.")
    ended = answer.text_content()
    tab.get_by_label("Keys in a tile").select_option("4")
    assert answer.text_content() == ended, "the result does not depend on the tiles"
    figure.locator(".gg-softmax-stage").focus()
    tab.keyboard.press("Home")
    assert answer.text_content().startswith("No key has been seen")
    assert figure.get_by_role("button", name="Back").get_attribute("aria-disabled") == "true"
    figure.get_by_role("button", name="Reset").click()
    assert answer.text_content().startswith("Tile 1 of 3")


@pytest.mark.browser
@pytest.mark.slow
def test_scores_masks_and_orders_of_keys_are_changed(tab: Any) -> None:
    figure = tab.locator("#fig-online-softmax")
    answer, score = figure.locator(".gg-try-answer"), figure.get_by_label("Score of key 2")
    score.fill("900")
    assert answer.text_content().startswith("Tile 1 of 3: the maximum is 900.")
    for wrong in ("", "1e9"):
        score.fill(wrong)
        assert "A score is a number" in answer.text_content()
        assert score.get_attribute("aria-invalid") == "true"
    figure.get_by_role("button", name="Reset").click()
    assert score.input_value() == "3"
    figure.get_by_label("Mask").select_option("3")
    stage = figure.locator(".gg-softmax-stage")
    stage.press("ArrowRight")
    assert "The mask sets 1 of its scores" in answer.text_content()
    stage.press("ArrowRight")
    assert "skipped: neither read nor computed" in answer.text_content()
    assert figure.locator('[data-state="hidden"]').count() == 3
    figure.get_by_label("Mask").select_option("0")
    stage.press("End")
    result = answer.text_content()
    figure.get_by_role("button", name="Shuffle the keys").click()
    assert answer.text_content() == result, "the result does not depend on the order of the keys"


def test_the_figure_counts_the_passes_over_scores_as_the_library_does() -> None:
    for name, causal in (("plain", False), ("causal", True)):
        lines = cost.naive_forward(cost.problem(1, 1, 6, attention.HEAD_DIM, causal=causal))
        assert attention.SCORE_PASSES[name] == cost.score_passes(lines)


# --- rows of a batch over time -----------------------------------------------------------------------------


class ModelEngine(Engine):
    """Computes nothing, and takes as long as the model of the figure: a unit for a step, and a part for each token."""

    def __init__(self, rows: int) -> None:
        super().__init__(decoder(), rows, 512)
        self.time = 0.0
        self.clock = Clock(now=lambda: self.time, wait=self.wait)

    def wait(self, duration: float) -> None:
        self.time += duration

    def read(self, pieces: Sequence[Sequence[int]], rows: torch.Tensor, start: int) -> torch.Tensor:
        self.time += serving.TO_TRY["prefill_token"] * len(pieces) * max(map(len, pieces))
        return torch.zeros(len(pieces), 1)

    def choose(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(rows), dtype=torch.int64)

    def step(self, rows: int | None = None) -> torch.Tensor:
        self.time += 1.0
        return self.tokens[:rows]


def library_run(requests: list[dict[str, Any]], rows: int, policy: str, chunk: int) -> dict[str, Any]:
    """Return what the library's scheduler does with these requests: who has which row when, and what steps do."""
    engine = ModelEngine(rows)
    scheduler = Scheduler(engine, policy=policy, chunk=chunk, share=False, clock=engine.clock)
    scheduler.run([Request([1] * each["prompt"], each["length"], arrival=each["arrival"]) for each in requests])
    names = ("slot", "entered_at", "began_at", "ended_at", "left_at")
    texts = [[getattr(text, name) for name in names] for text in scheduler.texts.values()]
    return {"texts": texts, "steps": [[step.writing, step.read] for step in scheduler.steps], "end": engine.time}


def serve_in_browser(browser: Any, cases: Sequence[tuple[Any, ...]]) -> list[dict[str, Any]]:
    tab = browser.new_page()
    tab.add_script_tag(path=str(THEME / "static" / "batching.js"))
    found = tab.evaluate(
        """([cases, usual]) => cases.map(([requests, rows, policy, chunk, prefill_token = usual]) => {
          const served = gpuguide.serveRequests(requests, { rows, policy, chunk, prefill_token });
          return { texts: served.texts.map((t) => [t.slot, t.entered_at, t.began_at, t.ended_at, t.left_at]),
            times: served.texts.map((t) => t.times), steps: served.steps.map((s) => [s.writing, s.read]),
            end: served.steps.at(-1).end, summary: gpuguide.summariseServing(served, rows) };
        })""",
        [cases, serving.TO_TRY["prefill_token"]],
    )
    tab.close()
    return list(found)


@pytest.mark.browser
@pytest.mark.slow
def test_rows_are_given_as_the_scheduler_gives_them(browser: Any) -> None:
    draw, cases = random.Random(11), []
    for _ in range(40):
        arrival, requests, spread = 0.0, [], draw.choice([0, 1, 8])
        for _ in range(draw.randint(1, 20)):
            arrival += draw.randrange(65) * spread / 64  # a sum of such has no rounding
            requests.append({"arrival": arrival, "prompt": draw.randint(1, 80), "length": draw.randint(1, 30)})
        policy = draw.choice(["static", "continuous"])
        cases.append((requests, draw.randint(2, 16), policy, draw.choice([16, 64, 4096])))
    for case, mine in zip(cases, serve_in_browser(browser, cases), strict=True):
        wanted = library_run(*case)
        assert mine["texts"] == wanted["texts"], case
        assert mine["steps"] == wanted["steps"], case
        assert mine["end"] == wanted["end"], case
        assert [len(times) for times in mine["times"]] == [request["length"] for request in case[0]]


@pytest.mark.browser
@pytest.mark.slow
def test_without_prefill_rows_are_given_as_the_model_on_the_page_gives_them(browser: Any) -> None:
    draw, cases = random.Random(12), []
    for _ in range(40):
        lengths = [draw.randint(2, 40) for _ in range(draw.randint(1, 30))]
        requests = [{"arrival": 0, "prompt": 1, "length": length} for length in lengths]
        cases.append((requests, draw.randint(2, 16), draw.choice(["static", "continuous"]), 4096, 0))
    for (requests, rows, policy, *_), mine in zip(cases, serve_in_browser(browser, cases), strict=True):
        rest = [request["length"] - 1 for request in requests]  # the first token belongs to the prompt
        slots = (serving_cost.static_slots if policy == "static" else serving_cost.continuous_slots)(rest, rows)
        assert [(row, began, ended) for row, _, began, ended, _ in mine["texts"]] == [
            (slot.row, slot.start, slot.finish) for slot in slots
        ]
        assert mine["summary"]["time"] == serving_cost.steps(slots)
        assert mine["summary"]["occupancy"] == pytest.approx(serving_cost.occupancy(slots, rows))


@pytest.mark.browser
@pytest.mark.slow
def test_percentiles_are_those_of_numpy(browser: Any) -> None:
    draw = random.Random(13)
    requests = [
        {"arrival": draw.random() * 20, "prompt": draw.randint(1, 80), "length": draw.randint(2, 30)} for _ in range(25)
    ]
    (mine,) = serve_in_browser(browser, [(requests, 4, "continuous", 16)])
    first = [times[0] - request["arrival"] for times, request in zip(mine["times"], requests, strict=True)]
    between = np.concatenate([np.diff(times) for times in mine["times"]])
    assert mine["summary"]["first"] == pytest.approx(np.percentile(first, [50, 95]))
    assert mine["summary"]["between"] == pytest.approx(np.percentile(between, [50, 95]))
    tokens = sum(request["length"] for request in requests)
    assert mine["summary"]["throughput"] == pytest.approx(tokens / mine["end"])


@pytest.mark.browser
@pytest.mark.slow
def test_a_batch_is_changed_by_keyboard_and_keeps_its_requests(tab: Any) -> None:
    figure = tab.locator("#fig-slots-over-time")
    answer = figure.locator(".gg-try-answer")
    table = figure.locator("table")
    assert answer.text_content().startswith(f"{serving.TRIED} requests in 4 rows, static batches")
    before = table.inner_text()
    figure.get_by_label("Policy").select_option("chunked")
    assert "4 rows, chunked prefill" in answer.text_content()
    assert table.inner_text() == before, "the policies are compared over the same requests"
    assert "chunked prefill" in table.locator(".gg-states-now").inner_text()
    figure.get_by_role("slider", name="Rows").focus()
    tab.keyboard.press("End")
    assert "in 16 rows" in answer.text_content()
    figure.get_by_label("Spread of lengths").focus()
    tab.keyboard.press("Home")
    figure.get_by_label("Arrivals").select_option("0.1")
    assert table.inner_text() != before
    figure.get_by_role("button", name="Reset").click()
    assert table.inner_text() == before
    assert figure.locator("svg.gg-batch").get_attribute("aria-label") == answer.text_content()


# --- backends for attention ----------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.slow
def test_the_chooser_finds_what_the_library_finds(browser: Any) -> None:
    draw, preferences = random.Random(23), choosing.preferences()
    cases = [
        {name: draw.choice(list(values)) for name, values in attention_backends.SETTINGS.items()} for _ in range(400)
    ]
    tab = browser.new_page()
    tab.add_script_tag(path=str(THEME / "static" / "attention-chooser.js"))
    declared = attention_backends.declare(preferences, {})
    found = tab.evaluate(
        "([known, cases]) => cases.map((each) => gpuguide.findBackend(known, each))", [declared, cases]
    )
    tab.close()
    for settings, mine in zip(cases, found, strict=True):
        wanted = asdict(attention_backends.find_backend(settings, preferences))
        assert mine == json.loads(json.dumps(wanted)), settings


@pytest.mark.browser
@pytest.mark.slow
def test_needs_rule_backends_out_by_keyboard(tab: Any) -> None:
    figure = tab.locator("#fig-kernel-lanes")
    answer, call = figure.locator(".gg-chooser-answer"), figure.locator("pre")
    refused = figure.locator('[data-verdict="refuses"]')
    assert answer.get_attribute("role") == "status"
    assert answer.text_content().startswith("Use FlashAttention-4, the first that stays without a limit.")
    assert "No backend refuses." in answer.text_content()
    assert "flash_attn_func(*transposed, causal=True)" in call.text_content()
    assert figure.locator('[data-timed="yes"]').count() == 6
    figure.get_by_label("Number format").focus()
    tab.keyboard.press("ArrowDown")
    assert answer.text_content().startswith("Use the memory-efficient kernel, the first that stays without a limit.")
    assert "3 backends refuse." in answer.text_content()
    assert "It takes bf16 and fp16 only." in refused.first.text_content()
    assert figure.locator('[data-timed="yes"]').count() == 0
    figure.get_by_label("grouped-query attention").focus()
    tab.keyboard.press("Space")
    assert answer.text_content().startswith("Use FlexAttention")
    assert "enable_gqa=True" in call.text_content()
    figure.get_by_label("GPU").select_option("cpu")
    figure.get_by_label("Mask").select_option("softcap")
    assert answer.text_content().startswith("All backends refuse.")
    assert refused.count() == 6
    assert not call.is_visible()
    figure.get_by_role("button", name="Reset").click()
    assert answer.text_content().startswith("Use FlashAttention-4")


@pytest.mark.browser
@pytest.mark.slow
def test_the_call_of_a_backend_is_copied(tab: Any) -> None:
    figure = tab.locator("#fig-kernel-lanes")
    tab.evaluate("() => { navigator.clipboard.writeText = async (text) => { window.copied = text; }; }")
    figure.get_by_role("button", name="Copy").click()
    assert tab.evaluate("window.copied") == figure.locator("pre").text_content()
    assert figure.locator(".gg-chooser-title [role=status]").text_content() == "The call is copied."
    tab.evaluate("() => { navigator.clipboard.writeText = async () => { throw new Error('not allowed'); }; }")
    figure.get_by_role("button", name="Copied").click()
    tab.wait_for_function("String(getSelection()).includes('flash_attn_func')")
