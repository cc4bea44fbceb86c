"""Creates the users and groups of a Debian base in /etc.

The files are passwd, group, shadow and gshadow. They list the accounts of base-passwd, the groups
that packages add, and the image's user. No account has a password.
"""

# A separate module: file formats.
from __future__ import annotations

from collections.abc import Iterable, Sequence

from imgbuild.deb.table import DebGroup
from imgbuild.deb.tree import DebTree
from imgbuild.errors import InputError
from imgbuild.matrix.model import User
from imgbuild.oci.tar import MTIME

MASTER = "usr/share/base-passwd"
SHELL = "/bin/bash"
SHADOW = 42  # the group with read access to shadow files
DAY = MTIME // 86400  # passwords were "last changed" at the constant time, not today


def install_accounts(tree: DebTree, groups: Sequence[DebGroup], user: User) -> None:
    """Write passwd, group, shadow and gshadow.

    Raises InputError if the name or an ID of the image's user already exists in the base.
    """
    passwd = [
        line.split(":") for line in tree.read(f"{MASTER}/passwd.master").decode().splitlines()
    ]
    group = [line.split(":") for line in tree.read(f"{MASTER}/group.master").decode().splitlines()]
    passwd = [row for row in passwd if len(row) == 7]
    group = [row for row in group if len(row) == 4]
    group += [
        [item.name, "!", str(item.gid), ""] for item in sorted(groups, key=lambda item: item.gid)
    ]
    _check_accounts(user, passwd, group)
    passwd.append([user.name, "!", str(user.uid), str(user.gid), "", user.home, SHELL])
    group.append([user.name, "!", str(user.gid), ""])
    shadow = [f"{row[0]}:{row[1]}:{DAY}:0:99999:7:::" for row in passwd]
    gshadow = [f"{row[0]}:{row[1]}::" for row in group]
    tree.file("etc/passwd", _lines(":".join([row[0], "x", *row[2:]]) for row in passwd))
    tree.file("etc/group", _lines(":".join([row[0], "x", *row[2:]]) for row in group))
    tree.file("etc/shadow", _lines(shadow), mode=0o640, gid=SHADOW)
    tree.file("etc/gshadow", _lines(gshadow), mode=0o640, gid=SHADOW)


def _check_accounts(
    user: User, passwd: Sequence[Sequence[str]], group: Sequence[Sequence[str]]
) -> None:
    taken = [
        f"user {row[0]} ({row[2]})"
        for row in passwd
        if user.name == row[0] or str(user.uid) == row[2]
    ]
    taken += [
        f"group {row[0]} ({row[2]})"
        for row in group
        if user.name == row[0] or str(user.gid) == row[2]
    ]
    if taken:
        requested = f"{user.name} ({user.uid}:{user.gid})"
        message = f"image.user {requested} already exists in the base: {', '.join(taken)}"
        raise InputError(message, hint="choose another name and IDs above 999 in matrix.yaml")


def _lines(rows: Iterable[str]) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()
