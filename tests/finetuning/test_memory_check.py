"""What does not fit a GPU is refused before it is loaded, and what fits does."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpuguide.costs import memory
from gpuguide.cross_entropy.chunked import CHUNK_BYTES
from gpuguide.errors import GpuguideError
from gpuguide.finetuning.memory_check import MemoryEstimate, check_memory
from gpuguide.models import gpt2, llama, shapes
from gpuguide.models.gpt2 import GPT2

GIB = 2**30
LLAMA = shapes.config("llama-1b-shape")


@pytest.mark.parametrize(
    "config", [gpt2.GPT2Config(97, 64, 2, 2, 32), llama.LlamaConfig(97, 64, 2, 4, 2, 64, 88, tied=True)]
)
def test_the_shape_is_the_models(config: gpt2.GPT2Config | llama.LlamaConfig) -> None:
    model = GPT2(config) if isinstance(config, gpt2.GPT2Config) else llama.Llama(config)
    estimate = MemoryEstimate(config, 1, 32, 4, False, 2)
    assert estimate.shape.parameters() == sum(each.numel() for each in model.parameters())


def test_what_fits_is_said_and_is_true() -> None:
    estimate = MemoryEstimate(LLAMA, 64, 1024, 16, False, 2)
    assert check_memory(replace(estimate, micro_batch=1), 24 * GIB, "a GPU") == replace(estimate, micro_batch=1).bytes()
    with pytest.raises(GpuguideError, match=r"takes about .* GiB, and a GPU has 24 GiB, of which 90 %") as error:
        check_memory(estimate, 24 * GIB, "a GPU")
    most = int(re.search(r"--micro-batch (\d+), which computes the same step", str(error.value))[1])  # type: ignore[index]
    room = memory.SAFE_SHARE * 24 * GIB
    assert replace(estimate, micro_batch=most).bytes() <= room < replace(estimate, micro_batch=most + 1).bytes()


def test_wide_weights_and_long_sequences_have_remedies() -> None:
    estimate = MemoryEstimate(LLAMA, 1, 512, 16, False, 4)
    with pytest.raises(GpuguideError, match="What fits: --dtype bf16"):
        check_memory(estimate, 6 * GIB, "a GPU")
    with pytest.raises(GpuguideError, match=r"What fits: .*--length \d+ --micro-batch 1, with shorter sequences"):
        check_memory(MemoryEstimate(LLAMA, 2, 4096, 16, True, 2), 6 * GIB, "a GPU")
    with pytest.raises(GpuguideError, match="Not even one short sequence fits"):
        check_memory(estimate, GIB, "a GPU")


def test_where_no_single_change_is_enough_several_are_said() -> None:
    estimate, room = MemoryEstimate(LLAMA, 16, 512, 16, False, 4), 2 * GIB
    with pytest.raises(GpuguideError, match="What fits: --dtype bf16 --micro-batch 1 --weights nf4 --length 256, all"):
        check_memory(estimate, room, "a GPU")
    smaller = replace(estimate, weights=2, micro_batch=1, base="nf4")
    assert check_memory(replace(smaller, length=256), room, "a GPU") < memory.SAFE_SHARE * room
    with pytest.raises(GpuguideError, match="What fits: --length 256, with shorter sequences"):
        check_memory(smaller, room, "a GPU")


def test_of_the_logits_a_chunk_is_counted_unless_the_head_has_an_adapter() -> None:
    estimate = MemoryEstimate(LLAMA, 16, 512, 16, False, 2)
    whole = replace(estimate, all_logits=True)
    assert whole.bytes() == memory.predict(estimate.shape, estimate.setup).total
    logits = 16 * 512 * LLAMA.vocab_size
    assert 4 * logits < whole.bytes() - estimate.bytes() < 10 * logits  # they are there in bf16 and in fp32
    moments = memory.predict(estimate.shape, estimate.setup).moments
    without = max(moment.total for moment in moments if not moment.parts["logits"] and "head" not in moment.name)
    assert 0 < estimate.bytes() - without <= CHUNK_BYTES


def test_packed_matrices_are_counted_in_their_bits() -> None:
    plain, packed = MemoryEstimate(LLAMA, 1, 512, 16, False, 2), MemoryEstimate(LLAMA, 1, 512, 16, False, 2, "nf4")
    shape = plain.shape
    embeddings = (1 if shape.tied else 2) * shape.vocab * shape.hidden
    matrices = shape.parameters() - embeddings
    # between the saving of 16 - 4.13 bits a weight, and that less the matrix that is unpacked for a product
    saved = (2 - 4.13 / 8) * matrices
    assert saved - 4 * shape.hidden * shape.intermediate * 2 < plain.bytes() - packed.bytes() < 1.01 * saved
    wide = MemoryEstimate(LLAMA, 1, 512, 16, False, 4, "nf4")
    assert wide.extra_weight_bytes == 2 * embeddings
    with pytest.raises(GpuguideError, match="What fits: --weights nf4, which keeps"):
        check_memory(plain, 3 * GIB, "a GPU")
    assert check_memory(packed, 3 * GIB, "a GPU") == packed.bytes()
