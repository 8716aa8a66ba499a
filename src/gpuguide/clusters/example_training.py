"""A small training program that can be stopped at any time and goes on where it was, on CPUs and on GPUs.

Started by torchrun; it needs nothing but PyTorch, so that it can lie next to a batch script as it is.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

SAVE_EVERY = 100


def train(steps: int = 400, seconds_per_step: float = 0.05, checkpoint: Path = Path("checkpoint.pt")) -> None:
    """Fit a linear map on all processes; save every 100 steps, and save and end when ``STOP_FILE`` appears."""
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world_size} on {os.uname().nodename}", flush=True)

    torch.manual_seed(0)
    model = torch.nn.Linear(16, 1).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    first = load(checkpoint, model, optimizer, device)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    target = torch.arange(16.0, device=device)[:, None] / 16

    for step in range(first, steps):
        # The seed follows from step and rank, so a run that was stopped sees the batches of one that was not.
        batch = torch.randn(32, 16, generator=torch.Generator().manual_seed(step * world_size + rank)).to(device)
        loss = torch.nn.functional.mse_loss(parallel(batch), batch @ target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(seconds_per_step)

        stop = is_asked_to_stop(device)
        if stop or (step + 1) % SAVE_EVERY == 0 or step + 1 == steps:
            if rank == 0:
                save(checkpoint, step + 1, model, optimizer)
                print(f"step {step + 1}: loss {loss.item():.6f}, saved{' and stopped' if stop else ''}", flush=True)
            dist.barrier()  # no process may end while the state is still being written
        if stop:
            break
    dist.destroy_process_group()


def is_asked_to_stop(device: torch.device) -> bool:
    """Return whether any process sees ``STOP_FILE``. All get the same answer, so none waits for one that has ended."""
    seen = torch.tensor([float(Path(os.environ.get("STOP_FILE", "stop")).exists())], device=device)
    dist.all_reduce(seen, dist.ReduceOp.MAX)
    return bool(seen.item())


def save(checkpoint: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the state to a new file, then rename it: a program that is killed meanwhile leaves the old state whole."""
    state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    new = checkpoint.with_suffix(".new")
    torch.save(state, new)
    os.replace(new, checkpoint)


def load(checkpoint: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Load the state, if there is one, and return the step to begin with."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


if __name__ == "__main__":
    train()
