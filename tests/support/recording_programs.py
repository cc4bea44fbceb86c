"""Creates programs that record their arguments and variables, for scripts that a test runs.

They replace srun, scontrol, scancel, apptainer, imgbuild and the entry point of an image. Each call
is recorded in a file in $RECORD. Servers (Ray, vLLM) run until they are stopped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

ENTRYPOINT = "/opt/imgbuild/entrypoint"
PROGRAM = """\
#!{python} -IS
import json, os, signal, socket, sys, time
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
record = os.environ["RECORD"]
place = f"{{record}}/{{time.monotonic_ns():020}}-{{os.getpid()}}"
with open(place + ".new", "x") as file:
    json.dump({{"program": name, "words": words, "env": dict(os.environ)}}, file)
os.rename(place + ".new", place)

def wait():
    os.symlink(str(os.getpid()), place + ".waiting")
    signal.pause()

def inside(words):
    if words[:2] == ["ray", "start"]:
        address = dict(word.split("=", 1) for word in words if "=" in word)
        with socket.socket() as server:
            if "--head" in words:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind((address["--node-ip-address"], int(address["--port"])))
                server.listen()
            wait()
    elif words[:2] == ["trl", "vllm-serve"]:
        wait()
    elif "--use_vllm=true" in words:
        print("\\n".join(words[words.index("--use_vllm=true"):]))

if name == "srun":
    first = next(place for place, word in enumerate(words) if not word.startswith("-"))
    os.environ["SLURMD_NODENAME"] = "node0"
    os.execvp(words[first], words[first:])
elif name == "scontrol":
    if words[:2] == ["show", "hostnames"]:
        print(os.environ["SLURM_JOB_NODELIST"].replace(",", "\\n"))
    elif words[:2] == ["show", "node"]:
        print("   NodeAddr=127.0.0.1 NodeHostName=" + words[2])
elif name == "scancel":
    for entry in os.listdir(record):
        if entry.endswith(".waiting"):
            try:
                os.kill(int(os.readlink(f"{{record}}/{{entry}}")), signal.SIGTERM)
            except ProcessLookupError:
                pass
elif name == "apptainer":
    inside(words[words.index("{entrypoint}") + 1:])
elif name == "entrypoint":
    inside(words)
elif name == "imgbuild":
    if words[0] == "digest":
        print(os.environ["DIGEST"])
    elif words[:2] == ["ci", "jobs"]:
        sys.exit(1)
    else:
        print("{{}}")
"""
NAMES = ("srun", "scontrol", "scancel", "apptainer", "entrypoint", "imgbuild")


class Call(msgspec.Struct, frozen=True):
    """A recorded call of a program."""

    program: str
    words: list[str]
    env: dict[str, str]


class Programs:
    """The programs in `folder`/bin. `canary` is the file that hostile texts would create."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.canary = folder / "canary"
        self.record = folder / "record"
        place = folder / "bin"
        place.mkdir()
        self.record.mkdir()
        (place / "program").write_text(PROGRAM.format(python=sys.executable, entrypoint=ENTRYPOINT))
        (place / "program").chmod(0o755)
        for name in NAMES:
            (place / name).symlink_to("program")

    def run(
        self, script: str, env: Mapping[str, str] | None = None, *, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run `script` with bash; fails if a text of the script created the canary."""
        for call in self.record.iterdir():
            call.unlink()
        variables = {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin", "HOME": str(self.folder),
            "CANARY": str(self.canary), "RECORD": str(self.record), **(env or {}),
        }  # fmt: skip
        # Not a path below /opt, which this machine lacks.
        text = script.replace(f"exec {ENTRYPOINT}", "exec entrypoint")
        place = self.folder / "script"
        place.write_text(text)
        done = subprocess.run(
            ["/bin/bash", str(place)], env=variables, cwd=cwd or self.folder, timeout=60,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert not self.canary.exists(), script
        return done

    def calls(self, program: str) -> list[Call]:
        """The calls in chronological order."""
        paths = sorted(path for path in self.record.iterdir() if not path.suffix)
        calls = [msgspec.convert(json.loads(path.read_text()), Call) for path in paths]
        return [call for call in calls if call.program == program]


def slurm_variables(nodes: int) -> dict[str, str]:
    """The Slurm variables of a job on `nodes` nodes that share a disk."""
    return {
        "SLURM_JOB_ID": str(os.getpid() % 1000 + 7000), "SLURM_JOB_NAME": "job",
        "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_ON_NODE": "4", "SLURMD_NODENAME": "node0",
        "SLURM_JOB_NODELIST": ",".join(f"node{number}" for number in range(nodes)),
    }  # fmt: skip


def sbatch_options(script: str) -> list[str]:
    """The words of the #SBATCH lines that sbatch reads, which precede the first command."""
    found = []
    for line in script.split("\n"):
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            found += _words(line.removeprefix("#SBATCH"))
    return found


def _words(text: str) -> list[str]:
    """The words as parsed by `get_argument` in src/sbatch/opt.c of Slurm 22.05."""
    words: list[str] = []
    word, quote, place = "", "", 0
    started = False
    while place < len(text):
        sign = text[place]
        if sign == "\\" and place + 1 < len(text):
            word, started, place = word + text[place + 1], True, place + 1
        elif quote:
            word, quote = (word, "") if sign == quote else (word + sign, quote)
        elif sign in "\"'":
            quote, started = sign, True
        elif sign == "#":
            break
        elif re.match(r"\s", sign):
            words += [word] if started else []
            word, started = "", False
        else:
            word, started = word + sign, True
        place += 1
    return [*words, word] if started else words
