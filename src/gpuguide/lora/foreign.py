"""Adapters of PEFT that are not plain LoRA: sentences for messages that say what they are and what to do.

Nothing here decides what is read.
"""

from __future__ import annotations

from pathlib import Path

from gpuguide import file_kinds

CHANGED_BASE = (
    "Such an adapter belongs to a base whose weights were changed when the training began; on the base as it was, it "
    "computes something else. Convert it to plain LoRA with PEFT (save_pretrained with "
    "path_initial_model_for_weight_conversion), or merge it there (merge_and_unload)."
)
MERGE = "Merge it with PEFT (merge_and_unload), and read the checkpoint that this gives."
KEYS = {
    "_orig_mod.": "The names hold _orig_mod., which torch.compile puts there; save the adapter of the model inside it.",
    ".base_layer.": f"PEFT stored the base's own matrix with it, because the layer has an adapter. {MERGE}",
    "lora_embedding_": f"It stands beside an embedding, which is not computed here. {MERGE}",
    "lora_magnitude_vector": f"It is DoRA, which is not computed here. {MERGE}",
    ".default.": "The names hold that of the adapter; load it with PEFT, which saves it without.",
    "modules_to_save.": f"Whole layers were trained beside the adapter, which is not computed here. {MERGE}",
    ".bias": f"Biases were trained as well, which is not computed here. {MERGE}",
}
"""Parts of the names of tensors, and what they say"""
OUTER = ("lm_head", "embed_tokens", "wte")
"""Ends of the names of layers whose size is that of the vocabulary"""


def key_hint(key: str) -> str:
    """Return a sentence, with a space before it, on a tensor that is no part of plain LoRA, if it is a known one."""
    said = next((meaning for part, meaning in KEYS.items() if part in key), "")
    if not said and key.removesuffix(".weight").endswith(OUTER):
        said = (
            "The file holds a whole matrix as large as the vocabulary, as PEFT stores it after the vocabulary was "
            f"resized or where it was asked to (save_embedding_layers). {MERGE}"
        )
    return said and f" {said}"


def instead_of_description(folder: Path) -> str:
    """Return a sentence on a folder without a description of an adapter: what it may be instead."""
    if not folder.is_dir():
        return " There is no such folder."
    if (folder / "config.json").is_file():
        return " The folder holds a whole checkpoint, which is read by itself."
    if (folder / "adapter" / "adapter_config.json").is_file():
        return f" The adapter of this fine-tuning is in {folder / 'adapter'}."
    return ""


def instead_of_weights(path: Path) -> str:
    """Return a sentence on the weights of an adapter that cannot be read: what there is instead, and what to do."""
    pickled = path.with_suffix(".bin")
    if not path.exists() and pickled.is_file():
        return (
            f" The weights are in {pickled.name}, which may run code when it is read; load the adapter with PEFT and "
            "save it again, which writes safetensors."
        )
    return file_kinds.hint(path)
