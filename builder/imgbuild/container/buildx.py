"""Runs `docker buildx bake` with the current builder or $BUILDX_BUILDER.

On a terminal, buildx draws the progress. Otherwise, imgbuild reports the lines that buildx prints.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from imgbuild.container import engine
from imgbuild.errors import ImgbuildError, InputError, ToolMissing, WorkFailed
from imgbuild.system import process, programs
from imgbuild.system.reporter import SILENT_REPORTER, Reporter

MINIMUM_VERSION = (0, 12)  # OCI layouts as contexts and as results
LINES = 40  # lines of the builder's output in an error
REMEDY = "install Docker's buildx plugin (Debian: docker-buildx), or use the embedded builder"
# Files in the matrix folder are read and written, even through links, without a prompt.
SETTINGS = {"BUILDX_BAKE_ENTITLEMENTS_FS": "0"}
STORE = (
    "configure Docker to use the containerd image store, or create a builder in a container: "
    "docker buildx create --use"
)
# Output of buildx, class of the error, and remedy.
CAUSES: tuple[tuple[str, type[ImgbuildError], str], ...] = (
    (
        r"exporter is not supported for the docker driver|OCI exporter is not",
        ToolMissing,
        STORE,
    ),
    (
        r"Cannot connect to the Docker daemon|is the docker daemon running",
        ToolMissing,
        engine.REMEDY,
    ),
    (
        r"no builder .* found|failed to find (builder|driver)",
        InputError,
        "set BUILDX_BUILDER to a builder listed by `docker buildx ls`",
    ),
    (
        r"no space left on device",
        WorkFailed,
        (
            "free three times the size of the image with `docker buildx prune` and `docker image "
            "prune`"
        ),
    ),
)


def find_buildx() -> tuple[str, ...]:
    """Find the command for buildx: a plugin of docker, or a separate program.

    Raises ToolMissing if buildx is not installed or older than `MINIMUM_VERSION`.
    """
    for command in (("docker", "buildx"), ("docker-buildx",), ("buildx",)):
        if programs.find_on_path(command[0]) is None:
            continue
        answer = process.run_command([*command, "version"], check=False)
        version = re.search(r"\bv?(\d+)\.(\d+)\.\d\S*", answer.stdout)
        if answer.status == 0 and version:
            if (int(version[1]), int(version[2])) < MINIMUM_VERSION:
                message = (
                    f"buildx {version[0]} is too old; "
                    f"{MINIMUM_VERSION[0]}.{MINIMUM_VERSION[1]} or newer is required"
                )
                raise ToolMissing(message, hint=REMEDY)
            return command
    message = "docker buildx is not installed"
    raise ToolMissing(message, hint=REMEDY)


def bake_target(
    folder: Path,
    file: str,
    target: str,
    values: Mapping[str, str],
    *,
    reporter: Reporter = SILENT_REPORTER,
    terminal: bool = False,
) -> None:
    """Build `target` of the bake file `file` in `folder`. An interrupt cancels the build.

    `values` override settings of the target. With `terminal`, buildx draws the progress. Otherwise,
    errors include the end of the output. Raises ToolMissing if no engine responds, InputError for
    an unknown builder, and WorkFailed for other failures.
    """
    words = [*find_buildx(), "bake", "--progress=auto", f"--file={file}"]
    words += [f"--set={target}.{key}={value}" for key, value in values.items()]
    words.append(target)
    last: collections.deque[str] = collections.deque(maxlen=LINES)

    def _line(text: str) -> None:
        last.append(text)
        reporter.info(text)

    status = process.follow_output(words, None if terminal else _line, cwd=folder, env=SETTINGS)
    if status != 0:
        error = _error(target, last, words)
        error.log = "\n".join(last)
        raise error


def _error(target: str, last: Iterable[str], words: list[str]) -> ImgbuildError:
    output = "\n".join(last)
    message = f"docker buildx bake {target} failed" + (f":\n{output}" if output else "")
    for pattern, kind, remedy in CAUSES:
        if re.search(pattern, output):
            return kind(message, hint=remedy)
    return WorkFailed(message, hint=f"to repeat the build, run: {process.shell_command(words)}")
