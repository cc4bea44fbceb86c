#!/usr/bin/env python3
"""Builds targets in several environments, and compares the digests with images/TARGET/digests.json.

Every build except the first starts without cached layers, from input files that are linked from the
user's cache. All blobs of the results are hashed. Prints a table, and exits with status 1 if any
digest differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".venv" / "bin" / "python"
# Platforms for wheels of imgbuild's dependencies: Debian 13's glibc supports all of them.
PLATFORMS = ("any", *(f"manylinux_2_{minor}_" for minor in (17, 28, 34)), "manylinux2014_")


@dataclass(frozen=True, kw_only=True)
class BuildEnvironment:
    """The environment of a build. `root` is a folder used as the root of the file system."""

    words: Sequence[str] = ()
    env: dict[str, str] = field(default_factory=dict)
    umask: int = 0o022
    user: int | None = None
    folder: str = "project"
    suite: str | None = None


CASES = {
    "again": ("an empty cache of layers", BuildEnvironment()),
    "umask": ("another user, umask 077", BuildEnvironment(umask=0o077, user=54321)),
    "folder": (
        "another folder, time zone and locale",
        BuildEnvironment(
            folder="some wh\u00e9re/else",
            env={
                "TZ": "Asia/Kathmandu",
                "LC_ALL": "C",
                "PYTHONUTF8": "0",
                "PYTHONCOERCECLOCALE": "0",
                "PYTHONHASHSEED": "4321",
                "SOURCE_DATE_EPOCH": "1234567890",
            },
        ),
    ),
    "trixie": ("the Python of Debian 13, no network", BuildEnvironment(suite="trixie")),
    "sid": ("the Python of Debian sid, no network", BuildEnvironment(suite="sid")),
    "jobs-1": ("one process", BuildEnvironment(words=("--jobs", "1"))),
    "jobs-2": ("two processes", BuildEnvironment(words=("--jobs", "2"))),
    "offline": ("--offline", BuildEnvironment(words=("--offline",))),
}


def main() -> None:
    """Run the selected cases of the selected targets."""
    options = parse_arguments()
    project: Path = options.project.resolve()
    locked = project.glob("images/*/digests.json")
    targets = options.target or sorted(path.parent.name for path in locked)
    work = Path(tempfile.mkdtemp(prefix="imgbuild-reproduce-", dir=options.work)).resolve()
    # Another user must be able to enter it.
    work.chmod(0o755)
    failures = 0
    try:
        print("| target | surroundings | digest | seconds |\n| --- | --- | --- | --- |", flush=True)
        for target in targets:
            # With every input read and checked: no file is missing from the cache afterwards.
            first = ("first build, every file checked", BuildEnvironment(words=("--verify",)))
            cases = {"first": first} | {name: CASES[name] for name in options.case or CASES}
            for name, (title, surroundings) in cases.items():
                started = time.monotonic()
                fault = attempt_build(project, target, name, surroundings, work)
                seconds = time.monotonic() - started
                row = (target, title, fault or "as locked", f"{seconds:.0f}")
                print(f"| {' | '.join(row)} |", flush=True)
                failures += fault is not None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(1 if failures else 0)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    cases = "\n".join(f"  {name:8} {title}" for name, (title, _) in CASES.items())
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=f"cases:\n{cases}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", action="append", help="build only this target; repeatable")
    parser.add_argument(
        "--case",
        action="append",
        choices=[*CASES],
        help="build only in this environment; repeatable",
    )
    parser.add_argument(
        "--project",
        type=Path,
        default=ROOT,
        help="folder of the matrix (default: this repository)",
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=None,
        help="folder for builds, preferably on the same disk as the cache; requires 15 GB",
    )
    return parser.parse_args()


def attempt_build(
    project: Path, target: str, name: str, surroundings: BuildEnvironment, work: Path
) -> str | None:
    """Build `target` once. Returns None if the digest matches digests.json, or the error."""
    if os.geteuid() != 0 and (surroundings.user is not None or surroundings.suite is not None):
        return "not tried: requires root"
    folder = work / name
    try:
        place = folder / surroundings.folder
        copy_project(project, place)
        build = first_build if name == "first" else later_build
        build(target, surroundings, folder, place)
        return compare_layout(project, target, place / "out")
    except subprocess.CalledProcessError as error:
        log = folder / "log"
        tail = log.read_text(errors="replace").splitlines()[-15:] if log.exists() else []
        print("\n".join(tail), file=sys.stderr)
        return f"failed: {' '.join(error.cmd[:4])} ended with status {error.returncode}"
    except PermissionError as error:
        hint = "create .venv with a different Python"
        return f"not tried: {error.filename} is not readable by all users; {hint}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_project(project: Path, place: Path) -> None:
    """Copy imgbuild and the build inputs of the project to `place`, readable by all users."""
    place.mkdir(parents=True)
    shutil.copy(project / "matrix.yaml", place)
    shutil.copytree(project / "images", place / "images")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "builder", place / "builder", ignore=ignored)


def first_build(target: str, surroundings: BuildEnvironment, folder: Path, place: Path) -> None:
    """Build with the user's cache and the network."""
    run_logged(
        [*build_command(PYTHON, target, surroundings)], folder, place, {"PYTHONPATH": "builder"}
    )


def later_build(target: str, surroundings: BuildEnvironment, folder: Path, place: Path) -> None:
    """Build with a cache that contains only input files."""
    cache = place / "cache"
    link_inputs(place / "images" / target / "lock.json", cache_root() / "files", cache / "files")
    env = {"HOME": str(place), "IMGBUILD_CACHE": str(cache), "PYTHONPATH": "builder"}
    # Nothing should be fetched: requests fail, because no proxy listens on this port.
    env |= {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https")}
    env |= surroundings.env
    if surroundings.user is not None:
        give_ownership(place, surroundings.user)
    if surroundings.suite is None:
        run_logged(build_command(PYTHON, target, surroundings), folder, place, env, surroundings)
    else:
        run_in_suite(
            surroundings.suite, build_command("python3", target, surroundings), folder, place, env
        )


def build_command(python: Path | str, target: str, surroundings: BuildEnvironment) -> list[str]:
    """Return the command line of a build."""
    build = [str(python), "-P", "-m", "imgbuild", "build", "--target", target, "--output", "out"]
    return [*build, *surroundings.words]


def run_logged(
    command: Sequence[str],
    folder: Path,
    place: Path,
    env: dict[str, str],
    surroundings: BuildEnvironment | None = None,
) -> None:
    """Run `command` in `place`, and log its output. Raises CalledProcessError if it fails."""
    around = surroundings or BuildEnvironment()
    with (folder / "log").open("ab") as log:
        subprocess.run(
            command,
            cwd=place,
            env={**os.environ, **env},
            stdout=log,
            stderr=log,
            umask=around.umask,
            user=around.user,
            group=around.user,
            extra_groups=None if around.user is None else [],
            check=True,
        )


def run_in_suite(
    suite: str, command: Sequence[str], folder: Path, place: Path, env: dict[str, str]
) -> None:
    """Run `command` offline in a root folder of a Debian release, with `place` as /project."""
    root = folder.parent / f"root-{suite}"
    if not root.exists():
        new_root = folder / "root"
        make_root(suite, new_root, folder)
        install_dependencies(python_version(new_root), new_root / "site", folder)
        (new_root / "project").mkdir()
        new_root.rename(root)
    inner = {**env, "HOME": "/project", "IMGBUILD_CACHE": "/project/cache"}
    inner |= {"PYTHONPATH": "builder:/site", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    assignments = [f"{key}={value}" for key, value in inner.items()]
    # Mounts exist only in the namespace and end with it; so does the absent network.
    script = (
        'mount --bind "$2" "$1/project" && mount -t proc proc "$1/proc" &&'
        ' mount --rbind /dev "$1/dev" && root=$1 && shift 2 &&'
        ' exec chroot "$root" env -i --chdir=/project "$@"'
    )
    isolated = ["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-c", script, "sh"]
    run_logged([*isolated, str(root), str(place), *assignments, *command], folder, folder, {})


def make_root(suite: str, root: Path, folder: Path) -> None:
    """Create a root folder of `suite` with its Python, from the mirror of this machine's apt."""
    sites = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Origin: Debian", "Label: Debian"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    mirror = sites.stdout.split()[0]
    options = ["--variant=apt", "--include=python3", "--mode=root"]
    options.append('--aptopt=Acquire::Check-Valid-Until "false"')
    run_logged(["mmdebstrap", *options, suite, str(root), mirror], folder, folder, {})


def python_version(root: Path) -> str:
    """Return the minor version of the root's Python, such as 3.13."""
    versions = [
        match[1]
        for path in (root / "usr" / "bin").iterdir()
        if (match := re.fullmatch(r"python(3\.\d+)", path.name))
    ]
    default = (root / "usr" / "bin" / "python3").readlink().name.removeprefix("python")
    return default if default in versions else versions[0]


def install_dependencies(version: str, site: Path, folder: Path) -> None:
    """Unpack wheels of imgbuild's dependencies for a version of Python. No code is run."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    machine = os.uname().machine
    platforms = [p if p == "any" else f"{p}{machine}" for p in PLATFORMS]
    command = [
        str(PYTHON),
        "-P",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-compile",
        "--target",
        str(site),
    ]
    command += ["--only-binary", ":all:", "--python-version", version]
    command += [word for platform in platforms for word in ("--platform", platform)]
    command += ["--constraint", str(ROOT / "tools" / "constraints.txt"), *project["dependencies"]]
    run_logged(command, folder, folder, {})


def compare_layout(project: Path, target: str, layout: Path) -> str | None:
    """Hash all blobs of the layout. Returns None if they match digests.json, or the error."""
    locked = json.loads((project / "images" / target / "digests.json").read_text())
    expected = {entry["manifest"] for entry in locked["arch"].values()}
    manifests = set()
    index = json.loads((layout / "index.json").read_text())
    waiting = [entry["digest"] for entry in index["manifests"]]
    while waiting:
        digest = waiting.pop()
        path = layout / "blobs" / digest.replace(":", "/")
        with path.open("rb") as file:
            if f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" != digest:
                return f"damaged: {digest}"
        if path.stat().st_size > 1 << 20:
            continue
        waiting.extend(child_digests(path))
        if is_manifest(path):
            manifests.add(digest)
    missing, strange = expected - manifests, manifests - expected
    if missing or strange:
        return f"DIFFERS: {', '.join(sorted(strange)) or 'none'} for {', '.join(sorted(missing))}"
    return None


def child_digests(path: Path) -> list[str]:
    """Return the digests in a document of the layout, or [] for other blobs."""
    document = read_document(path)
    entries = [*document.get("manifests", []), *document.get("layers", [])]
    if "layers" in document:
        entries.append(document["config"])
    return [entry["digest"] for entry in entries]


def is_manifest(path: Path) -> bool:
    """Return whether a blob is the manifest of an image."""
    return "layers" in read_document(path)


def read_document(path: Path) -> dict[str, Any]:
    """Return the JSON object in a blob, or {} if the blob is not an OCI document."""
    with path.open("rb") as file:
        if file.read(1) != b"{":
            return {}
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document if "schemaVersion" in document else {}


def cache_root() -> Path:
    """Return the folder of the user's cache."""
    if "IMGBUILD_CACHE" in os.environ:
        return Path(os.environ["IMGBUILD_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "imgbuild"


def link_inputs(lock: Path, files: Path, into: Path) -> None:
    """Link the files in `lock` by sha256, or copy those that cannot be linked."""
    for sha256 in sorted(set(re.findall(r"\b[0-9a-f]{64}\b", lock.read_text()))):
        source = files / sha256[:2] / sha256
        if source.exists():
            place = into / sha256[:2] / sha256
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                place.hardlink_to(source)
            except OSError:
                shutil.copy(source, place)


def give_ownership(place: Path, user: int) -> None:
    """Make `user` the owner of everything below `place`. Linked files are replaced by copies."""
    for base, _, names in os.walk(place):
        os.chown(base, user, user)
        for path in (Path(base) / name for name in names):
            if path.stat().st_nlink > 1:
                Path(shutil.copy(path, path.with_name(f"{path.name}.own"))).replace(path)
            os.chown(path, user, user)


if __name__ == "__main__":
    main()
