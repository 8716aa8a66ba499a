"""Which page runs when: as many at a time as allowed, fewer while memory is short, those that took longest first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuguide.site.execution import kernels, outputs_cache, side_by_side
from gpuguide.site.execution.side_by_side import Job

JOBS = [Job(name, f"/{name}.md", {"cells": []}, 1.0) for name in "abcde"]


class Watched:
    """Notes when pages begin and how many run at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
        self.order: list[str] = []
        self.most = 0
        self.said: list[dict[str, Any]] = []
        self._now = 0
        monkeypatch.setattr(side_by_side, "run_and_keep", self._run)
        monkeypatch.setattr(side_by_side, "available_memory", lambda: memory)
        monkeypatch.setattr(outputs_cache, "last_seconds", lambda cache: {"/a.md": 1.0, "/b.md": 9.0, "/c.md": 5.0})

    async def _run(self, job: Job, cache: Any, say: Any) -> None:
        self.order.append(job.name)
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0)
        self._now -= 1

    def run(self, folder: str, at_once: int) -> None:
        """Run the pages."""
        asyncio.run(side_by_side.run_all(JOBS, folder, at_once, lambda **event: self.said.append(event)))


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_no_more_pages_run_at_a_time_than_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any, at_once: int) -> None:
    watched = Watched(monkeypatch, memory=100 * side_by_side.ROOM)
    watched.run(str(tmp_path), at_once)
    assert watched.most == at_once
    assert watched.order == ["d", "e", "b", "c", "a"], "first those of which no time is known"
    assert watched.said == []


def test_the_page_with_most_code_begins_where_no_time_is_known() -> None:
    jobs = [
        Job(str(lines), f"/{lines}.md", {"cells": [{"cell_type": "code", "source": lines * "x\n"}]}, 1.0)
        for lines in (2, 9, 5)
    ]
    assert [job.name for job in side_by_side.longest_first(jobs, {})] == ["9", "5", "2"]
    assert [job.name for job in side_by_side.longest_first(jobs, {"/9.md": 3.0})] == ["5", "2", "9"]


def test_one_page_at_a_time_runs_while_memory_is_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    watched = Watched(monkeypatch, memory=side_by_side.ROOM - 1)
    watched.run(str(tmp_path), 5)
    assert watched.most == 1
    assert sorted(watched.order) == list("abcde")
    (note,) = watched.said
    assert note["note"] == "1.5 GB of memory are free: no further page is begun for now."


def test_only_the_heavy_libraries_that_a_page_uses_are_imported_first() -> None:
    assert kernels.libraries_of("print(1)") == set()
    assert kernels.libraries_of("import torch.nn as nn") == {"torch"}
    assert "torch" in kernels.libraries_of("from gpuguide import logits"), (
        "what the library imports for the page counts"
    )
    assert "matplotlib" in kernels.libraries_of("def late():\n    from gpuguide import plotting")
