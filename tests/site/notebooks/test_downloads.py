"""The downloads of the built site: complete, plain, valid, and able to run where only the wheel has been installed."""

from __future__ import annotations

import ast
import builtins
import hashlib
import json
import os
import re
import symtable
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import clean_environment
import nbformat
import pytest
from bs4 import BeautifulSoup
from built_pages import parse, parsed
from clean_environment import Environment
from markdown_it import MarkdownIt
from report import count

from gpuguide.measure import digest, page_gpu, reference_gpu
from gpuguide.measure.digest import remembered
from gpuguide.site.execution import page_digests, page_gpus
from gpuguide.site.notebooks import opening_cells
from gpuguide.site.pages import page_source, reading, tabs
from gpuguide.site.pages.page_source import CodeCell

SITE = Path(__file__).parents[3] / "_build" / "html"
FOLDER = SITE / "notebooks"
SOURCES = Path(__file__).parents[3] / "tutorials"
TUTORIALS = sorted(path.stem for path in SOURCES.glob("[0-9]*.md"))
PARAMETERS = re.compile(r"^(:tags: |tags: ).*\bparameters\b", re.MULTILINE)
VARIED = [name for name in TUTORIALS if PARAMETERS.search((SOURCES / f"{name}.md").read_text(encoding="utf-8"))]
"""Tutorials that have something to vary"""

CANARY = TUTORIALS[0]
"""Its notebook is run every time; those of others when they changed, and the rest in `make test-thoroughly`"""

CHECKED = SITE.parent / "checked-notebooks"
"""Holds a note of what each notebook was when it last passed; continuous integration keeps it from run to run"""

pytestmark = [
    pytest.mark.apart,
    pytest.mark.skipif(
        not (SITE / "index.html").is_file(), reason="the site is not built; run `make site`, or `make test`, which does"
    ),
]


MYST = {
    "a role": re.compile(r"\{[a-z][a-z:_-]*\}`"),
    "a colon fence": re.compile(r"^\s*>?\s*:::", re.MULTILINE),
    "a directive": re.compile(r"^\s*>?\s*(?:```|~~~)\s*\{", re.MULTILINE),
    "a label": re.compile(r"^\([\w-]+\)=\s*$", re.MULTILINE),
    "attributes": re.compile(r"^\{[.#][^}]*\}\s*$", re.MULTILINE),
    "a link to a source file": re.compile(r"\]\((?!https?://)[^)]*\.md(?:#[^)]*)?\)"),
    "a link without a host": re.compile(r"\]\((?!https?://|mailto:|data:)"),
    "a cell's options": re.compile(r"^:tags:", re.MULTILINE),
    "an empty link": re.compile(r"\[\]\("),
    "a comment": re.compile(r"^%\s", re.MULTILINE),
}


@cache
def notebook(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=nbformat.NO_CONVERT)


def source(name: str) -> str:
    return (SOURCES / f"{name}.md").read_text(encoding="utf-8")


def markdown(name: str) -> Iterator[str]:
    return (cell.source for cell in notebook(name).cells if cell.cell_type == "markdown")


def code(name: str) -> list[Any]:
    return [cell for cell in notebook(name).cells if cell.cell_type == "code"]


def words(text: str) -> str:
    return " ".join(text.split())


# --- what is in them ---------------------------------------------------------------------------------------


def test_every_tutorial_is_offered_in_every_form() -> None:
    assert TUTORIALS
    wanted = {f"{name}.ipynb" for name in TUTORIALS} | {f"{name}.py" for name in TUTORIALS}
    wanted |= {f"without-outputs/{name}.ipynb" for name in TUTORIALS} | {"gpuguide-tutorials.zip"}
    found = {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.is_file()}
    assert {name for name in found if not name.endswith(".whl")} == wanted
    assert len(found) == len(wanted) + 1
    for name in TUTORIALS:
        page = parsed(SITE / "tutorials" / f"{name}.html")
        offered = [str(link["href"]) for link in page.select(".gg-downloads a[download]")]
        assert offered == [
            f"../notebooks/{name}.ipynb",
            f"../notebooks/without-outputs/{name}.ipynb",
            f"../notebooks/{name}.py",
            "../notebooks/gpuguide-tutorials.zip",
        ]


@pytest.mark.parametrize("name", TUTORIALS)
def test_no_myst_is_left(name: str) -> None:
    found = [
        f"{what}: {match[0]!r}" for text in markdown(name) for what, how in MYST.items() if (match := how.search(text))
    ]
    assert not found
    assert "myst" not in (FOLDER / f"{name}.py").read_text(encoding="utf-8").lower()


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_notebook_says_what_its_page_says(name: str) -> None:
    """Every paragraph, item, term and heading of the page, less formulas, stands in the notebook's Markdown."""
    article = parse(SITE / "tutorials" / f"{name}.html").select_one("article.bd-article")
    assert article is not None
    for unwanted in article.select(".cell, .gg-cost, .gg-not-run, .gg-step-figure, math, a.headerlink, span.math"):
        unwanted.decompose()
    for mark in article.select(".gg-stale"):
        mark.replace_with(" (stale)")  # a mark on the page, words in a notebook
    reader = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    html = "\n".join(reader.render(re.sub(r"\$\$[^$]+\$\$|\$[^$`]+\$", "", text)) for text in markdown(name))
    said = words(BeautifulSoup(html, "html.parser").get_text(""))
    blocks = article.select("p, h1, h2, h3, h4, dt, figcaption, summary, td, th")
    assert len(blocks) > 20
    missing = [text for block in blocks if (text := words(block.get_text(""))) and text not in said]
    assert not missing


@pytest.mark.parametrize("name", TUTORIALS)
@pytest.mark.parametrize("folder", [".", "without-outputs"])
def test_a_notebook_is_valid_and_names_its_kernel(name: str, folder: str) -> None:
    found = nbformat.read(FOLDER / folder / f"{name}.ipynb", as_version=nbformat.NO_CONVERT)
    nbformat.validate(found)
    assert (found.nbformat, found.nbformat_minor) == (4, 5)
    assert found.metadata.kernelspec == {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert found.metadata.language_info.name == "python"
    assert found.metadata.language_info.file_extension == ".py"
    assert set(found.metadata) == {"kernelspec", "language_info"}
    ids = [cell.id for cell in found.cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z0-9_-]{1,64}", name) for name in ids)
    assert not any("skip-execution" in cell.metadata.get("tags", []) for cell in found.cells)


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_first_cells_say_what_it_costs_and_install_the_library(name: str) -> None:
    first, second = notebook(name).cells[:2]
    assert first.source.startswith("# ")
    for fact in ("Time", "Hardware", "Measured numbers", "Outputs", "From"):
        assert f"- **{fact}:**" in first.source
    assert "no time" not in first.source
    page = page_source.read(source(name))
    with page_gpu.use_current_gpu(page.gpu, name):
        gpu = reference_gpu.name()
    assert (gpu in first.source) == bool(page.benchmarks)
    assert 'if importlib.util.find_spec("gpuguide") is None:' in second.source


@pytest.mark.parametrize("name", TUTORIALS)
def test_outputs_are_there_and_images_have_a_text(name: str) -> None:
    images = [output for cell in code(name) for output in cell.outputs if "image/png" in output.get("data", {})]
    assert images
    for output in images:
        assert output.metadata["image/png"]["alt"] == output.data["text/plain"].splitlines()[0]
    for cell in code(name):
        assert not any(kind.startswith("application/") for output in cell.outputs for kind in output.get("data", {}))
    for text in markdown(name):
        assert all(
            re.match(r"!\[[^\]]+\]\(data:image/", image) for image in re.findall(r"!\[[^\]]*\]\([^)]{0,30}", text)
        )


@pytest.mark.parametrize("name", TUTORIALS)
def test_the_forms_differ_in_outputs_only(name: str) -> None:
    bare = nbformat.read(FOLDER / "without-outputs" / f"{name}.ipynb", as_version=nbformat.NO_CONVERT)
    full = notebook(name)
    assert [(cell.id, cell.metadata) for cell in bare.cells] == [(cell.id, cell.metadata) for cell in full.cells]
    assert [cell.source for cell in bare.cells[1:]] == [cell.source for cell in full.cells[1:]]
    assert not any(cell.outputs for cell in bare.cells if cell.cell_type == "code")
    script = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    assert ast.dump(script) == ast.dump(ast.parse("\n".join(cell.source for cell in code(name))))


# --- that they run -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zip, unpacked by a reader."""
    folder = tmp_path_factory.mktemp("reader")
    with zipfile.ZipFile(FOLDER / "gpuguide-tutorials.zip") as archive:
        assert archive.testzip() is None
        archive.extractall(folder)
    (only,) = folder.iterdir()
    return only


@pytest.fixture(scope="module")
def environment(unpacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment into which a tutorial's own second cell has installed the wheel that is in the zip.

    The processes of one run share it.
    """

    def install(made: Environment) -> None:
        assert made.home_of_gpuguide(unpacked) == "", "gpuguide must not be there before"
        done = made.run("-c", code(TUTORIALS[0])[0].source, folder=unpacked / "without-outputs")
        assert done.returncode == 0, done.stdout + done.stderr

    base = tmp_path_factory.getbasetemp()
    of_the_run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    made = clean_environment.shared(of_the_run / "environment", install)
    assert Path(made.home_of_gpuguide(unpacked)).is_relative_to(made.root), "it is the wheel's, not the checkout's"
    return made


def test_the_zip_holds_everything(unpacked: Path) -> None:
    wanted = {
        path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.suffix in (".ipynb", ".py", ".whl")
    }
    found = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    assert found == wanted | {"README.md", "LICENSE"}
    for name in wanted:
        assert (unpacked / name).read_bytes() == (FOLDER / name).read_bytes()


@pytest.mark.slow
def test_an_installed_library_is_left_alone(environment: Environment, tmp_path: Path) -> None:
    done = environment.run("-c", code(TUTORIALS[0])[0].source, folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_missing_wheel_is_named(tmp_path: Path) -> None:
    bare = clean_environment.make(tmp_path / "environment")
    done = bare.run("-c", opening_cells.install("gpuguide-1.0-py3-none-any.whl", None, {}), folder=tmp_path)
    assert done.returncode != 0
    assert "gpuguide is not installed. Put gpuguide-1.0-py3-none-any.whl, which is in the zip, beside" in done.stderr


def test_the_site_is_asked_where_the_zip_is_not() -> None:
    wheel, address = "gpuguide-1.0-py3-none-any.whl", "https://example.org/notebooks/gpuguide-1.0-py3-none-any.whl"
    source = opening_cells.install(wheel, address, {"peers": ["peft>=0.14"], "cuda13": ["cudf-cu13>=25.10"]})
    compile(source, "cell", "exec")
    assert f'address = found[0].as_uri() if found else "{address}"' in source
    assert 'f"gpuguide[peers,cuda13] @ {address}"' in source


@pytest.mark.slow
def test_missing_extras_are_installed_and_where_that_fails_the_command_is_given(
    environment: Environment, tmp_path: Path
) -> None:
    """gpuguide is here, and one of two packages that the page needs is not; there is no network."""
    extras = {"some": ["numpy>=1.26", "surely-no-such-package>=3"]}
    source = opening_cells.install("gpuguide-1.0-py3-none-any.whl", None, extras)
    done = environment.run("-c", source, folder=tmp_path)
    assert done.returncode != 0
    said = done.stderr.splitlines()[-1]
    assert said.startswith("RuntimeError: pip could not install what this needs. Try it in a terminal: ")
    assert said.endswith("-m pip install --quiet 'surely-no-such-package>=3'")
    nothing = opening_cells.install("gpuguide-1.0-py3-none-any.whl", None, {"some": ["numpy>=1.26"]})
    assert environment.run("-c", nothing, folder=tmp_path).returncode == 0


def test_what_an_extra_brings_stands_in_the_project(repository: Path) -> None:
    found = opening_cells.requirements(repository, ["dataframes"])
    assert [text.split(">=")[0] for text in found["dataframes"]] == ["duckdb", "pandas", "polars", "pyarrow"]


@pytest.fixture(scope="module", autouse=True)
def _what_the_build_found_out() -> Iterator[None]:
    """Take over digests of the source, which take a second a page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remembered, "_kept", None)
        remembered.keep_in(SITE.parent / "doctrees" / "source.json", digest.PACKAGE_FOLDER)
        yield


@cache
def digest_of_notebook(name: str) -> str:
    """Return a digest of a notebook's code and outputs, and of all that the code uses."""
    page = page_source.read(source(name))
    with page_gpus.use_gpu_of(page):
        used = page_digests.page_digest(page)
    held = [(cell.source, cell.outputs) for cell in code(name)[1:]]  # the first installs gpuguide
    return hashlib.sha256(f"{used}\n{held!r}".encode()).hexdigest()


def is_unchanged(name: str) -> bool:
    """Return whether a notebook is what it was when it last passed, or when the first test run of this tree saw it."""
    note = CHECKED / f"{name}.txt"
    if not note.exists():
        remember(name)
    return note.read_text(encoding="utf-8") == digest_of_notebook(name)


def remember(name: str) -> None:
    """Note that a notebook is not to be checked again before it changes."""
    CHECKED.mkdir(exist_ok=True)
    (CHECKED / f"{name}.txt").write_text(digest_of_notebook(name), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_notebook_gives_the_outputs_that_it_holds(
    name: str, unpacked: Path, environment: Environment, request: pytest.FixtureRequest
) -> None:
    if name != CANARY and not request.config.getoption("thorough") and is_unchanged(name):
        pytest.skip("unchanged since it was last checked; `make test-thoroughly` checks every notebook")
    count("runs of a notebook", name)
    patient = ["--nbval-cell-timeout=1200", "--nbval-kernel-startup-timeout=600"]
    alone = ["-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", "."]
    done = environment.run("-m", "pytest", "--nbval", *patient, *alone, f"{name}.ipynb", folder=unpacked)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert f"{len(code(name))} passed" in done.stdout
    remember(name)


def shown_code(name: str) -> list[CodeCell]:
    """Return the cells of a page that a reader sees with all folds closed."""
    return [cell for cell in page_source.cells(source(name)) if not reading.HIDDEN_CODE & set(cell.tags)]


RUN_APART = """
import contextlib, io, json, os, sys, traceback
import torch  # before the forks, so that it is imported once

for name, code in json.load(sys.stdin).items():
    child = os.fork()
    if child == 0:
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, name, "exec"), {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc(file=printed)
            status = 1
        print(json.dumps([name, status, printed.getvalue(), "gpuguide" in sys.modules]), flush=True)
        os._exit(status)
    os.waitpid(child, 0)
"""
"""A program that runs pieces of code, each in a process of its own"""


NOT_RUN = "skip-execution"
"""The tag of a cell that no build runs"""


def snippets(name: str) -> dict[str, CodeCell]:
    """Return the snippets of a page by the names of their tabs."""
    found = [cell for cell in shown_code(name) if reading.SNIPPET in cell.tags]
    named = {tabs.label_of(cell.options) or tabs.OWN: cell for cell in found}
    assert len(named) == len(found) > 0, "each tab of a page has a name of its own"
    return named


def undefined(source: str) -> set[str]:
    """Return the names that a program reads and nowhere binds."""
    top = symtable.symtable(source, "snippet", "exec")
    read: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        read |= {each.get_name() for each in table.get_symbols() if each.is_referenced() and not each.is_local()}
    bound = {each.get_name() for each in top.get_symbols() if each.is_assigned() or each.is_imported()}
    read |= {each.get_name() for each in top.get_symbols() if each.is_referenced()}
    return read - bound - set(dir(builtins)) - {"__name__"}


@pytest.mark.parametrize("name", TUTORIALS)
def test_every_snippet_needs_nothing_before_it_and_prints(name: str) -> None:
    """It ran when its page was built, after the cells before it; so it runs alone if it needs none of their names."""
    for tab, snippet in snippets(name).items():
        assert undefined(snippet.code) == set(), tab
        imports = re.search(r"^\s*(?:import|from) gpuguide\b", snippet.code, re.MULTILINE)
        assert tab == tabs.OWN or not imports, f"{tab}: it is for readers without gpuguide"
        (ran,) = [cell for cell in code(name) if cell.source.strip() == snippet.code.strip()]
        printed = any(output.get("text", "").strip() for output in ran.outputs)
        assert printed or NOT_RUN in snippet.tags, f"{tab}: a reader who pastes it sees something"


def test_a_name_from_elsewhere_is_found() -> None:
    assert undefined("def f(a):\n    return a + b\n\n\nprint(f(c), [d for d in e])") == {"b", "c", "e"}
    assert undefined("import b\nfor c in range(3):\n    print((lambda d: b.f(c + d))(1))") == set()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_snippet_runs_alone_where_only_the_wheel_is(
    environment: Environment, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Those of the pages of which the build does not run all, and of all pages in `make test-thoroughly`."""
    found = {name: snippets(name) for name in TUTORIALS}
    if not request.config.getoption("thorough"):
        found = {name: each for name, each in found.items() if any(NOT_RUN in cell.tags for cell in each.values())}
    wanted = {f"{name}, {tab}": cell.code for name, each in found.items() for tab, cell in each.items()}
    assert wanted
    done = environment.run("-c", RUN_APART, folder=tmp_path, stdin=json.dumps(wanted))
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in results] == list(wanted), done.stderr
    for name, status, printed, imports_the_library in results:
        assert status == 0, f"{name}: {printed}"
        assert printed.strip(), f"{name}: a reader who pastes it sees something"
        assert name.endswith(f", {tabs.OWN}") or not imports_the_library, f"{name}: it is for readers without gpuguide"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", TUTORIALS)
def test_the_cells_that_one_sees_run_alone_from_top_to_bottom(
    name: str, environment: Environment, tmp_path: Path
) -> None:
    """What a reader copies from the page, folds closed, needs nothing that they do not see."""
    script = tmp_path / "seen.py"
    script.write_text("\n".join(cell.code.strip() for cell in shown_code(name)), encoding="utf-8")
    done = environment.run(str(script), folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_script_runs(name: str, unpacked: Path, environment: Environment, tmp_path: Path) -> None:
    """It runs from another folder, too, and prints what the notebook's cells print.

    Another test compares the code of every script with that of its notebook, every time.
    """
    count("runs of a notebook", name)
    done = environment.run(str(unpacked / f"{name}.py"), folder=tmp_path)
    assert done.returncode == 0, done.stderr[-5000:]
    for cell in code(name):
        for output in cell.outputs:
            if output.output_type == "stream" and output.name == "stdout":
                assert output.text in done.stdout


def parameters(name: str) -> dict[str, Any]:
    """Return the parameters of a tutorial with their values."""
    cells = [cell for cell in code(name) if "parameters" in cell.metadata.get("tags", [])]
    assert len(cells) <= 1, "papermill looks at one cell with parameters"
    found = {}
    for cell in cells:
        for statement in ast.parse(cell.source).body:
            assert isinstance(statement, ast.Assign | ast.AnnAssign), "a cell with parameters only assigns"
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            assert isinstance(target, ast.Name), "papermill reads NAME = VALUE, one on a line"
            assert statement.value is not None
            found[target.id] = ast.literal_eval(statement.value)
    return found


def test_the_first_tutorial_has_parameters() -> None:
    assert parameters("00-measure-a-gpu") == {"rows": 256, "inner": 512, "columns": 256}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("name", VARIED)
def test_a_notebook_without_outputs_runs_with_other_parameters(
    name: str, unpacked: Path, environment: Environment, tmp_path: Path
) -> None:
    """A cell with the values follows the one that is tagged, as papermill puts it there; numbers are halved.

    Where there is nothing to vary, the code is that of the notebook with outputs, which has been run.
    """
    count("runs of a notebook", name)
    chosen = {key: value // 2 for key, value in parameters(name).items() if type(value) is int and value > 1}
    path = unpacked / "without-outputs" / f"{name}.ipynb"
    found = nbformat.read(path, as_version=nbformat.NO_CONVERT)
    (tagged,) = [index for index, cell in enumerate(found.cells) if "parameters" in cell.metadata.get("tags", [])]
    injected = "\n".join(f"{key} = {value!r}" for key, value in chosen.items())
    found.cells.insert(tagged + 1, nbformat.v4.new_code_cell(injected))
    check = [f"assert {key} == {value!r}, {key}" for key, value in chosen.items()]
    check += ["import gpuguide", f"assert gpuguide.__file__.startswith({str(environment.root)!r}), gpuguide.__file__"]
    found.cells.append(nbformat.v4.new_code_cell("\n".join(check)))
    copied = tmp_path / "run.ipynb"
    nbformat.write(found, copied)
    program = "import nbclient, nbformat, sys; nb = nbformat.read(sys.argv[1], 4); "
    program += "nbclient.execute(nb, timeout=1200, startup_timeout=600)"
    done = environment.run("-c", program, str(copied), folder=path.parent)
    assert done.returncode == 0, done.stderr[-5000:]
