"""``gpuguide doctor``: what is here, and what each part needs."""

from __future__ import annotations

import typer

from gpuguide.cli.screen import listing, show
from gpuguide.errors import GpuguideError
from gpuguide.hardware import doctor as examination
from gpuguide.hardware.doctor import Finding
from gpuguide.measure import folders, libraries


def doctor() -> None:
    """Say what is here and what each part needs.

    Example: gpuguide doctor
    """
    findings = [*examination.examine(), *peers(), own_records()]
    table = listing("here", "name", "detail", whole=("here", "name"), head=False)
    for finding in findings:
        mark = {True: "yes", False: "no"}[finding.present]
        table.add_row(mark, finding.name, finding.detail)
    show(table)
    if not all(finding.present for finding in findings if finding.required):
        raise typer.Exit(1)


def own_records() -> Finding:
    """Look at the folder of the reader's own records."""
    try:
        return examination.records_folder(folders.overlay_folder())
    except GpuguideError as error:
        return Finding("Your records", False, str(error))


def peers() -> list[Finding]:
    """Look for the libraries that benchmarks compare with, without importing them."""
    findings = []
    for name in libraries.PEERS:
        packages = libraries.get(name).packages
        version = libraries.find_installed_version(packages)
        detail = version or f"not installed: benchmarks compare with it; pip install {packages[0]}"
        findings.append(Finding(name, version is not None, detail))
    return findings
