"""Damages a running container of an image intentionally and runs the smoke tests in it."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from imgbuild.lock.lock_file import Lock
from imgbuild.report import TierName
from imgbuild.smoke import runner
from imgbuild.smoke.result import RunSettings
from imgbuild.values import Arch
from tests.support import downloads

SCRIPTS = Path(__file__).parents[2] / "smoke_tests"


def download_wheels(folder: Path, packages: Iterable[str], python: str = "3.11") -> list[Path]:
    """Download wheels for x86_64 without their dependencies."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (12, 17, 28)]
    return downloads.download_wheels(folder, packages, *platforms, f"--python-version={python}")


class DamagedContainer:
    """A container without a network that sleeps until it is removed."""

    def __init__(self, docker: str, reference: str) -> None:
        self.docker = docker
        words = [docker, "run", "--detach", "--network=none", reference, "sleep", "3600"]
        self.name = _output(words).strip()

    def damage(self, script: str) -> None:
        """Run a shell script in the container as root."""
        _output([self.docker, "exec", "--user=0", self.name, "sh", "-euc", script])

    def put(self, source: Path, target: str) -> None:
        """Copy a file, or the content of a folder, into the container."""
        inside = f"{source}/." if source.is_dir() else str(source)
        _output([self.docker, "cp", inside, f"{self.name}:{target}"])

    def cases(
        self, lock: Lock, tier: TierName, only: str, scratch: Path
    ) -> dict[str, tuple[str, str]]:
        """The outcome and message of each case, run as the user of the image."""
        expect = scratch / runner.EXPECTATION_FILE
        expect.write_bytes(msgspec.json.encode(runner.create_expectation(lock, Arch.X86_64)))
        self.put(SCRIPTS, runner.PLACE)
        self.put(expect, f"{runner.PLACE}/{runner.EXPECTATION_FILE}")
        self.damage(f"chmod -R a+rX {runner.PLACE}")
        how = RunSettings(timeout_factor=4, only=only)
        command = runner.command_line(lock.settings.prefix, tier, how)
        done = subprocess.run(
            [self.docker, "exec", self.name, *command],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        cases = json.loads(done.stdout)["cases"]
        return {case["name"]: (case["outcome"], case["message"]) for case in cases}


@contextlib.contextmanager
def run_container(docker: str, reference: str) -> Iterator[DamagedContainer]:
    """Start a container of an image, and remove it at the end."""
    container = DamagedContainer(docker, reference)
    try:
        yield container
    finally:
        subprocess.run([docker, "rm", "--force", container.name], capture_output=True, check=False)


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
