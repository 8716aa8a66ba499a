"""One zip with all tutorials in every form and the library's wheel: it works where there is no network."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

NAME = "gpuguide-tutorials.zip"
FOLDER = "gpuguide-tutorials"
"""The one folder that the zip unpacks to"""
FIRST_DATE = 315_532_800
"""1980-01-01, before which a zip has no dates, in seconds since 1970"""
READ_ME = """\
# The tutorials of gpuguide

- `*.ipynb`: the tutorials as notebooks, with the outputs of the site. `without-outputs` holds them without.
- `*.py`: the same as Python scripts, with cells that VS Code, Spyder and PyCharm know.
- `{wheel}`: the library that they use, with its measurements.

Install the library, and Jupyter if you have none. PyTorch comes with it; nothing is fetched if you have PyTorch. Where
there is no NVIDIA GPU, its CPU build is enough and much smaller: install that first, as PyTorch's installation page
says.

```sh
python -m pip install {wheel} jupyterlab
python -m jupyter lab
```

You may leave the wheel out of the first line: the second cell of each notebook installs it from this folder if it is
missing, and whatever else the notebook needs. Any computer will do. With an NVIDIA GPU some cells measure it and show
the result beside the published one.

{contents}
{site}The code is under the MIT licence, text and figures under CC BY 4.0.
"""


def write(target: Path, files: Mapping[str, Path], wheel: str, contents: str, site: str) -> None:
    """Write the zip; the same files and ``SOURCE_DATE_EPOCH`` give the same bytes.

    Parameters
    ----------
    target : Path
        The zip.
    files : mapping of str to Path
        Name in the zip, below its folder, to the file.
    wheel : str
        The wheel's file name.
    contents : str
        What the tutorials are, in Markdown.
    site : str
        The site's address, or nothing.
    """
    read_me = READ_ME.format(wheel=wheel, contents=contents, site=f"The site is at {site}. " if site else "")
    content = {"README.md": read_me.encode(), **{name: path.read_bytes() for name, path in files.items()}}
    date = time.gmtime(max(FIRST_DATE, int(os.environ.get("SOURCE_DATE_EPOCH", FIRST_DATE))))
    with zipfile.ZipFile(target, "w") as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(f"{FOLDER}/{name}", date[:6])
            entry.compress_type = zipfile.ZIP_STORED if name == wheel else zipfile.ZIP_DEFLATED  # a wheel is compressed
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content[name])
