from __future__ import annotations

import json
from collections.abc import Callable

import pytest

Run = Callable[..., tuple[int, str, str]]


def test_claims_check_tells_what_does_not_hold(gpuguide: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace as Thing

    from gpuguide import claims as ledger

    outcomes = [
        Thing(claim=Thing(id="good", place="a.toml:1"), ok=True, detail=""),
        Thing(claim=Thing(id="bad", place="a.toml:9"), ok=False, detail="p25 is 0.98 [not above 1]"),
    ]
    monkeypatch.setattr(ledger, "load", list)
    monkeypatch.setattr(ledger, "check", lambda claims: outcomes)
    assert gpuguide("claims", "check") == (
        1,
        "a.toml:9: bad: p25 is 0.98 [not above 1]\n",
        "2 claims checked, 1 do not hold.\n"
        "Correct the row: its verdict, its text, or what it names. Or measure again what it reads.\n",
    )
    status, out, _ = gpuguide("claims", "check", "--format", "json")
    assert status == 1
    assert [(row["id"], row["ok"]) for row in json.loads(out)] == [("good", True), ("bad", False)]
    monkeypatch.setattr(ledger, "check", lambda claims: outcomes[:1])
    assert gpuguide("claims", "check") == (0, "", "1 claims checked, 0 do not hold.\n")
