"""Drawings for choosing an attention: the order is that of the records, and tiles are those that PyTorch visits."""

from __future__ import annotations

import re

import pytest
import torch
from figure_rows import rows_of
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.attention.flex_attention import create_block_mask

from gpuguide.measure import store
from gpuguide.plotting import text_boxes
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
    assert all("+" in choosing.marks(gate) for gate in choosing.GATES)


def test_marks_follow_from_what_is_declared() -> None:
    marks = {gate: dict(zip(choosing.lanes(), choosing.marks(gate), strict=True)) for gate in choosing.GATES}
    assert marks["fp32"]["fa4"] == "-", "refuses in training and in prefill"
    assert marks["grouped heads"]["sdpa-efficient"] == "~", "a limit in both"
    assert marks["no GPU"]["flex"] == "~", "refuses in training only"
    assert marks["a mask as a tensor"]["sdpa-cudnn"] == "~", "a limit in training only"
    assert marks["A100, RTX 30 to 50"]["sdpa-flash"] == "+"
    assert marks["A100, RTX 30 to 50"]["fa4"] == "~", "its forward pass accepts them"
    assert marks["T4 and older"]["fa4"] == "-"


def test_on_a_phone_no_label_is_turned_and_the_key_stands_in_the_middle() -> None:
    shown = choosing.kernel_lanes()
    assert shown.svg is not None
    narrow = shown.svg["light-narrow"]
    assert not re.search(r"rotate\((?!0[ )])-?[\d.]+", re.sub(r"rotate\(-?0(?:\.0*)?[ )]", "", narrow))
    boxes = text_boxes.text_boxes(narrow)
    key = [box for box in boxes if box.text in ("takes it", "with a limit", "refuses")]
    width, _ = text_boxes.view_box(narrow)
    left, right = min(box.left for box in key) - 28, max(box.right for box in key)
    assert left > 15
    assert abs(left - (width - right)) < 25


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


def test_masks_after_a_cache_are_those_of_pytorch() -> None:
    masks = choosing.alignments()
    shape = choosing.NEW, choosing.CACHED + choosing.NEW
    keys = torch.eye(shape[1])[None, None]  # the values are the keys' numbers, so what is not zero was seen
    query = torch.zeros(1, 1, *shape)
    biases = {"is_causal=True": causal_upper_left(*shape), "causal_lower_right": causal_lower_right(*shape)}
    for name, bias in biases.items():
        seen = torch.nn.functional.scaled_dot_product_attention(query, keys, keys, attn_mask=bias)[0, 0] > 0
        assert (seen.numpy() == masks[name]).all()
    by_rule = torch.nn.functional.scaled_dot_product_attention(query, keys, keys, is_causal=True)[0, 0] > 0
    assert (by_rule.numpy() == masks["is_causal=True"]).all()
