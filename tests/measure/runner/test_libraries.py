"""What contenders call: skipped where it is missing, named with its version, and measured anew where that changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_runs import statuses, stored

from gpuguide.hardware import device as devices
from gpuguide.hardware.device import Device
from gpuguide.measure import libraries
from gpuguide.measure.benchmark import Benchmark
from gpuguide.measure.libraries import Library

pytestmark = pytest.mark.usefixtures("known_code")
MODULE = "a_peer_of_the_tests"


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let a library be known whose module a test writes or leaves out; give the module's file."""
    libraries.why_not_here.cache_clear()
    monkeypatch.setitem(libraries.KNOWN, "a-peer", Library("A Peer", MODULE, ("a-peer-cu13", "a-peer-cu12")))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    (tmp_path / "modules").mkdir()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path / "modules" / f"{MODULE}.py"
    sys.modules.pop(MODULE, None)
    libraries.why_not_here.cache_clear()


def installed(module: Path, version: str | None) -> None:
    """Install a version of the peer, or remove it, as if the process had begun anew."""
    module.unlink(missing_ok=True)
    if version is not None:
        module.write_text(f"__version__ = {version!r}\n")
    sys.modules.pop(MODULE, None)
    libraries.why_not_here.cache_clear()


def calling(benchmark: Benchmark, contender: str, *names: str) -> Benchmark:
    """Return the benchmark with a contender that calls libraries."""
    contenders = dict(benchmark.contenders)
    contenders[contender] = replace(contenders[contender], libraries=names)
    return replace(benchmark, contenders=contenders)


def test_a_library_that_is_missing_skips_its_contender_and_says_how_to_get_it(
    measure: Any, scripted: Any, peer: Path, tmp_path: Path
) -> None:
    installed(peer, None)
    bench = scripted(sizes=(1,))
    measure(calling(bench.benchmark, "slow", "a-peer"))
    record = stored(tmp_path)
    assert statuses(record)[1, "slow"] == ("skipped", "a-peer is not installed; pip install a-peer-cu13")
    assert statuses(record)[1, "fast"] == ("ok", "")
    assert "build slow 1" not in bench.steps
    assert "a-peer" not in record.runs[0].versions


def test_a_library_that_fails_to_import_skips_its_contender_with_the_error(
    measure: Any, scripted: Any, peer: Path, tmp_path: Path
) -> None:
    installed(peer, "1.0")
    peer.write_text("raise OSError('libpeer.so.3: cannot open shared object file in /srv/alice/lib\\nmore')")
    measure(calling(scripted(sizes=(1,)).benchmark, "slow", "a-peer"))
    reason = "a-peer cannot be imported (OSError: libpeer.so.3: cannot open shared object file in PATH"
    assert statuses(stored(tmp_path))[1, "slow"] == ("skipped", reason)


def test_a_library_that_lacks_another_one_names_that(measure: Any, scripted: Any, peer: Path, tmp_path: Path) -> None:
    peer.write_text("import another_that_is_not_here")
    measure(calling(scripted(sizes=(1,)).benchmark, "slow", "a-peer"))
    reason = "a-peer cannot be imported (ModuleNotFoundError: No module named 'another_that_is_not_here')"
    assert statuses(stored(tmp_path))[1, "slow"] == ("skipped", reason)


def test_the_record_names_the_version_of_what_is_called(
    measure: Any, scripted: Any, peer: Path, tmp_path: Path
) -> None:
    installed(peer, "1.0")
    measure(calling(scripted(sizes=(1,)).benchmark, "slow", "a-peer", "pandas"))
    record = stored(tmp_path)
    assert record.runs[0].versions["a-peer"] == "1.0"
    assert record.runs[0].versions["pandas"]
    assert {case.contender: case.libraries for case in record.cases} == {"fast": (), "slow": ("a-peer", "pandas")}
    assert record.runs[0].stamp(record.libraries(["slow"])).split(" · ")[2] == "A Peer 1.0"


def test_a_processor_calls_no_library_of_cuda(measure: Any, scripted: Any, tmp_path: Path) -> None:
    measure(calling(scripted(sizes=(1,)).benchmark, "slow", "cublas", "cudnn", "numpy"))
    record = stored(tmp_path)
    assert record.case("slow").libraries == ("numpy",)
    assert not {"cublas", "cudnn"} & set(record.runs[0].versions)


def test_a_fake_device_calls_no_library(measure: Any, scripted: Any, peer: Path, tmp_path: Path) -> None:
    installed(peer, None)
    device = devices.fake("h100-sxm")
    measure(calling(scripted(sizes=(1,)).benchmark, "slow", "a-peer", "cudnn"), device=device)
    assert stored(tmp_path, device=device.slug).case("slow").libraries == ("a-peer", "cudnn")


def test_what_was_measured_with_another_version_is_measured_anew(
    measure: Any, scripted: Any, peer: Path, tmp_path: Path
) -> None:
    """With all contenders of the case, so that its ratios stay within one run; other cases are left as they are."""
    installed(peer, "1.0")
    benchmark = calling(scripted(sizes=(1, 2)).benchmark, "slow", "a-peer")
    measure(benchmark, commit="first")
    installed(peer, "1.1")
    said: list[str] = []
    benchmark = calling(scripted(sizes=(1, 2, 3)).benchmark, "slow", "a-peer")
    outcome = measure(benchmark, commit="second", say=said.append)
    record = stored(tmp_path)
    assert (outcome.measured, outcome.already_fresh) == (3, 0)
    assert said == ["scripted: A Peer is 1.1 here and was 1.0; what was measured with it is measured anew."]
    assert [(run.commit, run.versions["a-peer"]) for run in record.runs] == [("second", "1.1")]
    assert measure(benchmark, say=said.append).measured == 0
    assert len(said) == 1


def test_an_upgrade_stamps_only_what_was_measured_after_it(
    measure: Any, scripted: Any, peer: Path, tmp_path: Path
) -> None:
    """Contenders that call the library are measured in some cases only; the others keep the run they were made in."""
    installed(peer, "1.0")

    def small_only(device: Device, keys: Any) -> str | None:
        return None if keys["size"] == 1 else "small ones only"

    benchmark = calling(scripted(sizes=(1, 2)).benchmark, "slow", "a-peer")
    slow = replace(benchmark.contenders["slow"], skip_reason=small_only)
    benchmark = replace(benchmark, contenders={**benchmark.contenders, "slow": slow})
    measure(benchmark, commit="first")
    installed(peer, "1.1")
    assert measure(benchmark, commit="second").measured == 1
    record = stored(tmp_path)
    found = {(c.keys["size"], c.contender): record.runs[c.run].versions["a-peer"] for c in record.cases}
    assert found == {(1, "fast"): "1.1", (1, "slow"): "1.1", (2, "fast"): "1.0", (2, "slow"): "1.0"}


def test_another_pytorch_means_everything_anew(
    measure: Any, scripted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(scripted().benchmark)
    changed = replace(libraries.KNOWN["torch"], version=lambda: "99.0")
    monkeypatch.setitem(libraries.KNOWN, "torch", changed)
    said: list[str] = []
    assert measure(scripted().benchmark, say=said.append).measured == 3
    assert [line.split(" here")[0] for line in said] == ["scripted: PyTorch is 99.0"]
    assert {run.versions["torch"] for run in stored(tmp_path).runs} == {"99.0"}


def test_a_library_that_is_gone_takes_no_measurement_with_it(
    measure: Any, scripted: Any, peer: Path, tmp_path: Path
) -> None:
    installed(peer, "1.0")
    benchmark = calling(scripted().benchmark, "slow", "a-peer")
    measure(benchmark)
    before = stored(tmp_path)
    installed(peer, None)
    assert measure(benchmark).already_fresh == 3
    assert stored(tmp_path) == before


def test_what_was_skipped_for_a_missing_library_is_measured_once_it_is_there(
    measure: Any, scripted: Any, peer: Path, tmp_path: Path
) -> None:
    installed(peer, None)
    benchmark = calling(scripted(sizes=(1,)).benchmark, "slow", "a-peer")
    measure(benchmark)
    assert measure(benchmark).already_fresh == 1
    installed(peer, "1.0")
    assert measure(benchmark).measured == 1
    assert statuses(stored(tmp_path))[1, "slow"] == ("ok", "")
