from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from spoiled_checkpoints import reweigh, rewrite

from gpuguide import checkpoint_files, models
from gpuguide.errors import GpuguideError, UnknownName
from gpuguide.models import checkpoint, gpt2_checkpoint
from gpuguide.models.evaluation import evaluate
from gpuguide.models.gpt2 import GPT2
from gpuguide.models.pretraining import Corpus


@pytest.fixture
def folder(tmp_path: Path, tiny_model: GPT2, small_corpus: Corpus) -> Path:
    gpt2_checkpoint.write(tmp_path / "model", tiny_model, small_corpus.tokenizer)
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
    shutil.copy(folder / checkpoint_files.TOKENIZER, tmp_path / "theirs")
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


def test_shards_and_other_formats(folder: Path, tmp_path: Path) -> None:
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="10KB")
    shutil.copy(folder / checkpoint_files.TOKENIZER, tmp_path / "shards")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 1
    expected = models.load(folder).model
    again = models.load(tmp_path / "shards", torch.bfloat16).model
    assert again.head.weight is again.token_embedding.weight
    for ours, other in zip(expected.parameters(), again.parameters(), strict=True):
        assert other.dtype == torch.bfloat16
        assert torch.equal(ours, other.float())
    with pytest.raises(GpuguideError, match=r"A model can be read in torch\.float64, .*; torch\.int8 is none of them"):
        models.load(folder, torch.int8)


LLAMA = {"vocab_size": 403, "max_position_embeddings": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "hidden_size": 32, "intermediate_size": 48, "bos_token_id": 400,
         "eos_token_id": [402, 401]}  # fmt: skip


@pytest.fixture
def llama_folder(tmp_path: Path, llama3_tokenizer: Path) -> Path:
    torch.manual_seed(0)
    settings = transformers.LlamaConfig(**LLAMA, initializer_range=0.2)
    transformers.LlamaForCausalLM(settings).save_pretrained(tmp_path / "llama")
    shutil.copy(llama3_tokenizer, tmp_path / "llama")
    return tmp_path / "llama"


def test_a_llama_writes_what_transformers_writes(llama_folder: Path) -> None:
    loaded = models.load(llama_folder)
    assert isinstance(loaded.model, models.Llama)
    assert loaded.config.kv_heads == 2
    assert loaded.tokenizer.ends == (402, 401)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(llama_folder / "tokenizer.json"))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(llama_folder, dtype=torch.float32).eval()
    theirs.generation_config.eos_token_id = None  # go on after an end of text, as ours does
    for prompt in ("def f(x):", ""):
        tokens = tokenizer(prompt, return_tensors="pt")["input_ids"].long()
        mask = torch.ones_like(tokens)
        written = theirs.generate(tokens, attention_mask=mask, max_new_tokens=20, do_sample=False, pad_token_id=0)
        assert loaded.complete(prompt, 20) == tokenizer.decode(written[0, tokens.shape[1] :])


def test_a_llama_is_evaluated_as_one_text_from_its_opening(llama_folder: Path) -> None:
    loaded = models.load(llama_folder)
    text = "x = 1\n"
    tokens = torch.tensor([[400, *loaded.tokenizer.encode(text)]])
    with torch.no_grad():
        scores = loaded.model(tokens)[0, :-1]
    expected = torch.nn.functional.cross_entropy(scores, tokens[0, 1:])
    found = evaluate(loaded.model, loaded.tokenizer, text)
    assert (found.tokens, found.bytes) == (tokens.shape[1] - 1, 6)
    assert found.loss == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("eos_token_id", "eos_token", "expected"),
    [
        (401, None, (401,)),
        ([401, 402], "<|eot_id|>", (401, 402)),
        (None, "<|eot_id|>", (402,)),
        (None, {"content": "<|end_of_text|>"}, (401,)),
    ],
)
def test_where_the_ends_of_a_text_are_said(
    llama_folder: Path, eos_token_id: object, eos_token: object, expected: tuple[int, ...]
) -> None:
    rewrite("config.json", lambda c: c.update(eos_token_id=eos_token_id))(llama_folder)
    (llama_folder / "generation_config.json").unlink()
    (llama_folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos_token}))
    assert models.load(llama_folder).tokenizer.ends == expected


@pytest.mark.parametrize(("named", "expected"), [(402, (401, 402)), ([402, 401, 9999], (401, 402)), (None, (401,))])
def test_more_ends_in_the_settings_of_generation(llama_folder: Path, named: object, expected: tuple[int, ...]) -> None:
    """As in Llama 3 Instruct, whose turns end with a token that ``config.json`` does not name."""
    rewrite("config.json", lambda c: c.update(eos_token_id=401))(llama_folder)
    (llama_folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    tokenizer = models.load(llama_folder).tokenizer
    assert tokenizer.ends == expected
    assert tokenizer.end_of_text == 401


def test_an_end_that_only_the_map_of_special_tokens_names(llama_folder: Path) -> None:
    rewrite("config.json", lambda c: c.pop("eos_token_id"))(llama_folder)
    (llama_folder / "generation_config.json").unlink()
    (llama_folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|eot_id|>"}}))
    assert models.load(llama_folder).tokenizer.ends == (402,)


def test_numbers_of_a_padded_vocabulary_have_no_text(tmp_path: Path, llama3_tokenizer: Path) -> None:
    torch.manual_seed(0)
    settings = transformers.LlamaConfig(**{**LLAMA, "vocab_size": 448}, initializer_range=0.2)
    transformers.LlamaForCausalLM(settings).save_pretrained(tmp_path / "padded")
    shutil.copy(llama3_tokenizer, tmp_path / "padded")
    tokenizer = models.load(tmp_path / "padded").tokenizer
    assert tokenizer.decode([420, *tokenizer.encode("def f"), 447]) == "def f"
    for number in (448, -1):
        with pytest.raises(GpuguideError, match=f"{number} is no token"):
            tokenizer.decode([number])


def test_a_token_that_is_not_made_of_bytes_is_its_own_text(llama_folder: Path) -> None:
    """As the decoder of the ``tokenizers`` library has it."""

    def renamed(content: dict) -> None:
        vocabulary = content["model"]["vocab"]
        vocabulary["ab → c"] = vocabulary.pop(next(name for name, number in vocabulary.items() if number == 399))
        content["model"]["merges"] = [pair for pair in content["model"]["merges"] if "".join(pair) in vocabulary]

    rewrite("tokenizer.json", renamed)(llama_folder)
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(llama_folder / "tokenizer.json"))
    assert models.load(llama_folder).tokenizer.decode([399]) == theirs.decode([399]) == "ab → c"


@pytest.mark.parametrize(
    ("eos_token_id", "eos_token", "message"),
    [
        (None, None, r"tokenizer\.json: The tokenizer has no token <\|endoftext\|>, which ends a text"),
        (999, None, r"tokenizer\.json: The tokenizer has no token 999"),
        ("x", None, r"config\.json: eos_token_id is 'x'; it must be a token's number, or several"),
        ([], None, r"config\.json: eos_token_id is \[\]; it must be"),
        (None, 7, r"tokenizer_config\.json: eos_token is 7; it must be a token's text"),
        (None, {}, r"no token <\|endoftext\|>"),
    ],
)
def test_ends_that_are_no_tokens(llama_folder: Path, eos_token_id: object, eos_token: object, message: str) -> None:
    rewrite("config.json", lambda c: c.update(eos_token_id=eos_token_id))(llama_folder)
    (llama_folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos_token}))
    with pytest.raises(GpuguideError, match=message):
        models.load(llama_folder)


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
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), r"holds a list; it must hold an object"),
    "foreign": (rewrite("config.json", lambda c: c.update(model_type="bert")), "'bert'; only 'gpt2' and 'llama' can"),
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
    "pointer": (
        lambda f: (f / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\nsize 9\n"),
        r"model\.safetensors is damaged .* Git LFS pointer, .*git lfs pull",
    ),
    "tokenizer pointer": (
        lambda f: (f / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\nsize 9\n"),
        r"tokenizer\.json cannot be read as a tokenizer .* Git LFS pointer",
    ),
    "pickled weights": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), r"in pytorch_model\.bin.*save_pretrained",
    ),
    "only merges": (
        lambda f: (f / "tokenizer.json").rename(f / "vocab.json"), r"It has vocab\.json; make the file .*AutoTokenizer",
    ),
    "adapter": (
        lambda f: (f / "config.json").rename(f / "adapter_config.json"), r"no config\.json .* holds an adapter",
    ),
    "another head": (
        reweigh(lambda w: w.update({"lm_head.weight": w["transformer.wte.weight"] + 1})),
        r"lm_head\.weight differs from wte\.weight",
    ),
    "compiled": (
        reweigh(lambda w: [w.update({f"_orig_mod.{name}": w.pop(name)}) for name in list(w)]),
        r"hold '_orig_mod\.', .*torch\.compile",
    ),
    "tokenizer": (rewrite("config.json", lambda c: c.update(vocab_size=200)), "300 tokens and the model 200.*resize"),
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


def test_a_folder_that_is_not_there_and_a_file(tmp_path: Path) -> None:
    missing, file = tmp_path / "gpt3", tmp_path / "config.json"
    file.write_text("{}")
    with pytest.raises(UnknownName, match=rf"^There is no folder {missing}; .* or one of main, draft, gpt2\. "):
        models.load(str(missing))
    with pytest.raises(UnknownName, match=rf"^{file} is a file; give the folder of a checkpoint\.$"):
        models.load(file)


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
