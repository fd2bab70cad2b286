"""Data-parallel training of a neural FDE.

    torchrun --nproc-per-node 2 examples/ddp.py [--quick] [--shard]

Runs on CPUs with gloo and on GPUs with nccl; without torchrun in one process. ``--shard`` uses FSDP2 in place of DDP.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from torch import Tensor, nn
from torch import distributed as dist

from neuralfde import FDEBlock


class Slope(nn.Module):
    """The right-hand side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, width))

    def forward(self, t: Tensor, z: Tensor) -> Tensor:
        """f(t, z)."""
        return self.net(z) - z


def begin() -> torch.device:
    """Join the other processes, or start alone."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533"}.items():
        os.environ.setdefault(name, value)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a short run")
    parser.add_argument("--shard", action="store_true", help="FSDP2 in place of DDP")
    options = parser.parse_args()
    device = begin()
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Linear(10, 32), FDEBlock(Slope(32), order=0.7, learn_order=True, t=2.0, steps=20), nn.Linear(32, 1)
    ).to(device)
    if options.shard:
        from torch.distributed.fsdp import fully_shard

        fully_shard(model[1])
        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rows = torch.randn(512, 10)
    target = torch.sin(rows.sum(1, keepdim=True))
    mine = slice(rank * 512 // world, (rank + 1) * 512 // world)
    x, y = rows[mine].to(device), target[mine].to(device)
    loss = torch.zeros(())
    for epoch in range(10 if options.quick else 100):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        if rank == 0 and epoch % 10 == 0:
            print(f"epoch {epoch:3d}  loss {loss.item():.4f}  ({world} processes)")
    final = loss.detach().clone()
    dist.all_reduce(final, op=dist.ReduceOp.SUM)
    if rank == 0:
        print(f"final loss {final.item() / world:.4f}")
    dist.destroy_process_group()
    time.sleep(0.5)  # gloo's threads are still freeing tensors, which aborts a process that is already exiting
    return final.item() / world


if __name__ == "__main__":
    main()
