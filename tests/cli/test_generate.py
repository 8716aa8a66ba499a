from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import synthetic_records as synthetic
import torch
from packaged import loaded
from safetensors.torch import load_file, save_file

from gpuguide import models
from gpuguide.cli import generate
from gpuguide.errors import GpuguideError
from gpuguide.hardware import device as devices
from gpuguide.inference import cost, prepare, streaming
from gpuguide.inference import generate as loop
from gpuguide.measure import folders, records, runner
from gpuguide.measure.records import Rate

Run = Callable[..., tuple[int, str, str]]
PROMPT = "def __init__(self"
ON_CPU = ("--model", "draft", "--device", "cpu")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The draft model in a folder of one's own."""
    folder = tmp_path / "mine"
    shutil.copytree(models.checkpoint_folder("draft"), folder)
    return folder


def configure(folder: Path, **settings: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))


def test_the_text_goes_out_and_how_fast_it_was_to_standard_error(gpuguide: Run) -> None:
    status, out, err = gpuguide("generate", "--prompt", PROMPT, "--max-new-tokens", 12, *ON_CPU)
    assert status == 0
    assert out == loaded().complete(PROMPT, 12) + "\n"
    rows = dict(re.split(r" {2,}", line.strip(), maxsplit=1) for line in err.splitlines())
    assert (rows["model"], rows["prompt"], rows["new tokens"]) == ("draft in fp32, plain weights", "5 tokens", "12")
    assert re.fullmatch(r"[\d.]+ .?s", rows["time to first token"])
    assert re.fullmatch(r"[\d.]+ token/s, [\d.]+ ms a token", rows["speed"])
    assert "KV cache" in rows["a step reads"]
    assert "not compared" in rows["share of the read ceiling"]


def test_the_old_name_of_an_option_works_alone(gpuguide: Run) -> None:
    new = gpuguide("generate", "--prompt", PROMPT, "--max-new-tokens", 2, *ON_CPU)
    assert gpuguide("generate", "--prompt", PROMPT, "--tokens", 2, *ON_CPU)[:2] == new[:2]
    status, out, err = gpuguide("generate", "--prompt", PROMPT, "--tokens", 2, "--max-new-tokens", 2, *ON_CPU)
    assert (status, out) == (2, "")
    assert "--tokens is the old name of" in err


def test_one_token_has_no_speed(gpuguide: Run) -> None:
    status, out, err = gpuguide("generate", "--prompt", PROMPT, "--max-new-tokens", 1, *ON_CPU)
    assert (status, out) == (0, ",\n")
    assert "time to first token" in err
    assert "speed" not in err


def test_a_prompt_from_standard_input_is_taken_byte_for_byte(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    given = b"x = '\xff'\nimport "
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    status, out, err = gpuguide("generate", "--prompt", "-", "--max-new-tokens", 8, *ON_CPU)
    expected = loaded().complete(given, 8)
    assert (status, out) == (0, expected if expected.endswith("\n") else expected + "\n")
    assert f"{len(loaded().tokenizer.prompt(given))} tokens" in err


def test_special_tokens_of_a_prompt_are_these_tokens(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers reads a text; what a chat template wrote can be given as it is."""
    asked = []
    monkeypatch.setattr(loop, "generate", lambda decoder, prompt, *_, **__: asked.append(prompt) or iter(()))
    gpuguide("generate", "--prompt", "def<|endoftext|>f", *ON_CPU)
    tokenizer = loaded().tokenizer
    assert asked == [[*tokenizer.encode("def"), tokenizer.end_of_text, *tokenizer.encode("f")]]


def test_standard_input_that_is_closed(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a job that cron starts."""
    monkeypatch.setattr(sys, "stdin", None)
    status, out, err = gpuguide("generate", "--prompt", "-", *ON_CPU)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "Standard input is closed" in err


def test_an_end_of_text_of_the_settings_of_generation(gpuguide: Run, checkpoint: Path) -> None:
    written = models.generate(loaded().model, loaded().tokenizer.prompt(PROMPT), 12)
    place = max(written.index(token) for token in written)
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": [written[place]]}))
    _, _, err = gpuguide(
        "generate", "--prompt", PROMPT, "--max-new-tokens", 12, "--model", checkpoint, "--device", "cpu"
    )
    assert re.search(rf"new tokens +{place} ", err)


def test_the_folder_of_an_adapter(gpuguide: Run, checkpoint: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "out" / "adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    words = ("generate", "--prompt", "x", "--device", "cpu", "--model")
    assert "The folder holds an adapter (adapter_config.json)" in gpuguide(*words, adapter)[2]
    checkpoint.rename(tmp_path / "out" / "merged")
    assert f"{tmp_path / 'out' / 'merged'} is one." in gpuguide(*words, adapter)[2]
    assert f"The checkpoint of this fine-tuning is {tmp_path / 'out' / 'merged'}" in gpuguide(*words, adapter.parent)[2]


def test_settings_arrive(gpuguide: Run) -> None:
    words = ("--max-new-tokens", 10, "--temperature", 0.9, "--top-k", 50, "--top-p", 0.9, "--min-p", 0.01, "--seed", 5)
    format = ("--weights", "int8", "--dtype", "bf16")
    _, out, err = gpuguide("generate", "--prompt", PROMPT, *words, *format, *ON_CPU)
    prompt = loaded().tokenizer.prompt(PROMPT)
    decoder = prepare(loaded().model, weights="int8", dtype=torch.bfloat16)
    engine = streaming.engine_for(decoder, len(prompt), 10, streaming.sampling_settings(0.9, 50, 0.9, 0.01))
    text = loaded().tokenizer.decode(list(streaming.stream(engine, prompt, 10, loaded().tokenizer.ends, seed=5)))
    assert out.rstrip("\n") == text.rstrip("\n")
    assert "draft in bf16, int8 weights" in err


def test_an_end_of_text_ends_it_unless_it_is_in_the_prompt(gpuguide: Run, checkpoint: Path) -> None:
    tokenizer = loaded().tokenizer
    written = models.generate(loaded().model, tokenizer.prompt(PROMPT), 12)
    place = max(written.index(token) for token in written)
    configure(checkpoint, eos_token_id=[written[place]])
    words = ("generate", "--model", checkpoint, "--device", "cpu", "--max-new-tokens", 12)
    _, out, err = gpuguide(*words, "--prompt", PROMPT)
    assert out.rstrip("\n") == tokenizer.decode(written[:place]).rstrip("\n")
    assert re.search(rf"new tokens +{place} ", err)
    in_prompt = tokenizer.prompt(PROMPT)[0]
    configure(checkpoint, eos_token_id=in_prompt)
    assert in_prompt not in written
    assert re.search(r"new tokens +12 ", gpuguide(*words, "--prompt", PROMPT)[2])


def test_by_default_it_writes_what_has_room(gpuguide: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(loop, "generate", lambda decoder, ids, count, *_, **__: asked.append(count) or iter(()))
    prompt = "x" * 10
    length = len(loaded().tokenizer.prompt(prompt))
    gpuguide("generate", "--prompt", prompt, *ON_CPU)
    monkeypatch.setattr(generate, "NEW_TOKENS", 1000)
    gpuguide("generate", "--prompt", prompt, *ON_CPU)
    assert asked == [128, loaded().config.context - length]


def test_an_interrupted_text_is_kept_and_timed(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        yield from loaded().tokenizer.encode("import")
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "generate", interrupted)
    status, out, err = gpuguide("generate", "--prompt", PROMPT, *ON_CPU)
    assert (status, out) == (0, "import\n")
    assert "Interrupted" in err
    assert "new tokens" in err


def test_what_the_terminal_cannot_show_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    written = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", written)
        generate.print_stream(["d\xe9j\xe0 ", "\N{GRINNING FACE}", "\N{REPLACEMENT CHARACTER}\n"])
    assert written.buffer.getvalue() == "d\xe9j\xe0 ??\n".encode("latin-1")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ((), 2, "Missing option '--prompt'"),
        (("--prompt", "x", "--max-new-tokens", "0"), 2, "--max-new-tokens"),
        (("--prompt", "x", "--model", "mian"), 2, "There is no model named 'mian'. Did you mean main?"),
        (("--prompt", "x", "--weights", "int3"), 2, "There is no kind of weights named 'int3'."),
        (("--prompt", "x", "--dtype", "bf61"), 2, "There is no format named 'bf61'. Did you mean bf16 or fp16?"),
        (("--prompt", "x", "--device", "gqu"), 2, "There is no device named 'gqu'. Did you mean gpu?"),
        (("--prompt", "x", "--temperature", "nan"), 1, "The temperature is nan; it must be a finite number"),
        (("--prompt", "x", "--top-p", "1.5"), 1, "top-p is 1.5; it must lie above 0"),
        (("--prompt", "x", "--seed", "-1"), 1, "seed is -1"),
        (("--prompt", "~!" * 1200), 1, "the model's context of 512; give its last 511"),
        (("--prompt", "x", "--max-new-tokens", "512"), 1, "context of 512; ask for 511 or fewer"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else None,
)
def test_what_cannot_be_done(gpuguide: Run, words: tuple[str, ...], status: int, message: str) -> None:
    found, out, err = gpuguide("generate", *ON_CPU, *words)
    assert (found, out) == (status, "")
    assert message in err
    assert "Usage" in err or err.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, err = gpuguide("generate", "--prompt", "x", "--device", "gpu")
    assert (status, out) == (1, "")
    assert "sees no CUDA GPU. Run 'gpuguide doctor'" in err
    monkeypatch.setenv("GPUGUIDE_FAKE_DEVICE", "rtx-4090")
    status, out, err = gpuguide("generate", "--prompt", "x")
    assert (status, out) == (1, "")
    assert "GPUGUIDE_FAKE_DEVICE" in err
    assert "--device cpu" in err


def test_a_checkpoint_that_does_not_hold_the_model(gpuguide: Run, checkpoint: Path) -> None:
    def error() -> str:
        status, out, err = gpuguide("generate", "--prompt", "x", "--model", checkpoint, "--device", "cpu")
        assert (status, out, err.count("\n")) == (1, "", 1)
        return err

    file = checkpoint / "model.safetensors"
    whole = load_file(file)
    name = next(name for name in whole if name.endswith("ln_f.weight"))
    save_file({other: tensor for other, tensor in whole.items() if other != name}, file)
    assert "model.safetensors has no tensor ln_f.weight; it does not hold the model" in error()
    save_file({**whole, "transformer.h.0.gate": torch.zeros(1)}, file)
    assert "no place for h.0.gate; it is another kind of model" in error()
    configure(checkpoint, model_type="mamba")
    assert "model_type is 'mamba'; only 'gpt2' and 'llama' can be read" in error()


# --- what a step is compared with ----------------------------------------------------------------------------


def reads(slug: str, name: str, bandwidth: float, size: float = 2.0**31) -> records.Record:
    """A record of a machine whose memory is read at a bandwidth in B/s."""
    case = synthetic.case({"working_set": size}, "l2", size / bandwidth, {"bandwidth": Rate("B/s", size)})
    made_up = synthetic.record("memory-hierarchy", [case], (slug, name))
    return replace(made_up, runs=tuple(replace(run, simulated=False) for run in made_up.runs))


def test_the_read_ceiling_is_from_own_records_or_published_ones_or_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, overlay: Path
) -> None:
    monkeypatch.setattr(folders, "published_folder", lambda: tmp_path)
    where = devices.fake("rtx-4090")
    other = reads("nvidia-h200", "NVIDIA H200", 4e12)
    for folder in (tmp_path, overlay):
        records.write(other, folder / other.device / "memory-hierarchy.json")
    measured = reads(where.slug, where.name, 1e12)
    monkeypatch.setattr(runner, "measure_case", lambda *_, **__: measured.cases)
    assert generate.read_ceiling(where) == (pytest.approx(1e12, rel=0.02), "measured just now")
    same = reads(where.slug, where.name, 0.9e12)
    records.write(same, tmp_path / where.slug / "memory-hierarchy.json")
    assert generate.read_ceiling(where) == (pytest.approx(0.9e12, rel=0.03), "measured in this GPU's records")
    own = reads(where.slug, where.name, 0.8e12)
    records.write(own, overlay / where.slug / "memory-hierarchy.json")
    assert generate.read_ceiling(where) == (pytest.approx(0.8e12, rel=0.03), "measured in your own records")


def test_reads_from_the_cache_and_made_up_ones_are_no_ceiling(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, overlay: Path
) -> None:
    monkeypatch.setattr(folders, "published_folder", lambda: tmp_path)
    where = devices.fake("rtx-4090")
    measured = reads(where.slug, where.name, 1e12)
    monkeypatch.setattr(runner, "measure_case", lambda *_, **__: measured.cases)
    cached = reads(where.slug, where.name, 5e12, size=where.l2)
    simulated = synthetic.record("memory-hierarchy", measured.cases, (where.slug, where.name))
    for record in (cached, simulated):
        records.write(record, overlay / where.slug / "memory-hierarchy.json")
        assert generate.read_ceiling(where)[1] == "measured just now"
    monkeypatch.setattr(runner, "measure_case", lambda *_, **__: [replace(measured.cases[0], status="failed")])
    with pytest.raises(GpuguideError, match="could not be measured"):
        generate.read_ceiling(where)


def test_the_share_of_the_read_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = prepare(loaded().model)
    monkeypatch.setattr(generate, "read_ceiling", lambda where: (1e12, "as a test says"))
    # Of three tokens two took a step, with 10 and 11 in the cache before it.
    shape, storage = decoder.shape, decoder.storage()
    moved = sum(cost.bytes_moved(cost.decode_step(shape, 1, context, storage)) for context in (10, 11)) / 2
    step = 2 * moved / 1e12
    large = replace(devices.fake("rtx-4090"), l2=0)
    rows = dict(generate.memory_rows(10, 3, step, decoder, large))
    assert rows["share of the read ceiling"] == "50% of 1.00 TB/s, as a test says"
    small = replace(large, l2=2**30)
    assert (
        "fits into the L2 cache" in dict(generate.memory_rows(10, 3, step, decoder, small))["share of the read ceiling"]
    )

    def fail(where: devices.Device) -> tuple[float, str]:
        raise GpuguideError("There is no memory left.")

    monkeypatch.setattr(generate, "read_ceiling", fail)
    rows = dict(generate.memory_rows(10, 3, step, decoder, large))
    assert rows["share of the read ceiling"] == "not compared: There is no memory left."
