"""Writes dpkg's database of installed packages.

`var/lib/dpkg` contains the files that dpkg would write: status, info/*, triggers, diversions and
alternatives. A complete database is written instead of files in status.d, because `apt-get install`
in a derived image needs the database.
"""

# A separate module: a file format.
from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from imgbuild.deb.archive import DebContents
from imgbuild.deb.table import AlternativeEffect, DiversionEffect, trigger_interests
from imgbuild.deb.tree import DebTree
from imgbuild.values import Arch

ROOT = "var/lib/dpkg"
EXECUTABLE = ("preinst", "postinst", "prerm", "postrm", "config")
# The order of known fields in dpkg; other fields follow.
FIELDS = (
    "Package", "Essential", "Protected", "Status", "Priority", "Section", "Installed-Size",
    "Origin", "Maintainer", "Bugs", "Architecture", "Multi-Arch", "Source", "Version",
    "Config-Version", "Replaces", "Provides", "Depends", "Pre-Depends", "Recommends", "Suggests",
    "Breaks", "Conflicts", "Enhances", "Conffiles", "Description",
)  # fmt: skip


def install_database(
    tree: DebTree,
    packages: Sequence[DebContents],
    arch: Arch,
    alternatives: Mapping[str, Sequence[AlternativeEffect]],
    diversions: Sequence[DiversionEffect],
) -> None:
    """Write the database, in which all `packages` are installed and configured."""
    ordered = sorted(packages, key=lambda package: package.name)
    status = b"".join(_status(tree, package) for package in ordered)
    tree.file(f"{ROOT}/status", status)
    tree.file(f"{ROOT}/arch", f"{arch.debian}\n".encode())
    tree.file(f"{ROOT}/info/format", b"1\n")
    rows = "".join(f"{item.path}\n{item.to}\n{item.package}\n" for item in diversions)
    tree.file(f"{ROOT}/diversions", rows.encode())
    for package in ordered:
        same = package.control.get("Multi-Arch") == "same"
        name = f"{package.name}:{arch.debian}" if same else package.name
        listing = "".join(f"/{path or '.'}\n" for path in package.listing)
        tree.file(f"{ROOT}/info/{name}.list", listing.encode())
        for file, data in package.files.items():
            mode = 0o755 if file in EXECUTABLE else 0o644
            tree.file(f"{ROOT}/info/{name}.{file}", data, mode=mode)
    _triggers(tree, ordered)
    for name, choices in alternatives.items():
        tree.file(f"{ROOT}/alternatives/{name}", alternative_state(choices))


def alternative_state(choices: Sequence[AlternativeEffect]) -> bytes:
    """Return the state file of an alternative in automatic mode."""
    slaves = {slave.name: slave.link for choice in choices for slave in choice.slaves}
    lines = ["auto", choices[0].link]
    for name in sorted(slaves):
        lines += [name, slaves[name]]
    lines.append("")
    for choice in sorted(choices, key=lambda choice: choice.path):
        paths = {slave.name: slave.path for slave in choice.slaves}
        lines += [
            choice.path,
            str(choice.priority),
            *(paths.get(name, "") for name in sorted(slaves)),
        ]
    return ("\n".join(lines) + "\n\n").encode()


def _status(tree: DebTree, package: DebContents) -> bytes:
    fields = {**package.control, "Status": "install ok installed"}
    conffiles = [line for line in package.files.get("conffiles", b"").decode().splitlines() if line]
    if conffiles:
        fields["Conffiles"] = "".join(f"\n {_conffile(tree, line)}" for line in conffiles)
    names = [name for name in FIELDS if name in fields]
    names += [name for name in fields if name not in FIELDS]
    lines = [
        f"{name}:{'' if fields[name].startswith(chr(10)) else ' '}{fields[name]}" for name in names
    ]
    return ("\n".join(lines) + "\n\n").encode()


def _conffile(tree: DebTree, line: str) -> str:
    """Return the `status` line for a line of `conffiles`."""
    if not line.startswith("/"):
        flag, _, path = line.partition(" ")
        return f"{path} newconffile {flag}"
    return f"{line} {hashlib.md5(tree.read(line), usedforsecurity=False).hexdigest()}"


def _triggers(tree: DebTree, packages: Sequence[DebContents]) -> None:
    files = []
    for package in packages:
        for trigger, suffix in trigger_interests(package):
            row = f"{package.name}{suffix}\n"
            if trigger.startswith("/"):
                files.append(f"{trigger} {row}")
            else:
                tree.file(f"{ROOT}/triggers/{trigger}", row.encode())
    tree.file(f"{ROOT}/triggers/File", "".join(files).encode())
    tree.file(f"{ROOT}/triggers/Unincorp", b"")
