"""Drawings for choosing an attention: the order is that of the records, and tiles are those that PyTorch visits."""

from __future__ import annotations

import pytest
import torch
from figure_rows import rows_of
from torch.nn.attention.flex_attention import create_block_mask

from gpuguide.measure import store
from gpuguide.plotting.pictures import choosing


def test_kernels_stand_from_the_fastest_to_the_slowest() -> None:
    rows = rows_of(choosing.kernel_lanes())
    over = [float(row["time_over_fastest"]) for row in rows]
    assert over == sorted(over)
    assert over[0] == 1
    record = store.load_published("attention")
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
    row = next(row for row in rows_of(choosing.mask_tiles()) if row["mask"] == name)
    assert blocks.full_kv_num_blocks is not None
    assert int(row["whole"]) == int(blocks.full_kv_num_blocks.sum())
    assert int(row["cut"]) == int(blocks.kv_num_blocks.sum())
    assert sum(int(row[kind]) for kind in ("whole", "cut", "skipped")) == 64
