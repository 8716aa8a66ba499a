"""Drawings of links: their numbers are those of the records and of the table of links."""

from __future__ import annotations

import itertools

import pytest
from figure_rows import rows_of

from gpuguide.costs import presets
from gpuguide.hardware import links
from gpuguide.interconnect import copies
from gpuguide.measure import reference_gpu, store
from gpuguide.models import llama, shapes
from gpuguide.plotting.pictures import interconnect


def test_the_pipes_are_as_wide_as_what_was_carried() -> None:
    rates = {row["way"]: float(row["bandwidth_B_per_s"]) for row in rows_of(interconnect.way_of_a_byte())}
    host, peers = store.load_published("host-device-copy"), store.load_published("peer-copy")
    for name, way in (("pageable", "pageable"), ("pcie", "pinned")):
        measured = host.median(way, "bandwidth", size=interconnect.LARGE, direction="h2d")
        assert rates[name] == pytest.approx(measured, rel=1e-5)
    ends = [peers.median(each, "bandwidth", size=interconnect.LARGEST, direction="one") for each in peers.contenders]
    assert rates["nvlink"] == pytest.approx(max(ends), rel=1e-5)
    assert rates["network"] == links.get(interconnect.NETWORK).per_direction.value
    assert rates["pageable"] < rates["pcie"] < rates["nvlink"]


def test_bars_show_one_direction_and_what_was_measured_of_it() -> None:
    rows = rows_of(interconnect.links_to_scale())
    promises = [float(row["promise_B_per_s"]) for row in rows]
    assert all(above > below for above, below in itertools.pairwise(promises))
    assert promises[1] == reference_gpu.sheet().figures["nvlink_total"].value / 2
    for row, promise in zip(rows, promises, strict=True):
        if row["measured_B_per_s"]:
            assert 0.8 * promise < float(row["measured_B_per_s"]) < promise
    assert [row["link"] for row in rows if not row["measured_B_per_s"]] == ["InfiniBand NDR", "100 Gbit Ethernet"]


def test_a_piece_through_the_ring_takes_at_least_as_long_as_the_link_needs() -> None:
    fetch, turn, alone = (float(row["time_s"]) for row in rows_of(interconnect.ring_over_time()))
    assert interconnect.PIECE == copies.PIECE
    assert len(interconnect.BUFFERS) == copies.BUFFERS
    assert fetch <= turn < alone


def test_an_offloaded_layer_is_one_of_the_shape() -> None:
    config = shapes.config("llama-7b-shape")
    assert isinstance(config, llama.LlamaConfig)
    assert config.layers == interconnect.LAYERS
    copy, *computing = (float(row["time_s"]) for row in rows_of(interconnect.offloaded_layers_over_time()))
    record = store.load_published("offload")
    assert copy * config.layers == pytest.approx(record.median("copy-only", "time", tokens=512), rel=1e-5)
    assert [each * config.layers for each in computing] == pytest.approx(
        [record.median("resident", "time", tokens=tokens) for tokens in (512, 8192)], rel=1e-5
    )


def test_two_gpus_take_longer_than_half_of_the_layer_and_less_than_all_of_it() -> None:
    rows = rows_of(interconnect.layer_on_two_gpus())
    for tokens, ways in interconnect.DIVIDED.items():
        times = {row["what"]: float(row["time_s"]) for row in rows if row["tokens"] == str(tokens)}
        assert all(times["compute-only"] < times[name] < times["one-gpu"] for name in ways)


def test_rdma_leaves_out_the_copies_between() -> None:
    rows = rows_of(interconnect.ways_to_the_network())
    assert [row["place"] for row in rows if row["rdma"] == "yes"] == ["GPU memory", "network adapter"]
    assert len(rows) == 4


def test_a_second_gpu_gains_more_over_nvlink_than_over_pcie() -> None:
    rows = rows_of(interconnect.gain_over_two_links())
    assert [int(row["tokens"]) for row in rows] == list(interconnect.TOKENS)
    assert all(float(row["nvlink_times"]) > float(row["pcie_at_most_times"]) > 1 for row in rows)
    assert presets.shape("llama-3.1-70b").hidden * 2 == interconnect.MESSAGE_OF_A_TOKEN
