"""Short names of classes in the API reference, where several classes have one name."""

from __future__ import annotations

import pytest
from docutils import nodes
from sphinx import addnodes

from gpuguide.site.search_and_links.type_names import class_seen_from, name_in_full

SETTINGS = "gpuguide.sampling.reference.SamplingSettings"


@pytest.mark.parametrize(
    ("described", "name", "full"),
    [
        ("gpuguide.inference.engine.Engine", "SamplingSettings", SETTINGS),
        ("gpuguide.inference.engine.Engine.step", "Engine", "gpuguide.inference.engine.Engine"),
        ("gpuguide.cross_entropy.loop.LossSettings", "LossSettings", "gpuguide.cross_entropy.loop.LossSettings"),
        ("gpuguide.inference.cost.decode_time", "Shape", "gpuguide.costs.memory.shape.Shape"),
        ("gpuguide.inference.plain.feed_forward", "Shape", "gpuguide.costs.memory.shape.Shape"),
        ("gpuguide.attention.tiled.compute_delta", "AttentionTiling", "gpuguide.attention.tiled.AttentionTiling"),
        ("gpuguide.precision.matmul.matmul", "MatmulTiling", "gpuguide.precision.matmul.MatmulTiling"),
        ("gpuguide.inference.engine.Engine", "GREEDY", None),
        ("gpuguide.inference.engine.Engine", "Elephant", None),
        ("torch.nn.Linear", "Engine", None),
    ],
)
def test_the_class_is_the_one_that_the_module_knows(described: str, name: str, full: str | None) -> None:
    assert class_seen_from(described, name) == full


def reference(target: str, domain: str = "py", kind: str = "class") -> addnodes.pending_xref:
    return addnodes.pending_xref(refdomain=domain, reftype=kind, reftarget=target, refspecific=True)


def test_only_short_names_within_a_description_change() -> None:
    short, inside, outside = (reference("SamplingSettings") for _ in range(3))
    long, term = reference("torch.Tensor"), reference("SamplingSettings", "std")
    signature = addnodes.desc_signature("", "", inside, module="gpuguide.inference.engine", fullname="Engine")
    content = addnodes.desc_content("", nodes.paragraph("", "", short, long, term))
    document = nodes.document(None, None)  # type: ignore[arg-type]
    document += [addnodes.desc("", signature, content), nodes.paragraph("", "", outside)]
    name_in_full(None, document)  # type: ignore[arg-type]
    found = [node["reftarget"] for node in (short, inside, long, term, outside)]
    assert found == [SETTINGS, SETTINGS, "torch.Tensor", "SamplingSettings", "SamplingSettings"]


@pytest.mark.parametrize(
    ("target", "kind", "full"),
    [
        ("bytes", "class", "builtins.bytes"),  # a type, though classes of the library have an attribute of that name
        ("bytes", "attr", "bytes"),
        ("sum", "class", "sum"),  # no type
        ("SamplingSettings", "class", SETTINGS),
    ],
)
def test_a_type_of_pythons_own_is_no_member_of_the_library(target: str, kind: str, full: str) -> None:
    named = reference(target, kind=kind)
    signature = addnodes.desc_signature("", "", named, module="gpuguide.inference.engine", fullname="Engine")
    document = nodes.document(None, None)  # type: ignore[arg-type]
    document += addnodes.desc("", signature)
    name_in_full(None, document)  # type: ignore[arg-type]
    assert named["reftarget"] == full
