"""A real Slurm of several nodes on one machine, to try batch scripts: its controller, and one daemon for each node.

Each node has its own processes, network and host name, in namespaces of Linux, and only the files are shared. Killing
a node ends everything on it at once, as a power failure would. Its GPUs are counted and given out, but there are none.
Nothing is installed and nothing of the system is touched: configuration, state, network and munge's key belong to one
folder and to the processes of one ``with`` block. It needs root, because of the namespaces and because Slurm starts
processes as the user who submitted them, and Debian's packages ``slurmctld``, ``slurmd``, ``slurm-client`` and
``munge``.

Sources: Slurm, "slurm.conf" and "gres.conf"; Linux, "namespaces(7)", "unshare(1)", "nsenter(1)", "veth(4)".
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gpuguide.errors import GpuguideError

__all__ = ["Event", "LocalSlurm", "find_obstacle"]

PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "unshare": "util-linux",
}
"""What is needed, and the package of Debian or Ubuntu that has it"""
CORES, MEMORY = 2, 8192
"""Cores and memory in MB that each node reports"""
DEVICES = ("/dev/null", "/dev/zero")
"""Stand for the two GPUs of a node"""
START_SECONDS, POLL = 30.0, 0.1
LOGIN = "login"
NETWORK = "198.18.0.{}"
"""Addresses that the Internet never uses (RFC 2544), seen by no process outside"""
_LOGIN_SCRIPT = """\
mount --bind hosts /etc/hosts && hostname login && ip link set lo up && ip link add switch type bridge
ip address add "$1/24" dev switch && ip link set switch up && touch login/ready && exec sleep infinity
"""
_NODE_SCRIPT = """\
read -r connected; mount --bind hosts /etc/hosts && hostname "$1" && ip link set lo up
ip address add "$2/24" dev eth0 && ip link set eth0 up && exec "$3" -D -f "$PWD/slurm.conf" -N "$1" </dev/null
"""
_CONFIGURATION = """\
ClusterName=local
SlurmctldHost=login
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/login
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_interval=1
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
ReturnToService=2
SlurmdTimeout=10
SlurmctldTimeout=10
InactiveLimit=0
KillWait=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MinJobAge=300
SlurmdParameters=config_overrides
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=7-0 PriorityTier=10 PreemptMode=OFF State=UP
PartitionName=spare Nodes=ALL MaxTime=7-0 PriorityTier=1 PreemptMode=REQUEUE State=UP
"""


@dataclass(frozen=True)
class Event:
    """A job was first seen in a state."""

    seconds: float
    """Since the first job was submitted"""
    job: int
    state: str
    """As squeue names it: PENDING, RUNNING, COMPLETED and so on"""
    nodes: str
    """In Slurm's short form; empty while it waits"""


def find_obstacle() -> str | None:
    """Return why Slurm cannot run here, with the remedy, or ``None`` if it can."""
    if sys.platform != "linux":
        return "Slurm runs on Linux only"
    missing = sorted({package for program, package in PROGRAMS.items() if _find(program) is None})
    if missing:
        packages = " ".join(missing)
        return f"Slurm is not installed: on Debian or Ubuntu, apt-get install --no-install-recommends {packages}"
    if os.geteuid() != 0:
        return "it takes root, because Slurm starts processes as other users: use a container, or sudo"
    return None


def _find(program: str) -> str | None:
    """Return where a program is; a user's path may lack the folders of the system's daemons."""
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin:/sbin")


class LocalSlurm:
    """Slurm with nodes n1, n2, ... as long as the ``with`` block lasts.

    Partition ``main`` may take nodes from jobs of partition ``spare``, which are queued again.

    Parameters
    ----------
    folder : path
        For its state; it must be empty or not exist. Paths of sockets are short, so choose a short one.
    nodes : int
        At least 1.
    """

    def __init__(self, folder: str | os.PathLike[str], nodes: int = 3) -> None:
        obstacle = find_obstacle()
        if obstacle:
            raise GpuguideError(f"No Slurm can be started here: {obstacle}.")
        if nodes < 1:
            raise GpuguideError(f"Slurm was asked for {nodes} nodes; it needs at least 1.")
        self.folder = Path(folder).resolve()
        if self.folder.exists() and any(self.folder.iterdir()):
            raise GpuguideError(f"{self.folder} is not empty. Give Slurm's state a folder of its own.")
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self.events: list[Event] = []
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._began: float | None = None

    def __enter__(self) -> LocalSlurm:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    @property
    def environment(self) -> Mapping[str, str]:
        """What Slurm's commands need to find this Slurm and no other."""
        mine = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "SRUN_"))
        }
        # A job takes over the environment in which it is submitted, and finds this Python's torchrun.
        path = os.pathsep.join([sysconfig.get_path("scripts"), mine.get("PATH", os.defpath), "/usr/sbin"])
        return mine | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": path}

    def run(self, *command: str, where: Path | None = None) -> str:
        """Run a command with this Slurm's environment and return what it prints, errors included."""
        done = subprocess.run(
            [*self._on_login(where or self.folder), *command],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.stdout

    def begin(self) -> None:
        """Let time count from now, unless it does already."""
        if self._began is None:
            self._began = time.monotonic()

    def now(self) -> float:
        """Return the seconds since the first job was submitted."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def look(self) -> None:
        """Note which jobs have come into another state, or to other nodes."""
        rows = self.run("squeue", "--noheader", "--states=all", "--format=%i|%T|%N").splitlines()
        seconds = round(self.now(), 2)
        for row in sorted(rows):
            number, state, nodes = row.split("|")
            if self.state(int(number)) != state or (nodes and self._last(int(number)).nodes != nodes):
                self.events.append(Event(seconds, int(number), state, nodes))

    def state(self, job: int) -> str | None:
        """Return the state in which a job was last seen."""
        seen = [event.state for event in self.events if event.job == job]
        return seen[-1] if seen else None

    def _last(self, job: int) -> Event:
        return next(event for event in reversed(self.events) if event.job == job)

    def wait_until(self, condition: Callable[[], bool], what: str, limit: float = 120.0) -> None:
        """Look at the jobs until a condition holds.

        Raises
        ------
        GpuguideError
            If it does not within ``limit`` seconds; the message names the states of all jobs.
        """
        end = time.monotonic() + limit
        self.look()
        while not condition():
            if time.monotonic() > end:
                queue = self.run("squeue", "--states=all", "--format=%i %T %N %r")
                raise GpuguideError(f"Slurm was waited for in vain, {limit:.0f} s: {what}. Its queue:\n{queue}")
            time.sleep(POLL)
            self.look()

    def wait_for(self, job: int, state: str, limit: float = 120.0) -> None:
        """Look at the jobs until one is in a state."""
        self.wait_until(lambda: self.state(job) == state, f"job {job} is not {state}", limit)

    def skip_delay(self, job: int) -> None:
        """Let a job that was queued again start at once, and not after the two minutes that Slurm keeps it waiting."""
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now")

    def kill_node(self, name: str) -> None:
        """End everything that runs on a node, without a warning."""
        daemon = self._daemons.pop(name)
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()

    @property
    def version(self) -> str:
        """Slurm's version, such as ``22.05.8``."""
        return self.run("sinfo", "--version").split()[-1]

    # --- starting and stopping -------------------------------------------------------------------------------

    def _start(self) -> None:
        for name in ("munge", LOGIN, *self.names):
            (self.folder / name).mkdir(parents=True, mode=0o700)
        self.folder.chmod(0o755)
        (self.folder / "munge").chmod(0o711)
        self._write_configuration()
        self._start_munge()
        self._start_login()
        for name, address in self._addresses.items():
            self._start_node(name, address)
        self._wait_for_nodes()

    @property
    def _addresses(self) -> Mapping[str, str]:
        return {name: NETWORK.format(10 + number) for number, name in enumerate(self.names, start=1)}

    def _on_login(self, where: Path) -> Sequence[str]:
        """Return what runs a command in a folder on the node where users log in."""
        target = f"--target={self._daemons[LOGIN].pid}"
        return ("nsenter", target, "--net", "--uts", "--mount", f"--wdns={where.resolve()}", "--")

    def _write_configuration(self) -> None:
        nodes = "\n".join(
            f"NodeName={name} CPUs={CORES} RealMemory={MEMORY} Gres=gpu:{len(DEVICES)}" for name in self.names
        )
        (self.folder / "slurm.conf").write_text(_CONFIGURATION.format(folder=self.folder, nodes=nodes))
        # A GPU is a device file to Slurm, whichever file that is.
        devices = "".join(f"NodeName={','.join(self.names)} Name=gpu File={file}\n" for file in DEVICES)
        (self.folder / "gres.conf").write_text("AutoDetect=off\n" + devices)
        addresses = {"localhost": "127.0.0.1", LOGIN: NETWORK.format(1), **self._addresses}
        (self.folder / "hosts").write_text("".join(f"{address} {name}\n" for name, address in addresses.items()))

    def _start_login(self) -> None:
        """Start the node without GPUs that all others are connected to, and Slurm's controller on it."""
        own = ("unshare", "--net", "--uts", "--mount", "--propagation=private")
        self._start_daemon(LOGIN, *own, "sh", "-c", _LOGIN_SCRIPT, "sh", NETWORK.format(1))
        self._wait_for_file(LOGIN, self.folder / LOGIN / "ready")
        controller = ("slurmctld", "-D", "-c", "-f", str(self.folder / "slurm.conf"))
        self._start_daemon("controller", *self._on_login(self.folder), _path(controller[0]), *controller[1:])

    def _start_node(self, name: str, address: str) -> None:
        """Start a node's daemon in namespaces of its own, and connect them with the login node's network."""
        own = ("unshare", "--pid", "--net", "--uts", "--fork", "--mount-proc", "--kill-child")
        daemon = self._start_daemon(name, *own, "sh", "-c", _NODE_SCRIPT, "sh", name, address, _path("slurmd"))
        outside = os.readlink("/proc/self/ns/net")
        end = time.monotonic() + START_SECONDS
        while os.readlink(f"/proc/{daemon.pid}/ns/net") == outside:
            self._fail_if_ended(name, end)
            time.sleep(POLL / 10)
        pair = ("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(daemon.pid))
        for command in (pair, ("ip", "link", "set", name, "master", "switch", "up")):
            said = self.run(*command)
            if said:
                raise GpuguideError(f"Node {name} could not be connected: {said.strip()}")
        assert daemon.stdin is not None
        daemon.stdin.write(b"connected\n")
        daemon.stdin.close()

    def _start_munge(self) -> None:
        """Start the service by which Slurm's parts trust each other, with a key of its own."""
        folder = self.folder / "munge"
        (folder / "key").write_bytes(secrets.token_bytes(1024))
        (folder / "key").chmod(0o600)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder / name}" for option, name in files.items()]
        self._start_daemon("munge", _path("munged"), "--foreground", "--force", *options)
        self._wait_for_file("munge", folder / "socket")

    def _start_daemon(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.output", "wb") as output:
            self._daemons[name] = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._daemons[name]

    def _wait_for_file(self, daemon: str, file: Path) -> None:
        end = time.monotonic() + START_SECONDS
        while not file.exists():
            self._fail_if_ended(daemon, end)
            time.sleep(POLL / 10)

    def _wait_for_nodes(self) -> None:
        end = time.monotonic() + START_SECONDS
        while self.run("sinfo", "--noheader", "--Node", "--partition=main", "--format=%T").split() != ["idle"] * len(
            self.names
        ):
            for name in self._daemons:
                self._fail_if_ended(name, end)
            time.sleep(POLL)

    def _fail_if_ended(self, name: str, end: float) -> None:
        """Raise if a daemon has ended, or the time for starting has."""
        ended = self._daemons[name].poll() is not None
        if ended or time.monotonic() > end:
            what = "ended at once" if ended else f"was not ready in {START_SECONDS:.0f} s"
            said = (self.folder / f"{name}.output").read_text(errors="replace").strip()
            log = self.folder / f"{name}.log"
            said += "\n" + "\n".join(log.read_text(errors="replace").splitlines()[-5:]) if log.exists() else ""
            raise GpuguideError(f"Slurm's {name} {what}. It said: {said.strip() or 'nothing'}")

    def _stop(self) -> None:
        """End nodes first, then the controller, and the service that both need last."""
        for name in reversed(self._daemons):
            daemon = self._daemons[name]
            if daemon.poll() is None:
                os.killpg(daemon.pid, signal.SIGKILL if name in self.names else signal.SIGTERM)
        for daemon in self._daemons.values():
            daemon.wait(timeout=START_SECONDS)
        self._daemons.clear()


def _path(program: str) -> str:
    """Return where a program is that :func:`find_obstacle` has found."""
    found = _find(program)
    assert found is not None
    return found
