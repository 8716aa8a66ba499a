"""Sessions at a terminal of a cluster, played on a real Slurm and recorded: what was typed, what it said, and when.

A page shows recordings, because a page is built where no Slurm is; tests play the sessions again and compare.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from importlib import metadata
from pathlib import Path

from gpuguide import files
from gpuguide.clusters.hostlist import expand
from gpuguide.clusters.local_slurm import Event, LocalSlurm
from gpuguide.clusters.script import Job, write
from gpuguide.errors import GpuguideError, unknown

__all__ = ["SESSIONS", "Recording", "play", "read"]

RECORDINGS = Path(__file__).parent / "recordings"
TRAINING = Path(__file__).parent / "example_training.py"
_JOB = re.compile(r"Submitted batch job (\d+)")
# What differs from run to run, and not from cluster to cluster
_VARYING = [
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"), "TIME"),
    (re.compile(r"\b\d+:\d\d\b"), "M:SS"),
    (re.compile(r"\bstep \d+: loss [\d.]+"), "step N: loss X"),
    (re.compile(r"\bstep \d+\b"), "step N"),
    (re.compile(r"\s+"), " "),
]


@dataclass(frozen=True)
class Recording:
    """One session as it went."""

    name: str
    files: Mapping[str, str]
    """The scripts that were submitted, by their names"""
    transcript: str
    """Commands behind ``$``, and what they printed"""
    events: Sequence[Event]
    """When each job came into each state"""
    slurm: str
    """Slurm's version"""
    torch: str
    recorded: str
    """Day, as 2026-11-26"""

    def seconds(self, job: int, state: str, time: int = 1) -> float:
        """Return when a job came into a state for the ``time``-th time, in seconds since the first was submitted.

        Raises
        ------
        GpuguideError
            If it did not; the message lists what happened.
        """
        seen = [event.seconds for event in self.events if event.job == job and event.state == state]
        if len(seen) < time:
            states = ", ".join(f"{event.job} {event.state}" for event in self.events)
            raise GpuguideError(f"In session {self.name}, job {job} was not {time} times {state}. It was: {states}.")
        return seen[time - 1]

    def stays(self, names: Mapping[int, str] | None = None) -> list[tuple[str, list[str], float, float]]:
        """Return where each job was and when: its name, nodes (none while it waits), start and end in seconds."""
        found = []
        for index, event in enumerate(self.events):
            later = [other.seconds for other in self.events[index + 1 :] if other.job == event.job]
            if later and event.state in ("PENDING", "RUNNING"):
                nodes = expand(event.nodes) if event.nodes else []
                found.append(((names or {}).get(event.job, f"job {event.job}"), nodes, event.seconds, later[0]))
        return found

    def __str__(self) -> str:
        return f"{self.transcript}\n[Slurm {self.slurm}, PyTorch {self.torch}, {self.recorded}]"


@dataclass
class Terminal:
    """A folder on a cluster in which commands are typed. Everything is kept as a person would see it."""

    slurm: LocalSlurm
    folder: Path
    files: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    patience: float = 240.0
    """Seconds to wait for one thing to happen"""
    skips_delays: bool = False
    """Whether to spare the two minutes for which Slurm keeps a job waiting that was queued again"""

    def write(self, name: str, text: str) -> None:
        """Write a file into the folder."""
        (self.folder / name).write_text(text, encoding="utf-8")
        self.files[name] = text

    def type(self, command: str) -> str:
        """Run a command line, and return what it prints."""
        if command.startswith("sbatch"):
            self.slurm.begin()
        said = self.slurm.run("bash", "-c", command, where=self.folder).rstrip()
        self.slurm.look()
        self.lines += [f"$ {command}", *said.splitlines()]
        return said

    def submit(self, command: str) -> int:
        """Run a command line with sbatch, and return the number of the job."""
        answer = _JOB.search(self.type(command))
        if not answer:
            raise GpuguideError(f"sbatch did not take a job: {self.lines[-1]}")
        return int(answer[1])

    def wait(self, seconds: float) -> None:
        """Wait, as a person does who sees nothing happen."""
        end = self.slurm.now() + seconds
        self.slurm.wait_until(lambda: self.slurm.now() > end, "", 2 * seconds)

    def wait_for(self, job: int, state: str) -> None:
        """Wait until a job is in a state."""
        self.slurm.wait_for(job, state, self.patience)

    def wait_for_text(self, file: str, text: str) -> None:
        """Wait until a file holds a text."""

        def is_there() -> bool:
            path = self.folder / file
            return path.exists() and text in path.read_text(encoding="utf-8")

        self.slurm.wait_until(is_there, f"{file} does not say {text!r}", self.patience)

    def wait_again(self, job: int) -> None:
        """Wait until a job that was queued again is running."""
        self.wait_for(job, "PENDING")
        if self.skips_delays:
            self.slurm.skip_delay(job)
        self.wait_for(job, "RUNNING")


# --- the sessions ----------------------------------------------------------------------------------------

HELLO = """\
#!/bin/bash
#SBATCH --nodes=2 --output=hello-%j.log
echo "the script runs on $(hostname), one of $SLURM_JOB_NODELIST"
srun --label hostname
"""

WITHOUT_BACKEND = """\
#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=2 --output=train-%j.log
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --label torchrun --nnodes=2 --nproc-per-node=2 --rdzv-endpoint="$head:29500" train.py
"""

SLEEP = """\
#!/bin/bash
#SBATCH --exclusive --requeue --open-mode=append --output=%x-%j.log
echo "begins on $SLURM_JOB_NODELIST, restart ${SLURM_RESTART_COUNT:-0}"
sleep "${1:-600}"
echo "is done"
"""


def say_hello(terminal: Terminal) -> None:
    """Show that a script runs once, on the first node, and what srun starts on every node."""
    terminal.write("hello.sh", HELLO)
    job = terminal.submit("sbatch hello.sh")
    terminal.wait_for(job, "COMPLETED")
    terminal.type(f"sort hello-{job}.log")


def write_into_missing_folder(terminal: Terminal) -> None:
    """Show that a job whose log lies in a folder that does not exist ends before it begins, and says nothing."""
    terminal.write("hello.sh", HELLO)
    job = terminal.submit("sbatch --output=logs/%j.log hello.sh")
    terminal.wait_for(job, "FAILED")
    terminal.type(f"scontrol show job {job} | grep -o -E '(JobState|Reason|ExitCode|StdOut)=[^ ]*'")


def miss_each_other(terminal: Terminal) -> None:
    """Show torchrun without --rdzv-backend: it takes every node for the first, and each waits in silence."""
    terminal.write("train.py", TRAINING.read_text(encoding="utf-8"))
    terminal.write("job.sh", WITHOUT_BACKEND)
    job = terminal.submit("sbatch job.sh")
    terminal.wait_for(job, "RUNNING")
    terminal.wait(120)
    terminal.type("squeue --format='%i %T %M'")
    terminal.type(f"grep -c -E 'rank|Error' train-{job}.log")
    terminal.type(f"scancel {job}")


def train_and_resume(terminal: Terminal) -> None:
    """Ask a training job to stop: it saves its state, is queued again and goes on to the end."""
    terminal.write("train.py", TRAINING.read_text(encoding="utf-8"))
    job = Job("train.py", nodes=2, gpus_per_node=2, cpus_per_gpu=1, limit=timedelta(hours=1))
    terminal.write("job.sh", write(job))
    number = terminal.submit("sbatch job.sh")
    log = f"train-{number}.log"
    terminal.wait_for_text(log, "step 100:")
    terminal.type(f"scancel --batch --signal=USR1 {number}")
    terminal.wait_again(number)
    terminal.wait_for(number, "COMPLETED")
    terminal.type(f"grep -E '^(rank|step)' {log}")


def lose_node(terminal: Terminal) -> None:
    """Kill a node: Slurm notices after its timeout and queues the job again, for another node."""
    terminal.write("job.sh", SLEEP)
    job = terminal.submit("sbatch --job-name=job job.sh 10")
    terminal.wait_for_text(f"job-{job}.log", "begins")
    terminal.slurm.kill_node("n1")
    terminal.lines.append("[node n1 loses its power]")
    terminal.wait_again(job)
    terminal.wait_for(job, "COMPLETED")
    terminal.type("sinfo --Node --partition=main --format='%N %T'")
    terminal.type(f"cat job-{job}.log")


def be_preempted(terminal: Terminal) -> None:
    """Let a job of a partition with a higher priority take the nodes of a running one, which is queued again."""
    terminal.write("job.sh", SLEEP)
    low = terminal.submit("sbatch --partition=spare --nodes=3 --job-name=low job.sh 5")
    terminal.wait_for_text(f"low-{low}.log", "begins")
    high = terminal.submit("sbatch --partition=main --nodes=2 --job-name=high job.sh 5")
    terminal.wait_for(high, "RUNNING")
    terminal.type("squeue --sort=i --format='%i %j %T %r'")
    terminal.wait_for(high, "COMPLETED")
    terminal.wait_again(low)
    terminal.wait_for(low, "COMPLETED")
    terminal.type(f"cat low-{low}.log")


def fill_gap(terminal: Terminal) -> None:
    """Let a small job start while a large one waits: its time limit ends before the large one can begin."""
    terminal.write("job.sh", SLEEP)
    first = terminal.submit("sbatch --nodes=2 --time=2 --job-name=running job.sh 15")
    terminal.wait_for(first, "RUNNING")
    large = terminal.submit("sbatch --nodes=3 --time=10 --job-name=large job.sh 5")
    long = terminal.submit("sbatch --nodes=1 --time=10 --job-name=long job.sh 5")
    short = terminal.submit("sbatch --nodes=1 --time=1 --job-name=short job.sh 5")
    terminal.wait_for(short, "RUNNING")
    terminal.type("squeue --sort=i --format='%i %j %l %T %r'")
    for job in (first, short, large, long):
        terminal.wait_for(job, "COMPLETED")


SESSIONS: Mapping[str, Callable[[Terminal], None]] = {
    "hello": say_hello,
    "missing-folder": write_into_missing_folder,
    "rendezvous-missing": miss_each_other,
    "train-and-resume": train_and_resume,
    "node-failure": lose_node,
    "preemption": be_preempted,
    "backfill": fill_gap,
}


# --- playing and reading ---------------------------------------------------------------------------------


def find(name: str) -> Callable[[Terminal], None]:
    """Return what plays the session of a name.

    Raises
    ------
    GpuguideError
        If there is none; the message lists the near names.
    """
    if name not in SESSIONS:
        raise unknown("session", name, SESSIONS)
    return SESSIONS[name]


def play(name: str, skips_delays: bool = False, patience: float = 240.0) -> Recording:
    """Play a session on a Slurm of its own, and return its recording.

    Parameters
    ----------
    name : str
        A name in :data:`SESSIONS`.
    skips_delays : bool
        Spare the two minutes for which Slurm keeps a job waiting that was queued again.
    patience : float
        Seconds to wait for one thing to happen.

    Raises
    ------
    GpuguideError
        If there is no such session, if Slurm cannot run here, or if what should happen does not.
    """
    session = find(name)
    state, folder = (Path(tempfile.mkdtemp(prefix="slurm-")) for _ in range(2))
    try:
        with LocalSlurm(state) as slurm:
            terminal = Terminal(slurm, folder, patience=patience, skips_delays=skips_delays)
            session(terminal)
            transcript = "\n".join(terminal.lines).replace(str(folder), ".")
            return Recording(
                name,
                terminal.files,
                transcript,
                slurm.events,
                slurm.version,
                metadata.version("torch").partition("+")[0],
                date.today().isoformat(),
            )
    finally:
        shutil.rmtree(state, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def store(recording: Recording, folder: Path = RECORDINGS) -> Path:
    """Write a recording into a folder, and return its file."""
    file = folder / f"{recording.name}.json"
    files.write_json(file, asdict(recording))
    return file


def read(name: str) -> Recording:
    """Return the published recording of a session.

    Raises
    ------
    GpuguideError
        If there is no session of that name.
    """
    find(name)
    data = json.loads((RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))
    return Recording(**data | {"events": [Event(**event) for event in data["events"]]})


def normalise(transcript: str) -> str:
    """Return a transcript without times, step numbers and losses, which differ from run to run."""
    for pattern, word in _VARYING:
        transcript = pattern.sub(word, transcript)
    return transcript.strip()
