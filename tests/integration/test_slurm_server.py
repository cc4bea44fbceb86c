"""Tests placement and order of steps in jobs with a vLLM server or torchrun.

The tests run only the job script: trl, accelerate and torchrun require GPUs or a large torch, so
they are replaced with programs that respond over HTTP and report their arguments.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import needs, sample_project, slurm_project
from tests.support.local_index import LocalIndex
from tests.support.sample_project import TARGET, Project
from tests.support.servers import FileSite, serve_site

pytestmark = [pytest.mark.engine, pytest.mark.network]
SERVER = b"""\
import http.server, json, os, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path.startswith("/end"):
            os._exit(3)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps([sys.argv[1:], os.environ["SLURMD_NODENAME"]]).encode())

    def log_message(self, *_):
        pass

def main():
    words = sys.argv[1:]
    time.sleep(3)
    port = int(words[words.index("--port") + 1])
    http.server.HTTPServer(("0.0.0.0", port), Handler).serve_forever()
"""
# Like accelerate: options, then the path of a script, which it starts with Python.
LAUNCH = b"""\
import json, os, sys

def main():
    words = sys.argv[2:]
    while words[0].startswith("--"):
        del words[: 1 if words[0] == "--multi_gpu" else 2]
    os.environ["LAUNCHED"] = json.dumps(sys.argv[1:])
    os.execv(sys.executable, [sys.executable, "-u", *words])
"""
TRAIN = """\
import json, os, sys, time, urllib.request

given = dict(word[2:].split("=", 1) for word in sys.argv[1:] if "=" in word)
url = f"http://{given['vllm_server_host']}:{given['vllm_server_port']}/"
if "--stop-the-server" in sys.argv:
    try:
        urllib.request.urlopen(url + "end")
    except OSError:
        time.sleep(600)
with urllib.request.urlopen(url) as answer:
    served = json.loads(answer.read())
ranks = [os.environ.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]
launched = json.loads(os.environ["LAUNCHED"])
print(json.dumps([os.environ["SLURMD_NODENAME"], launched, served, ranks]))
"""
# Like torchrun: processes with ranks, which meet at the address of the master.
TORCHRUN = b"""\
import os, subprocess, sys

def main():
    words, options = sys.argv[1:], {}
    while words[0].startswith("--"):
        options[words[0]] = words[1]
        del words[:2]
    node, number = int(options["--node-rank"]), int(options["--nproc-per-node"])
    world = int(options["--nnodes"]) * number
    meeting = {"MASTER_ADDR": options["--master-addr"], "MASTER_PORT": options["--master-port"]}
    ranks = [
        subprocess.Popen([sys.executable, *words], env=os.environ | meeting | {
            "RANK": str(node * number + each), "LOCAL_RANK": str(each), "WORLD_SIZE": str(world)})
        for each in range(number)
    ]
    sys.exit(max(rank.wait() for rank in ranks))
"""
MEET = """\
import json, os, socket, sys, time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
mine = [rank, os.environ["SLURMD_NODENAME"], os.environ.get("NCCL_DEBUG"), sys.argv[1:]]
if rank == 0:
    with socket.create_server(place) as server:
        met = [mine]
        for _ in range(world - 1):
            connection, _ = server.accept()
            met.append(json.loads(connection.makefile().readline()))
    print(json.dumps(sorted(met)))
else:
    for _ in range(600):
        try:
            with socket.create_connection(place) as connection:
                connection.sendall(json.dumps(mine).encode() + b"\\n")
            break
        except OSError:
            time.sleep(0.1)
    sys.exit(4 if "--fail" in sys.argv else 0)
"""
CONFIG = b"""\
class GRPOConfig:
    use_vllm: bool = False
    vllm_mode: str = "server"
    vllm_server_host: str = "0.0.0.0"
    vllm_server_port: int = 8000
"""


def index() -> LocalIndex:
    """An index of packages with the names that the job requires."""
    index = sample_project.sample_index()
    index.wheel("vllm", "0.8.5")
    points = b"[console_scripts]\ntrl = trl.cli:main\naccelerate = trl.launch:main\n"
    points += b"torchrun = trl.torchrun:main\n"
    index.wheel("trl", "0.18.2", files={
        "trl/__init__.py": b"", "trl/cli.py": SERVER, "trl/launch.py": LAUNCH,
        "trl/torchrun.py": TORCHRUN,
        "trl/trainer/__init__.py": b"", "trl/trainer/grpo_config.py": CONFIG,
        "trl-0.18.2.dist-info/entry_points.txt": points,
    })  # fmt: skip
    return index


@pytest.fixture(scope="module", name="project")
def _project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    env = needs.require_slurm()
    needs.require_network()
    needs.require_apptainer()
    with serve_site(FileSite(files=index().site_files())) as site:
        project = Project(tmp_path_factory.mktemp("server"), site.url("simple"), None, env)
        project.write(slurm_project.BASE)
        path = project.folder / "matrix.yaml"
        pins = 'thewheel: "1.0"}'
        path.write_text(
            path.read_text()
            .replace(pins, 'trl: "0.18.2", vllm: "0.8.5"}')
            .replace("named: [thewheel]", "named: [torch]")
        )
        for verb in (("lock",), ("build",), ("build", "--format", "sif")):
            project.run(*verb, TARGET)
        yield project


def run(project: Project, folder: Path, *words: str) -> tuple[int, str]:
    """Run the job on two nodes, without GPUs."""
    path = folder / "job.sh"
    (folder / "train.py").write_text(TRAIN)
    project.run(
        "slurm", TARGET, "--job", "trl-server", "--nodes", "2", "--gpus", "1",
        "--served-model", "a/model",
        "--cpus-per-task", "1", "--scratch", str(folder), "--output", str(path), "--",
        "python", "train.py", *words,
    )  # fmt: skip
    path.write_text(path.read_text().replace("#SBATCH --gpus-per-node=1\n", ""))
    return slurm_project.run_job(project, path)


@pytest.mark.long  # test_hostile_jobs.py runs these scripts
def test_trainers_connect_to_the_server_on_the_last_node(project: Project, tmp_path: Path) -> None:
    status, log = run(project, tmp_path, "--steps", "2")
    assert status == 0, log
    [line] = re.findall(r"^\[.*\]$", log, re.MULTILINE)
    node, words, (serving, server), ranks = json.loads(line)
    assert (node, server) == ("node1", "node2")
    assert ranks == ["0", "0", "1"]  # of one process, to which accelerate gives none
    port = serving[serving.index("--port") + 1]
    assert serving[:5] == ["vllm-serve", "--model", "a/model", "--tensor-parallel-size", "1"]
    assert words[:3] == ["launch", "--machine_rank", "0"]
    assert words[words.index("--num_processes") + 1] == "1"
    # This trl has no separate port for weights, so none is passed.
    assert words[words.index("train.py") :] == [
        "train.py", "--steps", "2", "--use_vllm=true", "--vllm_mode=server",
        "--vllm_server_host=127.0.0.3", f"--vllm_server_port={port}",
    ]  # fmt: skip


@pytest.mark.long
def test_job_ends_if_the_server_exits(project: Project, tmp_path: Path) -> None:
    status, log = run(project, tmp_path, "--stop-the-server")
    assert status == 1, log
    assert "the vLLM server ended while the trainers ran (status 3)" in log


@pytest.mark.long  # unit/slurm/test_jobs.py has the script
def test_torchrun_starts_all_processes_of_both_nodes(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    (tmp_path / "train.py").write_text(MEET)
    project.run(
        "slurm", TARGET, "--job", "torchrun", "--nodes", "2", "--gpus", "2",
        "--env", "NCCL_DEBUG=WARN", "--cpus-per-task", "1", "--scratch", str(tmp_path),
        "--output", str(path), "--", "python", "train.py", "two words",
    )  # fmt: skip
    text = path.read_text().replace("#SBATCH --gpus-per-node=2\n", "")
    path.write_text(text)
    status, log = slurm_project.run_job(project, path)
    assert status == 0, log
    [line] = re.findall(r"^\[.*\]$", log, re.MULTILINE)
    assert json.loads(line) == [
        [rank, node, "WARN", ["two words"]]
        for rank, node in enumerate(("node1", "node1", "node2", "node2"))
    ]
    path.write_text(text.replace("'two words'", "--fail"))
    status, log = slurm_project.run_job(project, path)
    # srun reports the highest status, which may be that of the node that it terminates (SIGTERM).
    assert status in (4, 128 + signal.SIGTERM), log
    assert "Exited with exit code 4" in log
