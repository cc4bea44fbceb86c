"""Tests functions of the GPU tiers without a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).parents[2]
SCRIPTS = REPOSITORY / "smoke_tests"

TURNS = """\
import sys
import time
from pathlib import Path
import smoke_gpu
smoke_gpu.turn(alone="alone" in sys.argv[2])
log = Path(sys.argv[1])
for word in ("begins", "ends"):
    with log.open("a") as stream:
        stream.write(f"{sys.argv[2].replace(' ', '-')} {word}\\n")
    time.sleep(0.2)
"""
MEETING = """\
import sys
import time
from pathlib import Path
import smoke_gpu
smoke_gpu.turn()
log = Path(sys.argv[1])
def say(word):
    with log.open("a") as stream:
        stream.write(f"{sys.argv[2]} {word}\\n")
say("begins")
while log.read_text().count("begins") < 3:
    time.sleep(0.05)
say("ends")
"""
SERVER = """\
import http.server
import json
import sys
class Handler(http.server.BaseHTTPRequestHandler):
    def _answer(self, status, text):
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())
    def do_GET(self):
        self._answer(200, "")
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(200 if "good" in asked else 422, json.dumps({"got": asked}))
if sys.argv[2] == "fails":
    raise RuntimeError("no room for the model")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
ASKS = """\
import sys
import smoke_gpu
port = smoke_gpu.free_port()
with smoke_gpu.server([sys.executable, "server.py", str(port), sys.argv[1]],
                      f"http://127.0.0.1:{port}/health", 30):
    print(smoke_gpu.post(f"http://127.0.0.1:{port}/x", {"good": 1})["got"])
    smoke_gpu.post(f"http://127.0.0.1:{port}/x", {"bad": 1})
"""


def python(
    folder: Path, script: str, *words: object, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a script that imports the modules of the smoke tests."""
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, words)],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SCRIPTS), **env},
        capture_output=True,
        text=True,
        check=False,
    )


def run(folder: Path, tier: str, *words: str, packages: dict[str, str] | None = None) -> Any:
    """Run a tier for a lock of `packages` with this Python, and return its report."""
    expect = {
        "packages": packages or {}, "debian": [], "prefix": "/", "cache": str(folder),
        "workdir": str(folder), "flashinfer": "off",
    }  # fmt: skip
    (folder / "expect.json").write_text(json.dumps(expect))
    command = [sys.executable, str(SCRIPTS / "run.py"), "--json", f"--tier={tier}", *words]
    done = subprocess.run(
        [*command, f"--expect={folder}/expect.json"],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("tier", ["gpu", "multi-gpu"])
def test_gpu_tier_fails_if_the_gpu_is_missing(tier, tmp_path):
    report = run(tmp_path, tier, f"--report={tmp_path}/report.json", packages={"torch": "2.6.0"})
    first, *rest = report["cases"]
    assert (first["name"][:6], first["outcome"]) == ("device", "failed")
    assert {(case["outcome"], case["message"]) for case in rest} == {
        ("skipped", f"{first['name']} did not pass")
    }
    written = json.loads((tmp_path / "report.json").read_text())
    assert written | {"seconds": report["seconds"]} == report  # it was written a moment before


def test_gpu_tier_run_by_pytest_fails_if_the_gpu_is_missing(tmp_path):
    run(tmp_path, "gpu")  # which writes the expected content of the image
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(SCRIPTS), "--tier=gpu"]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    done, unnamed, unread = (
        subprocess.run(
            [*command, *words], cwd=SCRIPTS, env=env, capture_output=True, text=True, check=False
        )
        for words in ([f"--expect={tmp_path}/expect.json"], [], ["--expect=absent.json"])
    )
    assert done.returncode == 1
    assert re.search(r"1 failed, \d+ skipped in", done.stdout)
    assert "test_case[device]" in done.stdout
    assert (unnamed.returncode, "--expect FILE" in unnamed.stderr) == (4, True)
    assert (unread.returncode, "absent.json: " in unread.stderr) == (4, True)


def test_cuda_case_fails_and_cases_for_missing_packages_are_skipped(tmp_path):
    only = "--case=cuda|[!cd]*"
    cases = run(tmp_path, "gpu", only, "--jobs=2", packages={"torch": "1", "vllm": "1"})["cases"]
    named = {case["name"]: case for case in cases}
    assert named["cuda"]["outcome"] == "failed"
    assert named["vllm graphs"]["outcome"] == "skipped"
    assert named["vllm graphs"]["message"] == "the lock has no transformers"
    assert named["grpo step, verl"]["message"] == "the lock has no verl, ray"


def take(folder: Path, names: Sequence[str], share: int, script: str = TURNS) -> list[list[str]]:
    """The messages of concurrent cases, of which `share` may use the GPU at the same time."""
    log = folder / "log"

    def _take_turn(name: str) -> None:
        waited = folder / name
        env = {"SMOKE_TURN": str(folder / "turn"), "SMOKE_SHARE": str(share)}
        done = python(folder, script, log, name, **env, SMOKE_WAITED=str(waited))
        assert done.returncode == 0, done.stderr
        assert float(waited.read_text()) >= 0

    with ThreadPoolExecutor(len(names)) as pool:
        for _ in pool.map(_take_turn, names):
            pass
    return [row.split() for row in log.read_text().splitlines()]


def at_once(rows: Sequence[Sequence[str]]) -> list[frozenset[str]]:
    """The cases that were running whenever a case started."""
    inside: set[str] = set()
    groups = []
    for name, word, *_ in rows:
        if word == "begins":
            inside.add(name)
            groups.append(frozenset(inside))
        else:
            inside.remove(name)
    return groups


def test_cases_run_one_at_a_time_if_one_slot_is_available(tmp_path):
    assert [len(group) for group in at_once(take(tmp_path, "abc", 1))] == [1, 1, 1]


def test_exclusive_cases_run_alone(tmp_path):
    groups = at_once(take(tmp_path, ["a", "b", "alone", "c", "d", "alone too"], 3))
    assert len(groups) == 6
    assert max(map(len, groups)) in (2, 3)
    assert all(len(names) == 1 for names in groups if any("alone" in name for name in names))


def test_shared_cases_run_together_up_to_the_limit(tmp_path):
    """Each case waits for all other cases, so they end only if all run together."""
    assert max(map(len, at_once(take(tmp_path, "abc", 3, MEETING)))) == 3


SELECTING = """\
import os
import sys
import smoke_gpu
if "CUDA_VISIBLE_DEVICES" not in os.environ:
    smoke_gpu.visible = lambda: ["nvidia0", "nvidia1"]
smoke_gpu.select()
seen = os.environ["CUDA_VISIBLE_DEVICES"]
smoke_gpu.turn(alone=sys.argv[1] == "alone")
assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
print("is", seen, len(smoke_gpu._TURNS))
"""


def selected(folder: Path, share: int, word: str, **env: str) -> list[str]:
    """The GPU and the number of shared slots that each of four cases receives."""
    rows = []
    for _ in range(4):
        done = python(folder, SELECTING, word, SMOKE_SHARE=str(share), **env)
        rows += [row[3:] for row in done.stdout.splitlines() if row.startswith("is ")]
        assert done.returncode == 0, done.stderr
    return rows


@pytest.mark.parametrize("named", [None, "4,7"])
def test_single_gpu_cases_alternate_between_gpus_and_see_one_gpu(tmp_path, named):
    env = {"SMOKE_TURN": str(tmp_path / "turn")}
    env |= {"CUDA_VISIBLE_DEVICES": named} if named else {}
    first, second = named.split(",") if named else "01"
    assert selected(tmp_path, 4, "", **env) == [f"{first} 1", f"{second} 1"] * 2
    assert selected(tmp_path, 4, "alone", **env) == [f"{first} 2", f"{second} 2"] * 2
    assert selected(tmp_path, 1, "", **env) == [f"{first} 1"] * 4


def test_case_started_without_the_runner_uses_the_first_gpu(tmp_path):
    assert selected(tmp_path, 1, "", CUDA_VISIBLE_DEVICES="4,7") == ["4 0"] * 4


def test_gpu_in_use_does_not_delay_cases_on_another_gpu(tmp_path):
    """The first case keeps its GPU until the second case, on another GPU, has ended."""
    script = """\
import subprocess
import sys
import smoke_gpu
smoke_gpu.select()
smoke_gpu.turn(alone=True)
done = subprocess.run([sys.executable, "other.py"], env={**smoke_gpu.os.environ,
    "CUDA_VISIBLE_DEVICES": "4,7"}, timeout=60)
sys.exit(done.returncode)
"""
    (tmp_path / "other.py").write_text("import smoke_gpu\nsmoke_gpu.select()\nsmoke_gpu.turn()\n")
    env = {"SMOKE_TURN": str(tmp_path / "turn"), "CUDA_VISIBLE_DEVICES": "4,7"}
    done = python(tmp_path, script, SMOKE_SHARE="2", **env)
    assert done.returncode == 0, done.stderr
    used = sorted(row for row in done.stdout.splitlines() if "GPU:" in row)
    assert used == ["its GPU: 4", "its GPU: 7"]


def test_served_model_answers_requests_and_its_server_exits(tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    done = python(tmp_path, ASKS, "works", http_proxy="http://127.0.0.1:9")
    assert "{'good': 1}" in done.stdout
    assert 'answered 422: {"got": {"bad": 1}}' in done.stderr
    assert "--- server-" in done.stdout  # its log is the case's, where the case fails


def test_server_that_exits_is_reported_with_its_reason(tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    done = python(tmp_path, ASKS, "fails")
    assert done.returncode == 1
    assert "ended with status 1: RuntimeError: no room for the model (" in done.stderr


def test_output_of_a_case_command_is_forwarded_immediately(tmp_path):
    child = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(int(sys.argv[1]))"
    asks = """\
import sys
import smoke_gpu
said = smoke_gpu.follow([sys.executable, *sys.argv[1:]])
print("it said", sorted(said.split()))
"""
    good = python(tmp_path, asks, "-c", child, "0")
    assert sorted(good.stdout.splitlines()) == ["it said ['one', 'two']", "one", "two"]
    bad = python(tmp_path, asks, "-c", child, "3")
    assert (bad.returncode, sorted(bad.stdout.split())) == (3, ["one", "two"])


def test_verl_worker_errors_are_found_in_logs(tmp_path):
    logs = tmp_path / "ray/session_latest/logs"
    logs.mkdir(parents=True)
    step = "step:1 - actor/pg_loss:np.float64(-1.5e-05) - actor/grad_norm:0.25 - x/probs:nan"
    (logs / "worker-1.out").write_text(step)
    script = """\
import pathlib
import gpu_verl
log = gpu_verl.everything("(TaskRunner pid=7) step:1 - actor/lr:0.01", pathlib.Path())
print([gpu_verl.logged(log, key) for key in ("actor/pg_loss", "actor/grad_norm", "x/probs", "y")])
"""
    assert python(tmp_path, script).stdout == "[-1.5e-05, 0.25, nan, None]\n"


def test_duration_of_a_case_excludes_its_waiting_time(tmp_path):
    script = "import smoke_gpu; print(smoke_gpu.age())"
    assert float(python(tmp_path, script).stdout) > 0
    (tmp_path / "waited").write_text("1000.5")
    rest = float(python(tmp_path, script, SMOKE_WAITED=str(tmp_path / "waited")).stdout)
    assert rest < -900


def test_message_of_a_case_excludes_library_output_at_exit(tmp_path):
    script = """\
import atexit
import smoke_support
atexit.register(print, "WARNING 11-21 18:28:37 [utils.py:620] force killing processes")
smoke_support.finish([], "all equal")
"""
    done = python(tmp_path, script, SMOKE_SAID=str(tmp_path / "said"))
    assert done.stdout.splitlines()[-1].startswith("WARNING")
    assert (tmp_path / "said").read_text() == "all equal"
