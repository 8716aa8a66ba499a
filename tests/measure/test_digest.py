from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from gpuguide.errors import GpuguideError
from gpuguide.measure import benchmark, digest

SOURCE = textwrap.dedent(
    '''
    """A module."""

    import math  # for the root

    LIMIT = 3
    """Largest size"""

    class Shape:
        """A shape."""

        size: int = 1
        """Of a side"""

        def area(self) -> float:
            """Return the area.

            >>> Shape().area()
            """
            # a comment
            text = "# not a comment"
            return math.sqrt(self.size)  # another

    async def wait() -> str:
        """Wait."""
        return f"{LIMIT} # {'also'} none"
    '''
)


def edited(old: str, new: str) -> str:
    assert SOURCE.count(old) == 1
    return SOURCE.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# for the root", "# for another reason"),
        ("  # for the root", ""),
        ('"""A module."""', '"""Another docstring,\n\nof several lines."""'),
        ('"""Largest size"""\n', ""),
        ('"""Of a side"""', "# of a side"),
        ("        # a comment\n", "\n\n\n"),
        (">>> Shape().area()", "Something else."),
        ('"""Wait."""', "'''Wait # a while.'''"),
        ("LIMIT = 3", "LIMIT = 3   "),
        ("import math", "\n\n\nimport math"),
        ("# another", "# a form feed \x0c and a separator \u2028 within a comment"),
    ],
)
def test_comments_docstrings_and_blank_lines_do_not_count(old: str, new: str) -> None:
    assert digest.significant_source(edited(old, new)) == digest.significant_source(SOURCE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("math.sqrt", "math.cbrt"),
        ('"# not a comment"', '"# Not a comment"'),
        ("# {'also'} none", "# {'also'} some"),
        ("        return math", "        if True: return math"),
        ("class Shape", "class Form"),
        ("size: int = 1", "size: int = 2"),
        ("import math", "import math, cmath"),
        ("async def", "def"),
    ],
)
def test_code_counts(old: str, new: str) -> None:
    assert digest.significant_source(edited(old, new)) != digest.significant_source(SOURCE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(): 'doc'; return 1", "def f(): 'doc'; return 2"),
        ("class A(B): 'doc'", "class A(C): 'doc'"),
        ("x = 1; 'says x'", "x = 2; 'says x'"),
        ("é = 'ü'; 'says é'; y = 1", "é = 'ü'; 'says é'; y = 2"),
        ("x = '''\n# one\n'''", "x = '''\n# two\n'''"),
        ("x = 1 \x0c\n# comment\ny = 2", "x = 1 \x0c\n# comment\ny = 3"),
        ("x = '\u2028' # comment\ny = 2", "x = '\u2028' # comment\ny = 3"),
    ],
)
def test_code_beside_a_docstring_or_a_comment_counts(one: str, other: str) -> None:
    assert digest.significant_source(one) != digest.significant_source(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("def f(): 'doc'; return 1", "def f(): 'other'; return 1"),
        ("class A(B): 'doc'", "class A(B): '''several\nlines'''"),
        ("é = 'ü'; 'says é'; y = 1", "é = 'ü'; 'sagt é'; y = 1"),
    ],
)
def test_a_docstring_beside_code_does_not_count(one: str, other: str) -> None:
    def squeezed(source: str) -> list[str]:
        return digest.significant_source(source).split()

    assert squeezed(one) == squeezed(other)


def test_imports_are_found_wherever_they_stand() -> None:
    source = """
import os, torch, gpuguide.costs.roofline
from gpuguide import __version__
from gpuguide.systems import ceilings
from gpuguide.measure.units import format_quantity
import gpuguide.hardware.device as devices
import gpuguidance
def late():
    if True:
        from gpuguide.measure import store
try:
    import gpuguide.nothing
except ImportError:
    pass
text = "import gpuguide.cli"
"""
    assert digest.imports_of(source) == {
        "gpuguide",
        "gpuguide.costs.roofline",
        "gpuguide.systems.ceilings",
        "gpuguide.measure.units",
        "gpuguide.hardware.device",
        "gpuguide.measure",
        "gpuguide.measure.store",
    }


@pytest.mark.parametrize(
    ("source", "module", "found"),
    [
        ("from . import units", "gpuguide.measure.records", {"gpuguide.measure", "gpuguide.measure.units"}),
        ("from .units import significant", "gpuguide.measure.records", {"gpuguide.measure.units"}),
        ("from .. import roofline", "gpuguide.measure.records", {"gpuguide", "gpuguide.costs.roofline"}),
        ("from ..hardware.device import fake", "gpuguide.measure.records", {"gpuguide.hardware.device"}),
        ("from . import units", "gpuguide.measure.__init__", {"gpuguide.measure", "gpuguide.measure.units"}),
        ("def f():\n from .units import x", "gpuguide.measure.records", {"gpuguide.measure.units"}),
    ],
)
def test_relative_imports_are_resolved(source: str, module: str, found: set[str]) -> None:
    assert digest.imports_of(source, module) == found


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in place of gpuguide: a benchmark, three topics that import each other, and a harness."""
    files = {
        "__init__.py": "",
        "errors.py": "x = 1",
        "measure/__init__.py": "",
        "measure/benchmark.py": "from gpuguide import errors",
        "benchmarks/__init__.py": "",
        "benchmarks/one.py": "from gpuguide import topic\nfrom gpuguide.measure.benchmark import Benchmark\n"
        "ONE = Benchmark(name='one')\nTWO = Benchmark(name='two')",
        "topic/__init__.py": "from .plain import f",
        "topic/plain.py": "def f():\n    from gpuguide import deep\n",
        "deep.py": "import gpuguide.topic\nvalue = 1",
        "apart.py": "value = 1",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(digest, "PACKAGE_FOLDER", tmp_path)
    forget()
    return tmp_path


@pytest.fixture(autouse=True)
def _forget_afterwards() -> object:
    yield
    forget()


def forget() -> None:
    """Forget what was read, as a new process would have."""
    for function in (
        digest.imports_of_module,
        digest.significant_source_of,
        digest.benchmark_modules,
        digest.benchmark_digest,
    ):
        function.cache_clear()


def test_imports_are_followed_through_circles_and_packages(package: Path) -> None:
    assert digest.transitive(["gpuguide.benchmarks.one"]) == {
        "gpuguide",
        "gpuguide.benchmarks",
        "gpuguide.benchmarks.one",
        "gpuguide.topic",
        "gpuguide.topic.plain",
        "gpuguide.deep",
        "gpuguide.errors",
        "gpuguide.measure",
        "gpuguide.measure.benchmark",
    }


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("benchmarks/one.py", True),
        ("topic/__init__.py", True),
        ("topic/plain.py", True),
        ("deep.py", True),
        ("apart.py", False),
        ("measure/benchmark.py", False),
        ("errors.py", False),
        ("__init__.py", False),
    ],
)
def test_a_benchmarks_digest_changes_with_its_topic_and_not_with_the_harness(
    package: Path, file: str, counts: bool
) -> None:
    before = digest.benchmark_digest("one")
    (package / file).write_text((package / file).read_text() + "\nchanged = True\n")
    forget()
    assert (digest.benchmark_digest("one") != before) is counts


def test_the_digest_does_not_depend_on_order_or_place(package: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    modules = ["gpuguide.deep", "gpuguide.apart"]
    assert digest.source_digest(modules) == digest.source_digest(modules[::-1] + modules)
    assert digest.source_digest(modules) != digest.source_digest(modules[:1])
    (package / "apart.py").rename(package / "away.py")
    forget()
    assert digest.source_digest(["gpuguide.away"]) != digest.source_digest(["gpuguide.deep"])


def test_line_ends_do_not_count(package: Path) -> None:
    before = digest.source_digest(["gpuguide.deep"])
    (package / "deep.py").write_bytes((package / "deep.py").read_bytes().replace(b"\n", b"\r\n"))
    forget()
    assert digest.source_digest(["gpuguide.deep"]) == before


def test_unknown_names(package: Path) -> None:
    with pytest.raises(GpuguideError, match=r"no module gpuguide\.nothing"):
        digest.source_digest(["gpuguide.nothing"])
    with pytest.raises(GpuguideError, match="Did you mean one"):
        digest.benchmark_digest("onee")


def test_benchmarks_are_found_without_importing_them() -> None:
    code = (
        "import sys; from gpuguide.measure.benchmark import names; print(*names()); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == benchmark.names()
    assert set(benchmark.names()) >= {"ceilings", "copy-size", "matmul-size", "transfer-size", "timing-mistakes"}


def test_every_declared_name_is_that_of_the_benchmark() -> None:
    for name in benchmark.names():
        assert benchmark.get(name).name == name
    with pytest.raises(GpuguideError, match=r"no benchmark named 'copysize'\. Did you mean copy-size"):
        benchmark.get("copysize")


def test_no_benchmark_depends_on_the_harness_the_site_or_the_command_line() -> None:
    for name, module in digest.benchmark_modules().items():
        counted = {found for found in digest.transitive([module]) if not digest.is_harness(found)}
        assert module in counted, name
        assert {found for found in counted if not found.startswith("gpuguide.benchmarks")}, f"{name} measures no topic"
        assert not {found for found in counted if found.startswith(("gpuguide.site", "gpuguide.cli"))}, name
