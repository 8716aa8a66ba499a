"""Drawings of jobs on a cluster: from sbatch to ranks, nodes that never meet, a run that fails, stripes of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuguide.plotting import drawings, palette
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

GPUS = 4
"""Of each drawn node"""
INTERVAL, WRITE, RESTART, FAILURE, END = 6.0, 1.7, 2.6, 21.0, 32.0
"""Of the drawn run, in any unit: work between saves, writing one, a restart, when a GPU fails, and the end"""
STRIPES, TARGETS = 8, 4
"""Of the drawn file, and storage targets over which it is striped"""


# --- from sbatch to ranks ----------------------------------------------------------------------------------


def from_sbatch_to_ranks() -> Figure:
    """Draw what starts what, from the command to the processes of two nodes."""
    return show(
        lambda figure, theme: _draw_levels(figure),
        alt="From top to bottom: the command sbatch on the login node hands the script to Slurm's controller, "
        "slurmctld. The controller starts the script on the first of two nodes only. In it, srun starts one torchrun "
        f"on each node, and each torchrun starts {GPUS} processes, ranks 0 to {GPUS - 1} on the first node and {GPUS} "
        f"to {2 * GPUS - 1} on the second. The two torchruns meet at an address and a port on the first node.",
        caption="The script runs once, on the first node. Only srun starts something on every node: one torchrun, "
        "which starts one process for each GPU.",
        size=(WIDE, 3.7),
        narrow=(4.6, 4.1),
        name="from-sbatch-to-ranks",
        rows=[
            {"node": node + 1, "task": node, "local rank": gpu, "rank": node * GPUS + gpu}
            for node in range(2)
            for gpu in range(GPUS)
        ],
    )


def _draw_levels(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    tall, margin, gap = 30.0, 8.0, 14.0
    node = (width - 2 * margin - gap) / 2
    lefts = (margin, margin + node + gap)
    top = height - tall - 6
    drawings.box(ax, margin, top, node, tall, "sbatch job.sh", colour="")
    drawings.box(ax, lefts[1], top, node, tall, "controller: slurmctld")
    drawings.arrow(ax, (margin + node, top + tall / 2), (lefts[1], top + tall / 2))
    drawings.label(ax, margin + node / 2, top - 9, "on the login node", size=10)

    bottom, nodes_top = 22.0, top - 34
    for index, left in enumerate(lefts):
        drawings.box(ax, left, bottom, node, nodes_top - bottom, strength=0.05)
        drawings.label(ax, left + 10, nodes_top - 13, f"node {index + 1}", across="left", bold=True)
    inner = node - 24
    script_y = nodes_top - 56
    torchrun_y = script_y - 62
    ranks_y = bottom + 12
    script = "job.sh" if narrow else "job.sh, the batch script"
    drawings.box(ax, lefts[0] + 12, script_y, inner, tall, script, colour="orange")
    drawings.label(ax, lefts[1] + node / 2, script_y + tall / 2, "the script does not run here", size=10)
    drawings.arrow(ax, (lefts[1] + 40, top), (lefts[0] + node - 40, script_y + tall), colour="orange")
    for index, left in enumerate(lefts):
        drawings.box(ax, left + 12, torchrun_y, inner, tall, f"task {index}: torchrun", colour="blue")
        start = (lefts[0] + 12 + inner * (0.5 if index == 0 else 0.85), script_y)
        drawings.arrow(ax, start, (left + 12 + inner * (0.5 if index == 0 else 0.3), torchrun_y + tall), colour="blue")
        side = (inner - 6 * (GPUS - 1)) / GPUS
        for gpu in range(GPUS):
            x = left + 12 + gpu * (side + 6)
            text = f"rank\n{index * GPUS + gpu}" if narrow else f"rank {index * GPUS + gpu}"
            drawings.box(ax, x, ranks_y, side, tall + (8 if narrow else 0), text, colour="green", size=10)
            drawings.arrow(
                ax, (x + side / 2, torchrun_y), (x + side / 2, ranks_y + tall + (8 if narrow else 0)), colour="green"
            )
    middle = torchrun_y + tall / 2
    drawings.arrow(ax, (lefts[0] + 12 + inner, middle), (lefts[1] + 12, middle), both=True)
    drawings.label(ax, lefts[0] + 12 + inner * 0.5 + 8, script_y - 15, "srun", across="left", size=10)
    drawings.label(ax, width / 2, 9, "the two torchruns meet at node 1 and a port: the rendezvous", size=10)


# --- nodes that never meet -----------------------------------------------------------------------------------


def nodes_that_never_meet() -> Figure:
    """Draw two nodes that both take themselves for the first, and two that meet."""
    return show(
        lambda figure, theme: _draw_meetings(figure),
        alt="Two panels. In the first, without a rendezvous backend, both torchruns take node rank 0: both reach the "
        "store on the first node and wait there for rank 1, which never comes. In the second, with the backend c10d, "
        "both torchruns join the store on the first node, and they are given node ranks 0 and 1.",
        caption="Without --rdzv-backend=c10d, each node takes itself for node rank 0, and both wait for rank 1.",
        size=(WIDE, 2.2),
        narrow=(4.6, 4.7),
        name="nodes-that-never-meet",
        rows=[
            {"backend": backend, "node": node + 1, "node rank": rank, "waits for": missing}
            for backend, ranks, missing in (("static", (0, 0), "rank 1"), ("c10d", (0, 1), "nobody"))
            for node, rank in enumerate(ranks)
        ],
    )


def _draw_meetings(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    panel = width - 16 if narrow else (width - 32) / 2
    tall = (height - 24) / 2 if narrow else height - 16
    for index, (title, ranks, outcome) in enumerate(
        (("default: static", (0, 0), "both wait for rank 1"), ("--rdzv-backend=c10d", (0, 1), "2 of 2: both begin"))
    ):
        left = 8.0 if narrow else 8 + index * (panel + 16)
        bottom = 8 + (1 - index) * (tall + 8) if narrow else 8.0
        _draw_meeting(ax, left, bottom, panel, tall, title, ranks, outcome)


def _draw_meeting(
    ax: Axes,
    left: float,
    bottom: float,
    width: float,
    height: float,
    title: str,
    ranks: tuple[int, int],
    outcome: str,
) -> None:
    drawings.label(ax, left + width / 2, bottom + height - 10, title, bold=True)
    side, tall = (width - 40) / 2, 30.0
    upper, lower = bottom + height - 58, bottom + 26
    drawings.box(ax, left, lower, side, tall, "store, port 29500", colour="orange", size=10)
    for node, rank in enumerate(ranks):
        x = left + node * (side + 40)
        drawings.box(ax, x, upper, side, tall, f"node {node + 1}\nnode rank {rank}", colour="blue", size=10)
        end = (left + side / 2, lower + tall) if node == 0 else (left + side, lower + tall / 2)
        drawings.arrow(ax, (x + side / 2, upper), end, colour="orange")
    drawings.label(ax, left + side / 2, lower - 11, outcome, size=10)


# --- a run that fails ----------------------------------------------------------------------------------------

Span = tuple[float, float, str, str]
"""From when to when, what, and its colour"""
PARTS_OF_A_RUN = {"work": "blue", "save": "orange", "lost": "red", "restart": "", "again": "violet"}


def run_with_a_failure() -> Figure:
    """Draw a run that saves, fails and goes on, with saves that training waits for and with saves it does not."""
    waiting, background, writes = blocking_run(), background_run(), background_writes()
    return show(
        lambda figure, theme: _draw_runs(figure, waiting, background, writes),
        alt="Two lines of time. In the first, work alternates with saves, for which training waits. Then a GPU fails: "
        "the work since the last save is lost, the job restarts, and the lost work is done again. In the second, "
        "training goes on while each checkpoint is written, and gets farther in the same time.",
        caption="A failure undoes the work since the last complete checkpoint. Saves that are written in the "
        "background take hardly any time from training.",
        size=(WIDE, 2.5),
        narrow=(4.6, 2.85),
        name="run-with-a-failure",
        rows=[
            {"line": line, "from": start, "to": end, "what": what}
            for line, spans in (("waits", waiting), ("does not wait", background), ("writes", writes))
            for start, end, what, _ in spans
        ],
    )


def blocking_run() -> list[Span]:
    """Return what training does, if it waits for every save."""
    return _run(INTERVAL, WRITE)


def background_run() -> list[Span]:
    """Return what training does, if checkpoints are written in the background."""
    return _run(INTERVAL, 0.0)


def background_writes() -> list[Span]:
    """Return when checkpoints are written in the background, before the failure and after it."""
    begins = [end for _, end, what, _ in background_run() if what == "work" and end < FAILURE]
    return [_span(begin, begin + WRITE, "save") for begin in begins if begin + WRITE <= END]


def _run(interval: float, save: float) -> list[Span]:
    spans: list[Span] = []
    now = 0.0
    while now + interval + save <= FAILURE:
        spans.append(_span(now, now + interval, "work"))
        if save:
            spans.append(_span(now + interval, now + interval + save, "save"))
        now += interval + save
    lost = FAILURE - now
    spans.append(_span(now, FAILURE, "lost"))
    spans.append(_span(FAILURE, FAILURE + RESTART, "restart"))
    again = FAILURE + RESTART
    spans.append(_span(again, again + lost, "again"))
    spans.append(_span(again + lost, END, "work"))
    return spans


def _span(start: float, end: float, what: str) -> Span:
    return start, end, what, PARTS_OF_A_RUN[what]


def _draw_runs(figure: Canvas, waiting: list[Span], background: list[Span], writes: list[Span]) -> None:
    ax, width, height = drawings.sheet(figure)
    left, tall = 10.0, 27.0
    scale = (width - 2 * left) / END
    if is_narrow(figure):  # the spans are too narrow for labels
        side = (width - 2 * left) / len(PARTS_OF_A_RUN)
        for place, (word, colour) in enumerate(PARTS_OF_A_RUN.items()):
            drawings.box(ax, left + place * side + 2, 4, side - 4, 20, word, colour=colour, strength=0.3, size=10)
        waiting, background, writes = (
            [(start, end, "", colour) for start, end, _, colour in spans] for spans in (waiting, background, writes)
        )
    upper, lower, disk = height - 60, height - 122, height - 153
    drawings.label(ax, left, upper + tall + 11, "Training waits until a checkpoint is written", across="left", size=10)
    drawings.time_line(ax, left, upper, scale, waiting, height=tall)
    drawings.label(ax, left, lower + tall + 11, "It is written in the background", across="left", size=10)
    drawings.time_line(ax, left, lower, scale, background, height=tall)
    drawings.time_line(ax, left, disk, scale, writes, height=tall - 4)
    drawings.moment(ax, left + FAILURE * scale, disk, upper + tall + 6)
    drawings.label(ax, left + FAILURE * scale, disk - 9, "a GPU fails", size=10)


# --- stripes of a file ---------------------------------------------------------------------------------------


def stripes_of_a_file() -> Figure:
    """Draw a file in stripes, and on which storage target each of them lies."""
    return show(
        lambda figure, theme: _draw_stripes(figure),
        alt=f"A file of {STRIPES} stripes in a row, numbered from 0. Below it are {TARGETS} storage targets. Stripes 0 "
        f"and {TARGETS} lie on target 0, stripes 1 and {TARGETS + 1} on target 1, and so on in turn.",
        caption=f"With a stripe count of {TARGETS}, stripes go to {TARGETS} targets in turn. With the default count "
        "of 1, the whole file lies on one of them.",
        size=(WIDE, 1.9),
        narrow=(4.6, 1.9),
        name="stripes-of-a-file",
        rows=[{"stripe": stripe, "target": stripe % TARGETS} for stripe in range(STRIPES)],
    )


def _draw_stripes(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    colours = ("blue", "orange", "green", "violet")
    left, tall = 12.0, 26.0
    side = (width - 2 * left) / STRIPES
    drawings.label(ax, left, height - 10, "one file", across="left", size=10)
    for stripe in range(STRIPES):
        colour = colours[stripe % TARGETS]
        drawings.box(ax, left + stripe * side, height - 46, side, tall, str(stripe), colour=colour, strength=0.35)
    column, gap = (width - 2 * left) / TARGETS, 8.0
    for target, colour in enumerate(colours):
        x = left + target * column
        drawings.box(ax, x + gap / 2, 26, column - gap, tall + 12, strength=0.05)
        part = (column - 3 * gap) / 2
        for place, stripe in enumerate(range(target, STRIPES, TARGETS)):
            inner = x + gap + place * (part + gap)
            drawings.box(ax, inner, 32, part, tall, str(stripe), colour=colour, strength=0.35)
        drawings.arrow(ax, (left + (target + 0.5) * side, height - 46), (x + column / 2, 26 + tall + 13), colour=colour)
        drawings.label(ax, x + column / 2, 13, f"target {target}", size=10)


# --- a save step by step -------------------------------------------------------------------------------------

COPIED, CHECKED, WRITTEN = 8.0, 3.6, 4.4
"""Of the drawn save, in any unit: its copy, its checksum and its file, if one follows the other"""
PASSES, UPDATE, LONGEST = 7.0, 1.5, 26.0
"""Of a drawn step: forward and backward pass, the update; and the length of both lines of time"""
BUFFERS_DRAWN = 4
A_PASS = (("forward, backward", PASSES, "blue"), ("update", UPDATE, "violet"))
"""What a step consists of"""
COLOURS_OF_A_SAVE = {"forward, backward": "blue", "update": "violet", "training waits": "orange"}


def training_that_waits() -> list[Span]:
    """Return what training does if it waits for the copy, the checksum and the file."""
    save = [("copy", COPIED, "orange"), ("CRC-32", CHECKED, "orange"), ("write", WRITTEN, "orange")]
    return _in_turn([A_PASS[1], *save, *A_PASS])


def training_that_goes_on() -> list[Span]:
    """Return what training does if only its next update waits for the copy."""
    return _in_turn([A_PASS[1], A_PASS[0], ("wait", COPIED - PASSES, "orange"), A_PASS[1], *A_PASS, A_PASS[0]])


def copies_and_writes() -> tuple[list[Span], list[Span]]:
    """Return when each buffer is copied, and when threads write it and compute its checksum."""
    copy, write = COPIED / BUFFERS_DRAWN, (CHECKED + WRITTEN) / BUFFERS_DRAWN
    begins = [UPDATE + copy * number for number in range(BUFFERS_DRAWN)]
    copies = [(begin, begin + copy, "ABCD"[number], "green") for number, begin in enumerate(begins)]
    return copies, [(end, end + write, name, "green") for _, end, name, _ in copies]


def _in_turn(parts: list[tuple[str, float, str]]) -> list[Span]:
    spans, now = list[Span](), 0.0
    for what, long, colour in parts:
        spans.append((now, min(now + long, LONGEST), what, colour))
        now += long
    return [span for span in spans if span[0] < LONGEST]


def save_step_by_step() -> Figure:
    """Draw a save for which training waits, and one for whose copy only the next update waits."""
    waits, goes_on, (copies, writes) = training_that_waits(), training_that_goes_on(), copies_and_writes()
    lanes = {"waits": waits, "goes on": goes_on, "copies": copies, "threads": writes}
    return show(
        lambda figure, _: _draw_saves(figure, lanes),
        alt="Two groups of timelines. With torch.save, training stops after an update while the state is copied, "
        "its checksum computed and its file written, and then goes on. With PinnedCheckpoint, the next forward and "
        f"backward pass begin at once, while a copy stream fills {BUFFERS_DRAWN} buffers and threads write each full "
        "buffer and compute its checksum. Only the next update waits, until the copy is done.",
        caption="With PinnedCheckpoint, only the next update waits for the copy. Threads write the buffers and compute "
        "their checksums meanwhile. (Not to scale.)",
        size=(WIDE, 2.85),
        narrow=(4.6, 2.85),
        name="save-step-by-step",
        rows=[
            {"line": line, "from": start, "to": end, "what": what}
            for line, spans in lanes.items()
            for start, end, what, _ in spans
        ],
    )


def _draw_saves(figure: Canvas, lanes: dict[str, list[Span]]) -> None:
    ax, width, height = drawings.sheet(figure)
    narrow = is_narrow(figure)
    left, tall = 70.0, 24.0
    scale = (width - left - 8) / LONGEST
    heads = {"waits": "torch.save", "goes on": "PinnedCheckpoint"}
    names = {"waits": "training", "goes on": "training", "copies": "copies", "threads": "threads"}
    y = height - 6
    for lane, spans in lanes.items():
        if lane in heads:
            y -= 14
            drawings.label(ax, 8, y, heads[lane], across="left", bold=True)
            y -= 8
        y -= tall + (4 if lane in heads else 6)
        drawings.label(ax, left - 8, y + tall / 2, names[lane], across="right", size=10)
        letters = 5.6 if narrow else 5.2
        fitting = [
            (start, end, what if len(what) * letters < (end - start) * scale else "", colour)
            for start, end, what, colour in spans
        ]
        drawings.time_line(ax, left, y, scale, fitting, height=tall, size=10)
        y -= 10 if lane == "waits" else 0
    begin = 8.0 if narrow else left
    for words, colour in COLOURS_OF_A_SAVE.items():
        drawings.box(ax, begin, 6, 12, 12, colour=colour, strength=0.3)
        drawings.label(ax, begin + 18, 12, words, across="left", size=10)
        begin += 30 + 5.6 * len(words)


# --- from the signal to the queue ----------------------------------------------------------------------------

ACTORS = ("Slurm", "job script", "processes")
HAPPENS: tuple[tuple[int, str], ...] = (
    (0, "sends USR1\nbefore the limit"),
    (1, "trap: touch\nSTOP_FILE"),
    (2, "one sees the file,\nall agree to stop"),
    (2, "rank 0 saves,\nall end, status 0"),
    (1, "scontrol\nrequeue"),
    (0, "starts the job\nagain, later"),
)
"""Who does what, in this order; each leads to the next"""


def from_signal_to_requeue() -> Figure:
    """Draw who does what between the signal before the time limit and the next start of the job."""
    told = "; ".join(f"{ACTORS[who]}: {' '.join(what.split())}" for who, what in HAPPENS)
    return show(
        lambda figure, _: _draw_requeue(figure),
        alt=f"Three columns, for Slurm, the job script and the processes, with time from top to bottom. Arrows lead "
        f"from each box to the next. {told}.",
        caption="The program saves its state, and then the script requeues the job. A file carries the signal to the "
        "processes.",
        size=(WIDE, 4.1),
        narrow=(4.6, 4.1),
        name="from-signal-to-requeue",
        rows=[{"who": ACTORS[who], "what": " ".join(what.split())} for who, what in HAPPENS],
    )


def _draw_requeue(figure: Canvas) -> None:
    ax, width, height = drawings.sheet(figure)
    colours = ("grey", "orange", "green")
    tall, gap, column = 34.0, 11.0, width / len(ACTORS)
    wide = min(column - 12, 140.0)
    top = height - 26
    middles = [column * (place + 0.5) for place in range(len(ACTORS))]
    for x, name in zip(middles, ACTORS, strict=True):
        drawings.label(ax, x, height - 12, name, bold=True)
    before: tuple[float, float] | None = None
    for row, (who, what) in enumerate(HAPPENS):
        y = top - 6 - tall - row * (tall + gap)
        drawings.box(ax, middles[who] - wide / 2, y, wide, tall, what, colour=colours[who], strength=0.3, size=10)
        if before:
            x, bottom = before
            if x == middles[who]:
                drawings.arrow(ax, (x, bottom), (x, y + tall))
            else:
                side = wide / 2 if middles[who] < x else -wide / 2
                ax.plot([x, x], [bottom, y + tall / 2], color=palette.current().ceiling, linewidth=1.5)
                drawings.arrow(ax, (x, y + tall / 2), (middles[who] + side, y + tall / 2))
        before = (middles[who], y)
