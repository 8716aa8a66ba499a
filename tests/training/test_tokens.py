"""Token files, their windows, and batches on time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.errors import GpuguideError
from gpuguide.training import feeding, tokens
from gpuguide.training.tokens import Windows

CPU = torch.device("cpu")


def written(folder: Path, documents: list[list[int]], vocab_size: int = 1000) -> Path:
    path = folder / "tokens.npy"
    tokens.write_tokens(path, documents, vocab_size)
    return path


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2, np.uint16), (65_536, np.uint16), (65_537, np.uint32)])
def test_a_file_gives_its_documents_in_the_smallest_type(tmp_path: Path, vocab_size: int, dtype: type) -> None:
    path = tmp_path / "tokens.npy"
    documents = [[0, 1], [], [vocab_size - 1]]
    assert tokens.write_tokens(path, iter(documents), vocab_size) == 3
    found = tokens.open_tokens(path, vocab_size)
    assert found.dtype == dtype
    assert found.tolist() == np.load(path).tolist() == [0, 1, vocab_size - 1]


def test_headers_of_all_counts_are_as_long() -> None:
    lengths = {len(tokens._header(np.dtype(np.uint32), count)) for count in (0, 1, 10**6, 10**12)}
    assert len(lengths) == 1


def test_files_of_nanogpt_are_read(tmp_path: Path) -> None:
    path = tmp_path / "train.bin"
    path.write_bytes(np.array([5, 50256], np.uint16).tobytes())
    assert tokens.open_tokens(path, 50257).tolist() == [5, 50256]


@pytest.mark.parametrize(
    ("documents", "vocab_size", "dtype", "named"),
    [
        ([[1, 7]], 7, None, "7"),
        ([[1], [-1]], 7, None, "-1"),
        ([[1]], 65_537, "uint16", "65,537"),
        ([[1]], 7, "int16", "int16"),
        ([[], []], 7, None, "no tokens"),
    ],
)
def test_ids_that_do_not_fit_are_refused_and_the_earlier_file_stays(
    tmp_path: Path, documents: list[list[int]], vocab_size: int, dtype: str | None, named: str
) -> None:
    path = written(tmp_path, [[3]])
    with pytest.raises(GpuguideError, match=named):
        tokens.write_tokens(path, documents, vocab_size, dtype=dtype)
    assert tokens.open_tokens(path, 1000).tolist() == [3]
    assert list(tmp_path.iterdir()) == [path]


def spoil(path: Path, how: str) -> Path:
    """A token file that something happened to."""
    content = path.read_bytes()
    if how == "cut short":
        path.write_bytes(content[:-1])
    elif how == "cut in its header":
        path.write_bytes(content[:20])
    elif how == "signed":
        np.save(path, np.zeros(4, np.int16))
    elif how == "two axes":
        np.save(path, np.zeros((2, 2), np.uint16))
    elif how == "text":
        path.write_text("hello")
    elif how == "odd":
        path = path.with_suffix(".bin")
        path.write_bytes(b"123")
    elif how == "empty":
        path = path.with_suffix(".bin")
        path.write_bytes(b"")
    elif how == "other tokenizer":
        np.save(path, np.array([1, 1000], np.uint16))
    else:
        path.unlink()
    return path


@pytest.mark.parametrize(
    "how",
    [
        "cut short", "cut in its header", "signed", "two axes", "text", "odd", "empty", "other tokenizer", "missing",
    ],
)  # fmt: skip
def test_a_spoiled_file_is_refused_by_name(tmp_path: Path, how: str) -> None:
    path = spoil(written(tmp_path, [[1, 2, 3]]), how)
    with pytest.raises(GpuguideError, match=path.name):
        tokens.open_tokens(path, 1000)


@given(
    count=st.integers(8, 300), seq_len=st.integers(1, 7), batch=st.integers(1, 9), seed=st.integers(0, 5),
    ranks=st.integers(1, 3),
)  # fmt: skip
def test_every_token_is_drawn_once_an_epoch_across_ranks(
    count: int, seq_len: int, batch: int, seed: int, ranks: int
) -> None:
    windows = Windows(np.arange(count, dtype=np.uint16), seq_len, batch * ranks, seed)
    steps = -(-windows.per_epoch // windows.batch)
    drawn = torch.cat(
        [
            torch.stack([windows.draw(step, rank, ranks) for rank in range(ranks)], 1).flatten(0, 1)
            for step in range(steps)
        ]
    )[: windows.per_epoch]
    targets = drawn[:, 1:].flatten().tolist()
    assert len(set(targets)) == len(targets) == windows.per_epoch * seq_len
    assert min(targets) + len(targets) - 1 == max(targets)
    assert count - 1 - len(targets) < seq_len
    assert torch.equal(drawn[:, 1:], drawn[:, :-1] + 1)


def test_draws_depend_on_seed_and_step_alone_and_epochs_differ() -> None:
    text = np.arange(101, dtype=np.uint16)
    windows = Windows(text, 4, 25, seed=3)
    assert torch.equal(windows.draw(7), Windows(text, 4, 25, seed=3).draw(7))
    assert not torch.equal(windows.draw(0), windows.draw(1))
    assert not torch.equal(windows.draw(0), Windows(text, 4, 25, seed=4).draw(0))


def test_a_text_shorter_than_a_window_is_refused() -> None:
    Windows(np.zeros(5, np.uint16), 4, 1)
    with pytest.raises(GpuguideError, match="4 tokens"):
        Windows(np.zeros(4, np.uint16), 4, 1)


def test_held_out_windows_cover_the_text() -> None:
    windows = Windows(np.arange(41, dtype=np.uint16), 4, 1)
    assert windows.spread_windows(100).shape == (10, 5)
    assert windows.spread_windows(3)[:, 0].tolist() == [0, 18, 36]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_feeders_give_the_windows_of_each_step(dtype: type) -> None:
    windows = Windows(np.arange(65_400, 65_536).astype(dtype), 4, 3)
    resident = feeding.ResidentFeeder(windows, CPU, first=2)
    with feeding.PinnedFeeder(windows.draw, CPU, first=2) as pinned:
        for step in range(2, 30):
            expected = windows.draw(step)
            for read, targets in (pinned.next(), resident.next()):
                assert torch.equal(read, expected[:, :-1])
                assert torch.equal(targets, expected[:, 1:])


def test_what_goes_wrong_in_the_thread_is_heard() -> None:
    def draw(step: int) -> torch.Tensor:
        raise GpuguideError("no more")

    with feeding.PinnedFeeder(draw, CPU) as feeder, pytest.raises(GpuguideError, match="no more"):
        feeder.next()
