"""What a snapshot's reader names: parts against the cost model, lines, causes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from built_snapshots import event, freed, segment, snapshot
from recorded_snapshots import BATCH, SEQ_LEN, SHAPE, record_training

from gpuguide.costs import memory
from gpuguide.training_memory.explain import Explanation, differences, explain
from gpuguide.training_memory.holders import is_of_loss, name_holders
from gpuguide.training_memory.snapshot import replay

OWN = memory.Shape(
    SHAPE.layers, SHAPE.hidden, SHAPE.heads, SHAPE.heads, SHAPE.head_dim, 4 * SHAPE.hidden, SHAPE.vocab_size,
    SHAPE.context, gated=False, tied=True, learned_positions=True, bias="all", layer_norm=True,
)  # fmt: skip


def explained(kind: str = "eager", **more: Any) -> Explanation:
    """Return what is said of recorded steps."""
    return explain(replay(record_training(kind, **more)))


def test_what_layers_keep_is_no_logits_before_a_loss_in_chunks() -> None:
    history = replay(record_training("chunked"))
    first = next(a for a in history.allocations if a.start >= 0 and is_of_loss(a.frames))
    kinds = [holder.kind for holder in name_holders(history, first.start - 1)]
    assert "activation" in kinds
    assert "loss" not in kinds


@pytest.mark.parametrize("kind", ["eager", "checkpointed"])
@pytest.mark.parametrize("from_step", [0, 1])
def test_the_parts_at_the_peak_are_those_that_are_predicted(kind: str, from_step: int) -> None:
    found = explained(kind, from_step=from_step)
    setup = memory.Setup(precision="fp32", batch=BATCH, seq_len=SEQ_LEN, checkpointing=kind == "checkpointed")
    parts = {
        part: size for part, size in memory.predict(OWN, setup).highest.parts.items() if size and part != "workspace"
    }
    for part, size in parts.items():
        assert found.parts.get(part, 0) == pytest.approx(size, rel=0.02, abs=0.01 * found.total), part
    assert found.named_share >= 0.99
    beginnings = [sentence for sentence in found.sentences if "recording began" in sentence]
    assert len(beginnings) == (from_step > 0) == len(found.sentences)


def test_losses_that_hold_their_graphs_are_counted_and_their_line_is_named() -> None:
    found = explained("leak")
    assert re.match(r"3 losses hold their graphs: \S+recorded_snapshots\.py:\d+ in loss_of\.", found.sentences[0])
    assert not any("hold their graphs" in sentence for sentence in explained("eager").sentences)


def test_logits_that_a_name_holds_are_found() -> None:
    (sentence,) = explained("logits").sentences
    assert "outlive their step" in sentence
    assert "gpt2.py" in sentence
    assert explained("eager").sentences == []


def test_the_largest_lines_are_those_of_the_code() -> None:
    found = explained("eager")
    assert all(re.search(r"\.py:\d+ in |the backward pass|PyTorch", line) for line in found.lines)
    assert sum(found.lines.values()) == sum(found.parts.values()) == found.total


def test_a_peak_before_the_first_event_is_said_to_be_there() -> None:
    frames = [{"filename": "train.py", "line": 3, "name": "main"}]
    kept = segment(20, [(0, 5)])
    kept["blocks"][0]["frames"] = frames
    events = [*freed(5, 15, "train.py:9:step"), event("segment_free", 32, 8), event("alloc", 8, 2), *freed(8, 2)]
    history = replay(snapshot([kept], events))
    assert history.peak == -1
    found = explain(history)
    assert (found.total, found.reserved) == (20 * 2**20, 28 * 2**20)
    assert found.moment == "before the first of 6 recorded events"
    assert "before the first recorded event" in found.sentences[0]
    assert "older events were dropped" in found.sentences[0]
    assert sum(found.parts.values()) == found.total


def test_a_history_that_wrapped_says_when_it_begins() -> None:
    whole = record_training("eager")
    whole["device_traces"][0] = whole["device_traces"][0][600:]
    (sentence,) = explain(replay(whole)).sentences
    assert "wrapped" in sentence
    assert "a higher peak before is not seen" in sentence


def failed(size: int, free: int) -> Explanation:
    """Return what is said of a request that failed beside holes of 5 and 10 MiB in 30 MiB."""
    events = [
        event("segment_alloc", 0, 30),
        *[event("alloc", address, 5, "train.py:7:step") for address in (0, 10, 25)],
        event("oom", 0, size, "train.py:9:step", device_free=free * 2**20),
    ]
    return explain(replay(snapshot([segment(30, [(0, 5), (10, 5), (25, 5)])], events)))


def test_a_request_says_whether_a_setting_could_have_served_it() -> None:
    served = failed(12, 1)
    assert "expandable_segments" in served.sentences[0]
    assert "10 MiB" in served.sentences[0]
    assert "train.py:9 in step" in served.moment
    none = failed(40, 1)
    assert "no setting of the allocator serves it" in none.sentences[0]
    assert "1 MiB" in none.sentences[0]
    assert served.total == none.total == 15 * 2**20


def test_holes_and_the_pool_of_a_graph_are_said() -> None:
    kept = [(0, 500), (1000, 500)]
    private = segment(200, [(4000, 20)], at=4000, segment_pool_id=(0, 1))
    events = [
        event("segment_alloc", 0, 1500),
        *[event("alloc", address, 500, "a.py:1:f") for address in (0, 500, 1000)],
        *freed(500, 500),
        event("alloc", 2000, 501, "a.py:1:f"),
    ]
    segments = [segment(1500, kept), segment(501, [(2000, 501)], at=2000), private]
    sentences = " ".join(explain(replay(snapshot(segments, events))).sentences)
    assert "500 MiB are reserved and not in use" in sentences
    assert "Pools of CUDA graphs hold 200 MiB, of which 20 MiB" in sentences


def test_without_frames_it_says_so() -> None:
    history = replay(snapshot([segment(20, [(0, 5)])], [event("alloc", 0, 5)]))
    assert "no frames" in explain(history).sentences[0]


def test_differences_are_sorted_and_equal_entries_left_out() -> None:
    assert differences({"a": 5, "b": 7, "c": 1}, {"a": 5, "b": 9, "d": 4}) == {"d": -4, "b": -2, "c": 1}
