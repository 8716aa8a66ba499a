"""The extension stays light: what a build with no change imports."""

from __future__ import annotations

import subprocess
import sys


def test_the_extension_imports_nothing_heavy() -> None:
    code = (
        "import sys, gpuguide.site, gpuguide.plotting, gpuguide.measure.citation\n"
        "print([name for name in ('torch', 'matplotlib', 'pyarrow', 'fontTools', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
