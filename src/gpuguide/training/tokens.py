"""Tokens on disk: a text is tokenised once, and a run reads windows of it that its seed and its steps decide.

A token file is one array of NumPy (``.npy``) of ids, in 16 bits where the vocabulary allows it, which PyTorch's index
would take eight bytes for. It is mapped into memory, so that a file larger than the memory works: what a batch touches
is read, and stays in the system's page cache. Files of nanoGPT and llm.c's older tools, ids of 16 bits and nothing else
(``.bin``), are read too.

A window is ``seq_len`` tokens and the one after them: all but the last are read, all but the first are targets. Windows
begin ``seq_len`` apart, so that in each epoch every token is a target once, apart from the few that are left at both
ends. Each epoch has an order of its own, and begins at another token.

Sources: NumPy, "NEP 1: A Simple File Format for NumPy Arrays"; nanoGPT, ``data/openwebtext/prepare.py`` and
``get_batch`` of ``train.py``, which draws places with replacement.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gpuguide.errors import GpuguideError
from gpuguide.files import replace_atomically
from gpuguide.training.batches import places_of_step, step_seed

LARGEST_16_BIT_VOCABULARY = 2**16
CHECKED_AT_ONCE = 2**24
"""Ids whose maximum is taken together"""


def id_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """Return the smallest type of NumPy that holds all ids of a vocabulary: 16 bits up to 65,536 ids, else 32."""
    return np.dtype(np.uint16 if vocab_size <= LARGEST_16_BIT_VOCABULARY else np.uint32)


def write_tokens(path: Path, documents: Iterable[Iterable[int]], vocab_size: int, *, dtype: str | None = None) -> int:
    """Write the ids of documents one after another, and return how many there are.

    Documents are written as they come, so that they need not fit into memory. Until all are there, an earlier file of
    the name stays.

    Parameters
    ----------
    path : Path
        File to write, ``.npy``.
    documents : iterable of iterable of int
        Ids of each document, with whatever separates it from others.
    vocab_size : int
        Ids that exist.
    dtype : str, optional
        ``uint16`` or ``uint32``; by default the smallest that holds all.

    Raises
    ------
    GpuguideError
        If an id is not in the vocabulary, the type cannot hold all ids, there is no token, or the file cannot be
        written.
    """
    kind = np.dtype(dtype) if dtype else id_dtype(vocab_size)
    if kind.kind != "u" or vocab_size - 1 > np.iinfo(kind).max:
        raise GpuguideError(f"{kind} does not hold the ids of {vocab_size:,} tokens; take {id_dtype(vocab_size)}.")
    count = 0
    try:
        with replace_atomically(path) as temporary, temporary.open("wb") as file:
            file.write(_header(kind, 0))
            for number, document in enumerate(documents):
                ids = np.fromiter(document, np.int64)
                if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
                    wrong = ids.min() if ids.min() < 0 else ids.max()
                    raise GpuguideError(f"Document {number} has the id {wrong}; the vocabulary has {vocab_size:,} ids.")
                file.write(ids.astype(kind).tobytes())
                count += len(ids)
            if not count:
                raise GpuguideError("There are no tokens to write; the texts are empty.")
            file.seek(0)
            file.write(_header(kind, count))
    except OSError as error:
        raise GpuguideError(f"{path} cannot be written ({error.strerror}).") from error
    return count


def _header(dtype: np.dtype[np.unsignedinteger], count: int) -> bytes:
    """Return the header of a one-dimensional array, as long for every count, so that it can be written again."""
    header = io.BytesIO()
    description = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(header, description)
    return header.getvalue()


def open_tokens(path: Path, vocab_size: int) -> np.ndarray:
    """Return the ids of a token file, mapped into memory, after all were compared with the vocabulary.

    Parameters
    ----------
    path : Path
        ``.npy`` with one axis of unsigned integers in 16 or 32 bits, or ``.bin``: 16 bits each, and no header.
    vocab_size : int
        Ids that the model knows.

    Returns
    -------
    numpy.ndarray
        ``(tokens,)``, uint16 or uint32, read-only.

    Raises
    ------
    GpuguideError
        If the file is missing, cut short or something else, or an id is not in the vocabulary.
    """
    tokens = _map_bin(path) if path.suffix == ".bin" else _map_npy(path)
    for start in range(0, len(tokens), CHECKED_AT_ONCE):
        largest = int(tokens[start : start + CHECKED_AT_ONCE].max())
        if largest >= vocab_size:
            raise GpuguideError(
                f"{path} has the id {largest:,}, and the model knows {vocab_size:,} tokens: it was written with "
                "another tokenizer, or with ids of another size."
            )
    return tokens


def _map_npy(path: Path) -> np.ndarray:
    try:
        tokens: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise GpuguideError(f"There is no file {path}.") from error
    except (OSError, ValueError, EOFError) as error:  # a file cut short is longer by its header than it is
        raise GpuguideError(f"{path} is no array of NumPy (.npy), or was cut short. Write it again.") from error
    if tokens.ndim != 1 or tokens.dtype not in (np.uint16, np.uint32):
        raise GpuguideError(
            f"{path} holds {tokens.dtype} of the shape {tokens.shape}; a token file has one axis of uint16 or uint32."
        )
    return tokens


def _map_bin(path: Path) -> np.ndarray:
    try:
        size = path.stat().st_size
        if not size or size % 2:
            raise GpuguideError(f"{path} has {size:,} bytes; ids of 16 bits are an even number of bytes, and not 0.")
        return np.memmap(path, np.uint16, "r")
    except OSError as error:
        raise GpuguideError(f"{path} cannot be read ({error.strerror}).") from error


@dataclass(frozen=True)
class Windows:
    """Windows of a run: which tokens each step reads.

    Parameters
    ----------
    tokens : numpy.ndarray
        ``(tokens,)``, as :func:`open_tokens` gives it.
    seq_len : int
        Tokens that the model reads of each.
    batch : int
        Windows of a step, of all processes together.
    seed : int
        Seed of the order.

    Raises
    ------
    GpuguideError
        If the text is shorter than one window.
    """

    tokens: np.ndarray
    seq_len: int
    batch: int
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.tokens) <= self.seq_len:
            raise GpuguideError(
                f"The text has {len(self.tokens):,} tokens, and a window takes {self.seq_len + 1:,}; take a longer "
                "text, or shorter windows."
            )

    @property
    def per_epoch(self) -> int:
        """Number of windows in an epoch."""
        return (len(self.tokens) - 1) // self.seq_len

    def starts(self, step: int) -> torch.Tensor:
        """Return where the windows of a step begin, ``(batch,)``; the first step is 0."""
        epochs, places = places_of_step(self.per_epoch, self.batch, self.seed, step)
        return torch.tensor(
            [self._offset(epoch) + self.seq_len * place for epoch, place in zip(epochs, places, strict=True)]
        )

    def draw(self, step: int, rank: int = 0, world_size: int = 1) -> torch.Tensor:
        """Return the windows of a step that one of several processes reads, ``(batch / world_size, seq_len + 1)``."""
        starts = self.starts(step)[rank::world_size].numpy()[:, None]
        return torch.from_numpy(self.tokens[starts + np.arange(self.seq_len + 1)].astype(np.int64))

    def spread_windows(self, most: int) -> torch.Tensor:
        """Return at most so many windows that do not overlap, spread over the text, ``(windows, seq_len + 1)``."""
        count = min(most, self.per_epoch)
        starts = np.linspace(0, len(self.tokens) - self.seq_len - 1, count).astype(np.int64)[:, None]
        return torch.from_numpy(self.tokens[starts + np.arange(self.seq_len + 1)].astype(np.int64))

    def _offset(self, epoch: int) -> int:
        """Return the token at which the windows of an epoch begin: any of those that are left over."""
        left = len(self.tokens) - 1 - self.seq_len * self.per_epoch
        return int(np.random.default_rng(step_seed(self.seed, epoch)).integers(left + 1))
