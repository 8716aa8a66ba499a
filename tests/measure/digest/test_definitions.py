"""What a benchmark's digest is made of, and what leaves it as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from written_package import write

from gpuguide.measure import digest

FILES: Mapping[str, str] = {
    "errors.py": "class Wrong(Exception): ...\n",
    "measure/benchmark.py": "class Benchmark: ...\n",
    "benchmarks/one.py": """
from gpuguide import topic
from gpuguide.costs import roofline
from gpuguide.measure.benchmark import Benchmark
from gpuguide.topic.plain import softmax as plain

SIZES = (1, 2)

def work(device, keys):
    from gpuguide.topic import fused
    rate = roofline.flops(SIZES[0])
    return topic.softmax(rate) + plain(rate) + fused.run(rate)

def unused():
    return 3

ONE = Benchmark(name="one", work=work)
TWO = Benchmark(name="two", work=unused)
""",
    "costs/roofline.py": "def flops(size):\n    return 2 * size\n\ndef moved(size):\n    return size\n",
    "topic/__init__.py": "from gpuguide.topic.plain import softmax\n",
    "topic/plain.py": """
import math
from gpuguide.errors import Wrong

LOWEST = -math.inf
CHECKS = []

def softmax(x):
    if x == LOWEST:
        raise Wrong
    return highest(x)

def highest(x):
    return max(CHECKS, default=x)

def apart():
    return 4

CHECKS.append(1)
""",
    "topic/fused.py": """
from gpuguide.topic.plain import highest as top

def run(x):
    return [top(x) for x in x]
""",
}


def digest_of(folder: Path, changes: Mapping[str, str] | None = None, name: str = "one") -> str:
    """Return the digest of a benchmark in a new package: FILES, with these files over them; empty ones go."""
    files = {**FILES, **(changes or {})}
    return digest.digest_in(write(folder, {path: text for path, text in files.items() if text}), name)


def edited(path: str, old: str, new: str) -> dict[str, str]:
    assert FILES[path].count(old) == 1, (path, old)
    return {path: FILES[path].replace(old, new)}


@pytest.fixture
def before(tmp_path: Path) -> str:
    return digest_of(tmp_path / "before")


def test_what_is_reached(tmp_path: Path) -> None:
    found = digest.find_reached_definitions(write(tmp_path, FILES), "one")
    assert {f"{definition.module.removeprefix('gpuguide.')}.{definition.name}" for definition in found} == {
        "benchmarks.one.ONE",
        "benchmarks.one.SIZES",
        "benchmarks.one.work",
        "costs.roofline.flops",
        "topic.fused.run",
        "topic.plain.CHECKS",
        "topic.plain.LOWEST",
        "topic.plain.[0]",
        "topic.plain.highest",
        "topic.plain.softmax",
    }


MOVED = {
    "topic/fused.py": "",
    "triton_support/fused.py": FILES["topic/fused.py"],
    **edited("benchmarks/one.py", "from gpuguide.topic import fused", "from gpuguide.triton_support import fused"),
}
RENAMED = {
    "costs/roofline.py": "",
    "costs/ceilings_of_work.py": FILES["costs/roofline.py"],
    "benchmarks/one.py": FILES["benchmarks/one.py"].replace("roofline", "ceilings_of_work"),
}
SPLIT = {
    "topic/plain.py": FILES["topic/plain.py"]
    .replace("def highest(x):\n    return max(CHECKS, default=x)\n", "")
    .replace("CHECKS = []\n", "")
    .replace("CHECKS.append(1)\n", "")
    .replace("import Wrong\n", "import Wrong\nfrom gpuguide.topic.checks import highest\n"),
    "topic/checks.py": "CHECKS = []\nCHECKS.append(1)\n\ndef highest(x):\n    return max(CHECKS, default=x)\n",
    "topic/fused.py": FILES["topic/fused.py"].replace("topic.plain", "topic.checks"),
}


@pytest.mark.parametrize("changes", [MOVED, RENAMED, SPLIT], ids=["moved", "renamed", "split"])
def test_a_move_a_rename_and_a_split_leave_it_as_it_is(tmp_path: Path, before: str, changes: dict[str, str]) -> None:
    assert digest_of(tmp_path / "after", changes) == before


def test_so_do_all_three_at_once(tmp_path: Path, before: str) -> None:
    one = MOVED["benchmarks/one.py"].replace("roofline", "ceilings_of_work")
    files = {**RENAMED, **SPLIT, **MOVED, "triton_support/fused.py": SPLIT["topic/fused.py"], "benchmarks/one.py": ""}
    assert digest_of(tmp_path / "after", {**files, "benchmarks/softmax/one.py": one}) == before


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("benchmarks/one.py", "return 3", "return 4"),
        ("benchmarks/one.py", "from gpuguide import topic\n", "import gpuguide.topic as topic\n"),
        ("benchmarks/one.py", "ONE = ", "# the first\nONE = "),
        ("costs/roofline.py", "return size", "return 8 * size"),
        ("topic/plain.py", "return 4", "return 5"),
        ("topic/plain.py", "import math\n", "import math, cmath\n"),
        ("topic/plain.py", "-math.inf", "-(math.inf)"),
        ("topic/plain.py", "def highest(x):", 'def highest(x):\n    "Return the highest."'),
        (
            "topic/fused.py",
            "import highest as top\n\ndef run(x):\n    return [top(",
            "import highest\n\ndef run(x):\n    return [highest(",
        ),
        ("topic/fused.py", "for x in x]", "for x in x ]"),
        ("errors.py", "...", "pass"),
        ("measure/benchmark.py", "...", "pass"),
        ("topic/__init__.py", "softmax\n", "softmax\n__all__ = ['softmax']\n"),
    ],
)
def test_what_does_not_count(tmp_path: Path, before: str, path: str, old: str, new: str) -> None:
    assert digest_of(tmp_path / "after", edited(path, old, new)) == before


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("benchmarks/one.py", "(1, 2)", "(1, 3)"),
        ("benchmarks/one.py", "SIZES[0]", "SIZES[1]"),
        ("benchmarks/one.py", "roofline.flops", "roofline.moved"),
        ("benchmarks/one.py", "import softmax as plain", "import highest as plain"),
        ("benchmarks/one.py", 'name="one", work=work', 'name="one", work=unused'),
        ("costs/roofline.py", "2 * size", "3 * size"),
        ("topic/__init__.py", "plain import softmax", "plain import highest as softmax"),
        ("topic/plain.py", "default=x", "default=-x"),
        ("topic/plain.py", "append(1)", "append(2)"),
        ("topic/plain.py", "-math.inf", "-math.e"),
        ("topic/plain.py", "import math\n", "import cmath as math\n"),
        ("topic/fused.py", "import highest as top", "import softmax as top"),
    ],
)
def test_what_counts(tmp_path: Path, before: str, path: str, old: str, new: str) -> None:
    assert digest_of(tmp_path / "after", edited(path, old, new)) != before


def test_each_benchmark_of_a_file_has_its_own(tmp_path: Path) -> None:
    one, two = digest_of(tmp_path / "one"), digest_of(tmp_path / "two", name="two")
    changed = edited("benchmarks/one.py", "return 3", "return 4")
    assert one != two
    assert digest_of(tmp_path / "other", changed, "two") != two


def test_two_definitions_of_one_name_are_told_apart(tmp_path: Path) -> None:
    files = {
        "costs/a.py": "def size():\n    return 1\n",
        "costs/b.py": "def size():\n    return 2\n",
        "benchmarks/one.py": "from gpuguide.costs import a, b\n"
        "ONE = Benchmark(name='one', work=(a.size, b.size, a.size))\n",
    }
    before = digest_of(tmp_path / "before", files)
    swapped = {**files, "benchmarks/one.py": files["benchmarks/one.py"].replace("b.size, a.size", "a.size, b.size")}
    assert digest_of(tmp_path / "after", swapped) != before


def test_a_local_name_is_no_definition(tmp_path: Path) -> None:
    files = {
        "costs/a.py": "def scale():\n    return 1\n",
        "topic/scaled.py": "from gpuguide.costs.a import scale\n\ndef f(scale):\n    return [scale for _ in scale]\n\n"
        "class C:\n    scale: int = 1\n    def g(self):\n        return (lambda scale: scale)(1)\n\n"
        "def other():\n    return scale()\n",
        "benchmarks/one.py": "from gpuguide.topic.scaled import C, f\nONE = Benchmark(name='one', work=(f, C))\n",
    }
    found = digest.find_reached_definitions(write(tmp_path, {**FILES, **files}), "one")
    assert "gpuguide.costs.a" not in {definition.module for definition in found}


def test_what_a_function_imports_counts_where_its_module_defines_the_same_name(tmp_path: Path) -> None:
    files = {
        "costs/a.py": "def scale():\n    return 1\n",
        "topic/fused.py": "def scale():\n    return 2\n\n"
        "def run(x):\n    from gpuguide.costs.a import scale\n    return scale()\n",
    }
    before = digest_of(tmp_path / "before", files)
    assert digest_of(tmp_path / "after", {**files, "costs/a.py": "def scale():\n    return 3\n"}) != before


def test_a_method_sees_the_module_and_not_its_class(tmp_path: Path) -> None:
    files = {
        "benchmarks/one.py": "def size():\n    return 1\n\n"
        "class C:\n    size = 2\n    def g(self):\n        return size()\n\n"
        "ONE = Benchmark(name='one', work=C)\n"
    }
    found = digest.find_reached_definitions(write(tmp_path, {**FILES, **files}), "one")
    assert "size" in {definition.name for definition in found}


@pytest.mark.parametrize(
    "registering",
    [
        "@torch.library.impl('a::run', 'cpu')",
        "@torch.library.register_fake('a::run')",
        "@operator.register_kernel('cuda')",
        "@operator.register_vmap",
        "@of_kind.register\n@another",
        "@register_flop_formula(operator)",
    ],
)
def test_a_function_that_is_registered_with_something_else_counts(tmp_path: Path, registering: str) -> None:
    """Nobody names it: who calls the operator runs it."""
    operator = "import torch\nfrom gpuguide.topic.plain import apart\n\noperator = torch.ops.a.run\n\n"
    files = {
        "topic/fused.py": "from gpuguide.topic import operators\n\ndef run(x):\n    return operators.operator(x)\n",
        "topic/operators.py": f"{operator}{registering}\ndef _run(x):\n    return apart()\n",
    }
    found = digest.find_reached_definitions(write(tmp_path, {**FILES, **files}), "one")
    assert {"operator", "_run", "apart"} <= {definition.name for definition in found}


@pytest.mark.parametrize("decorator", ["@functools.cache", "@torch.no_grad()", "@triton.jit", "@implied"])
def test_a_function_that_is_only_wrapped_does_not_count_unless_it_is_named(tmp_path: Path, decorator: str) -> None:
    files = {"topic/fused.py": f"def run(x):\n    return x\n\n{decorator}\ndef other(x):\n    return x\n"}
    found = digest.find_reached_definitions(write(tmp_path, {**FILES, **files}), "one")
    names = {definition.name for definition in found if definition.module == "gpuguide.topic.fused"}
    assert names == {"run"}


def test_what_a_program_for_another_process_names_counts(tmp_path: Path) -> None:
    program = "from {__name__} import report; report(1)"
    files = {
        "benchmarks/one.py": f"def report(n):\n    print(n)\n\ndef work():\n    return f'{program}'\n\n"
        "ONE = Benchmark(name='one', work=work)\n"
    }
    before = digest_of(tmp_path / "before", files)
    changed = {"benchmarks/one.py": files["benchmarks/one.py"].replace("print(n)", "print(-n)")}
    assert digest_of(tmp_path / "after", changed) != before


def test_a_module_that_is_handed_on_counts_as_a_whole(tmp_path: Path) -> None:
    one = "from gpuguide.topic import plain\nONE = Benchmark(name='one', work=getattr(plain, 'softmax'))\n"
    before = digest_of(tmp_path / "before", {"benchmarks/one.py": one})
    changed = {"benchmarks/one.py": one, **edited("topic/plain.py", "return 4", "return 5")}
    assert digest_of(tmp_path / "after", changed) != before
