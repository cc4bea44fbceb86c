"""Tests that NCCL starts and that its collectives return the expected values."""

from __future__ import annotations

import sys

import smoke_gpu
from smoke_support import finish

SIZE = 1 << 20


def work(rank: int, count: int, port: int, answers: object) -> None:
    """Run one process on one GPU: all-reduce, all-gather and broadcast."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=count
    )
    problems = []
    numbers = torch.arange(SIZE, device="cuda", dtype=torch.float32) % 1024 * (rank + 1)
    dist.all_reduce(numbers)
    whole = count * (count + 1) // 2
    expected = torch.arange(SIZE, device="cuda", dtype=torch.float32) % 1024 * whole
    if not torch.equal(numbers, expected):
        problems.append(f"rank {rank}: the all-reduce is wrong")
    mine = torch.full((4,), float(rank), device="cuda")
    gathered = [torch.empty_like(mine) for _ in range(count)]
    dist.all_gather(gathered, mine)
    if [float(part[0]) for part in gathered] != [float(each) for each in range(count)]:
        problems.append(f"rank {rank}: the all-gather is wrong")
    sent = torch.full((4,), float(rank), device="cuda")
    dist.broadcast(sent, src=count - 1)
    if float(sent[0]) != count - 1:
        problems.append(f"rank {rank}: the broadcast is wrong")
    torch.cuda.synchronize()
    answers.put(problems)  # type: ignore[attr-defined]  # a queue of torch.multiprocessing
    dist.destroy_process_group()


def main(count: int) -> None:
    """Start `count` processes, each with a separate GPU."""
    smoke_gpu.require(count)
    import torch.multiprocessing as processes

    smoke_gpu.turn()
    port = smoke_gpu.free_port()
    context = processes.get_context("spawn")
    answers = context.SimpleQueue()
    processes.spawn(work, args=(count, port, answers), nprocs=count)
    problems = [problem for _ in range(count) for problem in answers.get()]
    finish(problems, f"all-reduce, all-gather and broadcast over {count} GPU(s)")


if __name__ == "__main__":
    main(int(sys.argv[1]))
