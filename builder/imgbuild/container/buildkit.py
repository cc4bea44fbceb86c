"""Builds a Dockerfile with BuildKit, through `docker buildx`, into an OCI layout.

Any builder that buildx knows can be used: the engine's own, a container, Kubernetes, a remote one.
buildx draws its own progress on a terminal; elsewhere its plain lines are passed on.
"""

from __future__ import annotations

import collections
import csv
import io
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from imgbuild.container import engine
from imgbuild.errors import ImgbuildError, InputError, ToolMissing, WorkFailed
from imgbuild.system import process as processes
from imgbuild.system.reporter import SILENT, Reporter
from imgbuild.values import Digest

LEAST = (0, 12)  # of buildx: layouts as contexts and as results, annotations
LINES = 40  # of the builder's output, kept for an error
REMEDY = (
    "install Docker's buildx plugin (Debian: docker-buildx), or use --builder podman; the embedded"
    " builder needs neither"
)
ANOTHER = "make a builder: docker buildx create --name NAME, then --buildx-builder NAME"
BUILDERS = "docker buildx ls names the builders"
# What `docker buildx inspect` says of a builder, and of one that was built without a version.
TOLD = re.compile(r"^BuildKit(?: version)?:[ \t]*(\S+)", re.MULTILINE | re.IGNORECASE)
DRIVER = re.compile(r"^Driver:[ \t]*(\S*)", re.MULTILINE)
UNTOLD = "v0.0.0+unknown"
# What a builder says, and what it means: the class of the error, and what to do.
CAUSES: tuple[tuple[str, type[ImgbuildError], str], ...] = (
    (
        r"exporter is not supported for the docker driver|OCI exporter is not",
        ToolMissing,
        f"let Docker use the containerd image store, or {ANOTHER}",
    ),
    (
        r"Cannot connect to the Docker daemon|is the docker daemon running",
        ToolMissing,
        engine.REMEDY,
    ),
    (
        r"no builder .* found|failed to find (builder|driver)",
        InputError,
        BUILDERS,
    ),
    (
        r"no space left on device",
        WorkFailed,
        "make room for three times the image: docker buildx prune, docker image prune",
    ),
)


class Buildx(msgspec.Struct, frozen=True, kw_only=True):
    """The command that drives BuildKit, and its version; `named` is that in full."""

    command: tuple[str, ...]
    version: tuple[int, int]
    named: str = ""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What is built: `context` holds the Dockerfile; `contexts` are named folders.

    `base` is a layout, and the image `digest` in it is the named context "base".

    `builder` is one of buildx's own, None for its default. `secrets` are files by their id, mounted
    only in the steps that ask for them. `annotations` go into manifests, by platform. Unless it is
    `dated`, files keep the time at which they were written.
    """

    title: str
    context: Path
    base: Path
    digest: Digest
    contexts: Mapping[str, str]
    platforms: tuple[str, ...]
    arguments: Mapping[str, str] = {}
    annotations: Mapping[str, Mapping[str, str]] = {}
    secrets: Mapping[str, Path] = {}
    network: str = "none"
    builder: str | None = None
    cache_from: tuple[str, ...] = ()
    cache_to: tuple[str, ...] = ()
    dated: bool = True


def find() -> Buildx:
    """The buildx that is installed, as a plugin of docker or by itself; ToolMissing if none is."""
    for command in (("docker", "buildx"), ("docker-buildx",), ("buildx",)):
        if shutil.which(command[0]) is None:
            continue
        answer = processes.run([*command, "version"], check=False)
        found = re.search(r"\bv?(\d+)\.(\d+)\.\d\S*", answer.stdout)
        if answer.status == 0 and found:
            version = (int(found[1]), int(found[2]))
            if version < LEAST:
                message = f"buildx {found[0]} is too old: {LEAST[0]}.{LEAST[1]} is the least"
                raise ToolMissing(message, hint=REMEDY)
            return Buildx(command=command, version=version, named=found[0])
    message = "docker buildx is not installed"
    raise ToolMissing(message, hint=REMEDY)


def version(builder: str | None) -> str:
    """What builds, with versions; ToolMissing or InputError if it does not answer.

    None means the current builder of buildx. A builder that is not running has no version, so it is
    started. An engine's own builder has the engine's version: Debian's does not state that of its
    BuildKit.
    """
    buildx = find()
    words = [*buildx.command, "inspect", "--bootstrap"]
    answer = processes.run(words if builder is None else [*words, builder], check=False)
    if answer.status != 0:
        last = "".join(answer.stderr.strip().splitlines()[-1:])
        named = f"no builder {builder!r} that answers" if builder else "a builder that fails"
        message = f"buildx has {named}: {last}"
        raise InputError(message, hint=BUILDERS)
    reported = set(TOLD.findall(answer.stdout))
    driver = DRIVER.search(answer.stdout)
    own = driver is None or driver[1] in ("", "docker")
    if own and (builder is None or not reported - {UNTOLD}):
        # Where buildx is installed alone there is no command that asks the engine.
        found = engine.find("docker") if reported else engine.require("docker")
        if found is not None:
            return f"docker {found.version}, buildx {buildx.named}"
    return f"buildkit {' '.join(sorted(reported)) or 'unknown'}, buildx {buildx.named}"


def build(order: Order, out: Path, *, reporter: Reporter = SILENT, terminal: bool = False) -> None:
    """Build `order` into the new folder `out`, an OCI layout. Interrupted, the build is cancelled.

    With `terminal` buildx draws its progress there. Without it, WorkFailed has the end of its
    output. ToolMissing if no engine answers.
    """
    words = command(order, out, find())
    last: collections.deque[str] = collections.deque(maxlen=LINES)

    def _line(text: str) -> None:
        last.append(text)
        reporter.info(text)

    with reporter.step(order.title):
        status = processes.follow(words, None if terminal else _line)
        if status != 0:
            raise _error(order, last, words)


def command(order: Order, out: Path, buildx: Buildx) -> list[str]:
    """The command line that builds `order` into `out`; InputError for a path it cannot hold."""
    words = [*buildx.command, "build", "--progress=auto"]
    if order.builder is not None:
        words.append(f"--builder={order.builder}")
    words += [f"--platform={','.join(order.platforms)}", f"--network={order.network}"]
    # What says who built it and when is no part of the image.
    words += ["--provenance=false", "--sbom=false"]
    words.append(f"--build-context=base=oci-layout://{_layout(order.base)}@{order.digest}")
    words += [f"--build-context={name}={place}" for name, place in order.contexts.items()]
    words += [f"--build-arg={name}={value}" for name, value in order.arguments.items()]
    words += [
        f"--secret={_row(f'id={name}', f'src={path}')}" for name, path in order.secrets.items()
    ]
    words += [f"--cache-from={place}" for place in order.cache_from]
    words += [f"--cache-to={place}" for place in order.cache_to]
    several = len(order.platforms) > 1
    words += [
        f"--annotation=manifest{f'[{platform}]' if several else ''}:{name}={value}"
        for platform, notes in order.annotations.items()
        for name, value in notes.items()
    ]
    kind = ["type=oci", f"dest={out}", "tar=false", "oci-mediatypes=true"]
    if order.dated:
        # Layers of the base stay as they are; times of files that are newer become the image's own.
        # For that BuildKit compresses each layer twice, with one thread each: hence the low level.
        kind.append("rewrite-timestamp=true")
    kind += ["compression=gzip", "compression-level=1"]
    return [*words, f"--output={_row(*kind)}", str(order.context)]


def _layout(place: Path) -> Path:
    """`place` as buildx can read it: a colon or an @ would end the path of a layout."""
    for path in (place, Path(os.path.relpath(place))):
        if not set(":@") & set(str(path)):
            return path
    message = f"{place}: buildx does not accept : or @ in the path of a layout"
    raise InputError(message, hint="run it in the folder of the matrix, or give that another name")


def _row(*fields: str) -> str:
    """Fields as buildx reads them, as a row of CSV: a path may hold commas."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()


def _error(order: Order, last: Iterable[str], words: list[str]) -> ImgbuildError:
    output = "\n".join(last)
    message = f"{order.title} failed:\n{output}" if output else f"{order.title} failed"
    for pattern, kind, remedy in CAUSES:
        if re.search(pattern, output):
            return kind(message, hint=remedy)
    return WorkFailed(message, hint=f"to repeat: {processes.pasted(words)}")
