"""Checks of batch scripts for Slurm: what in a script will fail, do nothing, or do something else than meant.

A rule reports only what cannot be right. What depends on a value that only a run could tell, such as the content of a
file that the script sources, is taken to be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpuguide.clusters.batch_job import BatchScript, Launch, Step, seconds_of
from gpuguide.clusters.launchers import PORT_IN_SHELL
from gpuguide.clusters.shell_text import Command, is_known

__all__ = ["Fault", "check"]

SBATCH = "https://slurm.schedmd.com/sbatch.html"
SLURM_23_11 = "https://github.com/SchedMD/slurm/blob/master/CHANGELOG/slurm-23.11.md"
TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
TORCHRUN_CODE = "https://github.com/pytorch/pytorch/blob/main/torch/distributed/run.py"
NCCL = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html"
BASH = "https://www.gnu.org/software/bash/manual/bash.html#Signals"
RUN = "run on Slurm 22.05.8"

DEFAULT_LEAD = 60
"""Seconds between signal and time limit where ``--signal`` gives none"""
SIGNAL_NAMES = {1: "HUP", 2: "INT", 9: "KILL", 10: "USR1", 12: "USR2", 15: "TERM", 18: "CONT"}
HARMLESS_SIGNALS = {"CHLD", "CONT", "INT", "URG", "WINCH"}
"""Signals that do not end a shell which does not trap them: by default they are ignored, or wait for the program"""
NODE_RANKS = ("SLURM_NODEID", "SLURM_PROCID")
NO_GPU_WORDS = re.compile(r"\bcpu\b|gloo|\bxla\b|\btpu\b|\bnpu\b|neuron|\bhpu\b", re.IGNORECASE)
REASONS = re.compile(
    r"no infiniband|no ib\b|without|ethernet|roce|broken|work ?around|hang|stuck|bug|issue|crash|consumer|rtx|4090|fix"
    r"|needed|necessary|required",
    re.IGNORECASE,
)
"""Words of a comment that says why a transport of NCCL is turned off"""
SOURCED_SETUP = re.compile(r"activate|conda|mamba|bashrc|profile|venv|modules?|\.env\b|setvars", re.IGNORECASE)
"""Files that set up an environment, and trap no signal"""


@dataclass(frozen=True)
class Fault:
    """Something in a batch script that will fail, do nothing, or do something else than meant."""

    line: int
    rule: str
    """Name of the rule"""
    what: str
    """What is wrong, and what happens"""
    remedy: str
    source: str
    """Where the behaviour is documented, or on which version it was seen"""


@dataclass(frozen=True)
class Place:
    """Where a script will be submitted."""

    folder: Path | None
    slurm: tuple[int, int] | None


Rule = Callable[[BatchScript, Place], Iterator[Fault]]


def check(script: str, *, folder: Path | None = None, slurm: tuple[int, int] | None = None) -> list[Fault]:
    r"""Find what is wrong in a batch script.

    Parameters
    ----------
    script : str
        Text of the script, with its line ends.
    folder : Path, optional
        Folder in which it will be submitted. Folders for logs that exist there are no fault.
    slurm : (int, int), optional
        Slurm's version, such as ``(22, 5)``. What fails on some versions only is reported for those.

    Returns
    -------
    list of Fault
        In the order of lines.

    Examples
    --------
    >>> [fault] = check("#!/bin/bash\n#SBATCH --job-name=$USER\nhostname\n")
    >>> fault.line, fault.rule
    (2, 'variable-in-directive')
    """
    batch = BatchScript(script)
    place = Place(folder, slurm)
    faults = {fault for rule in (check_line_ends(script), *(rule(batch, place) for rule in RULES)) for fault in rule}
    return sorted(faults, key=lambda fault: (fault.line, fault.rule, fault.what))


def check_line_ends(script: str) -> Iterator[Fault]:
    r"""``sbatch`` refuses a script with the line ends of Windows, ``\r\n``."""
    if "\r\n" in script:
        yield Fault(
            script[: script.index("\r\n")].count("\n") + 1,
            "dos-line-ends",
            "sbatch refuses the script: its lines end in \\r\\n, as on Windows",
            "convert it, for example with dos2unix or sed -i 's/\\r$//'",
            RUN,
        )


def check_interpreter(script: BatchScript, place: Place) -> Iterator[Fault]:
    """``sbatch`` refuses a script whose first line does not begin with ``#!``."""
    if not script.lines[0].startswith("#!"):
        yield Fault(
            1,
            "no-interpreter",
            "sbatch refuses the script: its first line names no interpreter",
            "begin it with #!/bin/bash, without a blank line or a space in front",
            RUN,
        )


def check_late_directives(script: BatchScript, place: Place) -> Iterator[Fault]:
    """``sbatch`` stops to look for options at the first line that is neither blank nor a comment."""
    for comment in script.late_directives:
        yield Fault(
            comment.line,
            "late-directive",
            "sbatch ignores this #SBATCH line, because it comes after the first command",
            "move it above the first command",
            SBATCH,
        )


def check_variables(script: BatchScript, place: Place) -> Iterator[Fault]:
    """``sbatch`` reads the options before any shell does, so that a variable stays the text that it is."""
    for directive in script.directives:
        if found := re.search(r"\$\{?[A-Za-z_]\w*\}?|\$\(|`", directive.value):
            yield Fault(
                directive.line,
                "variable-in-directive",
                f"sbatch takes {found[0]} literally, because no shell reads #SBATCH lines",
                "write the value, use a pattern such as %j (job id) or %x (job name), or give the option to sbatch on "
                "the command line",
                SBATCH,
            )


def check_log_folders(script: BatchScript, place: Place) -> Iterator[Fault]:
    """Slurm opens the log before the script runs and makes no folder for it: the job fails, and leaves no log."""
    if any("mkdir" in comment.text for comment in script.comments):
        return
    for name in ("output", "error"):
        directive = script.directive(name)
        if directive is None or "$" in directive.value:
            continue
        path = PurePosixPath(directive.value)
        parent = str(path.parent)
        is_named_after_job = bool(re.search(r"%\d*[AjJ]", parent))
        if set(path.parent.parts) <= {".", ".."} or (path.is_absolute() and not is_named_after_job):
            continue
        if not is_named_after_job and place.folder is not None:
            submitted_in = place.folder / (script.value("chdir") or ".")
            if "%" in parent or (submitted_in / parent).is_dir():
                continue
        if path.parts[0] == "~":
            what, remedy = "sbatch takes ~ literally, so that the job fails without a log", "write the whole path"
        elif is_named_after_job:
            what = (
                f"the folder {parent} cannot exist before the job has its number, so that the job fails without a log"
            )
            remedy = "put the job's number into the name of the file"
        else:
            what = (
                f"Slurm does not make the folder {parent}; where it is missing, the job fails at once and without a log"
            )
            remedy = f"run mkdir -p {parent} before sbatch: in the script it comes too late"
        yield Fault(directive.line, "missing-log-folder", what, remedy, RUN)


def check_rendezvous(script: BatchScript, place: Place) -> Iterator[Fault]:
    """The default rendezvous of torchrun is static: a node has the rank that ``--node-rank`` gives it, by default 0."""
    for launch in _on_several_nodes(script):
        if launch.kind == "accelerate":
            rank, backend = launch.option("machine_rank"), launch.option("rdzv_backend")
            if rank is None or launch.option("rdzv_conf"):
                continue
        else:
            rank, backend = launch.option("node_rank"), launch.option("rdzv_backend")
        nodes = launch.option("nnodes", "num_machines")
        if backend not in {None, "static"} or nodes in {None, "1", "1:1"} or launch.option("standalone") is not None:
            continue
        if rank is None:
            what = "without a rendezvous backend each node takes itself for rank 0, and all wait for rank 1"
        elif is_known(rank):
            what = f"every node gets the rank {rank}"
        elif script.shell.is_expanded_early(rank, NODE_RANKS):
            shown = script.shell.show(rank)
            what = f"every node gets the same rank: the shell replaces {shown} once, before srun starts the launcher"
        else:
            continue
        yield Fault(
            launch.command.line,
            "static-rendezvous",
            what,
            _rendezvous_options(launch)
            if launch.kind == "torchrun"
            else "start it with srun bash -c '… --machine_rank $SLURM_NODEID …', in single quotes",
            TORCHRUN_CODE,
        )


def _rendezvous_options(launch: Launch) -> str:
    """Return what to add to a launch for a rendezvous by c10d."""
    wanted = {
        "rdzv_backend": "--rdzv-backend=c10d",
        "rdzv_id": '--rdzv-id="$SLURM_JOB_ID"',
        "rdzv_endpoint": "--rdzv-endpoint=FIRST_HOST:PORT",
    }
    return "add " + " ".join(
        text for name, text in wanted.items() if name not in launch.options or text.endswith("c10d")
    )


def check_node_rank(script: BatchScript, place: Place) -> Iterator[Fault]:
    """The option ``--node-rank`` has an effect in a static rendezvous only; c10d gives out the ranks itself."""
    for launch in script.launches:
        backend = "c10d" if launch.option("standalone") is not None else launch.option("rdzv_backend")
        if (
            launch.kind == "torchrun"
            and launch.option("node_rank") is not None
            and backend in {"c10d", "etcd", "etcd-v2"}
        ):
            yield Fault(
                launch.command.line,
                "unused-node-rank",
                f"--node-rank has no effect with the {backend} rendezvous, which gives out the ranks itself",
                "leave --node-rank out",
                TORCHRUN_CODE,
            )


def check_ports(script: BatchScript, place: Place) -> Iterator[Fault]:
    """Two jobs with the same port on one node meet: the second cannot listen, or uses the store of the first."""
    if script.fills_its_nodes:
        return
    ports = {port for launch in script.launches if (port := _port_of(launch)) is not None}
    assigned = set()
    for command in script.commands:
        for name, value in command.assignments.items():
            is_read_by_torch = name == "MASTER_PORT" and command.exported and not script.launches
            if re.fullmatch(r"[1-9]\d*", value) and "PORT" in name.upper() and (value in ports or is_read_by_torch):
                assigned.add(value)
                yield _fixed_port(command.line, value, f"{name}={PORT_IN_SHELL}")
    for launch in script.launches:
        port = _port_of(launch)
        if port is not None and port not in assigned:
            yield _fixed_port(launch.command.line, port, f"write {PORT_IN_SHELL} in its place")


def _fixed_port(line: int, port: str, remedy: str) -> Fault:
    what = f"two jobs on one node meet at the fixed port {port}: one fails, or joins the other"
    return Fault(line, "fixed-port", what, remedy, "https://github.com/pytorch/pytorch/issues/116974")


def _port_of(launch: Launch) -> str | None:
    """Return the fixed port of a launch."""
    if launch.option("standalone") is not None:
        return None
    endpoint = launch.option("rdzv_endpoint")
    port = launch.option("master_port", "main_process_port")
    if launch.kind == "torchrun" and endpoint is not None:
        port = endpoint.rpartition(":")[2] if ":" in endpoint else None
    return port if port is not None and re.fullmatch(r"[1-9]\d*", port) else None


def check_fallbacks(script: BatchScript, place: Place) -> Iterator[Fault]:
    """A fallback to ``localhost`` hides that the first host was not found: no node then meets another."""
    if not script.has_several_nodes:
        return
    fallback = re.compile(r"\|\|\s*(echo|printf)\s+(\S+\s+)?[\"']?(localhost|127\.0\.0\.1)")
    asks = re.compile(r"scontrol|NODELIST|nodeset|hostlist")
    before: Command | None = None
    for command in script.commands:
        is_inside = bool(asks.search(command.text) and fallback.search(command.text))
        sets_localhost = {"localhost", "127.0.0.1"} & set(command.assignments.values())
        is_after = command.before == "||" and before is not None and asks.search(before.text) and sets_localhost
        if is_inside or is_after:
            yield Fault(
                command.line,
                "hidden-fallback",
                "the fallback to localhost hides that the first host was not found: the nodes never meet",
                'stop instead: || { echo "no host found" >&2; exit 1; }',
                "https://github.com/mlc-ai/pith-train/pull/91",
            )
        before = command


def check_starter(script: BatchScript, place: Place) -> Iterator[Fault]:
    """Slurm runs the batch script on the first node only; ``srun`` starts a program on all of them."""
    words = " ".join(word for command in script.commands for word in command.words)
    if not script.has_several_nodes or re.search(r"\b(srun|ssh|pdsh|clush|mpirun|mpiexec|ibrun|ray)\b", words):
        return
    for launch in script.launches:
        reads_file = launch.kind == "accelerate" and (
            "config_file" in launch.options or "deepspeed" in str(launch.options)
        )
        if not launch.step.starter and not reads_file:
            yield Fault(
                launch.command.line,
                "first-node-only",
                f"{_name_of(launch)} runs on the first of {script.nodes} nodes only: the others stay idle, and a "
                "rendezvous waits for them",
                f"write srun in front of {_name_of(launch)}, with one task per node",
                SBATCH,
            )


def check_number_of_tasks(script: BatchScript, place: Place) -> Iterator[Fault]:
    """A launcher starts a process for each GPU by itself, so that one task per node is enough."""
    for launch in script.launches:
        tasks, processes, gpus = _tasks_per_node(script, launch.step), _processes(script, launch), script.gpus_per_node
        if launch.step.starter != "srun" or not launch.command.always_runs or not tasks or not processes:
            continue
        if tasks > 1 and processes > 1 and (tasks * processes > gpus if gpus else tasks == processes):
            yield Fault(
                launch.command.line,
                "launcher-in-every-task",
                f"{tasks} tasks per node each start {processes} processes: {tasks * processes} processes for "
                f"{gpus or processes} GPUs",
                "ask for --ntasks-per-node=1, or start the program with srun and without a launcher",
                TORCHRUN,
            )


def check_number_of_processes(script: BatchScript, place: Place) -> Iterator[Fault]:
    """A process that has no GPU fails, and a GPU that has no process stays idle."""
    is_alone = len(script.launches) == 1 and "CUDA_VISIBLE_DEVICES" not in script.text
    for launch in script.launches:
        processes, gpus, tasks = _processes(script, launch), script.gpus_per_node, _tasks_per_node(script, launch.step)
        if not processes or not gpus or tasks != 1 or launch.step.options.keys() & {"gres", "gpus", "gpus-per-node"}:
            continue
        wastes = is_alone and 1 < processes < gpus and launch.command.after != "&"
        if processes > gpus or wastes:
            option = "--nproc-per-node" if launch.kind == "torchrun" else "--num_processes per machine"
            rest = f"{gpus - processes} stay idle" if wastes else "a process has none"
            yield Fault(
                launch.command.line,
                "processes-and-gpus-differ",
                f"{option} is {processes}, and the job asks for {gpus} GPUs per node: {rest}",
                'write --nproc-per-node="$SLURM_GPUS_ON_NODE"' if launch.kind == "torchrun" else "make them the same",
                TORCHRUN,
            )


def check_cores_of_steps(script: BatchScript, place: Place) -> Iterator[Fault]:
    """From Slurm 22.05 until 23.11, ``srun`` does not inherit ``--cpus-per-task``: a task may get a single core."""
    if place.slurm is None or not (22, 5) <= place.slurm < (23, 11):
        return
    cores = script.number("cpus-per-task")
    if cores is None or cores < 2 or re.search(r"SRUN_CPUS_PER_TASK=|SLURM_CPU_BIND", _code(script)):
        return
    for command, step in script.programs:
        own = step.options.keys() & {"cpus-per-task", "cpus-per-gpu", "cpu-bind"}
        if step.starter == "srun" and step.is_complete and not own:
            yield Fault(
                command.line,
                "cores-not-inherited",
                f"from Slurm 22.05 to 23.02, srun does not inherit --cpus-per-task={cores}: a task may run on one core",
                'write srun --cpus-per-task="$SLURM_CPUS_PER_TASK"',
                f"{SBATCH}; {SLURM_23_11}; {RUN}",
            )
            return


def check_number_of_cores(script: BatchScript, place: Place) -> Iterator[Fault]:
    """Processes that share a core take turns on it."""
    for launch in script.launches:
        processes, tasks = _processes(script, launch), _tasks_per_node(script, launch.step)
        asked = launch.step.options.get("cpus-per-task")
        cores = int(asked) if asked is not None and asked.isdigit() else script.number("cpus-per-task")
        if cores and not launch.step.starter:  # the batch shell has the cores of all tasks on its node
            cores *= script.tasks_per_node or processes or 1
        if cores and processes and tasks == 1 and cores < processes and script.value("exclusive") is None:
            yield Fault(
                launch.command.line,
                "too-few-cores",
                f"{processes} processes share {cores} core{'s' if cores > 1 else ''} of the task",
                f"ask for at least --cpus-per-task={processes}, better several cores a process for loading data",
                SBATCH,
            )


def check_requeue(script: BatchScript, place: Place) -> Iterator[Fault]:
    """A requeued job opens its log anew, and by default that empties it."""
    directive = script.directive("requeue")
    if directive is None or script.value("open-mode") == "append" or script.value("output") == "/dev/null":
        return
    yield Fault(
        directive.line,
        "log-begins-anew",
        "a requeued job empties its log, unless the cluster is set up to append",
        "add #SBATCH --open-mode=append",
        f"{SBATCH}; {RUN}",
    )


def check_signals(script: BatchScript, place: Place) -> Iterator[Fault]:
    """``--signal`` reaches either the batch shell (``B:``) or the job's steps, and never both."""
    directive = script.directive("signal")
    if directive is None or not (match := re.fullmatch(r"(?:([RB]+):)?(\w+)(?:@(\d+))?", directive.value)):
        return
    signal = _signal_name(match[2])
    lead = int(match[3]) if match[3] else DEFAULT_LEAD
    limit = seconds_of(script.value("time") or "")
    if limit and -(-limit // 60) * 60 <= lead:
        yield Fault(
            directive.line,
            "signal-at-once",
            f"the signal is due {lead} s before the time limit of {limit} s, which is at the start",
            "make the time limit longer, or the time after @ shorter",
            SBATCH,
        )
    if not script.is_shell:
        return
    traps = [command for command in script.commands if _traps(command, signal)]
    if "B" not in (match[1] or ""):
        if traps and not re.search(r"\bkill\b", _code(script)):
            yield Fault(
                traps[0].line,
                "trap-never-runs",
                f"the batch shell never gets {signal}: without B: Slurm signals the job's steps only",
                f"write --signal=B:{signal}@{lead}, or handle {signal} in the program that srun starts",
                f"{SBATCH}; {RUN}",
            )
        elif not traps and _has_no_steps(script):
            yield Fault(
                directive.line,
                "signal-reaches-nobody",
                f"no process gets {signal}: without B: Slurm signals the job's steps only, and the script starts none",
                "start the program with srun",
                f"{SBATCH}; {RUN}",
            )
    elif not traps:
        if signal not in HARMLESS_SIGNALS and not _may_handle_signals(script):
            yield Fault(
                directive.line,
                "signal-ends-shell",
                f"the batch shell gets {signal}, does not trap it and ends, and Slurm kills the job's steps with it",
                f"exec the program, or trap {signal}, start the program with & and wait for it",
                f"{SBATCH}; {RUN}",
            )
    elif _waits_in_foreground(script, traps[0]):
        yield Fault(
            traps[0].line,
            "trap-runs-too-late",
            f"bash runs the trap for {signal} only when the program in the foreground has ended",
            "start the program in the background, with & at its end, and then wait",
            f"{BASH}; {RUN}",
        )


def check_gpus(script: BatchScript, place: Place) -> Iterator[Fault]:
    """Without ``--gpus…`` or ``--gres=gpu:…`` Slurm gives a job no GPU."""
    if script.asks_for_gpus or script.value("exclusive") is not None:
        return
    for launch in script.launches:
        processes = _processes(script, launch)
        own = any(name.startswith("gpus") or name == "gres" for name in launch.step.options)
        if processes and processes > 1 and not own and not NO_GPU_WORDS.search(script.text):
            yield Fault(
                launch.command.line,
                "no-gpus",
                f"{processes} processes per node, and the job asks for no GPU",
                f"add #SBATCH --gpus-per-node={processes}",
                SBATCH,
            )


def check_continuations(script: BatchScript, place: Place) -> Iterator[Fault]:
    """A backslash continues a line only as its last character."""
    for line in script.shell.broken_lines:
        yield Fault(
            line,
            "broken-continuation",
            "a space follows the backslash, so that the command ends here",
            "remove what follows the backslash",
            "https://www.gnu.org/software/bash/manual/bash.html#Escape-Character",
        )


def check_nccl(script: BatchScript, place: Place) -> Iterator[Fault]:
    """NCCL chooses its transports itself; most settings in scripts say the default, or forbid the faster one."""
    for command in script.commands:
        for name, value in command.assignments.items():
            if name in {"NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"} and value == "0":
                what, rule = f"{name}=0 is the default, and enables nothing", "nccl-default"
                remedy = "leave it out; NCCL_DEBUG=INFO shows which transport is used"
            elif name in {"NCCL_NET_GDR_LEVEL", "NCCL_P2P_LEVEL"} and re.fullmatch(r"\d+", value):
                what, rule = f"{name}={value} is a legacy code, whose meaning NVIDIA may change", "nccl-legacy-level"
                remedy = "leave it out: NCCL chooses by the topology; or name the distance, such as PIX, PHB or SYS"
            elif value == "1" and _slows_down(script, name) and not _has_reason(script, command.line):
                what, rule = f"{name}=1 turns off {TURNED_OFF[name]}, so that NCCL takes a slower way", "nccl-slow"
                remedy = "remove it, or say in a comment which fault it works around"
            else:
                continue
            yield Fault(command.line, rule, what, remedy, NCCL)


TURNED_OFF = {"NCCL_P2P_DISABLE": "NVLink and PCIe between GPUs", "NCCL_IB_DISABLE": "InfiniBand and RoCE"}
RULES: tuple[Rule, ...] = (
    check_interpreter,
    check_late_directives,
    check_variables,
    check_log_folders,
    check_rendezvous,
    check_node_rank,
    check_ports,
    check_fallbacks,
    check_starter,
    check_number_of_tasks,
    check_number_of_processes,
    check_cores_of_steps,
    check_number_of_cores,
    check_requeue,
    check_signals,
    check_gpus,
    check_continuations,
    check_nccl,
)


def _code(script: BatchScript) -> str:
    """Return the text of all commands, without comments."""
    return "\n".join(command.text for command in script.commands)


def _name_of(launch: Launch) -> str:
    return "torchrun" if launch.kind == "torchrun" else "accelerate launch"


def _on_several_nodes(script: BatchScript) -> Iterator[Launch]:
    """Yield launches that srun starts on several nodes and whose options are all known."""
    for launch in script.launches:
        options = launch.step.options
        nodes = options.get("nodes", str(script.nodes))
        is_single = nodes in {"1", "1-1"} or options.get("ntasks") == "1" or "nodelist" in options
        if (
            script.has_several_nodes
            and launch.step.starter == "srun"
            and launch.is_complete
            and launch.step.is_complete
            and not is_single
            and "PET_" not in script.text
            and "ACCELERATE_" not in script.text
            and "config_file" not in launch.options
        ):
            yield launch


def _tasks_per_node(script: BatchScript, step: Step) -> int | None:
    """Return how many tasks per node start a program."""
    if step.starter == "":
        return 1
    if step.starter != "srun":
        return None
    if (each := step.options.get("ntasks-per-node")) is not None:
        return int(each) if each.isdigit() else None
    if (tasks := step.options.get("ntasks")) is not None:
        nodes = step.options.get("nodes", str(script.nodes))
        if not tasks.isdigit() or not nodes.isdigit() or int(nodes) == 0 or int(tasks) % int(nodes):
            return 1 if tasks == "1" else None
        return int(tasks) // int(nodes)
    return script.tasks_per_node if step.is_complete else None


def _processes(script: BatchScript, launch: Launch) -> int | None:
    """Return how many processes a launcher starts on a node."""
    if launch.kind == "torchrun":
        each = launch.option("nproc_per_node")
        if each in {"gpu", "auto"}:
            return script.gpus_per_node
        return int(each) if each is not None and each.isdigit() else None
    total, machines = launch.option("num_processes"), launch.option("num_machines") or "1"
    if total is None or not total.isdigit() or not machines.isdigit() or int(machines) == 0:
        return None
    return int(total) // int(machines) if int(total) % int(machines) == 0 else None


def _signal_name(text: str) -> str:
    if text.isdigit():
        return SIGNAL_NAMES.get(int(text), text)
    return text.upper().removeprefix("SIG")


def _traps(command: Command, signal: str) -> bool:
    """Return whether a command of the batch shell traps a signal."""
    words = [word for word in command.words[1:] if word != "--"]
    return command.words[:1] == ("trap",) and any(_signal_name(word) == signal for word in words[1:])


def _may_handle_signals(script: BatchScript) -> bool:
    """Return whether something may handle the signal that the script does not show: a program, or a sourced file."""
    for command in script.commands:
        words = command.words
        if words[:1] == ("exec",) and len(words) > 1 and not re.match(r"\d*[<>&]", words[1]):
            return True
        if words[:1] in {("source",), (".",)} and not SOURCED_SETUP.search(" ".join(words[1:])):
            return True
    return any(
        command.words[:1] == ("trap",) and not all(is_known(word) for word in command.words[2:])
        for command in script.commands
    )


def _has_no_steps(script: BatchScript) -> bool:
    """Return whether a script starts Python or a launcher, nothing by srun, and no other script that might do so."""
    if not script.programs or re.search(r"srun|mpirun|mpiexec|prun|aprun|ibrun|scancel", _code(script)):
        return False
    for command in script.commands:
        first = command.words[:1] or ("",)
        is_script = first[0] in {"bash", "sh", "eval"} or first[0].endswith(".sh") or first[0].startswith(("./", "/"))
        is_sourced = first[0] in {"source", "."} and not SOURCED_SETUP.search(" ".join(command.words[1:]))
        if is_script or is_sourced or not is_known(first[0]):
            return False
    return True


def _waits_in_foreground(script: BatchScript, trap: Command) -> bool:
    """Return whether a program runs in the foreground after a trap, and nothing waits for one in the background."""
    if re.search(r"\b(wait|kill)\b", _code(script)) or any(command.inside for command in script.commands):
        return False
    if trap.words[1:2] == ("",):
        return False
    return any(
        command.line >= trap.line and command.after not in {"&", "|"} and command.always_runs
        for command, _ in script.programs
    )


def _slows_down(script: BatchScript, name: str) -> bool:
    """Return whether the job would use the transport that a setting turns off."""
    if name == "NCCL_IB_DISABLE":
        return script.has_several_nodes
    return name == "NCCL_P2P_DISABLE" and (script.gpus_per_node or 0) > 1


def _has_reason(script: BatchScript, line: int) -> bool:
    """Return whether a comment on a line or right above it says why."""
    near = [comment.text for comment in script.comments if comment.line in {line, line - 1}]
    return any(REASONS.search(text) for text in near)
