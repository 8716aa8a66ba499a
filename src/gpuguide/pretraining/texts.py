"""From texts to one token file, once: a run that is resumed, or repeated with other settings, finds it there."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuguide import files
from gpuguide.checkpoint_files import TOKENIZER
from gpuguide.errors import GpuguideError
from gpuguide.finetuning.data.files import load_data
from gpuguide.models import HUB, PACKAGED, checkpoint_folder
from gpuguide.models.tokenizer import Tokenizer
from gpuguide.training.tokens import open_tokens, write_tokens

TOKENS, ORIGIN = "tokens.npy", "tokens.json"
"""The token file in the output folder, and what it was made of"""
READY = (".npy", ".bin")
"""Endings of files that hold tokens already"""
WAIT_SECONDS = 0.2
HELD_OUT_SHARE = 0.05
MOST_HELD_OUT = 2**20
"""Tokens held out at the end of the text: a share, and at most so many"""


@dataclass(frozen=True)
class Corpus:
    """A text as tokens, its end held out."""

    training: np.ndarray
    held_out: np.ndarray
    token_file: Path
    digest: str
    """Of the tokens, by which a resumed run recognises its text"""


def read_tokenizer(name: str) -> Tokenizer:
    """Return a tokenizer: of a packaged model, of one on the Hugging Face Hub, or of a folder or file.

    Raises
    ------
    GpuguideError
        If it is not here and cannot be fetched, or cannot be read.
    """
    if name in PACKAGED:
        return Tokenizer.read(checkpoint_folder(name) / TOKENIZER)
    if name in HUB:
        return Tokenizer.read(_fetch(HUB[name]))
    path = Path(name)
    path = path / TOKENIZER if path.is_dir() else path
    if not path.is_file():
        raise GpuguideError(
            f"There is no tokenizer {name}; choose one of {', '.join((*PACKAGED, *HUB))}, or a tokenizer.json."
        )
    return Tokenizer.read(path)


def _fetch(repository: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository, TOKENIZER))
    except Exception as error:  # the client's errors have no base of their own
        raise GpuguideError(
            f"The tokenizer of {repository} is not on this machine and cannot be fetched ({type(error).__name__}). "
            f"Without a network, use --tokenizer with one of: {', '.join(PACKAGED)}."
        ) from error


def prepare_corpus(
    texts: Sequence[Path], tokenizer: Tokenizer, vocab_size: int, folder: Path, *, writes: bool = True
) -> Corpus:
    """Return the texts as tokens; the token file is written to the folder unless it is there.

    Parameters
    ----------
    texts : sequence of Path
        Texts, JSON Lines, Parquet, or one token file.
    tokenizer : Tokenizer
        Makes tokens; its end-of-text token stands before each document.
    vocab_size : int
        Ids that the model knows.
    folder : Path
        Output folder.
    writes : bool
        Whether this process writes the file; otherwise it waits for the one that does.

    Raises
    ------
    GpuguideError
        If a text cannot be read, or the token file cannot be used.
    """
    if any(path.suffix in READY for path in texts):
        if len(texts) > 1:
            raise GpuguideError(f"{', '.join(map(str, texts))}: give one token file alone, or texts.")
        return _split(texts[0], vocab_size)
    path, origin = folder / TOKENS, folder / ORIGIN
    made_of: dict[str, object] = {"texts": [_digest(text) for text in texts], "tokenizer": _fingerprint(tokenizer)}
    while not writes and not _is_made_of(path, origin, made_of):
        time.sleep(WAIT_SECONDS)  # a barrier would give up after minutes, and a long text takes longer
    if writes and not _is_made_of(path, origin, made_of):
        origin.unlink(missing_ok=True)
        write_tokens(path, _documents(texts, tokenizer), vocab_size)
        files.write_json(origin, made_of)
    return _split(path, vocab_size)


def _is_made_of(path: Path, origin: Path, made_of: dict[str, object]) -> bool:
    """Return whether a token file is there that was made of these texts."""
    return path.exists() and origin.exists() and json.loads(origin.read_text()) == made_of


def _documents(texts: Sequence[Path], tokenizer: Tokenizer) -> Iterator[list[int]]:
    """Yield the tokens of each document, after the one that separates documents."""
    for path in texts:
        for sample in load_data(path).samples:
            if sample.messages:
                raise GpuguideError(f"{path}, {sample.location} is a conversation; gpuguide finetune reads those.")
            yield [tokenizer.end_of_text, *tokenizer.encode(sample.text)]


def _split(path: Path, vocab_size: int) -> Corpus:
    tokens = open_tokens(path, vocab_size)
    held_out = max(1, min(round(HELD_OUT_SHARE * len(tokens)), MOST_HELD_OUT))
    digest = hashlib.sha256(tokens.tobytes() if len(tokens) < MOST_HELD_OUT else tokens[::97].tobytes()).hexdigest()
    return Corpus(tokens[:-held_out], tokens[-held_out:], path, f"{len(tokens)} {digest}")


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise GpuguideError(f"The text {path} cannot be read ({error.strerror}).") from error


def _fingerprint(tokenizer: Tokenizer) -> str:
    """Return a digest of the bytes of all tokens."""
    total = hashlib.sha256()
    for token in range(tokenizer.vocab_size):
        total.update(tokenizer.decode_bytes([token]) + b"\0")
    return total.hexdigest()
