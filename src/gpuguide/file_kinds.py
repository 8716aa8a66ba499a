"""What a file or folder is that is not what it should be, and what to do about it: sentences for messages.

Nothing here decides what is read. A message ends with the sentence, or with nothing where the file is not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

HEAD = 512
"""Bytes at the beginning of a file by which its kind is told"""
LFS = b"version https://git-lfs.github.com/spec"
TEXTS: dict[bytes, str] = {
    LFS: "a Git LFS pointer, which stands for a file that was not downloaded; run 'git lfs pull' in its folder",
    b"%PDF-": "a PDF; extract its text first",
    b"{\\rtf": "a rich text document; save it as plain text",
}
"""How files of a kind begin that are written in letters, and what that kind is"""
BINARY: dict[bytes, str] = {
    b"PAR1": "a Parquet file; let its name end in .parquet",
    b"ARROW1": "an Arrow file; write it as Parquet (datasets: to_parquet) or as JSON Lines (to_json)",
    b"\x1f\x8b": "compressed with gzip; unpack it first (gunzip)",
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard; unpack it first (unzstd)",
    b"BZh": "compressed with bzip2; unpack it first (bunzip2)",
    b"\xfd7zXZ\x00": "compressed with xz; unpack it first (unxz)",
    b"PK\x03\x04": "a ZIP archive, as PyTorch's files (.bin, .pt) and Office documents are; export its content first",
    b"\x80\x02": "a pickle, as PyTorch's files (.bin, .pt) are; save it as safetensors",
    b"\x80\x04": "a pickle; export its content as JSON Lines",
    b"GGUF": "a GGUF file of llama.cpp; take the checkpoint that it was made from, in safetensors",
    b"SQLite format 3\x00": "a SQLite database; export a table as JSON Lines",
}
"""The same of binary files; a text may begin with some of these letters"""
CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
"""Bytes that stand in no text"""
WEB_PAGE = "a web page, perhaps of a download that asked for a login; download it again"
SIXTEEN_BITS = {
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
}
"""Byte-order marks of encodings that are not UTF-8"""
LM_HEAD = "lm_head.weight"
EMBEDDINGS = ("wte.weight", "embed_tokens.weight")
QUANTISED = (".weight_scale", ".weight_scale_inv", ".input_scale", ".qweight", ".qzeros", ".scales", ".absmax",
             ".quant_map", ".weight_format", ".SCB", ".weight_packed", "_blocks", "_scales")  # fmt: skip
"""Ends of the names of tensors that only quantised checkpoints have"""


def kind_of(head: bytes) -> str | None:
    """Return what a file is that begins with some bytes, and what to do; ``None`` if it is none of these kinds.

    >>> kind_of(b"%PDF-1.7")
    'a PDF; extract its text first'
    """
    kinds = {**TEXTS, **BINARY} if CONTROL.search(head) else TEXTS
    return next((kind for beginning, kind in kinds.items() if head.startswith(beginning)), None)


def hint(path: Path) -> str:
    """Return a sentence, with a space before it, that says what a file is; nothing if that is not clear."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
    except OSError:
        return ""
    if not head:
        return " It is empty; download it again."
    kind = WEB_PAGE if head.lstrip().lower().startswith((b"<!doctype html", b"<html")) else kind_of(head)
    return f" It is {kind}." if kind else ""


def encoding_of(head: bytes) -> str | None:
    """Return the encoding with two or four bytes a letter in which a text is written; ``None`` if it is another.

    >>> encoding_of('{"text"'.encode("utf-16"))
    'UTF-16'
    """
    for mark in sorted(SIXTEEN_BITS, key=len, reverse=True):
        if head.startswith(mark):
            return SIXTEEN_BITS[mark]
    pairs = head[: len(head) // 2 * 2]
    for zeros, letters in ((pairs[::2], pairs[1::2]), (pairs[1::2], pairs[::2])):
        if zeros and not any(zeros) and all(letters):
            return "UTF-16"
    return None


def instead_of_config(folder: Path) -> str:
    """Return a sentence on a folder without ``config.json``: what it is instead, and what to do."""
    if (folder / "adapter_config.json").is_file():
        beside = folder.parent / "merged"
        merged = f" {beside} is one." if (beside / "config.json").is_file() else ""
        return (
            " The folder holds an adapter (adapter_config.json), not a whole checkpoint. Give a checkpoint into which "
            f"it is merged: gpuguide.lora.merge_into_checkpoint(base, adapter, folder) writes it.{merged}"
        )
    if (folder / "merged" / "config.json").is_file():
        return f" The checkpoint of this fine-tuning is {folder / 'merged'}."
    if (folder / "params.json").is_file():
        return " The folder holds weights in Meta's or Mistral's own format; take the checkpoint for transformers."
    if _with_ending(folder, ".gguf"):
        return " The folder holds a GGUF file of llama.cpp; take the checkpoint that it was made from, in safetensors."
    return ""


def instead_of_weights(folder: Path) -> str:
    """Return a sentence on a folder without weights in safetensors: which others it has, and what to do."""
    pickled = [name for name in _with_ending(folder, ".bin", ".pt", ".pth") if name != "training_args.bin"]
    if (folder / "pytorch_model.bin.index.json").is_file() or pickled:
        return (
            f" The weights are in {pickled[0] if pickled else 'pytorch_model.bin'}, which may run code when read; "
            "write them as safetensors: transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new)."
        )
    if others := _with_ending(folder, ".h5", ".msgpack", ".gguf", ".onnx"):
        return f" {others[0]} is not read; take the checkpoint in safetensors."
    if (folder / "adapter_config.json").is_file():
        return instead_of_config(folder)
    return ""


def instead_of_tokenizer(folder: Path) -> str:
    """Return a sentence on a folder without ``tokenizer.json``: which other files it has, and what to do."""
    others = [name for name in ("tokenizer.model", "vocab.json", "merges.txt") if (folder / name).is_file()]
    if not others:
        return ""
    return (
        f" It has {' and '.join(others)}; make the file from them: "
        "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
    )


def other_names(given: Collection[str], wanted: Collection[str]) -> str:
    """Return a sentence on tensors whose names are not those of the model: why that may be, and what to do.

    Parameters
    ----------
    given, wanted : collection of str
        The names in the file, and those of the model.
    """
    if any(name.endswith(QUANTISED) for name in given):
        return " The weights are quantised (they come with scales); take the checkpoint that was quantised."
    for inner in ("_orig_mod.", "module."):
        if any(name.startswith(inner) or f".{inner}" in name for name in given):
            maker = {"_orig_mod.": "torch.compile", "module.": "DistributedDataParallel"}[inner]
            return (
                f" The names hold {inner!r}, which {maker} puts there; save the model inside it, or rename the tensors."
            )
    tied = LM_HEAD not in wanted
    if tied and LM_HEAD in given and any(name.endswith(EMBEDDINGS) and name not in given for name in wanted):
        return (
            f" Of the embedding and the head, which are one matrix, the file has {LM_HEAD} alone; load it with "
            "transformers.AutoModelForCausalLM and save it again."
        )
    lacking = [name for name in wanted if name not in given and name.removeprefix("model.") in given]
    if lacking:
        return (
            " The names lack 'model.', as those of a model that was saved without its head; save it with "
            "transformers.AutoModelForCausalLM."
        )
    return ""


def _with_ending(folder: Path, *endings: str) -> list[str]:
    return sorted(path.name for path in folder.glob("*") if path.suffix in endings)
