"""Machine code of kernels that were compiled for a GPU that is not here."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any


def machine_code(kernel: Any, folder: Path) -> str:
    """Return the machine code of a compiled Triton kernel as text, which Triton's own disassembler writes."""
    import triton

    path = folder / "kernel.cubin"
    path.write_bytes(kernel.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return subprocess.run([tool, "-c", path], capture_output=True, text=True, check=True).stdout
