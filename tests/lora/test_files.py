"""Adapters and merged checkpoints on disk, read by PEFT and transformers and written by them."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import small_adapted as small
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

from gpuguide import lora
from gpuguide.errors import GpuguideError
from gpuguide.finetuning import peft_names
from gpuguide.lora import checkpoint

needs = pytest.mark.needs
PLACES = {
    "gpt2": ["query_key_value:q,v", "attention.out", "up"],
    "llama": ["query_key_value:q,v", "gate_up", "down"],
}
SETTINGS = lora.Settings(rank=3, alpha=5, stabilised=True)


def adapted(name: str, targets: list[str] | None = None) -> Any:
    """A model with adapters that have something to add."""
    model = small.model(name)
    lora.add_adapters(model, PLACES[name] if targets is None else targets, SETTINGS)
    small.something_to_add(model)
    return model


def of_transformers(name: str) -> Any:
    """The same base in transformers."""
    from gpuguide.benchmarks.inference.with_transformers import convert_model

    return convert_model(small.model(name), "cpu")


@pytest.mark.parametrize("name", PLACES)
def test_what_is_written_is_pefts_documented_format(name: str, tmp_path: Path) -> None:
    """As ``docs/source/developer_guides/checkpoint.md`` of PEFT has it."""
    model = adapted(name)
    lora.save_adapter(model, tmp_path, base="someone/base", places=peft_names.places(small.model(name)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    assert config["base_model_name_or_path"] == "someone/base"
    assert config["use_rslora"] is True
    assert config["fan_in_fan_out"] == (name == "gpt2")
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    assert all(key.startswith("base_model.model.") for key in tensors)
    for path in config["target_modules"]:
        rank = config["rank_pattern"].get(path, config["r"])
        assert tensors[f"base_model.model.{path}.lora_A.weight"].shape[0] == rank
        assert tensors[f"base_model.model.{path}.lora_B.weight"].shape[1] == rank


@pytest.mark.parametrize("name", PLACES)
def test_what_was_written_is_read_as_it_was(name: str, tmp_path: Path) -> None:
    model, again, places = adapted(name), small.model(name), peft_names.places(small.model(name))
    lora.save_adapter(model, tmp_path, places=places)
    lora.load_adapter(again, tmp_path, places=places)
    assert torch.equal(again(small.TOKENS), model(small.TOKENS))
    first, second = lora.find_adapted_layers(model), lora.find_adapted_layers(again)
    attention = "blocks.0.attention.query_key_value"
    assert first[attention].adapter("default").spans == second[attention].adapter("default").spans
    assert first.keys() == second.keys()


@needs("peft", "transformers")
@pytest.mark.parametrize("name", PLACES)
def test_peft_computes_what_we_do_with_our_own_models(name: str, tmp_path: Path) -> None:
    from peft import PeftModel

    model = adapted(name)
    lora.save_adapter(model, tmp_path, places=peft_names.places(small.model(name)))
    theirs = PeftModel.from_pretrained(of_transformers(name), tmp_path).eval()
    torch.testing.assert_close(theirs(small.TOKENS).logits, model(small.TOKENS), rtol=1e-5, atol=1e-5)


@needs("peft", "transformers")
@pytest.mark.parametrize("name", PLACES)
def test_we_compute_what_peft_does_with_layers_of_several_ranks(name: str, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    targets = {"gpt2": ["c_attn", "c_proj", "c_fc"], "llama": ["q_proj", "v_proj", "down_proj", "up_proj"]}[name]
    pattern = {"gpt2": r"h\.1\.mlp\.c_proj", "llama": "down_proj"}[name]
    config = LoraConfig(
        r=4,
        lora_alpha=6,
        target_modules=targets,
        rank_pattern={pattern: 2},
        alpha_pattern={pattern: 9},
        fan_in_fan_out=name == "gpt2",
        init_lora_weights=False,
        task_type="CAUSAL_LM",
    )
    theirs = get_peft_model(of_transformers(name), config).eval()
    theirs.save_pretrained(tmp_path)
    model = small.model(name)
    lora.load_adapter(model, tmp_path, places=peft_names.places(small.model(name)))
    torch.testing.assert_close(model(small.TOKENS), theirs(small.TOKENS).logits, rtol=1e-5, atol=1e-5)
    assert lora.count_parameters(model).trained == sum(
        each.numel() for key, each in theirs.named_parameters() if "lora_" in key
    )


@needs("peft", "transformers")
def test_twenty_steps_beside_parts_of_fused_matrices_are_pefts(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]
    config = LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM")
    theirs = get_peft_model(of_transformers("llama"), config).eval()
    theirs.save_pretrained(tmp_path)
    model = small.model("llama")
    lora.load_adapter(model, tmp_path, places=peft_names.places(small.model("llama")))
    curves = []
    for logits in (model, lambda tokens: theirs(tokens).logits):
        trained = [each for each in (model if logits is model else theirs).parameters() if each.requires_grad]
        optimizer, losses = torch.optim.AdamW(trained, lr=3e-3), []
        for _ in range(20):
            optimizer.zero_grad()
            loss = functional.cross_entropy(logits(small.TOKENS)[:, :-1].flatten(0, 1), small.TOKENS[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        curves.append(losses)
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)
    assert curves[0][-1] < curves[0][0] - 0.05


@needs("transformers")
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_merged_checkpoint_is_the_bases_with_the_change(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = adapted(name)
    lora.save_adapter(model, tmp_path / "adapter", places=peft_names.places(small.model(name)))
    of_transformers(name).to(dtype).save_pretrained(tmp_path / "base", max_shard_size="20KB")
    (tmp_path / "base" / "tokenizer.json").write_text("{}")
    changed = lora.merge_into_checkpoint(tmp_path / "base", tmp_path / "adapter", tmp_path / "merged")
    names = {path.name for path in (tmp_path / "base").iterdir()}
    assert {path.name for path in (tmp_path / "merged").iterdir()} == names
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=dtype).eval()
    base = dict(AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=dtype).named_parameters())
    for key, parameter in merged.named_parameters():
        assert parameter.dtype == dtype
        assert torch.equal(parameter, base[key]) == (key not in changed)
    if dtype == torch.float32:
        torch.testing.assert_close(merged(small.TOKENS).logits, model(small.TOKENS), rtol=1e-5, atol=1e-5)


# --- what is wrong ---------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """An adapter of the small GPT-2, under its own names."""
    lora.save_adapter(adapted("gpt2"), tmp_path / "adapter")
    return tmp_path / "adapter"


def change_config(folder: Path, **more: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"peft_type": "IA3"}, "only plain LoRA"),
        ({"bias": "all"}, "with bias all"),
        ({"use_dora": True}, "use_dora is True, which is not computed"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa'"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"init_lora_weights": "olora"}, "init_lora_weights is 'olora'.*merge_and_unload"),
        ({"r": 5, "rank_pattern": {}}, "at rank 5"),
        ({"r": "many", "rank_pattern": {}}, "rank is 'many'"),
        ({"lora_alpha": None, "alpha_pattern": {}}, "must be numbers"),
    ],
)
def test_adapters_of_other_kinds_are_refused(written: Path, more: dict[str, object], says: str) -> None:
    change_config(written, **more)
    model = small.model()
    with pytest.raises(GpuguideError, match=says):
        lora.load_adapter(model, written)
    assert not lora.find_adapted_layers(model)


@pytest.mark.parametrize("start", [True, False, "gaussian", "orthogonal", "eva"])
def test_beginnings_that_leave_the_base_as_it_is(written: Path, start: object) -> None:
    change_config(written, init_lora_weights=start)
    assert lora.load_adapter(small.model(), written)


@needs("peft", "transformers")
def test_what_peft_changes_in_a_base_cannot_be_merged_unseen(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights="pissa", task_type="CAUSAL_LM")
    get_peft_model(of_transformers("llama"), config).save_pretrained(tmp_path / "adapter")
    of_transformers("llama").save_pretrained(tmp_path / "base")
    with pytest.raises(GpuguideError, match="init_lora_weights is 'pissa'"):
        lora.merge_into_checkpoint(tmp_path / "base", tmp_path / "adapter", tmp_path / "merged")


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("base_model.model.lm_head.weight", "as large as the vocabulary.*resized"),
        ("base_model.model.lm_head.base_layer.weight", "the base's own matrix.*merge_and_unload"),
        ("base_model.model._orig_mod.x.lora_A.bias", "torch.compile"),
        ("base_model.model.wte.lora_embedding_A", "beside an embedding"),
        ("base_model.model.x.lora_A.default.weight.y", "that of the adapter"),
        ("base_model.model.x.modules_to_save.weight", "Whole layers were trained"),
    ],
)
def test_a_tensor_that_is_no_part_of_lora_is_explained(written: Path, key: str, says: str) -> None:
    save_file({key: torch.zeros(1)}, written / "adapter_model.safetensors")
    with pytest.raises(GpuguideError, match=f"{re.escape(key)} is no part.*{says}"):
        lora.load_adapter(small.model(), written)


def test_other_files_in_place_of_an_adapter(written: Path, tmp_path: Path) -> None:
    weights = written / "adapter_model.safetensors"
    weights.write_text("version https://git-lfs.github.com/spec/v1\nsize 9\n")
    with pytest.raises(GpuguideError, match=r"cannot be read .* Git LFS pointer"):
        lora.load_adapter(small.model(), written)
    weights.rename(weights.with_suffix(".bin"))
    with pytest.raises(GpuguideError, match=r"weights are in adapter_model\.bin.*PEFT"):
        lora.load_adapter(small.model(), written)
    (written / "adapter_config.json").rename(written / "config.json")
    with pytest.raises(GpuguideError, match="holds a whole checkpoint"):
        lora.load_adapter(small.model(), written)
    written.rename(tmp_path / "other")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(GpuguideError, match=f"this fine-tuning is in {tmp_path / 'adapter'}"):
        lora.load_adapter(small.model(), tmp_path)


def test_damaged_and_missing_files_are_named(written: Path, tmp_path: Path) -> None:
    with pytest.raises(GpuguideError, match=r"adapter_config\.json is no description"):
        lora.load_adapter(small.model(), tmp_path / "nowhere")
    weights = written / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(GpuguideError, match=r"adapter_model\.safetensors cannot be read"):
        lora.load_adapter(small.model(), written)
    for tensors, says in (
        ({"base_model.model.x.lora_A.weight": torch.zeros(3, 2)}, "one of its two matrices only"),
        ({"something": torch.zeros(1)}, "something is no part of a LoRA adapter"),
        ({}, "holds no adapter"),
    ):
        save_file(tensors, weights)
        with pytest.raises(GpuguideError, match=says):
            lora.load_adapter(small.model(), written)


def test_an_adapter_for_another_base_is_refused(written: Path) -> None:
    model = small.model("llama")
    with pytest.raises(GpuguideError, match="for another base"):
        lora.load_adapter(model, written)
    with pytest.raises(GpuguideError, match="for another base: the model has no layer"):
        lora.load_adapter(small.model(), written, places=peft_names.places(small.model()))
    assert not lora.find_adapted_layers(model)


def test_a_full_disk_leaves_the_adapter_that_was_there(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path: path.read_bytes() for path in written.iterdir()}

    def full(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GpuguideError, match="No space left on device"):
        lora.save_adapter(adapted("gpt2", ["down"]), written)
    assert {path: path.read_bytes() for path in written.iterdir()} == before


def test_what_cannot_be_merged_into_a_checkpoint(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, target = tmp_path / "base", tmp_path / "merged"
    with pytest.raises(GpuguideError, match=r"no model\.safetensors in"):
        lora.merge_into_checkpoint(base, written, target)
    base.mkdir()
    weights = {f"{name}.weight": torch.zeros(2, 2) for name in lora.find_adapted_layers(adapted("gpt2"))}
    save_file({"other": torch.zeros(2)}, base / "model.safetensors")
    with pytest.raises(GpuguideError, match=r"for another base: .* has no tensor"):
        lora.merge_into_checkpoint(base, written, target)
    save_file(weights, base / "model.safetensors")
    with pytest.raises(GpuguideError, match=r"is \(2, 2\), and its change"):
        lora.merge_into_checkpoint(base, written, target)
    save_file({name: each.to(torch.int8) for name, each in weights.items()}, base / "model.safetensors")
    with pytest.raises(GpuguideError, match=r"stored in torch\.int8"):
        lora.merge_into_checkpoint(base, written, target)
    assert sorted(os.listdir(tmp_path)) == ["adapter", "base"]

    def full(*given: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    right = {
        name: torch.zeros(each.base.weight.shape) for name, each in lora.find_adapted_layers(adapted("gpt2")).items()
    }
    save_file({f"{name}.weight": each for name, each in right.items()}, base / "model.safetensors")
    with pytest.raises(GpuguideError, match=r"cannot be written .*No space left"):
        lora.merge_into_checkpoint(base, written, target)
    assert sorted(os.listdir(tmp_path)) == ["adapter", "base"]
    target.mkdir()
    (target / "mine").write_text("kept")
    with pytest.raises(GpuguideError, match="is not empty"):
        lora.merge_into_checkpoint(base, written, target)
