"""Words and names leave a digest as it is; what is computed does not."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from written_package import write

from gpuguide.measure import digest
from gpuguide.measure.digest.source import Tree

FILES: Mapping[str, str] = {
    "errors.py": "class GpuguideError(Exception): ...\ndef unknown(kind, name): ...\n",
    "measure/benchmark.py": "class Benchmark: ...\n",
    "benchmarks/one.py": """
from gpuguide.measure.benchmark import Benchmark
from gpuguide.topic import kernels
from gpuguide.topic.kernels import run

def work(device):
    sizes = [2, 3]
    return run(device, sizes)

ONE = Benchmark(name="one", title="Runs", question="How fast?", work=work, limits=kernels.HIGH)
""",
    "topic/kernels.py": """
import warnings
from dataclasses import dataclass
from typing import ClassVar, cast
from gpuguide.errors import GpuguideError, unknown

LOW, HIGH = 1, 2
seen = 0

@dataclass
class Tile:
    rows: int = 4
    columns: int = 8
    kind: ClassVar = 1

def kernel(x, SIZE: tl.constexpr):
    offset = x * SIZE
    scale = offset + SIZE
    return offset - scale

def check(x: int, wanted: list) -> None:
    if x < LOW:
        raise GpuguideError(f"{x} is too small")
    if x in wanted:
        raise unknown("size", x)
    assert x > HIGH, f"{x} is too large"
    if x == 7:
        raise ValueError("seven")
    try:
        found = wanted[x]
    except IndexError as error:
        raise KeyError(f"no {x}") from error
    if found > 4:
        warnings.warn("large", stacklevel=2)

def halve(x):
    global seen
    seen = seen + 1
    return x / 2

def third(x):
    return x / 3

def run(device, sizes):
    tile = Tile()
    def inner(n):
        nonlocal total
        total = total + n
        return total
    total = 0
    for size in sizes:
        check(size, sizes)
        total = inner(halve(size) - third(size))
    match sizes:
        case [first, *others]:
            total = total + first - len(others)
    best: int = cast("int", max(total, key=lambda n: -n))
    return kernel(best, tile.rows), [row for row in sizes if row]
""",
}
KERNELS, ONE = "topic/kernels.py", "benchmarks/one.py"


@pytest.fixture
def before(tmp_path: Path) -> str:
    return digest.digest_in(write(tmp_path / "before", FILES), "one")


def after(folder: Path, path: str, old: str, new: str) -> str:
    """Return the digest with a pattern replaced wherever it stands in a file, and in the other where it is used."""
    assert re.search(old, FILES[path]), old
    return digest.digest_in(write(folder / "after", {**FILES, path: re.sub(old, new, FILES[path])}), "one")


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (KERNELS, r"is too small", "lies below the least"),
        (KERNELS, r"GpuguideError\(f\"\{x\} is too small\"\)", 'unknown("size", x)'),
        (KERNELS, r'unknown\("size", x\)', 'unknown("number", x + 1)'),
        (KERNELS, r', f"\{x\} is too large"', ""),
        (KERNELS, '"seven"', '"not seven"'),
        (KERNELS, r" from error", " from None"),
        (KERNELS, '"large"', '"very large"'),
        (KERNELS, r"x: int, wanted: list\) -> None", "x, wanted: tuple)"),
        (KERNELS, r"best: int = ", "best = "),
        (KERNELS, r"best: int", "best: float"),
        (KERNELS, r'cast\("int", (.*)\)\n', r"\1\n"),
        (KERNELS, r"rows: int", "rows: float"),
        (KERNELS, r"\boffset\b", "start"),
        (KERNELS, r"\btotal\b", "sum_so_far"),
        (KERNELS, r"\binner\b", "added"),
        (KERNELS, r"\bsize\b", "one_size"),
        (KERNELS, r"\berror\b", "missing"),
        (KERNELS, r"\b(first|others)\b", r"\1_ones"),
        (KERNELS, r"\brow\b", "r"),
        (KERNELS, r"\bkernel\b", "body"),
        (KERNELS, r"\bhalve\b", "half_of"),
        (KERNELS, r"\bTile\b", "Block"),
        (KERNELS, r"\bseen\b", "calls"),
        (KERNELS, r"\bLOW\b", "LEAST"),
        (ONE, r"\bwork\b(?!=)", "measured_work"),
        (ONE, '"Runs"', '"Runs and walks"'),
        (ONE, r' question="How fast\?",', ""),
        (ONE, r"\bsizes\b", "rows"),
    ],
)
def test_words_and_names_do_not_count(tmp_path: Path, before: str, path: str, old: str, new: str) -> None:
    assert after(tmp_path, path, old, new) == before


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        (KERNELS, "LOW, HIGH = 1, 2", "HIGH, LOW = 1, 2"),
        (KERNELS, "x < LOW", "x < HIGH"),
        (KERNELS, "x < LOW", "x <= LOW"),
        (KERNELS, "x > HIGH", "x >= HIGH"),
        (KERNELS, r"raise ValueError\(\"seven\"\)", 'raise TypeError("seven")'),
        (KERNELS, r"raise ValueError\(\"seven\"\)", "return"),
        (KERNELS, "offset - scale", "scale - offset"),
        (KERNELS, r"\(size\) - third\(size\)", "(size) - halve(size)"),
        (KERNELS, r"halve\(size\) - third\(size\)", "third(size) - halve(size)"),
        (KERNELS, "SIZE: tl.constexpr", "SIZE"),
        (KERNELS, "kind: ClassVar = 1", "kind: int = 1"),
        (KERNELS, "rows: int = 4\n    columns: int = 8", "columns: int = 8\n    rows: int = 4"),
        (KERNELS, r"tile\.rows", "tile.columns"),
        (KERNELS, "total \\+ n", "n + total"),
        (KERNELS, "nonlocal total", "total = 0"),
        (KERNELS, "global seen", "seen = 0"),
        (KERNELS, "total \\+ first", "total + size"),
        (KERNELS, "if row]", "if sizes]"),
        (KERNELS, r"def check\(x: int, wanted: list", "def check(wanted: list, x: int"),
        (ONE, 'name="one"', 'fast=True, name="one"'),
        (ONE, "limits=kernels.HIGH", "limits=kernels.LOW"),
        (ONE, r"\[2, 3\]", "[3, 2]"),
    ],
)
def test_what_is_computed_counts(tmp_path: Path, before: str, path: str, old: str, new: str) -> None:
    assert after(tmp_path, path, old, new) != before


def test_two_functions_that_differ_only_in_what_they_call_are_told_apart(tmp_path: Path) -> None:
    """Their own texts are alike once names do not count, and so are those of what they call."""
    chain = "def {0}(x):\n    return {0}_deeper(x)\ndef {0}_deeper(x):\n    return {0}_deepest(x)\n"
    ends = "def a_deepest(x):\n    return x + 1\ndef b_deepest(x):\n    return x + 2\n"
    one = "def work(x):\n    return {} - {}\nONE = Benchmark(name='one', work=work)\n"
    both = [
        digest.digest_in(
            write(tmp_path / name, {"benchmarks/one.py": chain.format("a") + chain.format("b") + ends + text}), "one"
        )
        for name, text in (("ab", one.format("a(x)", "b(x)")), ("ba", one.format("b(x)", "a(x)")))
    ]
    assert both[0] != both[1]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", "theme", "*.json", "*.safetensors")
    return Path(shutil.copytree(digest.PACKAGE_FOLDER, tmp_path_factory.mktemp("library") / "gpuguide", ignore=ignored))


def test_the_librarys_own_code_can_be_reworded_and_not_changed(library: Path) -> None:
    """In the code of the attention benchmark: a function and a local renamed, a title and an error reworded."""

    def edit(old: str, new: str) -> str:
        """Replace a pattern wherever it stands, and return the digest."""
        found = {path: path.read_text(encoding="utf-8") for path in library.rglob("*.py")}
        matching = [path for path, text in found.items() if re.search(old, text)]
        assert matching, old
        for path in matching:
            path.write_text(re.sub(old, new, found[path]), encoding="utf-8")
        for function in (Tree.module, digest.definitions.render_definition, digest.declarations):
            function.cache_clear()
        return digest.digest_in(Tree(library), "attention")

    now = digest.digest_in(Tree(library), "attention")
    assert edit(r"\bare_addressable\b|\bis_addressable\b", "can_be_addressed") == now
    assert edit(r"(name=\"attention\",\s+title=\")", r"\1Seen: ") == now
    assert edit(r"raise ValueError\(f?\"", 'raise ValueError("In short: " f"') == now
    assert edit(r"m_i - finite_m_ij", "finite_m_ij - m_i") != now
