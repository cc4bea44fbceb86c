"""`ray job submit` runs a job on a local cluster, through the server of its dashboard.

The job gets a working directory and an environment variable, as Ray's runtime environments do it,
and runs tasks on the cluster.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import smoke_gpu
from smoke_support import finish

JOB = """\
import os
import ray
from helper import WORD

@ray.remote
def square(number):
    return number * number

ray.init()
print(WORD, os.environ["SMOKE_WORD"], ray.get([square.remote(number) for number in range(4)]))
"""
DUE = "directory environment [0, 1, 4, 9]"


def start(port: int, temporary: Path) -> list[str]:
    """The command that starts a cluster of one node with a dashboard, and ends it when killed.

    Ports that are not given are fixed numbers, which another cluster of this machine may use.
    """
    return [smoke_gpu.script("ray"), "start", "--head", "--block",
            "--node-ip-address", "127.0.0.1", "--port", str(smoke_gpu.free_port()),
            "--include-dashboard", "true", "--dashboard-host", "127.0.0.1",
            "--dashboard-port", str(port), "--ray-client-server-port", str(smoke_gpu.free_port()),
            "--dashboard-agent-listen-port", str(smoke_gpu.free_port()),
            "--num-cpus", "2", "--num-gpus", "0", "--object-store-memory", str(100 << 20),
            "--disable-usage-stats", "--temp-dir", str(temporary)]  # fmt: skip


def main() -> None:
    """Start the cluster, submit the job, and ask the cluster how it ended."""
    folder = Path("job")
    folder.mkdir()
    (folder / "job.py").write_text(JOB)
    (folder / "helper.py").write_text('WORD = "directory"\n')
    # Ray makes sockets below it, whose paths may have at most 107 characters.
    temporary = Path(os.environ.get("SMOKE_TURN") or Path("turn").absolute()).parent / "ray"
    os.environ.pop("RAY_ADDRESS", None)
    os.environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "RAY_TMPDIR": str(temporary)}
    port = smoke_gpu.free_port()
    server = f"http://127.0.0.1:{port}"
    with smoke_gpu.server(start(port, temporary), f"{server}/api/version", 200):
        submit = [smoke_gpu.script("ray"), "job", "submit", "--address", server,
                  "--working-dir", str(folder.absolute()),
                  "--runtime-env-json", '{"env_vars": {"SMOKE_WORD": "environment"}}',
                  "--", sys.executable, "job.py"]  # fmt: skip
        log = smoke_gpu.follow(submit)
        states = [job["status"] for job in smoke_gpu.get(f"{server}/api/jobs/")]
        nodes = smoke_gpu.get(f"{server}/nodes?view=summary")["data"]["summary"]
    problems = [] if DUE in log else [f"the job did not print {DUE}"]
    if states != ["SUCCEEDED"]:
        problems.append(f"the states of the cluster's jobs are {states}")
    if len(nodes) != 1:
        problems.append(f"the dashboard shows {len(nodes)} nodes")
    finish(problems, f"the job ended as {states}; the dashboard shows {len(nodes)} node")


if __name__ == "__main__":
    main()
