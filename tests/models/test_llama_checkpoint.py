from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import spoiled_checkpoints
import torch
import transformers
from spoiled_checkpoints import reweigh

from gpuguide.checkpoint_files import format_names
from gpuguide.errors import GpuguideError
from gpuguide.models.checkpoint import open_checkpoint
from gpuguide.models.llama import LlamaConfig, RopeScaling
from gpuguide.models.llama_checkpoint import parse_config

SETTINGS = {
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "intermediate_size": 56,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
VARIANTS: dict[str, dict] = {
    "grouped": {},
    "not grouped": {"num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True},
    "scaled": {"rope_parameters": LLAMA3},
}


def saved(folder: Path, dtype: torch.dtype = torch.float32, shard: str = "1GB", **changes: object) -> torch.nn.Module:
    """Save a model of transformers with random weights that all matter, and return it."""
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SETTINGS, **changes})).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    theirs.to(dtype).save_pretrained(folder, max_shard_size=shard)
    return theirs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    saved(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    saved(tmp_path / "model", shard="20KB")
    return tmp_path / "model"


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shard", ["1GB", "20KB"])
def test_logits_are_those_of_the_model_that_was_saved(tmp_path: Path, variant: str, shard: str) -> None:
    theirs = saved(tmp_path, shard=shard, **VARIANTS[variant])
    assert (tmp_path / "model.safetensors").exists() == (shard == "1GB")
    model = open_checkpoint(tmp_path).read_model()
    assert not model.training
    assert model.config.tied == (variant == "tied")
    assert (model.head.weight is model.token_embedding.weight) == model.config.tied
    tokens = torch.randint(96, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), theirs(tokens).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("asked", [torch.float32, torch.bfloat16])
def test_any_format_is_read_in_the_format_that_is_asked_for(
    tmp_path: Path, stored: torch.dtype, asked: torch.dtype
) -> None:
    theirs = saved(tmp_path, dtype=stored)
    model = open_checkpoint(tmp_path).read_model(asked)
    assert {parameter.dtype for parameter in model.parameters()} == {asked}
    expected = theirs.model.layers[1].mlp.up_proj.weight.to(asked)
    assert torch.equal(model.blocks[1].feed_forward.gate_up.weight[56:], expected)
    assert model.frequencies().dtype == torch.float32


def test_entries_of_old_checkpoints_without_weights(folder: Path) -> None:
    expected = open_checkpoint(folder).read_model().state_dict()
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    reweigh(lambda weights: weights.update({name: torch.ones(4)}))(folder)
    again = open_checkpoint(folder).read_model().state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in expected.items())


def test_a_tied_head_may_be_stored_twice(tmp_path: Path) -> None:
    saved(tmp_path, tie_word_embeddings=True)
    reweigh(lambda weights: weights.update({"lm_head.weight": weights["model.embed_tokens.weight"].clone()}))(tmp_path)
    model = open_checkpoint(tmp_path).read_model()
    assert model.head.weight is model.token_embedding.weight


@pytest.mark.parametrize("shard", ["1GB", "20KB"])
def test_a_head_of_its_own_counts_although_the_settings_say_tied(tmp_path: Path, shard: str) -> None:
    """As in transformers 5: where the file holds both matrices and they differ, they are not tied."""
    saved(tmp_path, shard=shard)
    rewrite(tie_word_embeddings=True)(tmp_path)
    theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path).eval()
    model = open_checkpoint(tmp_path).read_model()
    assert not open_checkpoint(tmp_path).config.tied
    assert model.head.weight is not model.token_embedding.weight
    tokens = torch.randint(96, (2, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), theirs(tokens).logits, rtol=0, atol=1e-4)


def described(**changes: object) -> LlamaConfig:
    return parse_config({**SETTINGS, "model_type": "llama", **changes}, Path("config.json"))


def test_rope_settings_in_the_place_of_older_files() -> None:
    """As in the config.json of Llama 3.1 and 2."""
    scaling = {key: value for key, value in LLAMA3.items() if key != "rope_theta"}
    expected = RopeScaling(8.0, 1.0, 4.0, 16)
    new = described(rope_parameters=LLAMA3)
    old = described(rope_theta=500000.0, rope_scaling=scaling)
    assert new == old
    assert (old.rope_base, old.rope_scaling) == (500000.0, expected)
    plain = described(rope_theta=20000.0, rope_scaling=None)
    assert (plain.rope_base, plain.rope_scaling) == (20000.0, None)
    assert described().rope_base == 10000.0
    del scaling["original_max_position_embeddings"]
    whole = described(rope_scaling=scaling).rope_scaling
    assert whole is not None
    assert whole.original_context == 64


def test_heads_of_keys_and_values_that_no_file_names() -> None:
    assert described(num_key_value_heads=None).kv_heads == 4


def rewrite(**changes: object) -> Callable[[Path], None]:
    return spoiled_checkpoints.rewrite("config.json", lambda content: content.update(changes))


def without_a_layer(weights: dict[str, torch.Tensor]) -> None:
    for name in [name for name in weights if name.startswith("model.layers.1.")]:
        del weights[name]


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


UP = "model.layers.1.mlp.up_proj.weight"
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), r"There is no config\.json in"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), r"config\.json is no JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), r"holds a list; it must hold an object"),
    "foreign": (rewrite(model_type="mistral"), r"model_type is 'mistral'; only 'gpt2' and 'llama' can be read"),
    "activation": (rewrite(hidden_act="gelu"), r"hidden_act is 'gelu'; only 'silu' can be read"),
    "attention bias": (rewrite(attention_bias=True), r"attention_bias is True; only False can be read"),
    "inner bias": (rewrite(mlp_bias=True), r"mlp_bias is True; only False"),
    "quantised": (rewrite(quantization_config={"bits": 4}), r"quantization_config is \{'bits': 4\}; only None"),
    "head length": (rewrite(head_dim=16), r"head_dim is 16; only hidden_size / num_attention_heads, 8, can be read"),
    "rope type": (
        rewrite(rope_parameters={"rope_type": "yarn", "factor": 2.0}),
        r"rope_type is 'yarn'; only 'default' and 'llama3' can be read",
    ),
    "old rope type": (
        rewrite(rope_parameters=None, rope_scaling={"type": "linear", "factor": 2.0}), r"rope_type is 'linear'",
    ),
    "rope setting": (rewrite(rope_parameters={"attention_factor": 2.0}), r"rope setting attention_factor cannot be"),
    "rope list": (rewrite(rope_parameters=[1]), r"the rope settings are \[1\]; they must be an object"),
    "rope base": (rewrite(rope_parameters={"rope_theta": "1"}), r"rope_theta is '1'; it must be a number"),
    "rope numbers": (rewrite(rope_parameters={**LLAMA3, "factor": None}), r"factor is None; it must be a number"),
    "rope range": (rewrite(rope_parameters={**LLAMA3, "factor": 0}), r"config\.json: The rope scaling's factor is 0"),
    "rope context": (
        rewrite(rope_parameters={**LLAMA3, "original_max_position_embeddings": 1.5}), r"embeddings is 1\.5; .* whole",
    ),
    "missing size": (rewrite(hidden_size=None), r"hidden_size is None; it must be a whole number"),
    "heads": (rewrite(num_attention_heads=3), r"config\.json: 3 heads do not divide"),
    "epsilon": (rewrite(rms_norm_eps="small"), r"rms_norm_eps is 'small'; it must be a number"),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        r"There is no model\.safetensors in .*, and no model\.safetensors\.index\.json",
    ),
    "truncated": (truncate, r"model\.safetensors is damaged or no safetensors file"),
    "empty": (lambda f: (f / "model.safetensors").write_bytes(b""), r"model\.safetensors is damaged"),
    "tensor missing": (reweigh(lambda w: w.pop(UP)), rf"has no tensor {UP}; it does not hold the model that"),
    "head missing": (reweigh(lambda w: w.pop("lm_head.weight")), r"has no tensor lm_head\.weight"),
    "layer missing": (
        reweigh(without_a_layer),
        r"no tensor model\.layers\.1\.input_layernorm\.weight, .*mlp\.gate_proj\.weight and 6 more",
    ),
    "tensor unknown": (reweigh(lambda w: w.update(extra=torch.ones(1))), r"no place for extra; it is another kind"),
    "deeper": (rewrite(num_hidden_layers=1), r"no place for model\.layers\.1\..* and 6 more"),
    "tied": (rewrite(num_hidden_layers=3, tie_word_embeddings=True), r"has no tensor model\.layers\.2\."),
    "wider": (
        rewrite(intermediate_size=60), r"gate_proj\.weight has the shape \(56, 32\), and config\.json wants \(60, 32\)"
    ),
    "not finite": (
        reweigh(lambda w: w[UP][3].fill_(torch.inf)), rf"{UP} holds numbers that are not finite; the file is damaged"
    ),
    "scales": (
        reweigh(lambda w: w.update({UP + "_scale": torch.ones(1)})), r"no place for .*_scale; .* weights are quantised",
    ),
    "packed": (
        reweigh(lambda w: w.update({UP.replace(".weight", ".qweight"): w.pop(UP)})), rf"no tensor {UP}.* are quantised",
    ),
    "head alone": (
        lambda f: [
            rewrite(tie_word_embeddings=True)(f), reweigh(lambda w: w.pop("model.embed_tokens.weight"))(f),
        ],
        r"has no tensor model\.embed_tokens\.weight.* lm_head\.weight alone",
    ),
    "without its head": (
        reweigh(lambda w: [w.update({name.removeprefix("model."): w.pop(name)}) for name in list(w)]),
        r"The names lack 'model\.'.*AutoModelForCausalLM",
    ),
    "integers": (
        reweigh(lambda w: w.update({UP: w[UP].to(torch.int8)})), rf"{UP} is in I8; only F64, F32, F16, BF16 can be read"
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_checkpoint_is_named(folder: Path, fault: str) -> None:
    spoil, message = FAULTS[fault]
    spoil(folder)
    with pytest.raises(GpuguideError, match=message) as caught:
        open_checkpoint(folder).read_model()
    assert str(folder) in str(caught.value)


def test_numbers_that_do_not_fit_into_fp16(folder: Path) -> None:
    reweigh(lambda weights: weights[UP][0].fill_(1e5))(folder)
    with pytest.raises(GpuguideError, match=rf"{UP} holds numbers too large for torch\.float16; read them in"):
        open_checkpoint(folder).read_model(torch.float16)
    assert open_checkpoint(folder).read_model(torch.bfloat16).blocks[1].feed_forward.gate_up.weight[56].max() > 9e4


def reindex(content: object) -> Callable[[Path], None]:
    return lambda folder: (folder / "model.safetensors.index.json").write_text(json.dumps(content))  # type: ignore[return-value]


def one_shard(folder: Path) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[1]


SHARD_FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda f: one_shard(f).unlink(), r"There is no model-00002-of-\d+\.safetensors in .*, which model"),
    "damaged": (
        lambda f: one_shard(f).write_bytes(one_shard(f).read_bytes()[:-7]),
        r"model-00002-of-\d+\.safetensors is damaged",
    ),
    "no map": (reindex({}), r"index\.json: weight_map must name, for each tensor, a file of its folder"),
    "empty map": (reindex({"weight_map": {}}), r"weight_map must name"),
    "outside": (reindex({"weight_map": {"a": "../model.safetensors"}}), r"weight_map must name"),
    "a number": (reindex({"weight_map": {"a": 1}}), r"weight_map must name"),
    "no JSON": (lambda f: (f / "model.safetensors.index.json").write_text("{"), r"index\.json is no JSON"),
}  # fmt: skip


@pytest.mark.parametrize("fault", SHARD_FAULTS)
def test_bad_shards_are_named(sharded: Path, fault: str) -> None:
    spoil, message = SHARD_FAULTS[fault]
    spoil(sharded)
    with pytest.raises(GpuguideError, match=message) as caught:
        open_checkpoint(sharded).read_model()
    assert str(sharded) in str(caught.value)


def test_a_shard_left_out_of_the_index_leaves_tensors_missing(sharded: Path) -> None:
    index = json.loads((sharded / "model.safetensors.index.json").read_text())
    left_out = one_shard(sharded).name
    index["weight_map"] = {name: file for name, file in index["weight_map"].items() if file != left_out}
    reindex(index)(sharded)
    with pytest.raises(GpuguideError, match=r"index\.json has no tensor .*; it does not hold the model"):
        open_checkpoint(sharded).read_model()


def test_a_few_names_are_listed_whole() -> None:
    assert format_names(["b", "a"]) == "a, b"
