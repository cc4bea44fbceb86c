"""Tests an all-reduce between the tasks of a Slurm job with torch, for `slurm --job check`.

Prints a line for each tested and untested property. Each node has one task, which starts a process
for each GPU, or a single process with gloo on a node without GPUs.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import sys
import time

SIZE = 1 << 24  # numbers of four bytes: 64 MB
EXACT = 1 << 24  # integers up to this are exact in float32, in any order of addition
TIMEOUT = 60


def modulus(share: int) -> int:
    """Return the number of different values to sum. Sums up to 2**24 are exact in float32."""
    return min(1024, EXACT // share + 1)


def work(local: int, options: argparse.Namespace) -> None:
    """Run one process, and check that its result is the sum over all ranks."""
    import torch
    import torch.distributed as dist

    each = max(options.gpus, 1)
    node, nodes = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_NNODES"])
    rank, world = node * each + local, nodes * each
    device = torch.device("cpu")
    if options.gpus:
        torch.cuda.set_device(local)
        device = torch.device("cuda", local)
    dist.init_process_group(
        "nccl" if options.gpus else "gloo",
        init_method=f"tcp://{options.address}:{options.port}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=TIMEOUT),
    )
    share = world * (world + 1) // 2
    step = modulus(share)
    base = torch.arange(SIZE, dtype=torch.float32, device=device) % step
    expected = base * share
    seconds = 0.0
    for _ in range(2):  # the first one makes the connections
        numbers = base * (rank + 1)
        started = time.monotonic()
        dist.all_reduce(numbers)
        if options.gpus:
            torch.cuda.synchronize()
        seconds = time.monotonic() - started
        if not torch.equal(numbers, expected):
            message = f"rank {rank}: the all-reduce is wrong"
            raise ValueError(message)
    if rank == 0:
        by = "NCCL" if options.gpus else "gloo"
        print(
            f"tested: all-reduce of {SIZE * 4 >> 20} MB over {world} processes on {nodes} nodes"
            f" by {by}, {seconds:.3f} s"
        )
        if not options.gpus:
            print("not tested: GPUs and NCCL, since the job has no GPU")
        if nodes == 1:
            print("not tested: the network between nodes, since the job has one")
    dist.destroy_process_group()


def main(arguments: list[str]) -> int:
    """Start this node's processes. Returns 0 if every sum was correct."""
    parser = argparse.ArgumentParser(description="All-reduce between the tasks of a job.")
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--gpus", type=int, default=0, help="of each node")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("torch") is None:
        if os.environ.get("SLURM_NODEID") == "0":
            print("not tested: the interconnect, since the image has no torch")
            if options.gpus:
                print(f"not tested: whether the image can use the {options.gpus} GPUs")
        return 0
    # An installed torch that cannot be imported is a failure, with its own message.
    import torch.multiprocessing as processes

    if options.gpus > 1:
        processes.spawn(work, args=(options,), nprocs=options.gpus)
    else:
        work(0, options)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
