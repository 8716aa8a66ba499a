"""``gpuguide new``: write what a page, a benchmark or a topic begins with, and register it."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from gpuguide.cli.screen import err, say
from gpuguide.errors import GpuguideError, unknown

app = typer.Typer(
    help="Begin a page, a benchmark or a topic.\n\nExample: gpuguide new topic dropout --title Dropout",
    no_args_is_help=True,
)

LEDGER = "src/gpuguide/claims/claims.toml"
PALETTE = "src/gpuguide/plotting/palette.py"
_PAGE = re.compile(r"\d\d-[a-z0-9]+(?:-[a-z0-9]+)*")
_SLUG = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_NO_VERBS = {"a", "an", "the", "how", "what", "why", "when", "which", "about", "on", "in", "our", "your"}
_NOUN_ENDINGS = ("tion", "tions", "ment", "ments", "ness", "ity", "ing", "ings", "ics")
"""Ends of first words of titles that name a thing instead of telling what to do"""

Name = Annotated[str, typer.Argument(help="Lower case, words joined by hyphens.")]


@app.command("page")
def new_page(
    name: Annotated[str, typer.Argument(help="NN-short-title: two digits, then lower case with hyphens.")],
    title: Annotated[str, typer.Option(help="A title that begins with a verb: what a reader will be able to do.")],
    topic: Annotated[str, typer.Option(help="The topic of the ledger that the page is about.")],
    benchmark: Annotated[list[str] | None, typer.Option(help="A benchmark that it reads; may be repeated.")] = None,
) -> None:
    """Write a tutorial from the template, and list it under the part that its number belongs to.

    Example: gpuguide new page 26-dropout --title "Drop activations in one kernel" --topic sampling
    """
    from gpuguide import claims
    from gpuguide.measure import digest

    root = _repository()
    _check_name(name, _PAGE, "page", "26-dropout")
    for other in sorted((root / "tutorials").glob("*.md")):
        if other.stem == name:
            raise GpuguideError(f"There is a page named {name!r}: {other}.")
        if other.stem[:3] == name[:3]:
            raise GpuguideError(f"The number {name[:2]} is taken by {other.stem}. Choose another one for {name!r}.")
    check_title(title)
    topics = claims.topics(root / LEDGER)
    if topic not in topics:
        raise unknown("topic", topic, topics)
    for wanted in benchmark or []:
        if wanted not in digest.benchmark_modules():
            raise unknown("benchmark", wanted, digest.benchmark_modules())
    index = root / "tutorials" / "index.md"
    listed = list_page(index.read_text(encoding="utf-8"), name)
    template = (root / "tutorials" / claims_template()).read_text(encoding="utf-8")
    page = re.sub(r"(?m)^  topics: .*$", f"  topics: [{topic}]", template, count=1)
    page = re.sub(r"(?m)^  benchmarks: .*$", f"  benchmarks: [{', '.join(benchmark or [])}]", page, count=1)
    page = re.sub(r"(?m)^  queries:\n(?:    - .*\n)+", "  queries: []\n", page, count=1)
    page = re.sub(r"(?m)^# .*$", f"# {title}", page, count=1)
    _write(root, {root / "tutorials" / f"{name}.md": page, index: listed})
    err.print(f"Now replace the template's words, and run: make page P={name}", markup=False)


@app.command("benchmark")
def new_benchmark(
    name: Name,
    topic: Annotated[str, typer.Option(help="The topic of the ledger that it belongs to.")],
    question: Annotated[str, typer.Option(help="The one question that it answers, with a question mark.")],
    contender: Annotated[list[str] | None, typer.Option(help="A contender's name; may be repeated.")] = None,
) -> None:
    """Write a benchmark with its contenders and a test, and give each new contender a colour and a marker.

    Example: gpuguide new benchmark dropout --topic sampling --question "How fast is dropout?" --contender torch
    """
    from gpuguide import claims
    from gpuguide.measure import digest

    root = _repository()
    _check_name(name, _SLUG, "benchmark", "dropout")
    if name in digest.benchmark_modules():
        raise GpuguideError(f"There is a benchmark named {name!r}: {digest.benchmark_modules()[name]}.")
    topics = claims.topics(root / LEDGER)
    if topic not in topics:
        raise unknown("topic", topic, topics)
    if question.count("?") != 1 or not question.endswith("?"):
        raise GpuguideError(f"{question!r} is not one question. End it with its only question mark.")
    if not contender:
        raise GpuguideError(
            f"The benchmark {name!r} has no contender, so nothing would be measured. Name one or more: "
            f'gpuguide new benchmark {name} --topic {topic} --question "{question}" --contender torch'
        )
    for one in contender:
        _check_name(one, _SLUG, "contender", "torch-compile")
    module, test = benchmark_files(root, topic, name)
    if module.exists():
        raise GpuguideError(f"There is a file {module}. Declare the benchmark in it, or choose another name.")
    words = {
        "name": name,
        "title": name.replace("-", " ").capitalize(),
        "question": question,
        "contenders": "\n".join(f'        "{one}": Contender(build),' for one in contender),
        "module": ".".join(module.relative_to(root / "src").with_suffix("").parts),
        "constant": name.replace("-", "_").upper(),
    }
    palette = root / PALETTE
    written = {module: _BENCHMARK.substitute(words), test: _TEST.substitute(words)}
    colours = palette.read_text(encoding="utf-8")
    if (with_all := add_styles(colours, contender)) != colours:
        written[palette] = with_all
    _write(root, written)
    err.print(f"Now replace the work and its check, and try it: gpuguide bench run {name} --quick", markup=False)


@app.command("topic")
def new_topic(
    name: Name,
    title: Annotated[str, typer.Option(help="The topic's title, as readers of the ledger see it.")],
) -> None:
    """Write the package of a topic, its test and its page of the API, and register its name in the ledger.

    Example: gpuguide new topic dropout --title "Dropout"
    """
    from gpuguide import claims

    root = _repository()
    _check_name(name, _SLUG, "topic", "dropout")
    ledger = root / LEDGER
    folder = name.replace("-", "_")
    package = root / "src/gpuguide" / folder / "__init__.py"
    if name in claims.topics(ledger):
        raise GpuguideError(f"There is a topic named {name!r}: {claims.topics(ledger)[name]}.")
    if package.exists():
        raise GpuguideError(f"There is a package gpuguide.{folder}: {package}. Choose another name.")
    words = {"name": name, "title": title, "folder": folder}
    index = root / "docs/api/index.md"
    _write(
        root,
        {
            ledger: add_topic(ledger.read_text(encoding="utf-8"), name, title),
            package: _PACKAGE.substitute(words),
            root / "tests" / folder / f"test_{folder}.py": _PACKAGE_TEST.substitute(words),
            root / "docs/api" / f"{name}.md": _API.substitute(words),
            index: index.read_text(encoding="utf-8").replace("\nbenchmarks\n", f"\n{name}\nbenchmarks\n", 1),
        },
    )
    err.print(f"Now begin its benchmark or its page: gpuguide new benchmark {name} --topic {name} …", markup=False)


# --- checks and registers --------------------------------------------------------------------------------


def check_title(title: str) -> None:
    """Raise unless a title begins with a verb, as far as its first word shows."""
    first = title.split(" ")[0].lower() if title else ""
    if (not first.isalpha() and "-" not in first) or first in _NO_VERBS or first.endswith(_NOUN_ENDINGS):
        raise GpuguideError(
            f"The title {title!r} has no verb at its beginning. Say what a reader will be able to do: 'Choose …', "
            "'Measure …', 'Generate text fast'."
        )


def list_page(index: str, name: str) -> str:
    """Return the table of contents with a page in it, after those of its part with a smaller number.

    An entry is a page's name, alone or in angle brackets after the short title that the sidebar shows.
    """
    entries = list(re.finditer(r"(?m)^(?:.+ <)?((\d)\d-[a-z0-9-]+)>?$", index))
    part = [entry for entry in entries if entry[2] == name[0]]
    if not part:
        known = ", ".join(dict.fromkeys(f"{entry[2]}0s" for entry in entries))
        raise GpuguideError(f"No part of tutorials/index.md has pages numbered {name[0]}0 to {name[0]}9, only {known}.")
    before = [entry for entry in part if entry[1] < name]
    if before:
        return f"{index[: before[-1].end()]}\n{name}{index[before[-1].end() :]}"
    return f"{index[: part[0].start()]}{name}\n{index[part[0].start() :]}"


def add_styles(palette: str, contenders: list[str]) -> str:
    """Return the source of the palette with a line for each contender that has none, all different from each other."""
    from gpuguide.plotting.palette import CONTENDERS, LIGHT

    taken = {(CONTENDERS[name].colour, CONTENDERS[name].marker) for name in contenders if name in CONTENDERS}
    colours = [name for name in LIGHT.series if name not in {colour for colour, _ in taken}]
    markers = [marker for marker in "os^DvPX*php<" if marker not in {other for _, other in taken}]
    new = [name for name in contenders if name not in CONTENDERS]
    if len(new) > min(len(colours), len(markers)):
        raise GpuguideError(f"{len(contenders)} contenders cannot be told apart in one figure; {len(colours)} can.")
    lines = [f'    "{name}": Style("{colours[i]}", "{markers[i]}"),\n' for i, name in enumerate(new)]
    end = palette.index('}\n"""A new contender gets its line here')
    return palette[:end] + "".join(lines) + palette[end:]


def add_topic(ledger: str, name: str, title: str) -> str:
    """Return the ledger's file of topics with one more at the end of its list."""
    end = ledger.index("\n\n[sources.") + 1
    return f'{ledger[:end]}{name} = "{title}"\n{ledger[end:]}'


def benchmark_files(root: Path, topic: str, name: str) -> tuple[Path, Path]:
    """Return the file of a benchmark and that of its test: beside those of its topic, if it has a folder."""
    folder, file = topic.replace("-", "_"), name.replace("-", "_")
    place = Path(folder) / file if (root / "src/gpuguide/benchmarks" / folder).is_dir() else Path(folder)
    return (
        root / "src/gpuguide/benchmarks" / place.with_suffix(".py"),
        root / "tests/benchmarks" / place.parent / f"test_{place.name}.py",
    )


def claims_template() -> str:
    """Return the name of the tutorial that new ones are copied from."""
    from gpuguide.claims import pages

    return pages.TEMPLATE


def _repository() -> Path:
    from gpuguide.claims import pages

    root = pages.repository()
    if root is None or not (root / "tutorials").is_dir():
        raise GpuguideError("'gpuguide new' writes into the repository, which is not here. Clone it first.")
    return root


def _check_name(name: str, pattern: re.Pattern[str], kind: str, example: str) -> None:
    if not pattern.fullmatch(name):
        raise GpuguideError(f"{name!r} cannot name a {kind}. Write it like {example!r}.")


def _write(root: Path, texts: dict[Path, str]) -> None:
    from gpuguide.files import replace_atomically

    for path, text in texts.items():
        with replace_atomically(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
        say(str(path.relative_to(root)))


# --- templates -------------------------------------------------------------------------------------------

_BENCHMARK = Template('''"""$title: what is measured, against whom, over which sizes."""

from __future__ import annotations

import torch

from gpuguide.benchmarks.inputs import calls_on, random_logits
from gpuguide.hardware.device import Device
from gpuguide.measure.benchmark import Benchmark, Contender, Keys, Work, powers_of_two
from gpuguide.measure.records import Rate

ROWS = 64


def cases(device: Device) -> list[Keys]:
    """Return the sizes to measure on a device."""
    return [{"size": size} for size in powers_of_two(1024, 65536, 2)]


def build(device: Device, keys: Keys) -> Work:
    """Return the work of a contender on a case: replace it, its check and its bytes."""
    values = random_logits(ROWS, int(keys["size"]), torch.float32, device)
    calls = calls_on(torch.exp, values)
    moved = 2 * values[0].nbytes

    def check() -> None:
        torch.testing.assert_close(calls[0]().double(), values[0].double().exp())

    return Work(calls, check, {"bandwidth": Rate("B/s", moved)}, footprint=moved)


$constant = Benchmark(
    name="$name",
    title="$title",
    question="$question",
    contenders={
$contenders
    },
    cases=cases,
    memory=lambda keys: 4 * ROWS * 4 * int(keys["size"]),
)
''')

_TEST = Template('''"""The benchmark $name runs on this machine and is correct."""

from __future__ import annotations

from gpuguide.hardware import device as devices
from gpuguide.measure import benchmark, runner


def test_the_smallest_case_is_correct() -> None:
    outcome = runner.run([benchmark.get("$name")], devices.cpu(), None, quick=True, commit="c0ffee")
    (record,) = outcome.records
    assert {case.correct for case in record.cases if case.status == "ok"} == {"yes"}
''')

_PACKAGE = Template('"""$title."""\n\nfrom __future__ import annotations\n')

_PACKAGE_TEST = Template('''"""$title, compared with a reference."""

from __future__ import annotations

import gpuguide.$folder


def test_the_topic_is_described() -> None:
    assert gpuguide.$folder.__doc__
''')

_API = Template("""# $title

## `gpuguide.$folder`

```{eval-rst}
.. automodule:: gpuguide.$folder
   :members:
```
""")
