"""The calculators: each equals its Python function, refuses what makes no sense, and opens from any address."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import barriers
import pytest

import gpuguide.interconnect as interconnect
from gpuguide.costs import failures, limits, memory, presets, transfers
from gpuguide.costs.fields import faults_of, raise_first
from gpuguide.errors import GpuguideError
from gpuguide.hardware import datasheet, links
from gpuguide.measure import measured_ceilings, reference_gpu, store
from gpuguide.site.directives.calculators import data as calculators
from gpuguide.site.directives.calculators import step_drawing
from gpuguide.site.theme.assets import THEME

SITE = Path(__file__).parents[3] / "_build" / "html"
FIT, LIMIT = SITE / "docs" / "will-it-fit.html", SITE / "docs" / "what-is-the-limit.html"
MOVE, SAVE = SITE / "docs" / "how-long-to-move.html", SITE / "docs" / "how-often-to-save.html"
INPUTS = 200
FLAGS = ("gated", "tied", "learned_positions", "layer_norm", "qk_norm")

pytestmark = [pytest.mark.browser, pytest.mark.slow]
built = pytest.mark.skipif(not FIT.exists(), reason="the site is not built; run `make site`, or `make test`")


@pytest.fixture
def scripts(browser: Any) -> Iterator[Any]:
    """A page with the cost models' scripts, and nothing else."""
    page = browser.new_page()
    models = ("formulas.js", "memory.js", "limits.js", "transfers.js", "failures.js")
    for script in (*models, "calculator.js", "memory-over-step.js"):
        page.add_script_tag(path=str(THEME / "static" / script))
    yield page
    page.close()


def opened(browser: Any, path: Path, *, javascript: bool = True, width: int = 1280, **query: Any) -> Any:
    """Open a page of the site, and fail at any error of its scripts."""
    context = browser.new_context(viewport={"width": width, "height": 900}, java_script_enabled=javascript)
    page = context.new_page()
    page.on("pageerror", lambda error: pytest.fail(f"{path.name}: {error}"))
    page.goto(f"{path.as_uri()}?{urlencode(query)}")
    return page


def equal(found: float, expected: float) -> bool:
    return found == pytest.approx(expected, rel=1e-9, abs=1e-30)


# --- equality with Python --------------------------------------------------------------------------------


def random_shape(draw: random.Random) -> memory.Shape:
    """Return the shape of a published model, or one that nobody has published."""
    if draw.random() < 0.5:
        return draw.choice(list(presets.load().values())).shape
    kv_heads = draw.choice([1, 2, 3, 8])
    return memory.Shape(
        layers=draw.randint(1, 130),
        hidden=draw.randint(1, 20000),
        heads=kv_heads * draw.choice([1, 2, 4, 8]),
        kv_heads=kv_heads,
        head_dim=draw.choice([1, 64, 80, 128]),
        intermediate=draw.randint(1, 8000) * 8,
        vocab=draw.randint(1, 300000),
        context=draw.randint(1, 200000),
        bias=draw.choice(memory.BIASES),
        norms=draw.choice([2, 4]),
        experts=draw.choice([1, 8]),
        experts_used=1,
        **{flag: draw.random() < 0.5 for flag in FLAGS},
    )


def random_setup(draw: random.Random, shape: memory.Shape) -> memory.Setup:
    """Return a way of running a model; about one in ten makes no sense."""
    purpose = draw.choice(memory.PURPOSES)
    setup = memory.Setup(
        purpose=purpose,
        precision=draw.choice(memory.TRAINING_PRECISIONS if purpose == "train" else memory.WEIGHT_FORMATS),
        batch=draw.choice([1, 2, 7, 64, 512]),
        seq_len=draw.randint(1, shape.context),
        optimizer=draw.choice(memory.OPTIMIZERS),
        checkpointing=draw.random() < 0.5,
        fused_attention=draw.random() < 0.7,
        cache=draw.choice(memory.CACHE_FORMATS),
        tensor_parallel=draw.choice([1, 1, 2, 4, 8]),
        data_parallel=draw.choice([1, 2, 8, 512]),
        sharding=draw.randint(0, 3),
        accumulation=draw.choice([1, 1, 4]),
        lora_rank=draw.choice([0, 0, 16]),
        adapted=draw.choice(memory.ADAPTED),
        base=draw.choice(memory.BASES),
        prefill=draw.choice(memory.PREFILLS),
        chunk=draw.choice([1, 512, 8192]),
        checkpoint_every=draw.choice([1, 1, 2, 3]),
        loss=draw.choice(memory.LOSSES),
        activation=draw.choice(memory.ACTIVATIONS),
        optimizer_in_backward=draw.random() < 0.3,
    )
    setup = replace(
        setup,
        selective=setup.fused_attention and draw.random() < 0.5,
        offloaded=not setup.checkpointing and draw.random() < 0.3,
        accumulation=1 if setup.optimizer_in_backward else setup.accumulation,
    )
    wrong: list[dict[str, Any]] = [
        {"batch": 0},
        {"seq_len": shape.context + 1},
        {"precision": "fp64"},
        {"sharding": 7},
        {"tensor_parallel": 10**9},
        {"purpose": "dream"},
        {"lora_rank": -1},
        {"adapted": "some"},
        {"offloaded": True, "checkpointing": True},
    ]
    return replace(setup, **draw.choice(wrong)) if draw.random() < 0.1 else setup


def predicted(shape: memory.Shape, setup: memory.Setup, available: float) -> dict[str, Any]:
    """Return all that the script is asked for, computed by Python."""
    if faults := memory.setup_faults(shape, setup):
        return {"faults": faults}
    prediction = memory.predict(shape, setup)
    return {
        "parameters": shape.parameters(),
        "moments": [{"name": moment.name, **moment.parts} for moment in prediction.moments],
        "highest": prediction.highest.name,
        "total": prediction.total,
        "remedies": [[remedy.change, remedy.total] for remedy in memory.remedies(shape, setup)],
        "batch": memory.largest_batch(shape, setup, available),
    }


SCRIPT_OF_MEMORY = """([known, inputs]) => {
  const memory = gpuguide.costs.memory(known);
  return inputs.map(([shape, setup, available]) => {
    const faults = memory.setupFaults(shape, setup);
    if (Object.keys(faults).length) return { faults };
    const found = memory.predict(shape, setup);
    return { parameters: memory.parameters(shape),
      moments: found.moments.map(({ name, parts }) => ({ name, ...parts })),
      highest: found.highest.name, total: found.total,
      remedies: memory.remedies(shape, setup).map(({ change, total }) => [change, total]),
      batch: memory.largestBatch(shape, setup, available) };
  });
}"""


def same(found: Any, expected: Any) -> bool:
    """Compare what a script returned with what Python did: numbers to nine digits, all else exactly."""
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[key], value) for key, value in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float | int):
        return equal(found, expected)
    return bool(found == expected)


def test_the_script_of_memory_equals_python(scripts: Any) -> None:
    draw = random.Random(5)
    shapes = [random_shape(draw) for _ in range(INPUTS)]
    inputs = [(shape, random_setup(draw, shape), 10 ** draw.uniform(9, 12)) for shape in shapes]
    known = calculators.memory_model()
    found = scripts.evaluate(SCRIPT_OF_MEMORY, [known, [[asdict(a), asdict(b), c] for a, b, c in inputs]])
    assert len(found) == INPUTS
    wrong = 0
    for given, result in zip(inputs, found, strict=True):
        expected = json.loads(json.dumps(predicted(*given)))
        assert same(result, expected), given
        wrong += "faults" in expected
    assert 5 < wrong < INPUTS / 4


SCRIPT_OF_STEPS = """([known, words, inputs]) => {
  const memory = gpuguide.costs.memory(known);
  return inputs.map(([shape, setup, capacity]) => {
    const { moments } = memory.predict(shape, setup);
    const { parts, ...rest } = gpuguide.stepStack(moments, words.order, capacity);
    const says = (at) => gpuguide.stepSentence(moments, at, rest.peak, capacity, words);
    return { ...rest, parts: Object.fromEntries(parts.map(({ part, spans }) => [part, spans])),
      says: moments.map((_, at) => says(at)) };
  });
}"""
SIZE = re.compile(r"(\d[\d.]*(?:e\+\d+)?)(?: (B|KiB|MiB|GiB|TiB))?")


def without_sizes(sentence: str) -> tuple[str, list[float]]:
    """Split a sentence into its words and its sizes in bytes."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    sizes = [float(size) * 1024 ** units.index(unit or "B") for size, unit in SIZE.findall(sentence)]
    return SIZE.sub("#", sentence), sizes


def test_the_drawing_of_a_step_stacks_what_python_predicts(scripts: Any) -> None:
    draw = random.Random(8)
    inputs = []
    while len(inputs) < INPUTS:
        shape = random_shape(draw)
        setup = random_setup(draw, shape)
        if not memory.setup_faults(shape, setup):
            inputs.append((shape, setup, 10 ** draw.uniform(9, 13)))
    given = [[asdict(a), asdict(b), c] for a, b, c in inputs]
    words = calculators.step_words()
    found = scripts.evaluate(SCRIPT_OF_STEPS, [calculators.memory_model(), words, given])
    over = 0
    for (shape, setup, capacity), result in zip(inputs, found, strict=True):
        prediction = memory.predict(shape, setup)
        expected = json.loads(json.dumps(asdict(step_drawing.stack(prediction, capacity))))
        says = [step_drawing.describe(prediction, at, capacity) for at in range(len(prediction.moments))]
        for sentence, other in zip(result.pop("says"), says, strict=True):
            text, sizes = without_sizes(sentence)
            assert text == without_sizes(other)[0]
            assert sizes == pytest.approx(without_sizes(other)[1], rel=0.01)
        assert result["totals"] == pytest.approx([moment.total for moment in prediction.moments], rel=1e-9)
        assert list(result["parts"]) == list(expected["parts"])
        assert same({key: result[key] for key in expected}, expected)
        over += any(result["above"])
    assert INPUTS / 10 < over < INPUTS


def test_every_part_and_moment_of_the_cost_model_can_be_drawn() -> None:
    moments = {name for kind in calculators.memory_model()["moments"].values() for name, _ in kind}
    assert set(step_drawing.MOMENT_WORDS) == moments
    assert sorted(step_drawing.ORDER) == sorted(memory.PARTS)


@pytest.mark.parametrize("field", ["layers", "hidden", "kv_heads", "bias", "norms"])
def test_the_script_refuses_the_shapes_that_python_refuses(scripts: Any, field: str) -> None:
    shape = presets.get("llama-3.1-8b").shape
    for value in (0, -1, 3, 1.5, 10**10, "many"):
        try:
            replace(shape, **{field: value})
            expected: str | None = None
        except GpuguideError as error:
            expected = str(error)
        found = scripts.evaluate(
            "([known, shape]) => Object.values(gpuguide.costs.memory(known).shapeFaults(shape))[0] ?? null",
            [calculators.memory_model(), {**asdict(shape), field: value}],
        )
        assert found == expected


def random_operation(draw: random.Random) -> tuple[str, dict[str, Any]]:
    """Return the name of an operation and its input; about one in ten makes no sense."""
    name = draw.choice(list(limits.OPERATIONS))
    values = dict(limits.OPERATIONS[name]["first"])
    for key, value in values.items():
        if isinstance(value, bool):
            values[key] = draw.random() < 0.5
        elif isinstance(value, int):
            values[key] = int(10 ** draw.uniform(0, {"element_size": 1.2, "context": 4, "gpus": 3}.get(key, 5)))
    if name == "attention":
        values["heads"] = values["kv_heads"] * draw.choice([1, 4])
    if name == "all_reduce":
        values["gpus"] += 1
    choices = {"format": list(limits.ELEMENT_SIZE), "weights": limits.WEIGHTS, "cache": limits.CACHES}
    choices |= {"place": limits.PLACES, "model": list(presets.load())}
    values |= {key: draw.choice(choices[key]) for key in values if key in choices}
    if draw.random() < 0.1:
        number = draw.choice([key for key, value in values.items() if type(value) is int])
        values[number] = draw.choice([0, 10**13])
    return name, values


def limited(name: str, values: dict[str, Any], gpu: str) -> dict[str, Any]:
    """Return what the script is asked for, computed by Python: the numbers, or why there are none."""
    functions: dict[str, Any] = {
        "matmul": limits.matmul,
        "attention": limits.attention,
        "decode": limits.decode_step,
        "all_reduce": limits.all_reduce,
        "scan": limits.scan,
    }
    given = {("shape" if key == "model" else key): value for key, value in values.items()}
    if "shape" in given:
        given["shape"] = presets.get(given["shape"]).shape
    try:
        found = limits.limit(functions[name](**given), measured_ceilings.load(gpu))
    except GpuguideError as error:
        return {"fault": str(error).replace("NVIDIA ", "")}
    return {
        "flops": found.operation.flops,
        "moved": found.operation.moved,
        "time": found.time,
        "bound": found.bound,
        "intensity": found.operation.intensity,
        "ridge": found.ridge,
        "throughput": found.throughput,
        "origins": [found.rate.origin, found.bandwidth.origin],
    }


SCRIPT_OF_LIMITS = """([data, inputs]) => {
  const limits = gpuguide.costs.limits(data.limits);
  return inputs.map(([name, { model, ...input }, gpu]) => {
    const shape = model ? data.models.find((each) => each.id === model).shape : null;
    const fault = Object.values(limits.faults(name, input, shape))[0];
    if (fault) return { fault };
    const cost = limits.cost(name, input, shape);
    const machine = data.machines.find((each) => each.id === gpu);
    const lack = limits.lacking(cost, machine);
    if (lack) return { fault: lack };
    const found = limits.limit(cost, machine);
    return { flops: cost.flops, moved: cost.moved, time: found.time, bound: found.bound, intensity: found.intensity,
      ridge: found.ridge, throughput: found.throughput, origins: [found.rate.origin, found.bandwidth.origin] };
  });
}"""


def test_the_script_of_limits_equals_python(scripts: Any) -> None:
    draw = random.Random(6)
    inputs = [(*random_operation(draw), draw.choice(list(datasheet.load()))) for _ in range(INPUTS)]
    found = scripts.evaluate(SCRIPT_OF_LIMITS, [calculators.limit_data(), [list(given) for given in inputs]])
    bounds = set()
    for given, result in zip(inputs, found, strict=True):
        expected = limited(*given)
        assert same(result, expected), given
        bounds.add(expected.get("bound", "refused"))
    assert bounds >= {"arithmetic", "memory", "link", "host", "launch", "refused"}


def random_move(draw: random.Random) -> tuple[str, dict[str, Any], dict[str, Any], str]:
    """Return a thing, its input, how the link is used, and the link; about one in ten makes no sense."""
    name = draw.choice(list(transfers.THINGS))
    values = dict(transfers.THINGS[name]["first"])
    for key, value in values.items():
        if isinstance(value, int):
            values[key] = int(10 ** draw.uniform(0, {"context": 4, "size": 14}.get(key, 5)))
        elif key == "model":
            values[key] = draw.choice(list(presets.load()))
        else:
            values[key] = draw.choice(transfers.FIELDS[key].options({}))
    if name == "activations":
        values["gpus"] = draw.choice([1, 2, 4, 5, 8])
    way = {"share": draw.randint(1, 100), "latency": draw.choice([0, 1, 2500, 10**10])}
    if draw.random() < 0.1:
        wrong = draw.choice([values, way])
        wrong[draw.choice([key for key, value in wrong.items() if type(value) is int] or ["weights"])] = -1
    return name, values, way, draw.choice(list(links.load()))


def moved(name: str, values: dict[str, Any], way: dict[str, Any], link: str) -> dict[str, Any]:
    """Return what the script is asked for, computed by Python: the numbers, or why there are none."""
    given = {key: value for key, value in values.items() if key != "model"}
    try:
        shape = presets.shape(values["model"]) if "model" in values else None
        what = transfers.transfer(name, given, shape)
        raise_first(faults_of(transfers.WAY, [], way, transfers.TIME))
    except GpuguideError as error:
        return {"fault": str(error)}
    time = transfers.time_to_move(what, link, latency=way["latency"] * 1e-9, efficiency=way["share"] / 100)
    return {"moved": what.moved, "messages": what.messages, "time": time}


SCRIPT_OF_MOVES = """([data, inputs]) => {
  const transfers = gpuguide.costs.transfers(data.transfers);
  return inputs.map(([name, { model, ...input }, way, link]) => {
    const shape = model ? data.models.find((each) => each.id === model).shape : null;
    const fault = Object.values({ ...transfers.faults(name, input, shape), ...transfers.wayFaults(way) })[0];
    if (fault) return { fault };
    const what = transfers.transfer(name, input, shape);
    return { ...what, time: transfers.time(what, data.links.find(({ id }) => id === link).rate, way) };
  });
}"""


def test_the_script_of_transfers_equals_python(scripts: Any) -> None:
    draw = random.Random(7)
    inputs = [random_move(draw) for _ in range(INPUTS)]
    found = scripts.evaluate(SCRIPT_OF_MOVES, [calculators.move_data(), [list(given) for given in inputs]])
    refused, things = 0, set()
    for given, result in zip(inputs, found, strict=True):
        expected = moved(*given)
        assert same(result, expected), given
        refused += "fault" in expected
        things |= {given[0]} if "time" in expected else set()
    assert 5 < refused < INPUTS / 4
    assert things == set(transfers.THINGS)


def test_every_call_of_the_calculator_exists_and_counts_its_thing() -> None:
    assert set(calculators.CALLS) == set(transfers.THINGS) - {"bytes"}
    for name, call in calculators.CALLS.items():
        values = dict(transfers.THINGS[name]["first"])
        shape = presets.shape(values.pop("model"))
        assert getattr(interconnect, call)(shape, **values) == transfers.transfer(name, values, shape)


def test_a_measured_rate_comes_from_a_record_and_is_below_its_link() -> None:
    measured = {link["id"]: link for link in calculators.move_data()["links"] if link["measured"]}
    host = store.load_published("ceilings").median("h2d-pinned", "bandwidth")
    peers = store.load_published("peer-copy").median("copy-engine", "bandwidth", size=2**32, direction="one")
    found = {name: link["measured"]["value"] for name, link in measured.items()}
    assert found == {"pcie-5-x16": host, "nvlink-4": peers}
    assert all(found[name] < link["rate"] for name, link in measured.items())


def random_job(draw: random.Random) -> dict[str, Any]:
    """Return what fails and what is saved; about one in ten makes no sense."""
    given = {**failures.FIRST, "saving": draw.choice(failures.FIELDS["saving"].options({}))}
    for key, value in given.items():
        if isinstance(value, int):
            given[key] = int(10 ** draw.uniform(0, 4))
    if draw.random() < 0.1:
        given[draw.choice([key for key, value in given.items() if isinstance(value, int)])] = -1
    return given


def planned(given: dict[str, Any]) -> dict[str, Any]:
    """Return what the script is asked for, computed by Python: the plan, or why there is none."""
    try:
        plan = failures.plan_saves(**given)
    except GpuguideError as error:
        return {"fault": str(error)}
    return {**asdict(plan), "lost": plan.lost}


SCRIPT_OF_PLANS = """([data, inputs]) => {
  const failures = gpuguide.costs.failures(data.failures);
  return inputs.map((input) => {
    const fault = Object.values(failures.faults(input))[0];
    return fault ? { fault } : failures.plan(input);
  });
}"""


def test_the_script_of_failures_equals_python(scripts: Any) -> None:
    draw = random.Random(8)
    inputs = [random_job(draw) for _ in range(INPUTS)]
    found = scripts.evaluate(SCRIPT_OF_PLANS, [calculators.save_data(), inputs])
    refused = 0
    for given, result in zip(inputs, found, strict=True):
        expected = planned(given)
        assert same(result, expected), given
        refused += "fault" in expected
    assert 5 < refused < INPUTS / 2


# --- the pages -------------------------------------------------------------------------------------------


@built
def test_the_answer_follows_the_fields_and_the_address_follows_the_answer(browser: Any) -> None:
    page = opened(browser, FIT)
    verdict = page.locator(".gg-verdict-line")
    assert "It does not fit" in verdict.inner_text()
    page.select_option("#gg-purpose", "generate")
    page.select_option("#gg-gpu", "rtx-4090")
    page.select_option("#gg-precision", "bf16")
    assert "It fits" in verdict.inner_text()
    assert "GeForce RTX 4090" in verdict.inner_text()
    address = page.url
    assert "purpose=generate" in address
    again = browser.new_page()
    again.goto(address)
    assert again.locator(".gg-verdict-line").inner_text() == verdict.inner_text()
    again.close()
    page.context.close()


@built
def test_a_remedy_is_one_click_away(browser: Any) -> None:
    page = opened(browser, FIT, purpose="generate", precision="bf16", model="llama-2-13b", gpu="rtx-4090")
    assert "It does not fit" in page.locator(".gg-verdict-line").inner_text()
    page.get_by_role("button", name="store the weights as int8").click()
    assert "It fits" in page.locator(".gg-verdict-line").inner_text()
    assert page.locator("#gg-precision").input_value() == "int8"
    page.context.close()


@built
def test_a_cursor_goes_over_the_moments_of_the_step(browser: Any) -> None:
    page = opened(browser, FIT, gpu="h200-sxm")
    answer, slider = page.locator(".gg-step-answer"), page.locator("#gg-step-moment")
    prediction = memory.predict(presets.get(calculators.MODEL).shape, calculators.SETUP)
    names = [moment.name for moment in prediction.moments]
    assert ", the peak: " in answer.inner_text()
    assert slider.input_value() == str(names.index(prediction.highest.name))
    slider.focus()
    page.keyboard.press("Home")
    for name in names:
        assert answer.inner_text().startswith(f"At {step_drawing.MOMENT_WORDS[name]}")
        assert slider.get_attribute("aria-valuetext").startswith(f"{name}, ")
        page.keyboard.press("ArrowRight")
    box = page.locator(".gg-step-place").bounding_box()
    page.locator(".gg-step-place").hover(position={"x": 0.15 * box["width"], "y": 0.5 * box["height"]})
    assert answer.inner_text().startswith(f"At {step_drawing.MOMENT_WORDS[names[0]]}")
    page.context.close()


def outline(page: Any, kind: str) -> list[list[float]]:
    points = page.locator(f"polyline.{kind}").last.get_attribute("points")
    return [[float(number) for number in point.split(",")] for point in points.split()]


@built
def test_the_setting_before_stays_as_an_outline(browser: Any) -> None:
    page = opened(browser, FIT)
    caption = page.locator(".gg-calculator .gg-step-figure figcaption")
    assert page.locator(".gg-step-ghost").count() == 0
    setup = calculators.SETUP
    shape = presets.get(calculators.MODEL).shape
    page.fill("#gg-batch", "")
    page.locator("#gg-batch").press_sequentially("16")  # a digit after the other is one change
    now, was = (memory.predict(shape, each).total for each in (replace(setup, batch=16), setup))
    assert f"{was / 2**30:.0f} GiB at its peak; now it is {(now - was) / 2**30:.0f} GiB more" in caption.inner_text()
    assert len(outline(page, "gg-step-ghost")) == 2 * len(memory.predict(shape, setup).moments)
    page.check("#gg-checkpointing")
    assert f"{now / 2**30:.0f} GiB at its peak" in caption.inner_text()
    page.select_option("#gg-purpose", "generate")  # has other moments
    assert page.locator(".gg-step-ghost").count() == 0
    page.context.close()


@built
def test_what_is_above_the_capacity_is_hatched(browser: Any) -> None:
    for gpu, hatched in (("rtx-4090", 1), ("b200", 0)):
        page = opened(browser, FIT, gpu=gpu)
        assert page.locator('.gg-step [fill="url(#gg-step-hatch)"]').count() == hatched
        page.context.close()


def places(page: Any) -> Any:
    """Return where fields, labels and what follows the calculator stand on the page, and how tall the verdict is."""
    return page.evaluate(
        "[...document.querySelectorAll('.gg-calculator :is(input, select, label, .gg-verdict-line, .gg-answer), h2')]"
        ".map((each) => { const { x, y, height } = each.getBoundingClientRect();"
        " return each.matches('.gg-verdict-line') ? height : height && [x, y + scrollY, height]; })"
    )


@built
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("batch", "0", "“Batch size” is 0; it must be a whole number from 1 to 1000000."),
        ("batch", "", "“Batch size” is empty; it must be a whole number from 1 to 1000000."),
        ("batch", "-4", "“Batch size” is -4; it must be a whole number from 1 to 1000000."),
        ("batch", "2.5", "“Batch size” is 2.5; it must be a whole number from 1 to 1000000."),
        ("seq_len", "1e99", "“Sequence length” is 1e99; it must be a whole number from 1 to 1000000000."),
        ("seq_len", "131073", "“Sequence length” is 131073; the model knows 131072 positions."),
        ("tensor_parallel", "3", "“Tensor parallel” is 3; it must divide the 32 attention heads."),
        ("capacity", "much", "“Custom memory, GiB” is much; it must be a number from 1 to 1000000, or empty."),
        ("layers", "0", "“Layers” is 0; it must be a whole number from 1 to 1000000."),
        ("kv_heads", "5", "“KV heads” is 5; it must divide the 32 heads."),
    ],
)
def test_a_field_says_why_it_does_not_accept_a_value(browser: Any, name: str, value: str, says: str) -> None:
    page = opened(browser, FIT)
    page.evaluate("document.querySelectorAll('.gg-calculator details').forEach((fold) => { fold.open = true; })")
    before = places(page)
    page.fill(f"#gg-{name}", value)
    assert places(page) == before, "nothing moves"
    assert page.locator(f"#gg-{name}-fault").text_content() == says
    assert page.get_attribute(f"#gg-{name}", "aria-invalid") == "true"
    assert page.get_attribute(f"#gg-{name}", "aria-describedby") == f"gg-{name}-fault"
    assert page.locator(".gg-verdict-line").inner_text() == says
    assert not page.locator(".gg-step-figure .gg-step").locator("visible=true").count()
    page.context.close()


@built
def test_any_address_opens(browser: Any) -> None:
    page = opened(browser, FIT, model="gpt-9", gpu="rtx-9090", batch="-4", nonsense="1", sharding="9", purpose="<b>")
    notices = " ".join(page.locator(".gg-notice").all_inner_texts())
    for said in ("“gpt-9”, which is not known here; shown is Llama 3.1 8B", "“rtx-9090”", "“9”", "“<b>”"):
        assert said in notices
    assert "“nonsense=1”, which this calculator does not know; it is left out" in notices
    assert page.locator("#gg-batch-fault").text_content().startswith("“Batch size” is -4")
    page.fill("#gg-batch", "1")
    assert "It does not fit" in page.locator(".gg-verdict-line").inner_text()
    page.context.close()
    page = opened(browser, LIMIT, operation="sort", gpu="removed", rows="x" * 5000)
    assert len(page.locator(".gg-notice").all_inner_texts()) == 2
    assert page.locator("#gg-rows-fault").text_content().startswith("“Rows” is xxx")
    page.context.close()


@built
def test_old_links_keep_working_or_say_what_they_leave_out(browser: Any) -> None:
    page = opened(browser, FIT, precision="fp8", lora="true")
    notices = " ".join(page.locator(".gg-notice").all_inner_texts())
    assert "“Precision”: “fp8”, which is not known here; shown is mixed" in notices
    assert "“lora=true”, which this calculator does not know; it is left out" in notices
    assert "GiB" in page.locator(".gg-verdict-line").inner_text()
    page.context.close()
    page = opened(browser, FIT, purpose="generate", precision="fp8", model="qwen2.5-7b", gpu="rtx-4090", seq_len="4e3")
    assert page.locator(".gg-notice").count() == 0
    assert page.locator("#gg-precision").input_value() == "fp8"
    assert "It fits" in page.locator(".gg-verdict-line").inner_text()
    page.context.close()
    page = opened(browser, LIMIT, operation="scan", rows="1e9", columns="1 000")
    assert page.locator("#gg-rows").get_attribute("aria-invalid") == "false"
    page.context.close()


@built
def test_a_capacity_of_ones_own_decides_and_travels_in_the_address(browser: Any) -> None:
    page = opened(browser, FIT, purpose="generate", precision="bf16", model="llama-3.2-1b", gpu="h100-sxm")
    page.fill("#gg-capacity", "2.5")
    assert "It does not fit" in page.locator(".gg-verdict-line").inner_text()
    assert "of 2.50 GiB, as you say, on a GPU of your own" in page.locator(".gg-verdict-line").inner_text()
    assert "capacity=2.5" in page.url
    page.fill("#gg-capacity", "")
    assert "H100 SXM" in page.locator(".gg-verdict-line").inner_text()
    assert "capacity" not in page.url
    page.context.close()


@built
def test_a_model_whose_weights_are_too_large_is_told_so(browser: Any) -> None:
    page = opened(browser, FIT, purpose="generate", precision="bf16", model="llama-3.1-70b", gpu="h100-sxm")
    assert "The weights alone take 131 GiB, however short the input." in page.locator(".gg-answer").inner_text()
    page.context.close()
    page = opened(browser, LIMIT, operation="decode", model="llama-3.1-70b", gpu="h100-sxm")
    verdict = page.locator(".gg-verdict-line")
    assert "It does not fit: the operands take 132.7 GiB, and H100 SXM has 79.6 GiB." in verdict.inner_text()
    verdict.get_by_role("link").click()
    assert page.locator("#gg-model").input_value() == "llama-3.1-70b"
    assert "It does not fit" in page.locator(".gg-verdict-line").inner_text()
    page.context.close()


@built
def test_adapters_and_their_fields_appear_together(browser: Any) -> None:
    page = opened(browser, FIT, model="llama-3.1-8b", gpu="rtx-4090", checkpointing="true")
    assert "It does not fit" in page.locator(".gg-verdict-line").inner_text()
    assert not page.locator("#gg-base").is_visible()
    page.get_by_role("button", name="train adapters on 4-bit weights (QLoRA, rank 16)").click()
    assert "It fits" in page.locator(".gg-verdict-line").inner_text()
    assert page.locator("#gg-base").input_value() == "nf4"
    assert "lora_rank=16" in page.url
    page.context.close()


@built
@pytest.mark.parametrize("path", [FIT, LIMIT, MOVE, SAVE], ids=lambda path: path.stem)
def test_the_verdict_is_in_sight_on_a_phone_while_the_fields_are(browser: Any, path: Path) -> None:
    page = opened(browser, path, width=390)
    page.locator(".gg-calculator select").first.scroll_into_view_if_needed()
    box = page.locator(".gg-verdict-line").bounding_box()
    assert 0 < box["y"] < box["y"] + box["height"] <= 900
    fields = page.locator(".gg-calculator :is(input, select):visible")
    for place in range(fields.count()):
        fields.nth(place).focus()
        field, verdict = fields.nth(place).bounding_box(), page.locator(".gg-verdict-line").bounding_box()
        assert field["y"] + field["height"] <= verdict["y"] or verdict["y"] + verdict["height"] <= field["y"]
    page.context.close()


@built
def test_an_own_shape_travels_in_the_address(browser: Any) -> None:
    page = opened(browser, FIT, model="custom", layers="2", vocab="1000", tied="true")
    assert page.locator("#gg-model").input_value() == "custom"
    assert page.locator("#gg-layers").input_value() == "2"
    assert page.locator("#gg-tied").is_checked()
    assert "memory.Shape(layers=2" in page.locator(".gg-call").text_content()
    page.context.close()


@built
def test_what_a_gpu_cannot_do_is_said_at_the_format(browser: Any) -> None:
    page = opened(browser, LIMIT, gpu="t4", format="bf16")
    assert "T4 has no rate for bf16" in page.locator("#gg-format-fault").text_content()
    page.select_option("#gg-format", "fp16")
    assert "at these ceilings, bound by arithmetic" in page.locator(".gg-verdict-line").inner_text()
    assert "from a data sheet" in page.locator(".gg-answer").inner_text()
    page.context.close()


@built
@pytest.mark.parametrize("operation", limits.OPERATIONS)
def test_every_operation_has_a_roofline_and_its_numbers_as_tables(browser: Any, operation: str) -> None:
    page = opened(browser, LIMIT, operation=operation)
    assert "at these ceilings" in page.locator(".gg-verdict-line").inner_text()
    assert f"Roofline of {calculators.short(reference_gpu.sheet().name)}" in page.get_attribute(
        ".gg-roofline", "aria-label"
    )
    assert page.locator(".gg-answer table").count() == 3
    ticks = page.locator(".gg-roofline text").all_text_contents()
    assert len(ticks) == len(set(ticks)) >= 8
    point = page.locator(".gg-point")
    frame = page.locator(".gg-roofline").bounding_box()
    box = point.bounding_box()
    assert frame["x"] < box["x"] < frame["x"] + frame["width"]
    assert frame["y"] < box["y"] < frame["y"] + frame["height"]
    page.context.close()


@built
@pytest.mark.parametrize("what", transfers.THINGS)
def test_everything_is_moved_over_every_link_that_could_carry_it(browser: Any, what: str) -> None:
    page = opened(browser, MOVE, what=what)
    verdict = page.locator(".gg-verdict-line").inner_text()
    assert "at least, at the full rate of PCIe 5.0, 16 lanes." in verdict
    table = page.locator(".gg-links")
    shown = table.locator("tbody tr")
    offered = page.locator("#gg-link option").count()
    carriers = [link for link in links.load().values() if link.joins in transfers.THINGS[what]["over"]]
    assert shown.count() == offered == len(carriers)
    widths = table.locator(".gg-rate").evaluate_all("(all) => all.map((bar) => bar.getBoundingClientRect().width)")
    rates = [link.per_direction.value for link in carriers]
    for width, rate in zip(widths, rates, strict=True):
        assert width == pytest.approx(max(1, max(widths) * rate / max(rates)), abs=0.6), "bars are to scale"
    assert page.locator(".gg-links .gg-chosen").count() == 1
    assert table.locator("strong").inner_text() == "PCIe 5.0, 16 lanes"
    assert page.locator(".gg-answer table").count() == 3
    page.context.close()


@built
def test_share_and_latency_are_the_readers_and_travel_in_the_address(browser: Any) -> None:
    page = opened(browser, MOVE, what="weights", link="infiniband-ndr")
    assert "no record yet" in page.locator(".gg-answer").inner_text()
    page.context.close()
    page = opened(browser, MOVE, what="activations", link="nvlink-4", model="llama-3.1-70b", tokens="1")
    assert "measured by us, by the copy engine" in page.locator(".gg-answer").inner_text()
    page.fill("#gg-share", "80")
    page.fill("#gg-latency", "2000")
    what = transfers.tensor_parallel_step(presets.shape("llama-3.1-70b"), 8)
    time = transfers.time_to_move(what, "nvlink-4", latency=2e-6, efficiency=0.8)
    verdict = page.locator(".gg-verdict-line").inner_text()
    assert verdict.startswith(f"{1000 * time:.2f} ms at 80% of the rate of NVLink 4")
    assert "with 2.00 µs of latency a transfer" in verdict
    assert "share=80" in page.url
    assert "latency=2000" in page.url
    assert 'time_to_move(what, "nvlink-4", latency=2000e-9, efficiency=0.8)' in page.locator(".gg-call").text_content()
    page.fill("#gg-share", "0")
    assert "is 0; it must be a whole number from 1 to 100." in page.locator(".gg-verdict-line").inner_text()
    page.context.close()


@built
def test_gradients_do_not_go_through_storage(browser: Any) -> None:
    page = opened(browser, MOVE, what="bytes", link="s3-request", size="1e9")
    assert page.locator(".gg-verdict-line").inner_text().startswith("11.8 s at least")
    page.select_option("#gg-what", "gradients")
    assert page.locator("#gg-link").input_value() != "s3-request"
    assert "S3" not in page.locator(".gg-answer").inner_text()
    page.context.close()
    page = opened(browser, MOVE, what="gradients", link="s3-request")
    assert (
        "“s3-request”, which is not known here; shown is PCIe 5.0, 16 lanes" in page.locator(".gg-notice").inner_text()
    )
    page.fill("#gg-gpus", "1")
    assert page.locator(".gg-verdict-line").inner_text().startswith("0 s at least")
    page.context.close()


@built
def test_the_python_of_the_page_says_what_the_page_says(browser: Any) -> None:
    page = opened(browser, MOVE, what="cache", link="infiniband-ndr", share="90", latency="1500", batch="16")
    lines = page.locator(".gg-call code").text_content().splitlines()
    names: dict[str, Any] = {}
    exec("\n".join(lines[:-1]), names)
    seconds = eval(lines[-1], names)
    assert page.locator(".gg-verdict-line").inner_text().startswith(f"{1000 * seconds:.0f} ms")
    page.context.close()


@built
def test_the_plan_of_saves_and_its_address_are_python_s(browser: Any) -> None:
    page = opened(browser, SAVE, gpus="16384", restart="60")
    assert not page.locator("#gg-stall").is_visible()
    page.select_option("#gg-saving", "asynchronous")
    page.fill("#gg-stall", "1000")
    address = page.evaluate("location.href")
    assert all(part in address for part in ("gpus=16384", "restart=60", "saving=asynchronous", "stall=1000"))
    names: dict[str, Any] = {}
    lines = page.locator(".gg-call code").text_content().splitlines()
    exec("\n".join(lines[:-1]), names)
    minutes = eval(lines[-1], names) / 60
    assert page.locator(".gg-verdict-line").inner_text().startswith(f"Save every {minutes:.2f} min.")
    rows = page.locator(".gg-links tbody tr")
    assert rows.count() >= 2
    assert page.locator(".gg-links .gg-chosen").count() == 1
    page.fill("#gg-gpus", "0")
    assert "is 0; it must be a whole number" in page.locator(".gg-verdict-line").inner_text()
    page.context.close()


@built
def test_the_scales_of_a_roofline_are_labelled_with_their_powers(browser: Any) -> None:
    page = opened(browser, LIMIT, operation="decode", gpu="a100-sxm-80gb")
    ticks = page.locator(".gg-roofline text").all_text_contents()
    for right in ("1", "10", "100", "1000", "1 T", "10 T", "100 T"):
        assert right in ticks
    page.context.close()


@built
@pytest.mark.parametrize("path", [FIT, LIMIT, MOVE, SAVE], ids=lambda path: path.stem)
def test_without_scripts_an_example_and_the_python_call_stand_there(browser: Any, path: Path) -> None:
    page = opened(browser, path, javascript=False)
    assert page.locator(".gg-worked table").is_visible()
    assert "from gpuguide.costs import" in page.locator(".gg-worked pre").inner_text()
    assert "e-0" not in page.locator(".gg-worked").inner_text()
    assert not page.locator(".gg-calculator").is_visible()
    page.context.close()
    with_scripts = opened(browser, path)
    assert not with_scripts.locator(".gg-worked").is_visible()
    assert with_scripts.locator(".gg-calculator form").is_visible()
    with_scripts.context.close()


@built
@pytest.mark.parametrize("path", [FIT, LIMIT, MOVE, SAVE], ids=lambda path: path.stem)
def test_every_field_is_reached_by_keyboard_and_has_a_name(browser: Any, path: Path) -> None:
    page = opened(browser, path)
    page.evaluate("document.querySelectorAll('.gg-calculator details').forEach((fold) => { fold.open = true; })")
    fields = page.locator(".gg-calculator :is(input, select):visible")
    names = fields.evaluate_all("(all) => all.map((each) => each.labels[0]?.textContent.trim() ?? '')")
    assert len(names) >= 6
    assert all(names)
    fields.first.focus()
    reached = set()
    for _ in range(3 * len(names)):
        reached.add(page.evaluate("document.activeElement.id"))
        page.keyboard.press("Tab")
    assert set(fields.evaluate_all("(all) => all.map((each) => each.id)")) <= reached
    page.context.close()


@built
@pytest.mark.parametrize("path", [FIT, LIMIT, MOVE, SAVE], ids=lambda path: path.stem)
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(browser: Any, path: Path) -> None:
    page = opened(browser, path)
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function("scheme => document.documentElement.dataset.theme === scheme", arg=scheme)
        for width in (1280, 390):
            barriers.resize(page, width)
            if path == FIT:
                page.fill("#gg-batch", "0")  # an error in view as well
                assert barriers.found(page) == ""
                page.fill("#gg-batch", "2")
            assert barriers.found(page) == ""
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.context.close()
