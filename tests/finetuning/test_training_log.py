"""The log of a run: its columns, what a resumed run keeps of it, and the MFU."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from random_models import random_gpt2
from torch.utils.flop_counter import FlopCounterMode

from gpuguide import lora
from gpuguide.finetuning.training_log import (
    COLUMNS,
    LogRow,
    Speedometer,
    TrainingLog,
    find_measured_ceiling,
    linear_flops_per_token,
    read_log,
    summarize_speed,
)
from gpuguide.hardware import device as devices
from gpuguide.hardware.datasheet_ceilings import Ceiling
from gpuguide.measure import measured_ceilings
from gpuguide.training import StepMetrics

METRICS = StepMetrics(step=3, loss=2.5, learning_rate=1e-3, grad_norm=0.5, lengths=(30, 10), seconds=0.25)


def row(step: int) -> LogRow:
    return LogRow(step, 2.0 / step, None, 1e-3, 0.5, 40, 0.25, 160.0, None, 2**30 + step)


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path / "log.csv")
    log.resume(1)
    rows = [LogRow(0, eval_loss=3.25), *map(row, range(1, 4))]
    for each in rows:
        log.append(each)
    assert read_log(log.path) == rows == log.rows
    with log.path.open() as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == list(COLUMNS)
    assert (table[0]["eval_loss"], table[0]["loss"], table[2]["mfu"]) == ("3.25", "", "")


def test_a_resumed_run_drops_the_rows_of_steps_that_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    first = TrainingLog(path)
    first.resume(1)
    for step in range(1, 6):
        first.append(row(step))
    path.write_text(path.read_text() + "6,0.3")  # cut off by a kill
    second = TrainingLog(path)
    second.resume(4)
    second.append(row(4))
    assert [each.step for each in read_log(path)] == [1, 2, 3, 4]
    third = TrainingLog(path)
    third.resume(1)
    assert read_log(path) == []


def test_the_speed_of_a_step() -> None:
    speedometer = Speedometer(random_gpt2(), devices.cpu(), "fp32")
    found = speedometer.row(METRICS, 2.75, None)
    assert (found.tokens, found.tokens_per_second, found.mfu) == (40, 160.0, None)
    assert (found.loss, found.eval_loss, found.learning_rate, found.grad_norm) == (2.5, 2.75, 1e-3, 0.5)
    flops = speedometer.flops((30, 10))
    speedometer.ceiling = Ceiling(10.0 * flops, "measured")
    assert speedometer.row(METRICS, None, None).mfu == pytest.approx(0.4)  # a tenth of the rate would take 1 s
    slow, fast = replace(row(1), step_seconds=0.5, tokens_per_second=80.0), row(2)
    speed = summarize_speed([LogRow(0, eval_loss=1.0), slow, fast, row(3)])
    assert speed is not None
    assert (speed.step_seconds, speed.tokens_per_second, speed.mfu) == (0.25, 160.0, None)
    assert summarize_speed([LogRow(0, eval_loss=1.0)]) is None


def test_the_operations_are_those_that_pytorch_counts() -> None:
    """PyTorch does not count products in place (``addmm_``), and the first layer needs no gradient of its inputs."""
    model = random_gpt2(vocab_size=97, context=64, layers=8, hidden=64)
    lora.add_adapters(model, ["blocks.*"], lora.Settings(rank=1))
    tokens = torch.randint(97, (1, 32))
    with FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    counted = sum(
        count for operator, count in counter.get_flop_counts()["Global"].items() if "attention" not in str(operator)
    )
    assert 0.96 < counted / (32 * linear_flops_per_token(model)) <= 1.0


def test_only_a_measured_ceiling_counts() -> None:
    assert find_measured_ceiling(devices.cpu(), "fp32") is None
    assert find_measured_ceiling(replace(devices.fake("rtx-4090"), backend="cuda"), "bf16") is None
    reference = measured_ceilings.load_reference()
    ours = replace(devices.fake(reference.id), backend="cuda")
    assert find_measured_ceiling(ours, "bf16") == reference.arithmetic["bf16"]
    assert find_measured_ceiling(replace(ours, name="A GPU without a datasheet"), "bf16") is None
