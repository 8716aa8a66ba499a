"""Drawings for choosing an attention: the order is that of the records, and tiles are those that PyTorch visits."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from gpuguide import plotting
from gpuguide.measure import store
from gpuguide.plotting import text_boxes
from gpuguide.plotting.pictures import choosing


@pytest.fixture(autouse=True)
def site_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUGUIDE_SITE_BUILD", "1")
    monkeypatch.setenv("GPUGUIDE_RECORDS", "")


def rows_of(shown: plotting.Figure) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(shown.csv)))


@pytest.mark.parametrize("picture", [plotting.kernel_lanes, plotting.mask_tiles])
def test_all_renditions_can_be_read(picture: Callable[[], plotting.Figure]) -> None:
    shown = picture()
    assert shown.svg is not None
    assert set(shown.svg) == {"light", "dark", "light-narrow", "dark-narrow"}
    assert text_boxes.too_small(shown.svg["light-narrow"]) == []
    assert max(map(len, shown.svg.values())) < 25_000


def test_kernels_stand_from_the_fastest_to_the_slowest() -> None:
    rows = rows_of(plotting.kernel_lanes())
    over = [float(row["time_over_fastest"]) for row in rows]
    assert over == sorted(over)
    assert over[0] == 1
    record = store.published("attention")
    slowest, fastest = (record.median(name, "time", **choosing.TIMED) for name in ("naive", "fa4"))
    assert over[-1] == pytest.approx(slowest / fastest, rel=1e-3)


def test_for_every_row_there_is_a_kernel() -> None:
    assert all("+" in marks for marks in choosing.GATES.values())
    assert all(len(marks) == len(choosing.LANES) for marks in choosing.GATES.values())


@pytest.mark.parametrize("name", choosing.rules())
def test_tiles_are_those_of_a_block_mask(name: str) -> None:
    """The rule is looked up in a tensor here, as FlexAttention may do it too."""
    rule = choosing.rules()[name]
    position = torch.arange(choosing.TOKENS).numpy()
    seen = torch.from_numpy(rule(position[:, None], position[None, :]))
    blocks = create_block_mask(lambda batch, head, query, key: seen[query, key], None, None, *seen.shape, device="cpu")
    row = next(row for row in rows_of(plotting.mask_tiles()) if row["mask"] == name)
    assert blocks.full_kv_num_blocks is not None
    assert int(row["whole"]) == int(blocks.full_kv_num_blocks.sum())
    assert int(row["cut"]) == int(blocks.kv_num_blocks.sum())
    assert sum(int(row[kind]) for kind in ("whole", "cut", "skipped")) == 64
