from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from gpuguide import models
from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.models import checkpoint
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.training import Corpus


@pytest.fixture
def folder(tmp_path: Path, tiny_model: GPT2, small_corpus: Corpus) -> Path:
    checkpoint.write(tmp_path / "model", tiny_model, small_corpus.tokenizer)
    return tmp_path / "model"


def test_round_trip_loses_only_what_bf16_does(folder: Path, tiny_model: GPT2) -> None:
    model, tokenizer = checkpoint.read(folder)
    assert model.config == tiny_model.config
    assert not model.training
    for (name, ours), again in zip(tiny_model.state_dict().items(), model.state_dict().values(), strict=True):
        assert torch.equal(ours.bfloat16().float(), again), name
    assert model.head.weight is model.token_embedding.weight
    assert tokenizer.vocab_size == 300


def test_transformers_reads_what_we_write(folder: Path) -> None:
    model, _ = checkpoint.read(folder)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokens = torch.randint(300, (2, 16))
    with torch.no_grad():
        assert (model(tokens) - theirs(tokens).logits).abs().max() <= 1e-4


def test_we_read_what_transformers_writes(folder: Path, tmp_path: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs.save_pretrained(tmp_path / "theirs")
    shutil.copy(folder / checkpoint.TOKENIZER, tmp_path / "theirs")
    ours, again = (checkpoint.read(path)[0] for path in (folder, tmp_path / "theirs"))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), again.parameters(), strict=True))


def test_names_without_prefix_and_with_masks_as_in_the_published_gpt2(folder: Path) -> None:
    before = checkpoint.read(folder)[0]
    weights = {
        name.removeprefix("transformer."): tensor for name, tensor in load_file(folder / "model.safetensors").items()
    }
    weights["h.0.attn.bias"] = torch.ones(1, 1, 16, 16)
    weights["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(weights, folder / "model.safetensors")
    again = checkpoint.read(folder)[0]
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), again.parameters(), strict=True))


def rewrite(name: str, change: Callable[[dict], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return apply


def reweigh(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors")

    return apply


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def not_a_number(weights: dict[str, torch.Tensor]) -> None:
    weights["transformer.ln_f.bias"][3] = torch.nan


FAULTS = {
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"There is no model\.safetensors in"),
    "no config": (lambda f: (f / "config.json").unlink(), r"There is no config\.json in"),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), r"There is no tokenizer\.json in"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), r"config\.json is no JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), r"model_type is None; only 'gpt2'"),
    "foreign": (rewrite("config.json", lambda c: c.update(model_type="llama")), "model_type is 'llama'"),
    "activation": (rewrite("config.json", lambda c: c.update(activation_function="relu")), "function is 'relu'"),
    "untied": (rewrite("config.json", lambda c: c.update(tie_word_embeddings=False)), "tie_word_embeddings is False"),
    "inner": (rewrite("config.json", lambda c: c.update(n_inner=100)), "n_inner is 100"),
    "missing size": (rewrite("config.json", lambda c: c.pop("n_layer")), r"n_layer is None; it must be a whole number"),
    "heads": (rewrite("config.json", lambda c: c.update(n_head=3)), r"config\.json: 3 heads do not divide"),
    "truncated": (truncate, r"model\.safetensors is damaged or no safetensors file"),
    "empty": (lambda f: (f / "model.safetensors").write_bytes(b""), r"model\.safetensors is damaged"),
    "other bytes": (lambda f: (f / "model.safetensors").write_bytes(b"\x80PK" * 99), r"model\.safetensors is damaged"),
    "tensor missing": (reweigh(lambda w: w.pop("transformer.h.1.ln_2.bias")), r"has no tensor h\.1\.ln_2\.bias"),
    "tensor unknown": (reweigh(lambda w: w.update(extra=torch.ones(1))), "no place for extra"),
    "deeper": (rewrite("config.json", lambda c: c.update(n_layer=1)), r"no place for h\.1\."),
    "wider": (rewrite("config.json", lambda c: c.update(n_embd=32)), r"\(300, 16\), and config\.json wants"),
    "not finite": (reweigh(not_a_number), r"ln_f\.bias holds numbers that are not finite"),
    "tokenizer": (rewrite("config.json", lambda c: c.update(vocab_size=200)), "has 300 tokens and the model 200"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_checkpoint_is_named(folder: Path, fault: str) -> None:
    spoil, message = FAULTS[fault]
    spoil(folder)
    with pytest.raises(GpuguideError, match=message) as caught:
        models.load(folder)
    assert str(folder) in str(caught.value)


def test_unknown_name() -> None:
    with pytest.raises(UnknownName, match=r"There is no model named 'mian'\. Did you mean main"):
        models.load("mian")
    with pytest.raises(UnknownName, match="packaged model"):
        models.training_record("gpt2")


def test_a_model_by_name_without_a_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    def unreachable(*arguments: object, **settings: object) -> str:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(
        GpuguideError, match=r"openai-community/gpt2 is not on this machine and cannot be fetched .*main"
    ):
        models.load("gpt2")


def test_a_model_by_name_goes_through_the_same_code(
    monkeypatch: pytest.MonkeyPatch, folder: Path, tiny_model: GPT2
) -> None:
    import huggingface_hub

    asked = {}

    def found(repository: str, allow_patterns: list[str]) -> str:
        asked[repository] = allow_patterns
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", found)
    assert models.load("gpt2").config == tiny_model.config
    assert asked == {"openai-community/gpt2": ["config.json", "model.safetensors", "tokenizer.json"]}
