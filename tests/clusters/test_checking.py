"""Each rule of the checker: a fault that is planted is found, and the nearest right script has none."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguide.clusters import checking
from gpuguide.clusters.checking import Fault, check

RIGHT = """#!/bin/bash
#SBATCH --job-name=pretrain
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
#SBATCH --output=%x-%j.out
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=USR1@300

set -euo pipefail
source .venv/bin/activate

host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun \\
    --nnodes="$SLURM_NNODES" \\
    --nproc-per-node="$SLURM_GPUS_ON_NODE" \\
    --rdzv-backend=c10d \\
    --rdzv-id="$SLURM_JOB_ID" \\
    --rdzv-endpoint="$host:$port" \\
    train.py --learning-rate 3e-4
"""
"""A script without a fault, for two nodes"""
OLD_SLURM = (22, 5)
HEAD = "#!/bin/bash\n"
TWO_NODES = HEAD + "#SBATCH -N 2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:a100:2\n"
ONE_NODE = HEAD + "#SBATCH --nodes=1\n#SBATCH --gpus-per-node=2\n"
C10D = "--rdzv_backend c10d --rdzv_id $SLURM_JOB_ID --rdzv_endpoint $host:$port"
ELASTIC = f"srun torchrun --nnodes 2 --nproc_per_node 2 {C10D} train.py\n"


def found(script: str, **place: object) -> list[tuple[int, str]]:
    return [(fault.line, fault.rule) for fault in check(script, **{"slurm": OLD_SLURM, **place})]  # type: ignore[arg-type]


def test_a_right_script_has_no_fault() -> None:
    assert check(RIGHT) == []
    assert check(RIGHT, slurm=OLD_SLURM) == []


PLANTED = [
    # rule, line, script with the fault, nearest script without it
    ("no-interpreter", 1, "#SBATCH -n 1\nhostname\n", HEAD + "#SBATCH -n 1\nhostname\n"),
    ("no-interpreter", 1, "\n#!/bin/bash\nhostname\n", "#! /usr/bin/env bash\nhostname\n"),
    ("dos-line-ends", 1, "#!/bin/bash\r\nhostname\r\n", HEAD + "hostname\n"),
    ("dos-line-ends", 2, "#!/bin/bash\nhostname\r\ndate\r\n", HEAD + "printf 'a\\r\\n'\n"),
    (
        "late-directive",
        3,
        HEAD + "module load cuda\n#SBATCH --nodes=2\n",
        HEAD + "#SBATCH --nodes=2\nmodule load cuda\n",
    ),
    ("late-directive", 3, HEAD + "date\n#SBATCH -N 2\n", HEAD + "date\n# SBATCH -N 2\n##SBATCH -N 2\n"),
    ("late-directive", 3, HEAD + "date\n#SBATCH -N 2\n", HEAD + "cat > job.sh <<EOF\n#SBATCH -N 2\nEOF\n"),
    ("variable-in-directive", 2, HEAD + "#SBATCH --job-name=$USER\n", HEAD + "#SBATCH --job-name=%u\n"),
    ("variable-in-directive", 2, HEAD + "#SBATCH -o ${LOGS}/%j.out\n", HEAD + "#SBATCH -o %x-%j.out # in $PWD\n"),
    (
        "missing-log-folder",
        2,
        HEAD + "#SBATCH --output=logs/%j.out\n",
        HEAD + "#SBATCH --output=/scratch/logs/%j.out\n",
    ),
    ("missing-log-folder", 2, HEAD + "#SBATCH -e logs/%j.err\nmkdir -p logs\n", HEAD + "#SBATCH -e ./%j.err\n"),
    (
        "missing-log-folder",
        2,
        HEAD + "#SBATCH -o logs/%j.out\n",
        HEAD + "#SBATCH -o logs/%j.out\n# mkdir -p logs first\n",
    ),
    ("missing-log-folder", 2, HEAD + "#SBATCH -o /scratch/%j/log\n", HEAD + "#SBATCH -o /scratch/log-%j\n"),
    ("missing-log-folder", 2, HEAD + "#SBATCH -o ~/log-%j\n", HEAD + "#SBATCH -o ../log-%j\n"),
    (
        "static-rendezvous",
        5,
        TWO_NODES + "srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_endpoint=$host:$port train.py\n",
        TWO_NODES + ELASTIC,
    ),
    (
        "static-rendezvous",
        6,
        TWO_NODES
        + "host=a\nsrun python -m torch.distributed.run --nnodes $SLURM_NNODES --master-addr $host train.py\n",
        TWO_NODES + "srun python -m torch.distributed.run --nnodes 1 --standalone train.py\n",
    ),
    (
        "static-rendezvous",
        5,
        TWO_NODES + "srun torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=$host train.py\n",
        TWO_NODES + "srun bash -c 'torchrun --nnodes=2 --node_rank=$SLURM_NODEID --master_addr=$host train.py'\n",
    ),
    (
        "static-rendezvous",
        6,
        TWO_NODES + 'run="torchrun --nnodes=2 --node_rank=$SLURM_PROCID"\nsrun bash -c "$run train.py"\n',
        TWO_NODES + 'run="torchrun --nnodes=2 --node_rank=\\$SLURM_PROCID"\nsrun bash -c "$run train.py"\n',
    ),
    (
        "static-rendezvous",
        6,
        TWO_NODES + "args=(--nnodes 2 --nproc-per-node 2)\n" + 'srun torchrun "${args[@]}" train.py\n',
        TWO_NODES + f"args=(--nnodes 2 --nproc-per-node 2 {C10D})\n" + 'srun torchrun "${args[@]}" train.py\n',
    ),
    (
        "static-rendezvous",
        5,
        TWO_NODES + "srun torchrun --nnodes=2 $SCRIPT\n",
        TWO_NODES + "srun torchrun --nnodes=2 $DISTRIBUTED_ARGS train.py\n",
    ),
    (
        "static-rendezvous",
        5,
        TWO_NODES + "srun accelerate launch --num_machines 2 --machine_rank $SLURM_NODEID train.py\n",
        TWO_NODES + "srun bash -c 'accelerate launch --num_machines 2 --machine_rank $SLURM_NODEID train.py'\n",
    ),
    (
        "unused-node-rank",
        5,
        TWO_NODES + f"srun bash -c 'torchrun --node-rank $SLURM_NODEID --nnodes 2 {C10D} train.py'\n",
        TWO_NODES + f"srun bash -c 'torchrun --nnodes 2 {C10D} train.py'\n",
    ),
    (
        "fixed-port",
        3,
        ONE_NODE.replace("#SBATCH --nodes=1\n", "") + "export MASTER_PORT=29500\nsrun python train.py\n",
        ONE_NODE + "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\nsrun python train.py\n",
    ),
    (
        "fixed-port",
        4,
        ONE_NODE + "torchrun --rdzv_backend=c10d --rdzv_endpoint=localhost:29400 train.py\n",
        ONE_NODE + "torchrun --rdzv_backend=c10d --rdzv_endpoint=localhost:0 train.py\n",
    ),
    (
        "fixed-port",
        4,
        ONE_NODE + "PORT=6000\nsrun torchrun --master_port $PORT train.py\n",
        ONE_NODE + "#SBATCH --exclusive\nPORT=6000\nsrun torchrun --master_port $PORT train.py\n",
    ),
    (
        "hidden-fallback",
        5,
        TWO_NODES + 'host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1 || echo localhost)\n',
        TWO_NODES + 'host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1 || exit 1)\n',
    ),
    (
        "hidden-fallback",
        5,
        TWO_NODES + "host=$(scontrol show hostnames | head -1) || host=127.0.0.1\n",
        ONE_NODE + "host=$(scontrol show hostnames | head -1) || host=127.0.0.1\n",
    ),
    (
        "first-node-only",
        5,
        TWO_NODES + ELASTIC.removeprefix("srun "),
        TWO_NODES + ELASTIC,
    ),
    (
        "first-node-only",
        6,
        TWO_NODES + "host=$(srun -N 1 hostname)\naccelerate launch --num_machines 2 --num_processes 4 train.py\n",
        TWO_NODES + "for host in $hosts; do ssh $host torchrun --nnodes 2 train.py & done; wait\n",
    ),
    (
        "launcher-in-every-task",
        5,
        TWO_NODES.replace("node=1", "node=2") + ELASTIC,
        TWO_NODES.replace("node=1", "node=2") + ELASTIC.replace("srun", "srun --ntasks-per-node=1"),
    ),
    (
        "launcher-in-every-task",
        5,
        TWO_NODES.replace("node=1", "node=2") + ELASTIC,
        TWO_NODES.replace("node=1", "node=2") + ELASTIC.replace("--nproc_per_node 2", "--nproc_per_node 1"),
    ),
    (
        "processes-and-gpus-differ",
        4,
        ONE_NODE + "torchrun --standalone --nproc-per-node=4 train.py\n",
        ONE_NODE + "torchrun --standalone --nproc-per-node=gpu train.py\n",
    ),
    (
        "processes-and-gpus-differ",
        4,
        ONE_NODE.replace("=2", "=8") + "torchrun --standalone --nproc_per_node 4 train.py\n",
        ONE_NODE.replace("=2", "=8")
        + "CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --standalone --nproc_per_node 4 train.py\n",
    ),
    (
        "cores-not-inherited",
        5,
        ONE_NODE + "#SBATCH -c 8\nsrun python train.py\n",
        ONE_NODE + "#SBATCH -c 8\nexport SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun python train.py\n",
    ),
    (
        "cores-not-inherited",
        6,
        ONE_NODE + "#SBATCH -c 8\nsrun hostname\nsrun python train.py\n",
        ONE_NODE + "#SBATCH -c 8\nsrun hostname\nsrun -c 8 python train.py\n",
    ),
    (
        "cores-not-inherited",
        5,
        ONE_NODE + "#SBATCH -c 8\nsrun python train.py\n",
        ONE_NODE + "#SBATCH -c 8\nsrun --cpu-bind=none python train.py\n",
    ),
    (
        "too-few-cores",
        5,
        ONE_NODE.replace("=2", "=4") + "#SBATCH -c 2\ntorchrun --standalone --nproc-per-node=4 train.py\n",
        ONE_NODE.replace("=2", "=4") + "#SBATCH -c 32\ntorchrun --standalone --nproc-per-node=4 train.py\n",
    ),
    (
        "too-few-cores",
        5,
        ONE_NODE.replace("=2", "=4") + "#SBATCH -c 2\ntorchrun --standalone --nproc-per-node=4 train.py\n",
        ONE_NODE.replace("=2", "=4") + "#SBATCH -c 2 -n 4\ntorchrun --standalone --nproc-per-node=4 train.py\n",
    ),
    ("log-begins-anew", 2, HEAD + "#SBATCH --requeue\n", HEAD + "#SBATCH --requeue --open-mode=append\n"),
    ("log-begins-anew", 2, HEAD + "#SBATCH --requeue\n", HEAD + "#SBATCH --requeue\n#SBATCH -o /dev/null\n"),
    (
        "signal-ends-shell",
        2,
        HEAD + "#SBATCH --signal=B:USR1@60\nsrun python train.py\n",
        HEAD + "#SBATCH --signal=B:USR1@60\nexec python train.py\n",
    ),
    (
        "signal-ends-shell",
        2,
        HEAD + "#SBATCH --signal=B:10\nexec > log\ntrap 'echo over' EXIT\nsrun python train.py\n",
        HEAD + "#SBATCH --signal=B:10\ntrap 'kill -USR1 $pid' SIGUSR1\nsrun python train.py & pid=$!\nwait\n",
    ),
    (
        "signal-ends-shell",
        2,
        HEAD + "#SBATCH --signal=B:TERM@60\nsource .venv/bin/activate\nsrun python train.py\n",
        HEAD + "#SBATCH --signal=B:TERM@60\nsource handlers.sh\nsrun python train.py\n",
    ),
    (
        "trap-never-runs",
        3,
        HEAD + "#SBATCH --signal=SIGUSR1@60\ntrap 'touch save' USR1\nsrun python train.py & wait\n",
        HEAD + "#SBATCH --signal=SIGUSR1@60\ntrap 'touch save' TERM\nsrun python train.py & wait\n",
    ),
    (
        "signal-reaches-nobody",
        2,
        HEAD + "#SBATCH --signal=SIGUSR1@90\nsource venv/bin/activate\npython train.py\n",
        HEAD + "#SBATCH --signal=SIGUSR1@90\nsource venv/bin/activate\nsrun python train.py\n",
    ),
    (
        "signal-reaches-nobody",
        2,
        HEAD + "#SBATCH --signal=USR1\npython prepare.py\ntorchrun --standalone train.py\n",
        HEAD + "#SBATCH --signal=USR1\npython prepare.py\nbash train.sh\n",
    ),
    (
        "trap-runs-too-late",
        3,
        HEAD + "#SBATCH --signal=B:USR1@60\ntrap 'scontrol requeue $SLURM_JOB_ID' USR1\nsrun python train.py\n",
        HEAD + "#SBATCH --signal=B:USR1@60\ntrap 'scontrol requeue $SLURM_JOB_ID' USR1\nsrun python train.py &\nwait\n",
    ),
    (
        "signal-at-once",
        3,
        HEAD + "#SBATCH -t 5\n#SBATCH --signal=USR1@300\nsrun python train.py\n",
        HEAD + "#SBATCH -t 0-1\n#SBATCH --signal=USR1@300\nsrun python train.py\n",
    ),
    (
        "no-gpus",
        3,
        HEAD + "#SBATCH -N 1 -p batch\ntorchrun --standalone --nproc-per-node=8 train.py\n",
        HEAD + "#SBATCH -N 1 -p batch -G 8\ntorchrun --standalone --nproc-per-node=8 train.py\n",
    ),
    (
        "no-gpus",
        2,
        HEAD + "torchrun --standalone --nproc-per-node=8 train.py\n",
        HEAD + "torchrun --standalone --nproc-per-node=8 train.py --backend gloo\n",
    ),
    (
        "no-gpus",
        2,
        HEAD + "torchrun --standalone --nproc-per-node=8 train.py\n",
        HEAD + "# sbatch --gres=gpu:8 this.sh\ntorchrun --standalone --nproc-per-node=8 train.py\n",
    ),
    (
        "broken-continuation",
        3,
        HEAD + "python train.py \\\n  --lr 1 \\ \n  --epochs 2\n",
        HEAD + "python train.py \\\n  --lr 1 \\\n  --epochs 2\n",
    ),
    (
        "broken-continuation",
        3,
        HEAD + 'run="python train.py \\\n  --lr 1 \\ \n  --epochs 2"\n',
        HEAD + "# a comment \\ \necho ' \\ \n'\n",
    ),
    ("nccl-default", 2, HEAD + "export NCCL_IB_DISABLE=0\n", HEAD + "# export NCCL_IB_DISABLE=0\n"),
    ("nccl-legacy-level", 2, HEAD + "export NCCL_NET_GDR_LEVEL=2\n", HEAD + "export NCCL_NET_GDR_LEVEL=PHB\n"),
    (
        "nccl-slow",
        5,
        TWO_NODES + "export NCCL_IB_DISABLE=1\n",
        TWO_NODES + "export NCCL_IB_DISABLE=1  # a cluster without InfiniBand\n",
    ),
    ("nccl-slow", 4, ONE_NODE + "NCCL_P2P_DISABLE=1 python train.py\n", ONE_NODE + "export NCCL_IB_DISABLE=1\n"),
]


@pytest.mark.parametrize(
    ("rule", "line", "wrong", "right"), PLANTED, ids=[f"{row[0]}-{number}" for number, row in enumerate(PLANTED)]
)
def test_a_planted_fault_is_found_and_the_nearest_right_script_has_none(
    rule: str, line: int, wrong: str, right: str
) -> None:
    assert found(wrong) == [(line, rule)]
    assert found(right) == []


def test_every_rule_that_the_code_names_is_planted() -> None:
    source = Path(checking.__file__).read_text(encoding="utf-8")
    named = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', source))
    assert {rule for rule, *_ in PLANTED} == {
        name for name in named if not name.startswith(("cpus-", "gpus-", "ntasks-", "open-", "cpu-"))
    }


@pytest.mark.parametrize("launcher", ["torchrun", "python3 -m torch.distributed.run", "python -u -m torchrun"])
@pytest.mark.parametrize("nnodes", ["--nnodes=2", "--nnodes 2", "--nnodes $SLURM_JOB_NUM_NODES"])
@pytest.mark.parametrize("nproc", ["--nproc-per-node=2", "--nproc_per_node 2", "--nproc_per_node=gpu"])
def test_options_are_read_in_both_spellings(launcher: str, nnodes: str, nproc: str) -> None:
    script = TWO_NODES + f"srun {launcher} \\\n  {nnodes} \\\n  {nproc} train.py\n"
    assert found(script) == [(5, "static-rendezvous")]


@pytest.mark.parametrize(
    "directives",
    [
        "#SBATCH -N2 -n2 -G4",
        "#SBATCH --nodes 2 --ntasks 2 --gpus=a100:4",
        "#SBATCH --ntasks=2 --ntasks-per-node=1\n#SBATCH --gpus-per-task=2",
        "#SBATCH --nodes=2-2 --tasks-per-node=1 --gres=nvme:1,gpu:a100:2",
    ],
)
def test_nodes_and_gpus_are_counted_however_they_are_asked_for(directives: str) -> None:
    script = HEAD + directives + "\ntorchrun --nnodes 2 --nproc-per-node 3 train.py\n"
    line = script.count("\n")
    assert found(script) == [(line, "first-node-only"), (line, "processes-and-gpus-differ")]


def test_a_container_and_an_inner_shell_hide_no_launcher() -> None:
    inner = "torchrun --nnodes=2 --nproc_per_node=2 train.py"
    for start in (
        "srun apptainer exec --nv image.sif",
        "srun --mpi=none bash -c",
        "srun singularity run image.sif bash -c",
    ):
        quoted = f"'{inner}'" if start.endswith("-c") else inner
        assert found(TWO_NODES + f"{start} {quoted}\n") == [(5, "static-rendezvous")]


def test_what_is_only_printed_or_set_aside_is_no_launch() -> None:
    for command in ("echo srun torchrun --nnodes=2 train.py", "# srun torchrun --nnodes=2 train.py", "which torchrun"):
        assert found(TWO_NODES + command + "\n") == []


def test_python_scripts_are_checked_for_their_directives_only() -> None:
    script = "#!/usr/bin/env python3\n#SBATCH --job-name=$USER\n#SBATCH --signal=B:USR1@60\nprint('it''s torchrun')\n"
    assert found(script) == [(2, "variable-in-directive")]


def test_cores_are_inherited_again_since_slurm_23_11() -> None:
    script = ONE_NODE + "#SBATCH -c 8\nsrun python train.py\n"
    for version, count in (((21, 8), 0), ((22, 5), 1), ((23, 2), 1), ((23, 11), 0), (None, 0)):
        assert len(check(script, slurm=version)) == count, version


def test_a_folder_that_is_there_may_hold_the_log(tmp_path: Path) -> None:
    script = HEAD + "#SBATCH -o logs/%j.out\n#SBATCH -e logs/%j/err\n"
    assert found(script, folder=tmp_path) == [(2, "missing-log-folder"), (3, "missing-log-folder")]
    (tmp_path / "logs").mkdir()
    assert found(script, folder=tmp_path) == [(3, "missing-log-folder")]
    elsewhere = HEAD + "#SBATCH -D run -o logs/%j.out\n"
    assert found(elsewhere, folder=tmp_path) == [(2, "missing-log-folder")]
    (tmp_path / "run" / "logs").mkdir(parents=True)
    assert found(elsewhere, folder=tmp_path) == []


ALL_TOGETHER = """#!/bin/bash
#SBATCH --job-name=$USER-run
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --output=logs/%j.out
#SBATCH --time=00:02:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue

module load cuda
#SBATCH --mem=0
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1 || echo localhost)
export MASTER_PORT=29500
export NCCL_IB_DISABLE=0
export NCCL_NET_GDR_LEVEL=2
export NCCL_P2P_DISABLE=1

srun torchrun \\
    --nnodes=$SLURM_NNODES \\
    --nproc_per_node=2 \\
    --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT \\
    train.py \\
        --model llama \\<space>
        --steps 8
""".replace("<space>", " ")
ALL_FAULTS = [
    (2, "variable-in-directive"),
    (7, "missing-log-folder"),
    (9, "signal-at-once"),
    (9, "signal-ends-shell"),
    (10, "log-begins-anew"),
    (13, "late-directive"),
    (14, "hidden-fallback"),
    (15, "fixed-port"),
    (16, "nccl-default"),
    (17, "nccl-legacy-level"),
    (18, "nccl-slow"),
    (20, "cores-not-inherited"),
    (20, "launcher-in-every-task"),
    (20, "static-rendezvous"),
    (25, "broken-continuation"),
]


def test_a_script_with_everything_wrong() -> None:
    assert found(ALL_TOGETHER) == ALL_FAULTS
    for fault in check(ALL_TOGETHER, slurm=OLD_SLURM):
        assert fault.what
        assert fault.remedy
        assert re.match("https://|run on Slurm", fault.source)
        assert "\n" not in fault.what + fault.remedy


@given(
    at=st.sampled_from([1, 2, 5, 11, 12, 13, 14, 18, 19, 26]),
    added=st.lists(
        st.sampled_from(["", "# a comment", "    # don't \\", "## 'quoted\" $(x", "\t"]), min_size=1, max_size=4
    ),
)
def test_comments_and_blank_lines_move_faults_and_change_none(at: int, added: list[str]) -> None:
    lines = ALL_TOGETHER.split("\n")
    longer = "\n".join([*lines[:at], *added, *lines[at:]])
    expected = [
        replace(fault, line=fault.line + len(added)) if fault.line > at else fault
        for fault in check(ALL_TOGETHER, slurm=OLD_SLURM)
    ]
    assert check(longer, slurm=OLD_SLURM) == expected


@given(st.text(alphabet="#!/bash\n\\ \"'`$(){}[]<>|&;=-EOFifdone1", max_size=200))
def test_any_text_is_checked(text: str) -> None:
    faults = check(HEAD + "#SBATCH -N 2 --signal=B:USR1\n" + text, slurm=OLD_SLURM)
    assert all(isinstance(fault, Fault) and 1 <= fault.line <= text.count("\n") + 3 for fault in faults)
