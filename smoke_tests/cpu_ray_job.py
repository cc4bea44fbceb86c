"""Runs jobs with `ray start --head` and `ray job submit` through the server of the dashboard.

The first job gets a working directory and an environment variable through Ray's runtime
environments, and runs tasks on the cluster. The other jobs are the first examples of Ray's
documentation for Serve and Tune: an HTTP application, and a search for the best trial. Each job,
the page of the dashboard and `ray status` are separate results.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

import smoke_gpu
from smoke_log import first_error
from smoke_support import finish, judge

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
SERVE = """\
import sys
import urllib.request
from ray import serve

@serve.deployment
class Greeter:
    async def __call__(self, request):
        return f"Hello {request.query_params['name']}"

serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
serve.run(Greeter.bind())
address = f"http://127.0.0.1:{sys.argv[1]}/?name=smoke"
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print("served:", direct.open(address, timeout=60).read().decode())
serve.shutdown()
"""
TUNE = """\
from ray import tune

def objective(config):
    return {"score": (config["a"] - 2) ** 2}

space = {"a": tune.grid_search([0, 1, 2, 3])}
results = tune.Tuner(tune.with_resources(objective, {"cpu": 1}), param_space=space).fit()
best = results.get_best_result(metric="score", mode="min")
print("best:", best.config["a"], "of", len(results))
"""


class Job(NamedTuple):
    """A script with its arguments and its expected output."""

    name: str
    text: str
    prints: str
    arguments: tuple[str, ...] = ()


JOBS = (
    Job("tasks", JOB, "directory environment [0, 1, 4, 9]"),
    Job("serve", SERVE, "served: Hello smoke", ("{port}",)),
    Job("tune", TUNE, "best: 2 of 4"),
)


def start(port: int, dashboard_port: int, temporary: Path) -> list[str]:
    """Return the command that starts a one-node cluster with a dashboard, and ends it when killed.

    Other ports of the cluster have fixed numbers, which another cluster on this machine can also
    use.
    """
    return [smoke_gpu.script("ray"), "start", "--head", "--block",
            "--node-ip-address", "127.0.0.1", "--port", str(port),
            "--include-dashboard", "true", "--dashboard-host", "127.0.0.1",
            "--dashboard-port", str(dashboard_port),
            "--ray-client-server-port", str(smoke_gpu.free_port()),
            "--dashboard-agent-listen-port", str(smoke_gpu.free_port()),
            "--num-cpus", "2", "--num-gpus", "0", "--object-store-memory", str(100 << 20),
            "--disable-usage-stats", "--temp-dir", str(temporary)]  # fmt: skip


def submit(server: str, folder: Path, job: Job) -> list[str]:
    """Submit `job` to the cluster as documented. Returns the problems."""
    words = [argument.format(port=smoke_gpu.free_port()) for argument in job.arguments]
    command = [smoke_gpu.script("ray"), "job", "submit", "--address", server,
               "--working-dir", str(folder.absolute()),
               "--runtime-env-json", '{"env_vars": {"SMOKE_WORD": "environment"}}',
               "--", sys.executable, f"{job.name}.py", *words]  # fmt: skip
    log, status = smoke_gpu.output(command)
    ended = [] if status == 0 else [f"ended with status {status}: {first_error(log)}"]
    return ended + ([] if job.prints in log else [f"did not print {job.prints}"])


def dashboard(server: str) -> list[str]:
    """Return problems with the dashboard, which must have a page, and list nodes and jobs."""
    problems = [] if "<html" in smoke_gpu.text(server).lower() else ["it has no page"]
    states = [job["status"] for job in smoke_gpu.get(f"{server}/api/jobs/")]
    if len(states) != len(JOBS):
        problems.append(f"the states of its jobs are {states}")
    nodes = smoke_gpu.get(f"{server}/nodes?view=summary")["data"]["summary"]
    return problems + ([] if len(nodes) == 1 else [f"it shows {len(nodes)} nodes"])


def status(address: str) -> list[str]:
    """Return problems with `ray status`, which must list the processors of the cluster."""
    log, ended = smoke_gpu.output([smoke_gpu.script("ray"), "status", "--address", address])
    return [] if ended == 0 and "2.0 CPU" in log else [f"status {ended}, no processors in it"]


def main() -> None:
    """Start the cluster, submit the jobs, and check their final states."""
    folder = Path("job")
    folder.mkdir()
    for job in JOBS:
        (folder / f"{job.name}.py").write_text(job.text)
    (folder / "helper.py").write_text('WORD = "directory"\n')
    # Ray makes sockets below it, whose paths may have at most 107 characters.
    temporary = Path(os.environ.get("SMOKE_TURN") or Path("turn").absolute()).parent / "ray"
    os.environ.pop("RAY_ADDRESS", None)
    os.environ |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", "RAY_TMPDIR": str(temporary)}
    ports = smoke_gpu.free_port(), smoke_gpu.free_port()
    server = f"http://127.0.0.1:{ports[1]}"
    problems = []
    with smoke_gpu.server(start(*ports, temporary), f"{server}/api/version", 200):
        for job in JOBS:
            problems += judge(f"ray job: {job.name}", partial(submit, server, folder, job))
        problems += judge("ray job: dashboard", partial(dashboard, server))
        problems += judge("ray job: status", partial(status, f"127.0.0.1:{ports[0]}"))
        if problems:
            finish(problems, "")  # here, so that the log of the cluster is printed
    finish(problems, f"{len(JOBS)} jobs; dashboard and status show them and their node")


if __name__ == "__main__":
    main()
