"""Tests that a signal to a CI script ends its running step and sets the script's exit status."""

from __future__ import annotations

import re
import signal
import subprocess
import time

import pytest

from tests.support.ci_jobs_sample import _sample, _shared_sample, job_script, make_jobs
from tests.support.inprocess_project import TARGET, SampleProject

__all__ = ["_sample", "_shared_sample"]  # fixtures
STEP = """\
#!/bin/bash
[ "$1" != digest ] || { echo "$DIGEST"; exit; }
[ "$1" = build ] || { echo '{}'; exit; }
trap 'echo "the step ends" >&2; touch ended; exit 143' TERM
echo "the step runs" >&2
touch begun
while :; do sleep 0.05; done
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_signal_to_a_ci_script_stops_the_running_step(
    sample: SampleProject, number: signal.Signals, status: int
) -> None:
    step = sample.folder / "step"
    step.write_text(STEP)
    step.chmod(0o755)
    text = job_script(sample, make_jobs(sample), published=False)
    text = re.sub(r"^imgbuild=.*$", f"imgbuild=({step})", text, flags=re.MULTILINE)
    path = sample.folder / "script.sh"
    path.write_text(text)
    env = {"PATH": "/usr/bin:/bin", "DIGEST": sample.target_digests.digest}
    with subprocess.Popen(
        ["/bin/bash", str(path)], env=env, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as running:  # fmt: skip
        while running.poll() is None and not (sample.folder / "begun").exists():
            time.sleep(0.02)
        running.send_signal(number)
        _, messages = running.communicate()
    assert running.returncode == status, messages
    assert (sample.folder / "ended").exists()
    place = sample.folder / f"build/ci/{TARGET}@x86_64"
    assert (place / "build.log").read_text() == "the step runs\nthe step ends\n"
    assert "interrupted; run this script again to continue" in messages
    assert (place / "audit.json").exists()
    assert not (place / "build.json").exists()
