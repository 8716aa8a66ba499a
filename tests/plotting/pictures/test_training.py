"""Drawings of training: the bytes are those of a batch."""

from __future__ import annotations

import torch
from figure_rows import rows_of

from gpuguide.plotting.pictures import training as pictures


def test_a_batch_has_the_bytes_of_its_tensors() -> None:
    found = {row["place"]: row["bytes"] for row in rows_of(pictures.way_of_a_batch())}
    windows = torch.zeros(pictures.BATCH, pictures.SEQ_LEN + 1, dtype=torch.int64)
    assert int(found["GPU"]) == int(found["windows"]) == windows.nbytes
    assert int(found["token file"]) == windows.to(torch.uint16).nbytes
