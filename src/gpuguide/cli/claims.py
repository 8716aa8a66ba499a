"""``gpuguide claims``: the ledger of claims, checked."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gpuguide.cli.screen import err, say

app = typer.Typer(help="The ledger of claims.\n\nExample: gpuguide claims check", no_args_is_help=True)


class ClaimsFormat(StrEnum):
    """Output format of the claims that do not hold."""

    text = "text"
    json = "json"


@app.command("check")
def claims_check(
    format: Annotated[ClaimsFormat, typer.Option(help="To read, or for a program.")] = ClaimsFormat.text,
) -> None:
    """Check every claim of the ledger.

    Example: gpuguide claims check
    """
    from gpuguide import claims as ledger
    from gpuguide.claims import pages
    from gpuguide.measure import reference_gpu

    reference_gpu.check_records()  # said once, and not by every row that was measured
    if pages.repository() is None:
        err.print(f"The pages are not installed: every row is checked on {reference_gpu.default_slug()}.")
    outcomes = ledger.check(ledger.load())
    wrong = [outcome for outcome in outcomes if not outcome.ok]
    if format is ClaimsFormat.json:
        typer.echo(json.dumps([{"id": o.claim.id, "ok": o.ok, "detail": o.detail} for o in outcomes], indent=1))
    else:
        for outcome in wrong:
            place = outcome.claim.place.removeprefix(f"{Path.cwd()}/")
            say(f"{place}: {outcome.claim.id}: {outcome.detail}")
    err.print(f"{len(outcomes)} claims checked, {len(wrong)} do not hold.")
    if wrong:
        err.print("Correct the row: its verdict, its text, or what it names. Or measure again what it reads.")
        raise typer.Exit(1)
