"""Compares imgbuild's installation of wheels with `uv pip install`.

`compare_with_uv` installs each wheel with uv into a virtual environment, and compares paths,
contents and modes with `install.installed_members`. `ACCEPTED` lists the accepted differences.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from uv import find_uv_bin

from imgbuild.oci.content import FileReader, content_pieces
from imgbuild.oci.tar import LayerMember
from imgbuild.wheel import archive, install, record, scripts

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

SITE = f"lib/python{PYTHON}/site-packages"
INFO = rf"{re.escape(SITE)}/[^/]+\.dist-info"  # the value of INFO in the patterns below

# Accepted differences: paths and reasons. Nothing else may differ.
ACCEPTED = {
    r"^\.lock$": "uv locks the virtual environment during the installation",
    r"^INFO/RECORD$": "sorted, without uv's own files; its rows are compared one by one",
    r"^INFO/INSTALLER$": "the file names imgbuild as the installer, not uv",
    r"^INFO/REQUESTED$": "uv records that the wheel was requested by name",
    r"^INFO/direct_url\.json$": "uv records the folder of the wheel",
    r"^INFO/uv_cache\.json$": "uv records the modification time of the wheel",
    r"(^|/)__pycache__/[^/]+\.pyc$": "a wheel layer contains no bytecode",
}
# Files that uv adds to one package only, by package.
ACCEPTED_OF = {
    "pip": {r"^bin/pip3\.\d+$": "a third name for the command, which pip's wheel does not declare"},
}
# Launchers of entry points differ in text; `_launcher_faults` compares what they do.


def compare_with_uv(wheels: Sequence[Path], folder: Path) -> list[str]:
    """Compare `wheels` in `folder`, and return every difference that is not accepted."""
    return [fault for wheel in wheels for fault in _compare(wheel, folder / "oracle")]


def _compare(wheel: Path, folder: Path) -> list[str]:
    venv = folder / "venv"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        before = _install(wheel, folder, venv)
        real = {path: venv / path for path in _walk(venv) if path not in before}
        members = install.installed_members(wheel, prefix=str(venv), python=PYTHON)
        root = str(venv).strip("/") + "/"
        ours = {member.path.removeprefix(root): member for member in members}
        faults = list(_faults(wheel, ours, real, venv))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [f"{wheel.name}: {fault}" for fault in faults]


def _install(wheel: Path, folder: Path, venv: Path) -> set[str]:
    """Create a venv and install `wheel` into it. Returns the paths before the installation."""
    _uv("venv", "--python", sys.executable, str(venv), cache=folder / "cache")
    before = set(_walk(venv))
    # Hard links halve the disk that this takes; the content and modes are those of copies.
    _uv(
        *("pip", "install", "--python", str(venv / "bin/python"), "--link-mode", "hardlink"),
        *("--no-deps", "--no-index", "--no-compile-bytecode", str(wheel)),
        cache=folder / "cache",
    )
    return before


def _uv(*arguments: str, cache: Path) -> None:
    command = [find_uv_bin(), "--quiet", "--offline", "--no-config", *arguments]
    environment = {**os.environ, "UV_CACHE_DIR": str(cache)}
    subprocess.run(command, env=environment, umask=0o022, check=True)


def _walk(root: Path) -> Iterable[str]:
    for base, _, names in os.walk(root):
        for name in names:
            yield os.path.relpath(os.path.join(base, name), root)


def _faults(
    wheel: Path, ours: dict[str, LayerMember], real: dict[str, Path], venv: Path
) -> Iterable[str]:
    text = archive.read_wheel(wheel).text("entry_points.txt") or ""
    entries = {f"bin/{entry.name}": entry for entry in scripts.entry_points(text, wheel.name)}
    package = archive.read_wheel(wheel).name
    real = {
        path: file
        for path, file in real.items()
        if not _accepted(path, package, is_package_only=True)
    }
    yield from (f"{path}: only imgbuild has it" for path in ours.keys() - real.keys())
    for path, file in sorted(real.items()):
        if path not in ours:
            if not _accepted(path):
                yield f"{path}: only uv has it"
            continue
        member = ours[path]
        mode = stat.S_IMODE(file.lstat().st_mode)
        if file.is_symlink() or mode != member.mode:
            yield f"{path}: mode {member.mode:o}, with uv {mode:o}"
        if path in entries:
            yield from _launcher_faults(path, entries[path], _content(member), file.read_bytes())
        elif not _accepted(path) and _digest(member) != _file_digest(file):
            yield f"{path}: other content than with uv"
    yield from _record_faults(ours, real, package)


def _accepted(path: str, package: str = "", *, is_package_only: bool = False) -> bool:
    patterns = [*ACCEPTED_OF.get(package, ()), *(() if is_package_only else ACCEPTED)]
    return any(re.search(pattern.replace("INFO", INFO), path) for pattern in patterns)


def _launcher_faults(
    path: str, entry: scripts.EntryPoint, ours: bytes, theirs: bytes
) -> Iterable[str]:
    """The differences in interpreter and function between two launchers."""
    call = f"sys.exit({entry.attribute}())".encode()
    taken = f"from {entry.module} import {entry.attribute.partition('.')[0]}\n".encode()
    if ours.splitlines()[0] != theirs.splitlines()[0]:
        yield f"{path}: starts {ours.splitlines()[0]!r}, with uv {theirs.splitlines()[0]!r}"
    for text in (call, taken):
        if text not in ours or text not in theirs:
            yield f"{path}: {text!r} is not in both launchers"


def _record_faults(
    ours: dict[str, LayerMember], real: dict[str, Path], package: str
) -> Iterable[str]:
    """The differences between RECORD and the files, with imgbuild and with uv."""
    (where,) = [path for path in ours if re.fullmatch(f"{INFO}/RECORD", path)]
    rows = record.read_record(_content(ours[where]).decode(), where)
    theirs = record.read_record(_without_doubles(real[where].read_text()), where)
    for missing in {os.path.relpath(path, SITE) for path in ours} ^ rows.keys():
        yield f"RECORD and files disagree about {missing}"
    for missing in theirs.keys() - rows.keys():
        if (
            not _accepted(os.path.normpath(f"{SITE}/{missing}"), package)
            and ".data/" not in missing
        ):
            yield f"RECORD lacks {missing}, which uv's has"
    for path, row in rows.items():
        member = ours[os.path.normpath(os.path.join(SITE, path))]
        if f"{SITE}/{path}" != where and row.digest != _digest(member):
            yield f"RECORD has {row.digest} for {path}, which is {_digest(member)}"


def _without_doubles(text: str) -> str:
    """uv's RECORD without the original rows of files that uv rewrote and listed again."""
    rows = {line.rsplit(",", 2)[0]: line for line in text.splitlines()}
    return "\n".join(rows.values())


def _content(member: LayerMember) -> bytes:
    with FileReader() as files:
        return b"".join(content_pieces(member.content or b"", member.size, member.path, files))


def _digest(member: LayerMember) -> str:
    with FileReader() as files:
        return record.record_digest(
            content_pieces(member.content or b"", member.size, member.path, files)
        )


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return record.record_digest(iter(lambda: file.read(1 << 20), b""))
