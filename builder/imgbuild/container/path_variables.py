"""Passes variables with paths (HF_HOME, …) to containers, and mounts the paths.

The rules are in the table `paths` of data/variables.yaml. `passed_paths` applies the table for
`run` and `smoke`. Job scripts for Slurm contain the table (images/templates/slurm/paths.j2),
because values are only known when a job runs.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from imgbuild.container.request import Mount
from imgbuild.matrix.fields import Source
from imgbuild.system import decoding, files, yaml_data

# Folders of every image, which the mount of a variable's path must not hide.
SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - empty when a container starts
IMAGE_FOLDERS = (
    "/bin", "/dev", "/etc", "/lib", "/lib64", "/opt/imgbuild", "/opt/venv", "/proc", "/run",
    "/sbin", "/sys", "/usr", "/var/cache/imgbuild", *SCRATCH[:2],
)  # fmt: skip
VariableUse = Literal["mounted", "not passed"]
DATABASE = "sqlite:///"
ADDRESSES = ("file:", DATABASE)  # values that contain a path as a URL


class PathVariables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the table: variables with the same rules.

    `holds` is the type of data at the path. "new file" means a file that the program creates.
    """

    names: tuple[str, ...]
    use: VariableUse
    holds: Literal["folder", "file", "new file"]
    reason: str
    source: tuple[Source, ...]
    hf_cache: bool = False


class PassedPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The variables to pass to a container, the mounts, and messages about omitted variables.

    In `env`, None stands for the variable's value in this process.
    """

    env: Mapping[str, str | None]
    mounts: tuple[Mount, ...]
    messages: tuple[str, ...]


@functools.cache
def path_variable_table() -> tuple[PathVariables, ...]:
    """Return the rows of the table `paths`, in the order of the file."""
    tables = yaml_data.load_yaml_data(files.data("variables.yaml"), dict[str, Any])
    return decoding.convert(tables["paths"], tuple[PathVariables, ...])


def variable_names(use: VariableUse | None = None) -> frozenset[str]:
    """Return the names of all path variables, or only of those with this `use`."""
    return frozenset(
        name for row in path_variable_table() if use in (None, row.use) for name in row.names
    )


def image_folders(env: Iterable[str]) -> tuple[str, ...]:
    """Return the folders of an image, and the folders in its variables `env` (NAME=VALUE)."""
    values = (path for line in env for path in line.partition("=")[2].split(":"))
    return tuple(sorted({*IMAGE_FOLDERS, *(path for path in values if path.startswith("/"))}))


def apptainer_folders() -> tuple[str, ...]:
    """Return the folders that Apptainer mounts by default, each at the same path."""
    return (os.path.expanduser("~"), "/tmp", "/var/tmp")  # noqa: PTH111, S108


def local_path(value: str) -> Path | None:
    """Return the absolute path in `value`, or None for a URL such as https://….

    The result is /PATH for file:/PATH, and the folder of the database for sqlite:////PATH/FILE.
    Relative paths in URLs are not changed, because the program starts in the same folder.
    """
    if value.startswith("file:/"):
        value = "/" + value.removeprefix("file:").lstrip("/")
    elif value.startswith(f"{DATABASE}/"):
        value = os.path.dirname(value.removeprefix(DATABASE))
    elif "://" in value or value.startswith("file:"):
        return None
    path = os.path.expanduser(value)  # noqa: PTH111 - works without a home
    return Path(os.path.abspath(path))  # noqa: PTH100 - without ".."; links stay as they are


def passed_paths(
    environ: Mapping[str, str],
    *,
    mounts: Sequence[Mount] = (),
    folders: Collection[str] = IMAGE_FOLDERS,
    without: Collection[str] = (),
    hf_cache: bool = True,
) -> PassedPaths:
    """Select the path variables in `environ` to pass to a container that also has `mounts`.

    `folders` are the folders of the image. Variables in `without` are omitted without a message.
    The Hugging Face cache is passed only with `hf_cache`.
    """
    env: dict[str, str | None] = {}
    more: list[Mount] = []
    messages = []
    for row in path_variable_table():
        values = {
            name: environ[name]
            for name in row.names
            if environ.get(name) and name not in without and (hf_cache or not row.hf_cache)
        }
        if row.use == "not passed":
            messages += [_omission_message(values, row.reason)] if values else []
            continue
        for name, value in values.items():
            path = local_path(value)
            if path is None:
                env[name] = None
                continue
            place = path.parent if row.holds == "new file" else path
            if not _is_visible(place, [*mounts, *more]):
                message = _obstacle(name, value, place, row, [*mounts, *more], folders)
                if message is not None:
                    messages.append(message)
                    continue
                more.append(Mount(source=place, target=str(place), writable=row.holds != "file"))
            env[name] = value if value.startswith(ADDRESSES) else str(path)
    return PassedPaths(env=env, mounts=tuple(more), messages=tuple(messages))


def unmounted_paths(
    env: Mapping[str, str], targets: Collection[str], option: str = "-v {0}:{0}"
) -> list[str]:
    """Return warnings about paths in `env` that are not below a mount in `targets`.

    Paths in folders of the image are allowed. `option` is the option that mounts a path.
    """
    warnings = []
    for row in path_variable_table():
        for name in row.names:
            path = local_path(env[name]) if env.get(name) else None
            if path is None or _is_below(path, targets):
                continue
            if _is_below(path, IMAGE_FOLDERS) and not (
                _is_below(path, SCRATCH) and _path_exists(path)
            ):
                continue
            place = path.parent if row.holds == "new file" else path
            warnings.append(
                f"{name}={env[name]}: {path} of this machine is not mounted in the container; to "
                f"mount it, add {option.format(place)}"
            )
    return warnings


def split_settings(env: Mapping[str, str]) -> tuple[dict[str, str], tuple[Mount, ...]]:
    """Split `env` into variables for a command that only reads, and mounts of their files.

    Path variables are omitted, except for variables with the path of an existing file.
    """
    read = passed_paths(
        {
            name: env[name]
            for row in path_variable_table()
            if row.holds == "file" and row.use == "mounted"
            for name in row.names
            if name in env
        }
    )
    rest = {name: value for name, value in env.items() if name not in variable_names()}
    return rest | {name: value or env[name] for name, value in read.env.items()}, read.mounts


def _omission_message(values: Mapping[str, str], reason: str) -> str:
    name, value = next(iter(values.items()))
    path = local_path(value) or value
    shown = ", ".join(f"{name}={value}" for name, value in values.items())
    verb = "is" if len(values) == 1 else "are"
    return (
        f"{shown} {verb} not passed: {reason}; to pass {name}, add -v {path}:{path} -e "
        f"{name}={path}"
    )


def _obstacle(
    name: str,
    value: str,
    path: Path,
    row: PathVariables,
    mounts: Iterable[Mount],
    folders: Iterable[str],
) -> str | None:
    """Return the reason why `path` cannot be mounted at the same path, or ""."""
    if not _path_exists(path):
        remedy = f"correct or unset {name}" if row.holds == "file" else f"mkdir -p {path}"
        return f"{name}={value} is not passed: {path} does not exist; {remedy}"
    taken = [
        f"{mount.source} is mounted at {mount.target}"
        for mount in mounts
        if str(mount.source) != mount.target
        and (_is_below(path, [mount.target]) or _is_below(mount.target, [path]))
    ]
    taken += [
        f"a mount at {path} hides {folder} of the image"
        for folder in folders
        if _is_below(folder, [path])
    ]
    if not taken:
        return None
    other = f"/mnt/{name.lower()}"
    return (
        f"{name}={value} is not passed: {taken[0]}; to pass it, add -v {path}:{other} -e "
        f"{name}={other}{value.rpartition(str(path))[2]}"
    )


def _is_visible(path: Path, mounts: Iterable[Mount]) -> bool:
    return any(
        mount.target == str(path)
        or (_is_below(path, [mount.target]) and str(mount.source) == mount.target)
        for mount in mounts
    )


def _path_exists(path: Path) -> bool:
    """Return whether this user can see a file at `path`."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises PermissionError


def _is_below(path: Path | str, folders: Iterable[Path | str]) -> bool:
    return any(f"{path}/".startswith(f"{folder}".rstrip("/") + "/") for folder in folders)
