"""The warp-specialised kernel, compiled for a GPU that is not here: what runs beside what stands in the machine code.

Whether it computes the right thing is tested in test_triton_flash.py, on a GPU: Gluon has no interpreter.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import interpreted
import pytest
import torch
from disassembly import machine_code
from interpreted import needs_triton


def compiled(head_dim: int, causal: bool, schedule: object) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource
    from triton.experimental.gluon.language import NVMMASharedLayout

    from gpuguide.attention import gluon_flash, gluon_kernels

    function, layout = gluon_kernels.attn_fwd_kernel, NVMMASharedLayout(min(128, 2 * head_dim), 16, rank=4)
    rows, columns = (
        f"tensordesc<bf16[1, 1, {size}, {head_dim}],{layout!r}>" for size in (schedule.block_m, schedule.block_n)
    )
    types = {"desc_q": rows, "desc_o": rows, "desc_k": columns, "desc_v": columns}
    types |= {"lse_ptr": "*fp32", "tickets_ptr": "*i32", "scale": "fp32"}
    constants = {"CAUSAL": causal, "HEAD_DIM": head_dim, "BLOCK_M": schedule.block_m, "BLOCK_N": schedule.block_n}
    constants |= {
        "STAGES": schedule.num_stages,
        "OVERLAP_SOFTMAX": schedule.overlap_softmax,
        "PING_PONG": schedule.ping_pong,
        "CARRY_FP32": schedule.carry_fp32,
        "Q_STAGES": 2,
    }
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in function.arg_names}
    options = {"num_warps": 4, "maxnreg": gluon_flash.REGISTERS}
    return triton.compile(
        GluonASTSource(function, signature, constants), target=GPUTarget("cuda", 90, 32), options=options
    )


def powers_beside_products(code: str) -> list[tuple[int, int]]:
    """Return, for each loop, how many powers stand before the wait for the second product, and after it."""
    waits = r"DEPBAR\.LE gsb0, 0x1(.*?)DEPBAR\.LE gsb0, 0x0(.*?)HGMMA"
    return [
        (before.count("MUFU.EX2"), after.count("MUFU.EX2")) for before, after in re.findall(waits, code, flags=re.S)
    ]


def loops_over_keys(code: str) -> list[list[str]]:
    """Return the instructions of each loop that has the powers of a single tile: both loops of both groups."""
    labels: dict[str, int] = {}
    instructions: list[str] = []
    loops = []
    for line in code.splitlines():
        if label := re.match(r"(\.L_x_\d+):", line.strip()):
            labels[label[1]] = len(instructions)
        if instruction := re.search(r"/\*[0-9a-f]{4,}\*/\s+(@!?U?P\d+\s+)?(\S+)(.*)", line):
            condition, name, operands = instruction.groups()
            instructions.append(name)
            target = re.search(r"`\((\.L_x_\d+)\)", operands)
            if name == "BRA" and condition and target and target[1] in labels:  # others return from a wait
                loops.append(instructions[labels[target[1]] :])
    return [loop for loop in loops if count(loop, "MUFU.EX2") == POWERS]


def count(instructions: list[str], name: str) -> int:
    """Return how many instructions have a name, with any suffix."""
    return sum(each.startswith(name) for each in instructions)


POWERS = 64 * 128 // 128 + 2
"""Of a thread for each tile of 128 keys: a power for each of its scores, and what two rows shrink by"""


def every_kernel(folder: str) -> None:
    """It fits an H100, computes the powers of a tile while the second product runs, and its loops have no ballast."""
    from gpuguide.attention.gluon_flash import DEFAULT_SCHEDULE

    for head_dim, causal in ((32, True), (64, True), (128, False), (128, True)):
        kernel = compiled(head_dim, causal, DEFAULT_SCHEDULE)
        assert kernel.metadata.shared <= 227 * 1024
        code = machine_code(kernel, Path(folder))
        found = powers_beside_products(code)
        assert len(found) == 4, found  # the masked loop and the other, for each of the two groups
        assert all(before >= 64 and after <= 2 for before, after in found), found
        loops = loops_over_keys(code)
        assert len(loops) == 4
        for loop in loops:
            assert count(loop, "HGMMA") == head_dim // 16 + 128 // 16  # scores, then weights and values
            assert not count(loop, "LDL") + count(loop, "STL"), "registers were spilled"
            assert not count(loop, "PRMT"), "16-bit numbers are rearranged"


def weights_carried_in_16_bits(folder: str) -> None:
    """Numbers that the loop carries in 16 bits are rearranged twice: the reason why it carries them in fp32."""
    from gpuguide.attention.gluon_flash import DEFAULT_SCHEDULE

    code = machine_code(compiled(128, False, replace(DEFAULT_SCHEDULE, carry_fp32=False)), Path(folder))
    assert max(count(loop, "PRMT") for loop in loops_over_keys(code)) >= 32


def without_the_store(folder: str) -> None:
    """Without the store that never takes place, the assembler puts the wait first: the reason why it is there."""
    from gpuguide.attention.gluon_flash import DEFAULT_SCHEDULE

    code = machine_code(compiled(128, False, replace(DEFAULT_SCHEDULE, overlap_softmax=False)), Path(folder))
    assert all(before < after for before, after in powers_beside_products(code))


def sections_of_heads() -> None:
    """Heads for two pairs on each multiprocessor, but no more than fit half of the cache, in sections of one size."""
    from types import SimpleNamespace

    from gpuguide.attention.gluon_flash import DEFAULT_SCHEDULE, heads_per_section

    h100 = SimpleNamespace(multi_processor_count=132, L2_cache_size=50 * 2**20)

    def section(batch: int, heads: int, kv_heads: int, queries: int, keys: int) -> int:
        shapes = (batch, heads, queries, 128), (batch, kv_heads, keys, 128)
        q, k = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes)
        return heads_per_section(q, k, DEFAULT_SCHEDULE, h100)

    assert section(2, 16, 16, 8192, 8192) == 4  # 64 pairs of each head
    assert section(1, 9, 9, 8192, 8192) == 3  # not 4, 4 and 1
    assert section(1, 16, 16, 128, 65536) == 1  # the keys and values of a head take 32 MiB
    assert section(1, 16, 4, 128, 65536) == 3  # 4 heads share 32 MiB
    assert section(1, 1, 1, 1, 0) == 1


@needs_triton
@pytest.mark.parametrize("part", [every_kernel, weights_carried_in_16_bits, without_the_store])
def test_machine_code(part: Any, tmp_path: Path) -> None:
    interpreted.run(__file__, f"{part.__name__}({str(tmp_path)!r})", interpret=False)


@needs_triton
def test_sections_of_heads() -> None:
    interpreted.run(__file__, "sections_of_heads()", interpret=False)
