"""``python -m gpuguide`` is the command ``gpuguide``."""

from __future__ import annotations

import contextlib
import hashlib
import os

from gpuguide import cli
from gpuguide.measure import digest, folders
from gpuguide.measure.digest import remembered


def main() -> None:
    """Run the command line. What it found out about the library's source is kept for the next command."""
    folder = digest.PACKAGE_FOLDER
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]  # another installation has other source
    remembered.keep_in(folders.cache_folder() / f"source-{name}.json", folder)
    try:
        cli.main()
    finally:
        with contextlib.suppress(OSError):  # where nothing can be written, it is found out again
            remembered.save()


if __name__ == "__main__":
    main()
