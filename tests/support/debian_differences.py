"""Lists accepted differences between an assembled and an installed Debian root, with reasons.

The names in `_OF` have the differences of one suite, by its code name.
"""

from __future__ import annotations

# Paths that exist only in the real root.
ONLY_REAL = {
    r"dev/.+": "devices and their links come from the container's runtime",
    r"etc/(\.pwd\.lock|(passwd|group|gshadow)-)": "lock and backups of tools that change accounts",
    r"etc/(fstab|hostname|resolv\.conf)": "mmdebstrap's own; the runtime mounts the true ones",
    r"etc/dpkg/dpkg\.cfg\.d/99mmdebstrap": "mmdebstrap's list of what is omitted",
    r"etc/rc[06S]\.d/[KS]01(hwclock\.sh|procps)": "starting services at boot: no init runs here",
    r"etc/systemd/system/timers\.target\.wants(/.+)?": "timers of systemd, which is not here",
    r"usr/lib/python3(\.\d+)?/(.+/)?__pycache__(/.+)?": "byte code differs from run to run",
    r"usr/share/python3/(.+/)?__pycache__(/.+)?": "byte code differs from run to run",
    r"usr/share/info/dir": "index of the info pages, which are omitted",
    r"var/(cache/apt/archives|lib/apt/lists)/lock": "locks, made at each use",
    r"var/lib/apt/extended_states": "what apt chose itself; without it apt keeps every package",
    r"var/cache/debconf/.+": "answers to debconf's questions; it makes the files anew at first use",
    r"var/lib/dpkg/(lock|lock-frontend|triggers/Lock)": "locks, made at each use",
    r"var/lib/dpkg/.+-old": "dpkg's backups of its own state",
    r"var/lib/systemd/deb-systemd-helper-enabled(/.+)?": "timers of systemd, which is not here",
}
ONLY_REAL_OF: dict[str, dict[str, str]] = {
    "bookworm": {},
    "trixie": {
        r"etc/apt/sources\.list": "the real root has its own mirror",
        r"etc/systemd/user/sockets\.target\.wants(/.+)?": "sockets of systemd, which is not here",
        r"var/lib/systemd/deb-systemd-user-helper-enabled(/.+)?": "the same",
    },
}
# Of these only folders and links may be missing from ours: dpkg keeps them if a file may follow.
ONLY_REAL_EMPTY = {
    r"usr/share/doc/.+": "folders of, and links to, documentation that is omitted",
}
ONLY_OURS = {
    r"etc/dpkg/dpkg\.cfg\.d/imgbuild": "what is omitted, for packages that people add",
}
ONLY_OURS_OF: dict[str, dict[str, str]] = {
    "bookworm": {},
    "trixie": {r"etc/apt/sources\.list\.d/debian\.sources": "the mirrors of apt's example"},
}
OTHER_CONTENT_OF: dict[str, dict[str, str]] = {
    "bookworm": {
        r"etc/apt/sources\.list": "the real root has its own mirror; ours those of apt's example",
    },
    "trixie": {},
}
OTHER_OWNER = {
    r"var/(cache/apt/archives|lib/apt/lists)/partial": "apt gives them to its user at first use",
}
