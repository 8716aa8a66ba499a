from __future__ import annotations

from datetime import date

import pytest

from gpuguide.costs import presets
from gpuguide.errors import GpuguideError

GOOD = """
[sources.s]
title = "A document"
url = "https://example.org"
publisher = "Somebody"
looked_at = "not verified"

[model.m]
name = "M"
family = "F"
config = "https://example.org/config.json"
source = "s"
parameters = 1
layers = 2
hidden = 64
heads = 4
kv_heads = 2
head_dim = 16
intermediate = 128
vocab = 100
context = 32
"""


def test_every_model_names_its_configuration_and_a_source() -> None:
    for preset in presets.load().values():
        assert preset.config.startswith("https://huggingface.co/")
        assert preset.source in presets.sources()
    for source in presets.sources().values():
        assert source.looked_at == "not verified" or date.fromisoformat(source.looked_at)


def test_models_of_a_family_stand_together() -> None:
    families = [preset.family for preset in presets.load().values()]
    assert sorted(set(families), key=families.index) == [
        family for place, family in enumerate(families) if place == 0 or families[place - 1] != family
    ]


def test_an_unknown_model_is_named_with_near_ones() -> None:
    with pytest.raises(GpuguideError, match=r"no model named 'llama-3-8b'.*llama-3"):
        presets.get("llama-3-8b")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("layers = 2", "layers = 0", "t.toml, model.m: layers is 0"),
        ("layers = 2", "", "t.toml, model.m has no layers; add it."),
        ("layers = 2", "layer = 2", "no key named 'layer'"),
        ('source = "s"', 'source = "t"', "no source named 't'"),
        ("[model.m]", "[model.m", "not valid TOML"),
        ('looked_at = "not verified"', "", "sources.s: looked_at is None"),
        ('looked_at = "not verified"', 'looked_at = "last week"', "t.toml, sources.s: looked_at is 'last week'"),
        ('title = "A document"', 'title = ""', "t.toml, sources.s: title is ''"),
        ('title = "A document"', 'tittle = "A document"', "t.toml, sources.s: There is no key named 'tittle'"),
    ],
)
def test_a_damaged_table_is_refused(old: str, new: str, says: str) -> None:
    with pytest.raises(GpuguideError) as error:
        presets.parse(GOOD.replace(old, new), "t.toml")
    assert says in str(error.value)


def test_a_table_without_models_is_refused() -> None:
    assert presets.parse(GOOD, "t.toml")[1]["m"].shape.kv_heads == 2
    with pytest.raises(GpuguideError, match="has no"):
        presets.parse(GOOD[: GOOD.index("[model")], "t.toml")
