"""``gpuguide doctor``: what is here, and what each part needs."""

from __future__ import annotations

import typer

from gpuguide.cli.screen import listing, show
from gpuguide.measure import store


def doctor() -> None:
    """Say what is here and what each part needs.

    Example: gpuguide doctor
    """
    from gpuguide.hardware import doctor as examination

    findings = [*examination.examine(), examination.records_folder(store.overlay_folder())]
    table = listing("here", "name", "detail", whole=("here", "name"), head=False)
    for finding in findings:
        mark = {True: "yes", False: "no"}[finding.present]
        table.add_row(mark, finding.name, finding.detail)
    show(table)
    if not all(finding.present for finding in findings if finding.required):
        raise typer.Exit(1)
