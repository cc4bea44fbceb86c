"""Runs a documented first command of a framework unchanged and checks its results.

quick_table.py contains the commands and checks. A case also fails if a command ends with status 0
and prints nothing.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

import quick_checks
import quick_data
import quick_table
import smoke_gpu
import smoke_stack
import tiny_qwen
from smoke_support import finish, skip


def before(installed: str, since: str) -> bool:
    """Return whether the version `installed` is older than `since`, by their leading numbers."""
    return _numbers(installed) < _numbers(since)


def _numbers(text: str) -> list[int]:
    head = re.match(r"[\d.]*", text)
    return [int(part) for part in (head[0] if head else "").split(".") if part]


def places(row: quick_table.Quick) -> dict[str, str]:
    """Return the values of the placeholders, after writing model, data and reward if required."""
    words = {
        "bin": str(Path(sys.executable).parent),
        "python": sys.executable,
        "out": str(Path("out").absolute()),
        "port": str(smoke_gpu.free_port()),
        "trl": str(smoke_stack.folder("trl") or ""),
    }
    if not row.data:
        return words
    Path("quick_reward.py").write_text(quick_data.REWARD, "utf-8")
    for name, configuration in quick_data.DEEPSPEED.items():
        Path(name).write_text(json.dumps(configuration), "utf-8")
    return words | {
        "model": str(tiny_qwen.save(Path("model").absolute())),
        "data": str(quick_data.write(row.data, Path("data").absolute())),
        "share": str(smoke_stack.share()) if row.engine else "",
    }


def environment(row: quick_table.Quick) -> dict[str, str]:
    """Return the environment of the commands, with caches in this folder and a short Ray path."""
    # Ray makes sockets below it, whose paths may have at most 107 characters.
    above = Path(os.environ.get("SMOKE_TURN") or Path("turn").absolute()).parent
    name = re.sub(r"[^a-z0-9]+", "-", row.name)
    return {
        **os.environ,
        "HF_HOME": str(Path("hf").absolute()),
        "RAY_TMPDIR": str(above / name[:24]),
        "RAY_DEDUP_LOGS": "0",
        "HYDRA_FULL_ERROR": "1",
        "RAY_worker_register_timeout_seconds": "300",
        "RAY_memory_monitor_refresh_ms": "0",
    }


def main(name: str) -> None:
    """Run the commands and the checks of the row `name`."""
    row = next(row for row in quick_table.TABLE if row.name == name)
    framework = row.needs[0]
    if row.since and before(version(framework), row.since):
        skip(f"{framework} {version(framework)} has no such command: it exists since {row.since}")
    words = places(row) if row.tier == "cpu" else _on_gpu(row)
    env = environment(row)
    Path(env["RAY_TMPDIR"]).mkdir(exist_ok=True)
    problems, outputs = [], []
    for command in row.commands.strip().splitlines():
        typed = [word.format(**words) for word in shlex.split(command)]
        print("$", *typed, flush=True)
        outputs.append(smoke_gpu.follow(typed, env))
        if not outputs[-1].strip():
            problems.append(f"{typed[0]} ended with status 0 and printed nothing")
    model = Path(words.get("model", ""))
    for check, *arguments in row.checks:
        if check != "says":  # whose patterns contain braces
            arguments = [argument.format(**words) for argument in arguments]  # noqa: PLW2901
        problems += quick_checks.CHECKS[check]("\n".join(outputs), model, *arguments)
    finish(problems, f"{row.documented}: {len(row.checks)} checks")


def _on_gpu(row: quick_table.Quick) -> dict[str, str]:
    smoke_gpu.require(row.gpus)
    words = places(row)
    smoke_gpu.turn(alone=row.engine and smoke_stack.measures_memory())
    return words


if __name__ == "__main__":
    main(sys.argv[1])
