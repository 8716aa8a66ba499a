"""``gpuguide bench compare``: what the reader measured, and beside it what was published."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer
from rich.table import Table

from gpuguide.cli.screen import break_name, listing, say, show
from gpuguide.errors import GpuguideError, unknown
from gpuguide.measure import benchmark as declarations
from gpuguide.measure import comparison, page_gpu, reference_gpu, store
from gpuguide.measure.comparison import headline, telling
from gpuguide.measure.records import Case, Record, describe_keys
from gpuguide.units import significant

DEVICES_ABREAST = 4
"""Published devices that fit beside each other"""
DEVICES_BESIDE_OWN = 2
"""Published devices that fit beside one's own with its ratio to each"""


def compare(
    devices: Annotated[
        list[str] | None,
        typer.Argument(metavar="DEVICE", help="Devices as 'records list' names them, yours or published."),
    ] = None,
    benchmark: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A benchmark; may be repeated. All if not given.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Show the published records too, side by side.")
    ] = False,
) -> None:
    """Show what you measured, beside the published values.

    Beside your values stand those of the reference GPU, beside a processor's those of ours, or those of the published
    devices that you name.

    Example: gpuguide bench compare --benchmark ceilings
    """
    known = declarations.names()
    for name in benchmark or ():
        if name not in known:
            raise unknown("benchmark", name, known)
    own = order_by_benchmark(store.load_all_mine(), benchmark)
    theirs = order_by_benchmark(store.load_all_published(), benchmark)
    check_devices(devices or (), own + theirs)
    wanted_own = select_devices(own, devices) or own
    wanted_theirs = select_devices(theirs, devices)
    if not wanted_own and not published and not devices:
        raise GpuguideError(
            "You have measured nothing yet. 'gpuguide bench run' does; "
            "'gpuguide bench compare --published' shows what others measured."
        )
    pairs = [
        (mine, [other for other in wanted_theirs or usual(mine, theirs) if other.benchmark == mine.benchmark])
        for mine in wanted_own
    ]
    for record, beside in pairs:
        show_own(record, beside)
    if any(beside for _, beside in pairs):
        say("speed: how many times as fast yours is as the device on its left")
    if published or not wanted_own:
        show_published(wanted_theirs or theirs)


def usual(own: Record, published: Iterable[Record]) -> list[Record]:
    """Return what a record is compared with if nobody says: a processor's with ours, a GPU's with the reference's."""
    if own.device == page_gpu.CPU:
        return [record for record in published if record.device == page_gpu.CPU]
    return [record for record in published if reference_gpu.is_reference(record)]


def order_by_benchmark(records: Iterable[Record], names: Sequence[str] | None) -> list[Record]:
    """Return the records of some benchmarks, in the order in which benchmarks are declared; gone ones come last."""
    places = {name: place for place, name in enumerate(declarations.names())}
    chosen = [record for record in records if not names or record.benchmark in names]
    return sorted(chosen, key=lambda record: (places.get(record.benchmark, len(places)), record.device))


def select_devices(records: Iterable[Record], devices: Sequence[str] | None) -> list[Record]:
    """Return the records of some devices, by the order in which these are named."""
    return [record for device in devices or () for record in records if record.device == device]


def check_devices(devices: Iterable[str], records: Iterable[Record]) -> None:
    """Raise if nobody has a record of a device."""
    known = {record.device for record in records}
    for device in devices:
        if device not in known:
            raise unknown("device with records", device, known)


def show_own(record: Record, published: Sequence[Record]) -> None:
    """Print one record of the reader's: each case with its median, the published one, and how they compare."""
    good = [case for case in record.cases if case.status == "ok"]
    beside = [(other, found) for other in published if (found := counterparts(good, other))]
    title(record, "yours")
    same, differ = comparison.split_keys(good)
    if same:
        say(f"all cases: {describe_keys(same)}")
    for start in range(0, max(1, len(beside)) if good else 0, DEVICES_BESIDE_OWN):
        show(own_table(good, differ, beside[start : start + DEVICES_BESIDE_OWN]))
    if without := len(record.cases) - len(good):
        say(f"{without} more without a measurement; 'gpuguide records show {record.benchmark}' says why.")
    print()


def own_table(cases: Sequence[Case], differ: Sequence[str], beside: Sequence[tuple[Record, dict[int, Case]]]) -> Table:
    """Return one's own cases with the like cases of a few published records and the ratio to each."""
    heads = [part for other, _ in beside for part in (heading(other), "speed")]
    table = listing("contender", *["case"] * bool(differ), "yours", *heads, whole=("yours", *heads))
    for position, case in enumerate(cases):
        cells = [headline(case)]
        for _, found in beside:
            other = found.get(position)
            cells += [headline(other), significant(comparison.speed(other, case), 2) + "×"] if other else ["–", ""]
        table.add_row(case.contender, *keys_text(case, differ), *cells)
    return table


def counterparts(own: Sequence[Case], published: Record) -> dict[int, Case]:
    """Return the published case that is like each of one's own, where there is one, by the position of one's own."""
    known = {identity(case): case for case in published.cases if case.status == "ok"}
    found = {position: known.get(identity(case)) for position, case in enumerate(own)}
    return {
        position: other
        for position, other in found.items()
        if other is not None and telling(other)[0] == telling(own[position])[0]
    }


def identity(case: Case) -> tuple[object, ...]:
    """Return what makes a case the same case on another device."""
    return (case.contender, *sorted(case.keys.items()))


def show_published(records: Sequence[Record]) -> None:
    """Print published records, those of one benchmark side by side."""
    for name in dict.fromkeys(record.benchmark for record in records):
        devices = [record for record in records if record.benchmark == name]
        for start in range(0, len(devices), DEVICES_ABREAST):
            show_abreast(devices[start : start + DEVICES_ABREAST])


def show_abreast(records: Sequence[Record]) -> None:
    """Print the cases of a few records of one benchmark, a column for each device."""
    title(records[0], "published")
    everything = [case for record in records for case in record.cases if case.status == "ok"]
    same, differ = comparison.split_keys(everything)
    if same:
        say(f"all cases: {describe_keys(same)}")
    heads = [heading(record) for record in records]
    table = listing("contender", *["case"] * bool(differ), *heads, whole=heads)
    by_identity = [{identity(case): case for case in record.cases if case.status == "ok"} for record in records]
    for key, case in {identity(case): case for case in everything}.items():
        cells = [headline(known[key]) if key in known else "–" for known in by_identity]
        table.add_row(case.contender, *keys_text(case, differ), *cells)
    show(table)
    print()


def title(record: Record, whose: str) -> None:
    """Print what is compared: the benchmark, its question and, for one's own, the device."""
    where = f" on {record.device}" if whose == "yours" else ""
    stale = "; stale: the code has changed since" if record.stale and whose == "yours" else ""
    say(f"{record.benchmark}{where} ({whose}{stale})")
    if record.benchmark in declarations.names():
        say(declarations.get(record.benchmark).question)


def heading(record: Record) -> str:
    """Return a device's slug as the head of a narrow column."""
    return break_name(record.device + " (stale)" * record.stale, 14)


def keys_text(case: Case, names: Sequence[str]) -> list[str]:
    """Return the cell that says which case it is: the keys in which it differs from others, if there are any."""
    return [describe_keys({name: case.keys[name] for name in names})] if names else []
