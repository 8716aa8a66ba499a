"""The warp-specialised kernel, compiled for a GPU that is not here: what runs beside what stands in the machine code.

Whether it computes the right thing is tested in test_triton_flash.py, on a GPU: Gluon has no interpreter.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import interpreted
import pytest
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
    types |= {"lse_ptr": "*fp32", "scale": "fp32"}
    constants = {"CAUSAL": causal, "HEAD_DIM": head_dim, "BLOCK_M": schedule.block_m, "BLOCK_N": schedule.block_n}
    constants |= {
        "STAGES": schedule.num_stages,
        "OVERLAP_SOFTMAX": schedule.overlap_softmax,
        "PING_PONG": schedule.ping_pong,
    }
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in function.arg_names}
    options = {"num_warps": 4, "maxnreg": gluon_flash.REGISTERS}
    return triton.compile(
        GluonASTSource(function, signature, constants), target=GPUTarget("cuda", 90, 32), options=options
    )


def machine_code(kernel: Any, folder: Path) -> str:
    import triton

    path = folder / "kernel.cubin"
    path.write_bytes(kernel.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return subprocess.run([tool, "-c", path], capture_output=True, text=True, check=True).stdout


def powers_beside_products(code: str) -> list[tuple[int, int]]:
    """Return, for each loop, how many powers stand before the wait for the second product, and after it."""
    waits = r"DEPBAR\.LE gsb0, 0x1(.*?)DEPBAR\.LE gsb0, 0x0(.*?)HGMMA"
    return [
        (before.count("MUFU.EX2"), after.count("MUFU.EX2")) for before, after in re.findall(waits, code, flags=re.S)
    ]


def every_kernel(folder: str) -> None:
    """It fits an H100, spills nothing, and computes the powers of a tile while the second product runs."""
    from gpuguide.attention.gluon_flash import DEFAULT_SCHEDULE

    for head_dim, causal in ((32, True), (64, True), (128, False)):
        kernel = compiled(head_dim, causal, DEFAULT_SCHEDULE)
        assert kernel.metadata.shared <= 227 * 1024
        code = machine_code(kernel, Path(folder))
        assert not re.search(r"\b(LDL|STL)\b", code), "registers were spilled"
        found = powers_beside_products(code)
        assert len(found) == 4, found  # the masked loop and the other, for each of the two groups
        assert all(before >= 64 and after <= 2 for before, after in found), found


def without_the_store(folder: str) -> None:
    """Without the store that never takes place, the assembler puts the wait first: the reason why it is there."""
    from gpuguide.attention.gluon_flash import DEFAULT_SCHEDULE

    code = machine_code(compiled(128, False, replace(DEFAULT_SCHEDULE, overlap_softmax=False)), Path(folder))
    assert all(before < after for before, after in powers_beside_products(code))


@needs_triton
@pytest.mark.parametrize("part", [every_kernel, without_the_store])
def test_machine_code(part: Any, tmp_path: Path) -> None:
    interpreted.run(__file__, f"{part.__name__}({str(tmp_path)!r})", interpret=False)
