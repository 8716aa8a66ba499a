"""``gpuguide fit``: the verdict, the parts and the changes, as the cost model has them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest

from gpuguide.costs import memory, presets
from gpuguide.measure import cards

Run = Callable[..., tuple[int, str, str]]


def test_the_example_of_the_help_is_answered(gpuguide: Run) -> None:
    words = ("fit", "llama-3.2-1b", "--batch", "4", "--seq-len", "2048", "--gpu", "16GiB")
    status, out, err = gpuguide(*words)
    prediction = memory.predict(presets.shape("llama-3.2-1b"), memory.Setup(batch=4, seq_len=2048))
    assert (status, err) == (1, "")
    assert out.startswith(f"It does not fit: {prediction.total / 2**30:.2f} GiB of 16 GiB")
    assert max(map(len, out.splitlines())) <= 100
    status, out, _ = gpuguide(*words, "--json")
    found = json.loads(out)
    assert status == 1
    assert found["total"] == prediction.total == pytest.approx(sum(found["parts"].values()))
    assert found["setup"]["batch"] == 4
    assert all(cards.find_card(card).bytes > prediction.total for card in found["cards"])


def test_the_printed_parts_add_up_to_the_printed_total(gpuguide: Run) -> None:
    _, out, _ = gpuguide("fit", "llama-3.2-1b", "--batch", "3", "--seq-len", "1999", "--gpu", "16GiB")
    rows = re.findall(r"^.*?  +(\d+\.\d\d) GiB +(\d+) % *$", out.split("one change")[0], re.MULTILINE)
    sizes, shares = [round(100 * float(size)) for size, _ in rows], [int(share) for _, share in rows]
    assert len(rows) > 3
    assert sum(sizes[:-1]) == sizes[-1]
    assert sum(shares[:-1]) == shares[-1] == 100
    assert f"{rows[-1][0]} GiB of 16 GiB" in out


@pytest.mark.parametrize("option", ["--model", "--shape"])
def test_a_model_is_named_by_an_option_too(gpuguide: Run, option: str) -> None:
    as_argument = gpuguide("fit", "gpt2", "--gpu", "t4")
    assert gpuguide("fit", option, "gpt2", "--gpu", "t4") == as_argument
    assert "--shape" not in gpuguide("fit", "--help")[1]


def test_together_the_changes_make_it_fit_and_none_is_superfluous() -> None:
    shape, available = presets.shape("llama-3.2-1b"), 0.9 * 16 * 2**30
    setup = memory.Setup(batch=4, seq_len=2048)
    together = memory.combine_remedies(shape, setup, available)
    assert memory.predict(shape, together[-1].setup).total == together[-1].total <= available
    assert together[-1].setup.seq_len == setup.seq_len
    changed = [name for each in together for name in each.fields]
    assert not {"lora_rank", "tensor_parallel"} & set(changed)
    assert memory.combine_remedies(shape, setup, 1e12) == []
    assert memory.combine_remedies(shape, setup, 1e6) == []


def test_what_fits_has_status_0_and_settings_count(gpuguide: Run) -> None:
    words = ("fit", "gpt2", "--gpu", "t4", "--batch", "8", "--seq-len", "512", "--precision", "fp32")
    status, out, _ = gpuguide(*words, "--set", "activation=gelu-new", "--set", "accumulation=1")
    assert status == 0
    assert "use GELU as one operation" in out
    assert "Without changes it fits on" not in out


def test_a_model_in_use_has_a_cache(gpuguide: Run) -> None:
    status, out, _ = gpuguide("fit", "llama-3.1-8b", "--gpu", "rtx-4090", "--purpose", "generate", "--json")
    assert status == 0
    assert json.loads(out)["parts"]["cache"] > 0


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["gpt-3", "--gpu", "t4"], 2, "gpt2"),
        (["gpt2", "--gpu", "rtx-4091"], 2, "rtx-4090"),
        (["gpt2", "--gpu", "0GiB"], 1, "no memory"),
        (["gpt2", "--gpu", "t4", "--batch", "0"], 1, "batch is 0"),
        (["gpt2", "--gpu", "t4", "--seq-len", "2048"], 1, "knows 1024 positions"),
        (["gpt2", "--gpu", "t4", "--precision", "int4"], 1, "precision is int4"),
        (["gpt2", "--gpu", "t4", "--set", "los=chunked"], 2, "loss"),
        (["gpt2", "--gpu", "t4", "--set", "selective=maybe"], 2, "true or false"),
        (["gpt2", "--gpu", "t4", "--set", "loss"], 2, "loss=VALUE"),
        (["gpt2", "--gpu", "t4", "--set", "offloaded=true", "--set", "checkpointing=true"], 1, "choose one of the two"),
        (["gpt2"], 2, "--gpu"),
        (["--gpu", "t4"], 2, "Name one model"),
        (["gpt2", "--model", "gpt2", "--gpu", "t4"], 2, "Name one model"),
        (["--shape", "gpt2", "--model", "gpt2", "--gpu", "t4"], 2, "old name of --model"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(gpuguide: Run, words: list[str], status: int, says: str) -> None:
    found, out, err = gpuguide("fit", *words)
    assert (found, out) == (status, "")
    assert says in err


def test_a_model_that_fits_nowhere_says_what_would(gpuguide: Run) -> None:
    status, out, _ = gpuguide("fit", "llama-3.1-405b", "--gpu", "8GB")
    assert status == 1
    assert "Without changes it fits on no single card." in out
    assert "Not even one sequence" in out
