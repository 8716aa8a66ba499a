from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]


def test_evaluate_prints_the_three_units(gpuguide: Run, tmp_path: Path) -> None:
    status, out, err = gpuguide("models", "evaluate", "--model", "draft", "--device", "cpu")
    assert status == 0
    assert err == "draft on the held-out text\n"
    assert re.fullmatch(
        r"loss +\d\.\d{4} nats a token *\n"
        r"perplexity +\d+\.\d\d *\nbits per byte +\d\.\d{4} *\ntext +\d+ tokens, \d+ bytes *\n",
        out,
    )
    text = tmp_path / "own.py"
    text.write_bytes(b"import os\n\xff")
    status, out, err = gpuguide("models", "evaluate", "--model", "draft", "--text", text, "--device", "cpu")
    assert (status, err.replace("\n", "")) == (0, f"draft on {text}")
    assert "11 bytes" in out


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("evaluate", "--model", "drft"), 2, "There is no model named 'drft'. Did you mean draft"),
        (("evaluate", "--text", "nowhere.py"), 1, "There is no file nowhere.py."),
        (("train", "large"), 2, "There is no recipe named 'large'"),
        (("train", "draft", "--steps", "0"), 2, "steps"),
    ],
)
def test_models_with_wrong_words(gpuguide: Run, words: tuple[str, ...], status: int, message: str) -> None:
    found, _, err = gpuguide("models", *words)
    assert found == status
    assert message in err


def test_train_says_how_long_and_is_resumed(gpuguide: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuguide.models import corpus, pretraining, pretraining_state
    from gpuguide.models.gpt2 import GPT2Config

    sources = [corpus.CorpusFile(f"m{index}.py", f"def f{index}(x):\n    return x\n" * 20) for index in range(40)]
    tiny = pretraining.Recipe(GPT2Config(300, 16, 1, 1, 8), steps=200, batch=2, warm_up=3)
    monkeypatch.setattr(corpus, "standard_library", lambda: sources)
    monkeypatch.setattr(pretraining, "VOCAB_SIZE", 300)
    monkeypatch.setattr(pretraining, "prepare", lambda given, prepare=pretraining.prepare: prepare(given, 300))
    monkeypatch.setattr(pretraining, "RECIPES", {"draft": tiny})
    save = pretraining_state.PretrainingState.save

    def interrupted(state: pretraining_state.PretrainingState, seconds: float) -> None:
        save(state, seconds)
        raise KeyboardInterrupt

    monkeypatch.setattr(pretraining_state.PretrainingState, "save", interrupted)
    status, _, err = gpuguide("models", "train", "--out", tmp_path, "--device", "cpu")
    assert status == 1
    assert "[draft] step 3/200: loss " in err
    assert "token/s, about " in err
    assert err.endswith("What was finished is kept; run the same command again to go on.\n")
    monkeypatch.setattr(pretraining_state.PretrainingState, "save", save)
    status, out, err = gpuguide("models", "train", "--out", tmp_path, "--device", "cpu")
    assert status == 0
    assert "[draft] step 6/200" in err
    assert "bits per byte" in out
    assert (tmp_path / "draft" / "model.safetensors").exists()
