"""The checkpoints that come with the library are the ones that their records describe, and as good as they say."""

from __future__ import annotations

import hashlib

import pytest

from gpuguide import models
from gpuguide.models import corpus
from gpuguide.models.evaluation import Evaluation, evaluate, xz_bits_per_byte, zstd_bits_per_byte
from gpuguide.models.pretraining import RECIPES

each = pytest.mark.parametrize("name", models.PACKAGED)


@pytest.fixture(scope="module")
def results() -> dict[str, Evaluation]:
    loaded = [models.load(name) for name in models.PACKAGED]
    return {one.name: evaluate(one.model, one.tokenizer, corpus.load_held_out()) for one in loaded}


@each
def test_files_are_those_of_the_record(name: str) -> None:
    for file, recorded in models.training_record(name)["sha256"].items():
        assert hashlib.sha256((models.checkpoint_folder(name) / file).read_bytes()).hexdigest() == recorded


@each
def test_recipe_is_the_one_in_the_record(name: str) -> None:
    import dataclasses
    import json

    assert models.training_record(name)["recipe"] == json.loads(json.dumps(dataclasses.asdict(RECIPES[name])))


@each
def test_held_out_loss_is_the_one_in_the_record(name: str, results: dict[str, Evaluation]) -> None:
    recorded = models.training_record(name)["held_out"]
    assert recorded["sha256"] == hashlib.sha256(corpus.HELD_OUT.read_bytes()).hexdigest()
    assert (results[name].tokens, results[name].bytes) == (recorded["tokens"], recorded["bytes"])
    assert results[name].loss == pytest.approx(recorded["loss"], rel=1e-4)


def test_main_predicts_better_than_draft_and_draft_better_than_compressors(results: dict[str, Evaluation]) -> None:
    text = corpus.load_held_out()
    dictionary = "\n".join(source.text for source in corpus.standard_library())
    assert results["main"].bits_per_byte <= 0.88 * results["draft"].bits_per_byte
    assert results["draft"].bits_per_byte < xz_bits_per_byte(text)
    assert results["draft"].bits_per_byte < zstd_bits_per_byte(text)
    assert results["draft"].bits_per_byte < zstd_bits_per_byte(text, dictionary)


def test_one_tokenizer_for_both() -> None:
    main, draft = ((models.checkpoint_folder(name) / "tokenizer.json").read_bytes() for name in models.PACKAGED)
    assert main == draft


def test_both_together_are_small() -> None:
    folders = [models.checkpoint_folder(name) for name in models.PACKAGED]
    assert sum(path.stat().st_size for folder in folders for path in folder.iterdir()) <= 16e6
