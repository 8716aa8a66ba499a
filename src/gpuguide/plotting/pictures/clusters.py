"""Drawings of jobs on a cluster: from sbatch to ranks, and nodes that never meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuguide.plotting import drawings
from gpuguide.plotting.figure import Figure, show
from gpuguide.plotting.renditions import WIDE, is_narrow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

GPUS = 4
"""Of each drawn node"""


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
