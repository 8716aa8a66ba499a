from __future__ import annotations

import math

import pytest
import torch

from gpuguide.transfer_learning import SHAPES, SIGNS, Images, ResNet, images, shapes, signs


@pytest.mark.parametrize(("draw", "kinds"), [(shapes, SHAPES), (signs, SIGNS)])
def test_images_have_their_shape_and_all_kinds(draw: object, kinds: tuple[str, ...]) -> None:
    assert callable(draw)
    found: Images = draw(200, seed=3)
    assert found.pixels.shape == (200, 1, images.SIDE, images.SIDE)
    assert found.pixels.dtype == torch.float32
    assert set(found.kinds.tolist()) == set(range(len(kinds)))
    assert len(found) == 200


def test_a_seed_gives_the_same_images_and_another_gives_others() -> None:
    one, same, other = shapes(8, seed=0), shapes(8, seed=0), shapes(8, seed=1)
    assert torch.equal(one.pixels, same.pixels)
    assert not torch.equal(one.pixels, other.pixels)


def test_a_part_is_these_images() -> None:
    whole = signs(10, seed=0)
    part = whole.part(2, 5)
    assert torch.equal(part.pixels, whole.pixels[2:5])
    assert torch.equal(part.kinds, whole.kinds[2:5])


@pytest.mark.parametrize("drawn", [images._SHAPES, images._SIGNS])
def test_every_thing_lies_in_its_image_and_leaves_some_of_it_free(drawn: tuple[images.Thing, ...]) -> None:
    kinds = torch.arange(len(drawn)).repeat(50)
    covered = images._cover(kinds, drawn, torch.Generator().manual_seed(0))
    sizes = covered.sum(dim=(1, 2))
    assert sizes.min() >= 3
    assert sizes.max() < 0.6 * images.SIDE**2


def test_a_disc_covers_its_area() -> None:
    generator = torch.Generator().manual_seed(0)
    covered = images._cover(torch.zeros(400, dtype=torch.int64), images._SHAPES, generator)
    half = images.SMALLEST + (images.LARGEST - images.SMALLEST) * torch.rand(
        400, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(covered.sum(dim=(1, 2)).mean(), (math.pi * half**2).mean(), rtol=0.02, atol=0)


def test_the_second_task_is_brighter_than_the_first() -> None:
    first, second = shapes(200, seed=0).pixels.mean(), signs(200, seed=0).pixels.mean()
    assert second > 3 * first > 0


def test_a_network_has_four_stages_and_halves_its_images_twice() -> None:
    torch.manual_seed(0)
    network = ResNet(kinds=5, width=4)
    pixels = shapes(3, seed=0).pixels
    assert network(pixels).shape == (3, 5)
    assert network.features(pixels).shape == (3, 16)
    hidden = network.stage1(network.stem(pixels))
    assert hidden.shape == (3, 4, 16, 16)
    assert network.stage3(network.stage2(hidden)).shape == (3, 16, 4, 4)


def test_a_block_is_two_convolutions_beside_a_shortcut() -> None:
    torch.manual_seed(0)
    block = ResNet(kinds=2, width=4).stage2.double().eval()
    image = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    inner = block.norm2(block.conv2(block.norm1(block.conv1(image)).clamp(min=0)))
    assert isinstance(block.shortcut, torch.nn.Sequential)
    expected = (inner + block.shortcut[1](block.shortcut[0](image))).clamp(min=0)
    torch.testing.assert_close(block(image), expected)
