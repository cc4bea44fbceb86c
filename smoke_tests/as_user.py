"""Runs a command as the image's user, where the caller is root of a root folder without an engine.

Arguments: UID GID COMMAND…. Root gives its rights up. A caller who is root in a user namespace
only, with no other user id to his name, makes one more namespace in which he is UID; there the
files of root seem to belong to UID.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

NEW_USER_NAMESPACE = 0x10000000


def become(user: int, group: int) -> None:
    """Give up root."""
    if os.getuid() != 0:
        return
    try:
        os.setgroups([group])
        os.setgid(group)
        os.setuid(user)
    except OSError:
        own_user, own_group = os.getuid(), os.getgid()
        if ctypes.CDLL(None, use_errno=True).unshare(NEW_USER_NAMESPACE) != 0:
            raise
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {own_user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {own_group} 1")


if __name__ == "__main__":
    become(int(sys.argv[1]), int(sys.argv[2]))
    os.execvp(sys.argv[3], sys.argv[3:])
