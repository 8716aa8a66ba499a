"""Reading of batch scripts: what a script asks Slurm for, and which launchers it starts with which options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from gpuguide.clusters.shell_text import Command, Comment, Shell, is_known, undo_quoting

__all__ = ["BatchScript", "Directive", "Launch", "Step", "seconds_of"]

SHELLS = {"sh", "bash", "dash", "ksh", "zsh"}
SHORT = {
    "A": "account",
    "C": "constraint",
    "D": "chdir",
    "G": "gpus",
    "J": "job-name",
    "N": "nodes",
    "a": "array",
    "c": "cpus-per-task",
    "d": "dependency",
    "e": "error",
    "m": "distribution",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "w": "nodelist",
    "x": "exclude",
}
"""Short options of sbatch that take a value; srun's mean the same"""
ALIASES = {"tasks-per-node": "ntasks-per-node", "workdir": "chdir"}
WITHOUT_VALUE = {
    "contiguous",
    "exact",
    "exclusive",
    "hold",
    "label",
    "no-kill",
    "no-requeue",
    "overcommit",
    "overlap",
    "oversubscribe",
    "parsable",
    "pty",
    "quiet",
    "reboot",
    "requeue",
    "spread-job",
    "unbuffered",
    "use-min-nodes",
    "verbose",
    "wait",
}
WRAPPERS = {
    "apptainer",
    "docker",
    "enroot",
    "env",
    "exec",
    "nice",
    "nohup",
    "numactl",
    "podman",
    "podman-hpc",
    "shifter",
}
WRAPPERS |= {"singularity", "stdbuf", "time", "timeout", "uv", "poetry", "pixi", "conda", "mamba", "nsys", "setsid"}
OTHER_STARTERS = {"clush", "ibrun", "mpiexec", "mpirun", "parallel", "parallel-ssh", "pdsh", "ssh"}
"""What starts a program on other nodes, besides srun"""
TORCHRUN_MODULES = {"torch.distributed.run", "torch.distributed.launch", "torchrun"}
TORCHRUN_FLAGS = {"standalone", "no_python", "run_path", "use_env", "m", "module", "numa_binding"}
ACCELERATE_MODULES = {"accelerate.commands.launch"}
ACCELERATE_FLAGS = {"multi_gpu", "cpu", "tpu", "quiet", "use_deepspeed", "use_fsdp", "use_megatron_lm", "debug", "m"}
ACCELERATE_FLAGS |= {"module", "no_python", "use_xpu", "use_mps_device", "same_network", "enable_cpu_affinity"}
HOLDS_OPTIONS = re.compile(r"ARG|OPT|FLAG|DIST|PARAM|LAUNCH|CONFIG|RDZV|\[[@*]\]", re.IGNORECASE)
"""Names of variables that rather hold a launcher's options than the program"""


@dataclass(frozen=True)
class Directive:
    """An option in an ``#SBATCH`` line."""

    line: int
    name: str
    """Long name without dashes"""
    value: str


@dataclass(frozen=True)
class Step:
    """What starts a program in the job."""

    starter: str
    """``srun``, the name of another starter such as ``mpirun``, or nothing for the batch shell itself"""
    options: Mapping[str, str]
    """Options of srun by their long names"""
    is_complete: bool
    """Whether all options are known"""


@dataclass(frozen=True)
class Launch:
    """A launcher that starts one process per GPU: torchrun, or Accelerate's."""

    command: Command
    kind: str
    """``torchrun`` or ``accelerate``"""
    options: Mapping[str, str]
    """Options by their names with underscores"""
    is_complete: bool
    """Whether all options are known"""
    step: Step
    program: tuple[str, ...]
    """What it runs, with its arguments"""
    shell: Shell

    def option(self, *names: str) -> str | None:
        """Return the value of an option under any of its names."""
        return next((self.options[name] for name in names if name in self.options), None)


class BatchScript:
    """A batch script, read.

    Parameters
    ----------
    text : str
        Text of the script.
    """

    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.lines = self.text.split("\n")
        first_line = self.lines[0]
        self.interpreter = _interpreter(first_line)
        self.is_shell = self.interpreter in SHELLS or not first_line.startswith("#!")
        self.first_command = next(
            (number for number, line in enumerate(self.lines, 1) if line.strip() and not line.lstrip().startswith("#")),
            len(self.lines) + 1,
        )
        self.directives = tuple(self._directives())
        self.shell = Shell(dict(self._slurm_variables()))
        self.commands = tuple(self.shell.read(self.text)) if self.is_shell else ()
        self.comments = tuple(self.shell.comments)

    def _directives(self) -> Iterator[Directive]:
        for number, line in enumerate(self.lines[: self.first_command - 1], 1):
            if line.startswith("#SBATCH"):
                for name, value in _options(_directive_words(line)):
                    yield Directive(number, name, value)

    @property
    def late_directives(self) -> list[Comment]:
        """``#SBATCH`` lines after the first command."""
        return [
            comment
            for comment in self.comments
            if comment.line > self.first_command and comment.column == 0 and re.match(r"#SBATCH\s+-", comment.text)
        ]

    @property
    def is_heterogeneous(self) -> bool:
        """Whether the job has several parts, each with its own options."""
        return any(directive.name in {"hetjob", "packjob"} for directive in self.directives)

    def directive(self, name: str) -> Directive | None:
        """Return an option; of several of a name the last one holds."""
        return next((directive for directive in reversed(self.directives) if directive.name == name), None)

    def value(self, name: str) -> str | None:
        """Return the value of an option."""
        directive = self.directive(name)
        return None if directive is None else directive.value

    def number(self, name: str) -> int | None:
        """Return the value of an option that is a whole number."""
        value = self.value(name)
        return int(value) if value is not None and value.isdigit() else None

    @cached_property
    def nodes(self) -> int | None:
        """Number of nodes, if the script fixes it."""
        if self.is_heterogeneous:
            return None
        asked = self.value("nodes")
        if asked is None:
            tasks, each = self.number("ntasks"), self.number("ntasks-per-node")
            return -(-tasks // each) if tasks and each else None
        least, _, most = asked.partition("-")
        return int(least) if least.isdigit() and most in {"", least} else None

    @property
    def has_several_nodes(self) -> bool:
        """Whether the script asks for more than one node."""
        return self.nodes is not None and self.nodes > 1

    @cached_property
    def tasks_per_node(self) -> int | None:
        """Number of tasks on each node, if the script fixes it."""
        if self.is_heterogeneous or self.value("ntasks-per-gpu") or self.value("ntasks-per-socket"):
            return None
        if self.value("ntasks-per-node") is not None:
            return self.number("ntasks-per-node")
        if self.value("ntasks") is None:
            return 1
        tasks, nodes = self.number("ntasks"), self.nodes
        if tasks is None or not nodes:
            return tasks if tasks == 1 else None
        return tasks // nodes if tasks % nodes == 0 else None

    @cached_property
    def gpus_per_node(self) -> int | None:
        """Number of GPUs on each node, if the script fixes it."""
        found = set(self._gpu_counts())
        return found.pop() if len(found) == 1 else None

    def _gpu_counts(self) -> Iterator[int | None]:
        for kind in (self.value("gres") or "").split(","):
            if re.match(r"(gres[:/])?gpu\b", kind):
                yield _count(kind.partition("gpu")[2])
        if (each := self.value("gpus-per-node")) is not None:
            yield _count(each)
        if (each := self.value("gpus-per-task")) is not None:
            gpus, tasks = _count(each), self.tasks_per_node
            yield gpus * tasks if gpus and tasks else None
        if (total := self.value("gpus")) is not None:
            gpus, nodes = _count(total), self.nodes or (1 if self.value("nodes") is None else None)
            yield gpus // nodes if gpus and nodes and gpus % nodes == 0 else None

    @property
    def asks_for_gpus(self) -> bool:
        """Whether the script asks for GPUs in any way, or might get them without asking."""
        names = {directive.name for directive in self.directives}
        words = " ".join(
            self.value(name) or ""
            for name in ("gres", "tres-per-task", "partition", "constraint", "qos", "nodelist", "reservation")
        )
        usage = " ".join(comment.text for comment in self.comments if "sbatch " in comment.text)
        is_asked = any(name.startswith("gpus") for name in names) or "gpus" in usage or "gres" in usage
        return is_asked or bool(
            re.search(r"gpu|gh\d|[abhvmlt]\d{2,}|rtx|dgx|hgx|cuda|\b(ml|ai|dl)\b", words, re.IGNORECASE)
        )

    @property
    def fills_its_nodes(self) -> bool:
        """Whether a second GPU job on a node is unlikely: it takes all of it, or as many GPUs as many nodes have."""
        has_all = self.value("exclusive") == "" or self.value("mem") == "0"
        return has_all or (self.gpus_per_node or 0) >= 4

    def _slurm_variables(self) -> Iterator[tuple[str, str]]:
        """Yield the variables of Slurm whose values follow from the script."""
        tasks = self.tasks_per_node
        known = {
            "SLURM_NNODES": self.nodes,
            "SLURM_JOB_NUM_NODES": self.nodes,
            "SLURM_NTASKS_PER_NODE": self.number("ntasks-per-node"),
            "SLURM_CPUS_PER_TASK": self.number("cpus-per-task"),
            "SLURM_GPUS_ON_NODE": self.gpus_per_node,
            "SLURM_GPUS_PER_NODE": _count(self.value("gpus-per-node") or "?"),
            "SLURM_NTASKS": tasks * self.nodes if tasks and self.nodes else None,
            "SLURM_NPROCS": tasks * self.nodes if tasks and self.nodes else None,
        }
        for name, value in known.items():
            if value is not None:
                yield name, str(value)

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """Launchers that the script starts, also through ``srun``, containers and ``bash -c``."""
        return tuple(launch for command in self.commands for launch in _launches(command, self.shell, None))

    @cached_property
    def programs(self) -> tuple[tuple[Command, Step], ...]:
        """Commands that start a launcher or Python, and how they start it."""
        return tuple(found for command in self.commands for found in _programs(command, self.shell, None))


def seconds_of(limit: str) -> int | None:
    """Return a time limit of Slurm in seconds: minutes, ``MM:SS``, ``HH:MM:SS``, ``D-HH``, ``D-HH:MM``, ``D-HH:MM:SS``.

    >>> seconds_of("90"), seconds_of("0:30"), seconds_of("1:00:00"), seconds_of("1-12"), seconds_of("soon")
    (5400, 30, 3600, 129600, None)
    """
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", limit):
        return None
    days, _, rest = limit.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if days:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def _interpreter(line: str) -> str:
    """Return the name of the program in a ``#!`` line."""
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    if words and PurePosixPath(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    return PurePosixPath(words[0]).name if words else ""


def _directive_words(line: str) -> list[str]:
    """Return the words of an ``#SBATCH`` line; what follows ``#`` is a comment."""
    text = re.split(r"(?:^|\s)#", line.removeprefix("#SBATCH"))[0]
    try:
        return shlex.split(text)
    except ValueError:  # a quote that does not end
        return text.split()


def _options(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield options of sbatch or srun by their long names, with their values."""
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and name not in WITHOUT_VALUE and queue and not queue[0].startswith("-"):
                value = queue.pop(0)
            name = name.replace("_", "-")
            yield ALIASES.get(name, name), value
        elif word.startswith("-") and word[1:2] in SHORT:
            value = word[2:].removeprefix("=")
            if not value and queue:
                value = queue.pop(0)
            yield SHORT[word[1]], value
        elif word in {"hetjob", "packjob"}:
            yield word, ""


def _count(text: str) -> int | None:
    """Return the number at the end of ``[:TYPE][:NUMBER]``, which is 1 where there is none."""
    last = text.split("(")[0].rpartition(":")[2]
    if last.isdigit():
        return int(last)
    return None if "?" in text or "$" in text or "%" in text else 1


def _programs(command: Command, shell: Shell, step: Step | None) -> Iterator[tuple[Command, Step]]:
    for found, _, kind, at_step in _starts(command, shell, step):
        if kind in {"torchrun", "accelerate", "python"}:
            yield found, at_step


def _launches(command: Command, shell: Shell, step: Step | None) -> Iterator[Launch]:
    for found, words, kind, at_step in _starts(command, shell, step):
        if kind in {"torchrun", "accelerate"}:
            flags = TORCHRUN_FLAGS if kind == "torchrun" else ACCELERATE_FLAGS
            options, is_complete, program = _launcher_options(words, flags, shell)
            yield Launch(found, kind, options, is_complete, at_step, program, shell)


def _starts(command: Command, shell: Shell, step: Step | None) -> Iterator[tuple[Command, tuple[str, ...], str, Step]]:
    """Yield what a command starts: the command, the words after its name, its kind, and how it is started."""
    words = list(command.words)
    starter, before = "", list[str]()
    while words:
        name = PurePosixPath(words[0]).name
        is_inner = bool(before)
        now = step or _step(starter, before, shell)
        if name == "torchrun":
            yield command, tuple(words[1:]), "torchrun", now
            return
        if name == "accelerate" and words[1:2] == ["launch"]:
            yield command, tuple(words[2:]), "accelerate", now
            return
        if re.fullmatch(r"python[\d.]*", name):
            yield _python(command, words[1:], now)
            return
        if name in SHELLS and (script := _inline_script(words[1:])) is not None:
            inner = shell.make_inner()
            is_remote = now.starter != ""
            inner.is_remote = is_remote
            for nested in inner.read(undo_quoting(script), command.line):
                at_line = Command(
                    **{**nested.__dict__, "line": command.line, "inside": (*command.inside, *nested.inside)}
                )
                yield from _starts(at_line, inner, now)
            return
        if name == "srun" or name in OTHER_STARTERS:
            starter = name
        elif not (is_inner or starter or name in WRAPPERS):
            return
        before.append(words.pop(0))


def _step(starter: str, before: list[str], shell: Shell) -> Step:
    """Return how a program is started, from the words in front of it."""
    if starter != "srun":
        return Step(starter, {}, is_complete=True)
    names = [PurePosixPath(word).name for word in before]
    words = before[names.index("srun") + 1 :]
    return Step(
        starter,
        dict(_options(words)),
        all(is_known(word) or word.startswith("-") or not HOLDS_OPTIONS.search(shell.show(word)) for word in words),
    )


def _python(command: Command, words: list[str], step: Step) -> tuple[Command, tuple[str, ...], str, Step]:
    """Return what Python runs."""
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-m" and words:
            module = words[0]
            kind = "torchrun" if module in TORCHRUN_MODULES else "python"
            kind = "accelerate" if module in ACCELERATE_MODULES else kind
            return command, tuple(words[1:]), kind, step
        if option in {"-X", "-W"} and words:
            words.pop(0)
    return command, tuple(words), "python", step


def _inline_script(words: list[str]) -> str | None:
    """Return the script of ``bash -c SCRIPT``."""
    for at, word in enumerate(words):
        if not word.startswith("-"):
            return None
        if re.fullmatch(r"-\w*c", word) and at + 1 < len(words):
            return words[at + 1]
    return None


def _launcher_options(
    words: tuple[str, ...], flags: set[str], shell: Shell
) -> tuple[dict[str, str], bool, tuple[str, ...]]:
    """Return a launcher's options, whether all are known, and the program with its arguments."""
    options: dict[str, str] = {}
    is_complete = True
    at = 0
    while at < len(words):
        word = words[at]
        if not word.startswith("-"):
            if is_known(word) or not HOLDS_OPTIONS.search(shell.show(word)):
                break
            is_complete = False
            at += 1
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not equals and name not in flags and at + 1 < len(words):
            at += 1
            value = words[at]
        options[name] = value
        at += 1
        if name in {"m", "module"}:
            break
    return options, is_complete, words[at:]
