from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_devices import on

from gpuguide.benchmarks.transfer_learning import rates, scores, step, task
from gpuguide.benchmarks.transfer_learning.methods import METHODS
from gpuguide.benchmarks.transfer_learning.task import ask_in_context, error, examples_for, shortest_of_each
from gpuguide.finetuning import return_types
from gpuguide.finetuning.return_types import KINDS, Encoded
from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import runner, store
from gpuguide.measure.benchmark import Keys, too_large
from gpuguide.transfer_learning import NewHead, NextToken, prepend_examples
from gpuguide.triton_support.graphs import workspace_of_its_own

TRANSFER = declarations.get("transfer-learning")
RATES = declarations.get("transfer-learning-rate")
STEP = declarations.get("transfer-step")
TRAINED = list(METHODS)
ALL = list(TRANSFER.contenders)
SMALL: Keys = {"model": "draft", "examples": 32, "steps": 2}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let parts have few functions, so that a processor scores them at once."""
    whole = task.part

    def part(which: str, name: str, device: str) -> Encoded:
        return whole(which, name, device).select(torch.arange(40))

    for module in (task, scores, rates):
        monkeypatch.setattr(module, "part", part)
    monkeypatch.setattr(scores, "TIMED", 2)
    monkeypatch.setattr(scores, "old_loss", lambda model, name, device: 3.0)


# --- declarations ------------------------------------------------------------------------------------------


def test_the_longest_training_has_all_examples() -> None:
    assert TRANSFER.cases(on(80))[-1]["examples"] == len(return_types.training())


def test_only_small_parts_are_trained_for_longer() -> None:
    device = on(80)
    longer = TRANSFER.cases(device)[-1]
    left = {name: each.skip_reason(device, longer) for name, each in TRANSFER.contenders.items()}
    assert {name for name, why in left.items() if not why} == {"new-head", "soft-prompt"}
    assert "new-head and soft-prompt" in (left["full"] or "")
    assert not any(each.skip_reason(device, TRANSFER.cases(device)[0]) for each in TRANSFER.contenders.values())


def test_every_way_is_tried_at_the_same_rates_and_has_one_of_them() -> None:
    assert list(RATES.contenders) == TRAINED == list(scores.LEARNING_RATES)
    assert [keys["learning_rate"] for keys in RATES.cases(on(80))] == list(rates.RATES)
    assert set(scores.LEARNING_RATES.values()) <= set(rates.RATES)


def test_each_way_is_trained_at_the_rate_that_errs_least() -> None:
    """Three draws of 241 functions tell rates apart that differ by five functions."""
    record = store.load_published("transfer-learning-rate")
    for name, chosen in scores.LEARNING_RATES.items():
        errors = {rate: found.median for rate, found in record.series(name, "learning_rate", "validation_error")}
        assert errors[chosen] <= min(errors.values()) + 5 / 241, name


def test_a_step_is_measured_in_the_shape_of_gpt2() -> None:
    (keys,) = STEP.cases(on(80))
    assert keys == {"model": "gpt2-small", "batch": 32, "seq_len": 128}
    assert set(STEP.contenders) <= set(TRAINED)
    assert too_large(STEP, keys, on(8))
    assert not too_large(STEP, keys, on(80))


@pytest.mark.parametrize("benchmark", [TRANSFER, RATES, STEP], ids=lambda each: str(each.name))
def test_a_processor_has_one_small_case(benchmark: declarations.Benchmark) -> None:
    (keys,) = benchmark.cases(devices.cpu())
    assert keys["model"] in ("draft", "two-layers")
    assert set(keys) == set(benchmark.cases(on(80))[0])


# --- a case on a processor ---------------------------------------------------------------------------------


def test_scores_of_a_case(few: None) -> None:
    benchmark = replace(
        TRANSFER,
        contenders={name: TRANSFER.contenders[name] for name in ("zero-shot", "in-context", "new-head", "lora")},
    )
    cases = {case.contender: case for case in runner.measure_case(benchmark, SMALL, devices.cpu(), quick=True)}
    assert {name: case.status for name, case in cases.items()} == dict.fromkeys(cases, "ok")
    for name in ("new-head", "lora"):
        found = cases[name].measured
        assert {"error", "training_error", "old_loss", "training_time", "trained_parameters", "answer_time"} < set(
            found
        )
        assert "peak_memory" not in found  # a processor's memory is not counted
        assert 0 <= found["error"].summary.median <= 1
    for name in ("zero-shot", "in-context"):
        assert 1 / 9 <= cases[name].measured["commonest_answer"].summary.median <= 1
    assert cases["zero-shot"].measured["trained_parameters"].samples == (0.0,)


def test_the_answer_that_is_given_most_is_counted(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = scores.Prompted(False, SMALL, "cpu")
    asked.check()
    count = len(asked.questions(0))
    given = torch.full((count,), 4)
    given[0] = 1
    monkeypatch.setattr(scores, "predict_answers", lambda module, texts: given)
    assert asked.further()["commonest_answer"].summary.median == pytest.approx(1 - 1 / count)


def test_errors_of_a_learning_rate(few: None) -> None:
    benchmark = replace(RATES, contenders={"soft-prompt": RATES.contenders["soft-prompt"]})
    (case,) = runner.measure_case(benchmark, {**SMALL, "learning_rate": 1e-2}, devices.cpu(), quick=True)
    assert (case.status, case.reason, case.correct) == ("ok", "", "yes")
    assert set(case.measured) == {"time", "validation_error", "training_error"}


def test_a_step_of_each_way() -> None:
    (keys,) = STEP.cases(devices.cpu())
    for case in runner.measure_case(STEP, keys, devices.cpu(), quick=True):
        assert (case.status, case.reason, case.correct) == ("ok", "", "yes")


# --- the task ----------------------------------------------------------------------------------------------


def test_the_error_is_the_share_of_wrong_answers() -> None:
    texts = task.part("validation", "draft", "cpu").select(torch.arange(30))
    module = NextToken(task.load_model("draft", "cpu"))
    with torch.no_grad():
        logits = module(texts.tokens, texts.last)
    assert error(module, texts) == pytest.approx(1 - return_types.score(logits, texts).accuracy)


def test_a_new_head_is_asked_for_kinds_and_others_for_tokens() -> None:
    texts = task.part("validation", "draft", "cpu").select(torch.arange(6))
    model = task.load_model("draft", "cpu")
    assert torch.equal(examples_for(NewHead(model, len(KINDS)), texts).wanted, texts.kinds)
    assert torch.equal(examples_for(NextToken(model), texts).wanted, texts.answers[texts.kinds])
    assert 0 <= error(NewHead(model, len(KINDS)), texts) <= 1


def test_draws_are_other_functions_and_the_same_every_time() -> None:
    one, same, other = (task.draw_functions(50, "draft", "cpu", draw) for draw in (0, 0, 1))
    assert torch.equal(one.tokens, same.tokens)
    assert not torch.equal(one.tokens, other.tokens)
    everything = task.draw_functions(1223, "draft", "cpu", 4)
    assert sorted(everything.last.tolist()) == sorted(task.part("training", "draft", "cpu").last.tolist())


def test_examples_before_a_question_are_read_as_they_would_be_written() -> None:
    texts = task.part("validation", "draft", "cpu").select(torch.arange(3))
    solved = shortest_of_each(task.draw_functions(64, "draft", "cpu", 0), room=200, seed=0)
    asked = ask_in_context(solved, texts)
    for row in range(3):
        question = texts.tokens[row, : int(texts.last[row]) + 1].tolist()
        assert asked.tokens[row, : int(asked.last[row]) + 1].tolist() == prepend_examples(solved, question)


def test_examples_are_the_shortest_of_their_kind_and_fit() -> None:
    texts = task.draw_functions(200, "draft", "cpu", 0)
    solved = shortest_of_each(texts, room=10_000, seed=0)
    assert {answer for _, answer in solved} == {int(texts.answers[kind]) for kind in texts.kinds.unique()}
    for tokens, answer in solved:
        kind = texts.answers.tolist().index(answer)
        assert len(tokens) - 1 == texts.last[texts.kinds == kind].min()
    few = shortest_of_each(texts, room=100, seed=0)
    assert 0 < len(few) < len(solved)
    assert sum(len(tokens) + 1 for tokens, _ in few) <= 100
    assert shortest_of_each(texts, room=10_000, seed=1) != solved
    only = texts.select((texts.kinds == texts.kinds[0]).nonzero()[:, 0])
    assert len(shortest_of_each(only, room=10_000, seed=0)) == 1


def test_a_held_out_function_is_in_no_training() -> None:
    held_out = task.part("held-out", "draft", "cpu").tokens
    training = task.part("training", "draft", "cpu").tokens
    assert not {tuple(row) for row in held_out.tolist()} & {tuple(row) for row in training.tolist()}


def test_steps_are_those_of_the_declared_ways() -> None:
    assert not step.MEASURED["new-head"].on_features
    assert all(step.MEASURED[name] is METHODS[name] for name in step.MEASURED if name != "new-head")


# --- on a GPU ----------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_second_case_runs_after_the_graphs_of_the_first_are_gone(tmp_path: Path, few: None) -> None:
    cases = [{**SMALL, "examples": count} for count in (32, 40)]
    methods = {name: replace(TRANSFER.contenders[name], skip_reason=lambda device, keys: None) for name in ALL}
    small = replace(TRANSFER, cases=lambda device: cases, contenders=methods, samples=2)
    (record,) = runner.run([small], devices.choose("gpu"), tmp_path, commit="c0ffee").records
    assert [case.status for case in record.cases] == ["ok"] * 2 * len(methods), [case.reason for case in record.cases]


@pytest.mark.gpu
def test_a_graph_outlives_the_workspace_that_it_was_captured_beside() -> None:
    """A capture takes up the workspace of an earlier one, and asking for workspaces back takes it away."""
    weights = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
    expected = weights @ weights  # cuBLAS begins here, and not within a capture

    def captured(own: bool) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with workspace_of_its_own() if own else nullcontext(), torch.cuda.graph(graph):
            found.append(weights @ weights)
        return graph

    found: list[torch.Tensor] = []
    first = captured(own=False)
    del first
    found.clear()
    kept = captured(own=True)
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    kept.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(found[0], expected)
